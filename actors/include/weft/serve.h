/* weft/serve.h -- whole processes beside the engine's: one worker, or one HTTP front end.
 * What `weftd worker` and `weftd acceptor` are; a host program may offer them itself. Not
 * here: the engine (weft/weft.h).
 *
 * Both run on the calling thread until SIGTERM or SIGINT, or until what they belong to is
 * gone, and return WEFT_OK for an orderly end. */
#ifndef WEFT_SERVE_H
#define WEFT_SERVE_H

#include "weft/actor.h"
#include "weft/base.h"
#include "weft/err.h"
#include "weft/runtime.h"
#include "weft/weft.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_worker_opts {
  size_t size; /* sizeof(weft_worker_opts) */
  uint32_t rank, world_size;
  uint64_t incarnation; /* 0 = a random one */
  const char *listen;   /* url of the worker's port; NULL: chosen to fit join */
  const char *join;     /* announce there; NULL: a child, says so over its lifeline */
  const char *join_token;
  uint64_t join_timeout_ms; /* 0 = 60,000 */
  const char *backend;      /* "host", "nccl", "sparse_nccl" or "ipc"; NULL = "host" */
  const char *weights_root, *tcp_allow;
  unsigned copy_threads;
  uint32_t tp, pp; /* as the engine's; both 0 = world_size and 1 */
  weft_log_fn *log;
  void *log_arg;
  weft_log_level log_level;
  /* GPU backends: paths of the libraries (weft/device_table.h), the GPU as CUDA counts
   * (else the only one, or that of the rank), and whether pickled handles may be read. */
  const char *cudart, *nccl;
  bool has_gpu;
  uint32_t gpu;
  bool allow_ipc_pickle;
  const char *tp_plan;  /* as of weft_engine_opts; NULL = none */
  const char *manifest; /* as of weft_engine_opts; NULL = none */
  /* Readers are served only while the engine grants it, as of one that joined: a child's
   * engine that is itself a member of a fleet. */
  bool need_grant;
  bool draft; /* likewise, as its engine */
  const char *draft_manifest;
  weft_staging staging; /* as the engine's */
} weft_worker_opts;
WEFT_API weft_err weft_worker_run(const weft_worker_opts *opts, weft_why *why)
    WEFT_MUST_USE;

typedef struct weft_acceptor_opts {
  size_t size;             /* sizeof(weft_acceptor_opts) */
  const char *engine;      /* control url of the engine */
  const char *const *http; /* [http_count], at least one */
  size_t http_count;
  const char *http_token;
  bool insecure, dev, allow_weight_reset;
  size_t http_body_max;
  uint32_t tp, pp, dp_size, dp_index;
  /* Once, when it listens: addresses as bound.  On the loop. */
  void (*on_ready)(void *arg, const char *const *http, size_t http_count);
  void *arg;
  weft_log_fn *log;
  void *log_arg;
  weft_log_level log_level;
} weft_acceptor_opts;
WEFT_API weft_err weft_acceptor_run(const weft_acceptor_opts *opts, weft_why *why)
    WEFT_MUST_USE;

/* A weft_log_fn: "time level who text" on stderr, one write per line.  arg is not used.
 */
WEFT_API void weft_log_stderr(void *arg, weft_log_level level, const char *who,
                              const char *line);
/* The library's version, e.g. "0.1.0". */
WEFT_API const char *weft_version(void);
/* Every HTTP route: "METHOD PATH", is_dev tells those that exist only in dev mode; false
 * past the last. */
WEFT_API bool weft_route_at(size_t index, const char **method, const char **path,
                            bool *is_dev);

WEFT_END_DECLS

#endif /* WEFT_SERVE_H */
