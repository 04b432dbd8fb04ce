/* weftd.h -- between the files of weftd: its options.  Not the client's (cli.h). */
#ifndef WEFT_TOOLS_WEFTD_H
#define WEFT_TOOLS_WEFTD_H

#include "weft/actor.h"
#include "weft/weft.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes: an orderly end, something failed, a mistake in the configuration. */
enum { WEFTD_DONE = 0, WEFTD_FAILED = 1, WEFTD_USAGE = 2 };
enum { WEFTD_LISTEN_MAX = 16, WEFTD_REPLICAS_MAX = 256, WEFTD_TOKEN_MAX = 4096 };

typedef enum weftd_mode { /* bits: in which an option is known */
                          WEFTD_ENGINE = 1,
                          WEFTD_WORKER = 2,
                          WEFTD_ACCEPTOR = 4
} weftd_mode;

typedef struct weftd_opts {
  weftd_mode mode;
  const char *listen[WEFTD_LISTEN_MAX];
  size_t listen_count;
  uint64_t workers, tp, pp, dp_size, dp_index;
  uint64_t rank, world_size, incarnation;
  bool has_workers, has_rank, has_world_size;
  bool dev, insecure, allow_weight_reset, strict_coverage, workers_join;
  bool require_pause, has_pause_lease;
  uint64_t pause_lease_s;
  bool print_routes, version, help;
  bool restore;
  const char *state_dir;
  const char *backend, *events, *control, *join, *engine, *weights_root, *run_dir,
      *engine_id;
  const char *join_token_file, *token_file, *tcp_allow, *log_level_name;
  char *root_path;           /* weights_root without symlinks, owned */
  char *token, *join_token;  /* what the files say, owned, or NULL */
  const char *cudart, *nccl; /* GPU libraries */
  const char *tp_plan, *manifest, *draft_manifest, *staging_name;
  bool draft;
  weft_staging staging;
  uint64_t gpu;
  bool has_gpu, allow_ipc_pickle;
  uint64_t max_body, copy_threads;
  weft_log_level log_level;
  const char *replicas[WEFTD_REPLICAS_MAX]; /* of a fleet's coordinator */
  size_t replica_count;
  const char *member; /* this engine's door */
  const char *replica_token_file, *member_token_file;
  char *replica_token, *member_token; /* what the files say, owned, or NULL */
  bool has_dp_size, need_grant;
} weftd_opts;

/* Reads argv and the environment.  Every mistake is one line on stderr; returns their
 * number.  Free with weftd_opts_fini in any case. */
unsigned weftd_opts_read(weftd_opts *o, int argc, char **argv);
void weftd_opts_fini(weftd_opts *o);
/* Prints it on stdout. */
void weftd_help(weftd_mode mode);

/* Says a mistake on stderr; 1. */
unsigned weftd_mistake(const char *fmt, ...) WEFT_PRINTF(1, 2);
/* weftd_fleet.c: as weftd_opts_read, of a fleet's options. */
unsigned weftd_fleet_check(const weftd_opts *o);
extern const char weftd_fleet_help[];

#endif /* WEFT_TOOLS_WEFTD_H */
