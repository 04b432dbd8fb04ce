/* push.h -- one `weft push` under way, shared by its files.  Not here: HTTP (cli.h).
 */
#ifndef WEFT_TOOLS_PUSH_H
#define WEFT_TOOLS_PUSH_H

#include "cli.h"
#include "weft/safetensors.h"

#include <stdatomic.h>

typedef struct push_gpu push_gpu; /* of --source nccl and ipc (weft_push_gpu.c) */

typedef struct push {
  const cli_opts *opts;
  cli_http *http;
  char session[80]; /* Weft-Session of ours, or "" */
  bool open;        /* the session is ours to abort */
  bool terminal, drawn;
  uint64_t file_bytes;    /* of the file under way; 0 = no bar */
  double began_s, said_s; /* of the update call under way; last progress line */
  double update_s, finish_s;
  push_gpu *gpu; /* or NULL */
  /* What runs beside the call under way has failed: the server has some seconds left to
   * say what it knows.  NULL = nothing runs. */
  const atomic_bool *beside_failed;
  double beside_failed_s; /* 0 = it has not */
  bool gave_up;           /* because of that */
} push;

/* POST path with body, progress shown; returns the exit code, said on stderr. */
int push_post(push *p, const char *path, const char *body);

/* Members "names", "dtype_names" and "shapes" of tensors first to first + count - 1. */
void push_lists(weft_json_writer *w, const weft_safetensors *st, size_t first,
                size_t count);
/* host:port, [v6]:port; false: said on stderr. */
bool push_split_address(const char *text, char *host, size_t cap, unsigned *port);

/* One update call whose bytes the workers fetch from this process (weft_push_tcp.c). */
int push_update_tcp(push *p, const char *path);

/* The same from this process's GPU memory.  open: before the session, for all files;
 * close: after it. */
bool push_is_gpu(const cli_opts *opts);
int push_gpu_open(push *p, char *const *paths);
int push_update_gpu(push *p, const char *path);
void push_gpu_close(push *p, int code); /* may end the process with it */

#endif /* WEFT_TOOLS_PUSH_H */
