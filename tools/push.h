/* push.h -- one `weft push` under way, shared by its two files.  Not here: HTTP (cli.h).
 */
#ifndef WEFT_TOOLS_PUSH_H
#define WEFT_TOOLS_PUSH_H

#include "cli.h"

typedef struct push {
  const cli_opts *opts;
  cli_http *http;
  char session[80]; /* Weft-Session of ours, or "" */
  bool open;        /* the session is ours to abort */
  bool terminal, drawn;
  uint64_t file_bytes;    /* of the file under way; 0 = no bar */
  double began_s, said_s; /* of the update call under way; last progress line */
  double update_s, finish_s;
} push;

/* POST /update_weights with body, progress shown; returns the exit code, said on stderr.
 */
int push_post_update(push *p, const char *body);

/* One update call whose bytes the workers fetch from this process (weft_push_tcp.c). */
int push_update_tcp(push *p, const char *path);

#endif /* WEFT_TOOLS_PUSH_H */
