/* cli.h -- what the commands of `weft` share: options, HTTP calls, output.  Not here:
 * what a command does (weft_push.c, weft_watch.c, weft_show.c, weft_log.c,
 * weft_resolve.c) and libcurl (cli_http.c only). */
#ifndef WEFT_TOOLS_CLI_H
#define WEFT_TOOLS_CLI_H

#include "weft/base.h"
#include "weft/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes of every command. */
enum { CLI_DONE = 0, CLI_REFUSED = 1, CLI_USAGE = 2, CLI_UNREACHABLE = 3 };

typedef struct cli_opts {
  const char *server;     /* --server, else $WEFT_SERVER, else http://127.0.0.1:8000 */
  const char *token_file; /* --token-file, or NULL */
  const char *version;    /* --version, or NULL: the version string stays */
  const char *expected;   /* --expected-version, or NULL */
  const char *source;     /* "file", "tcp", "nccl" or "ipc" */
  const char *listen; /* --listen: where --source tcp and nccl serve, NULL = loopback */
  const char *rendezvous;    /* --rendezvous of nccl: "store", "id", or NULL: store */
  const char *nccl, *cudart; /* paths, or NULL */
  const char *device;        /* --device: a number, or NULL */
  const char *packed_bytes;  /* --packed-buffer-bytes: a number, or NULL */
  unsigned packed_buffers;   /* --packed-buffers; 0 = 2 */
  unsigned world_size;       /* --world-size; 0 = the server's and one */
  const char *reason;        /* --reason of abort */
  const char *compare;       /* --compare FILE of checksum */
  bool json, take_over, tensors, quiet, draft, packed;
  bool commit, abort; /* of resolve: one of them */
  unsigned timeout_s; /* --timeout; 0 = the server's defaults */
  unsigned count;     /* --count; 0 = for ever, or the server's default */
  char **files;       /* [file_count], borrowed from argv */
  size_t file_count;
} cli_opts;

/* ---- HTTP (cli_http.c) */
typedef struct cli_http cli_http;

typedef struct cli_reply {
  long status;      /* 0: no answer, error says why */
  char *body;       /* NUL-terminated, owned; never NULL after a call that returned */
  size_t len;       /* bytes */
  char session[80]; /* Weft-Session header, or "" */
  char error[320];  /* when status is 0 */
} cli_reply;

/* One server; keeps its connections.  NULL: said on stderr (bad URL, bad token file). */
cli_http *cli_http_create(const cli_opts *opts);
void cli_http_destroy(cli_http *http);
const char *cli_http_base(const cli_http *http); /* the URL without its credentials */

/* Called about ten times a second while a call runs.  false: give the call up. */
typedef bool cli_tick_fn(void *arg);
typedef struct cli_call {
  const char *method, *path; /* path with its query */
  const char *body;          /* JSON text or NULL */
  const char *session;       /* sent as Weft-Session when not NULL and not "" */
  unsigned timeout_s;        /* for the whole call; 0 = 300 */
  cli_tick_fn *tick;         /* may be NULL */
  void *arg;
} cli_call;
/* Always fills *out; free it with cli_reply_fini. */
void cli_http_do(cli_http *http, const cli_call *call, cli_reply *out);
void cli_reply_fini(cli_reply *reply);

/* GET path, beside a call that is under way: ask starts it when none is in flight, ready
 * is true when its answer is there (then *out is filled, owned by the caller). */
void cli_http_ask(cli_http *http, const char *path);
bool cli_http_ready(cli_http *http, cli_reply *out);

/* ---- saying what went wrong (cli_say.c) */
/* Prints the server's error, or why it cannot be reached, and returns the exit code. */
int cli_failed(const cli_opts *opts, const cli_http *http, const char *doing,
               const cli_reply *reply);
/* Of an update that ended without a commit: into text, what the server says it left.
 * sequence: before the end, when somebody else's commit may have come first, or NULL. */
const char *cli_left(cli_http *http, const uint64_t *sequence, char *text, size_t cap);
/* GET path and parse; on failure prints and returns the exit code, else CLI_DONE with
 * *reply and *tree to be freed by the caller. */
int cli_get_json(const cli_opts *opts, cli_http *http, const char *path, cli_reply *reply,
                 weft_json **tree);
/* printf to stderr with "weft: " in front. */
void cli_warn(const char *fmt, ...) WEFT_PRINTF(1, 2);
/* "1.25 GiB", into buf. */
const char *cli_bytes(uint64_t bytes, char *buf, size_t cap);
/* Member of object as text, number or fallback. */
const char *cli_str(const weft_json *object, const char *key, const char *fallback);
uint64_t cli_u64(const weft_json *object, const char *key);
double cli_now_s(void); /* monotonic */
/* True once SIGINT or SIGTERM has come; main blocks both. */
bool cli_interrupted(void);
/* Prints a compact JSON text on stdout and a line end. */
void cli_print_json(const char *text, size_t len);

/* ---- commands */
int cmd_push(const cli_opts *opts);
int cmd_watch(const cli_opts *opts);
int cmd_info(const cli_opts *opts);
int cmd_status(const cli_opts *opts);
int cmd_log(const cli_opts *opts);
int cmd_abort(const cli_opts *opts);
int cmd_checksum(const cli_opts *opts);
int cmd_resolve(const cli_opts *opts);

#endif /* WEFT_TOOLS_CLI_H */
