#define _GNU_SOURCE
#include "weft/http.h"
#include "weft/transfer.h"
#include "weftd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum { WORKERS_MAX = 4096 };

typedef enum opt_kind {
  OPT_FLAG,
  OPT_TEXT,
  OPT_NUMBER,
  OPT_LISTEN,
  OPT_REPLICA
} opt_kind;

typedef struct opt {
  const char *name;
  opt_kind kind;
  unsigned modes;
  size_t at;   /* offset in weftd_opts */
  size_t seen; /* offset of a bool that says it was given, 0 = none */
} opt;

enum { E = WEFTD_ENGINE, W = WEFTD_WORKER, A = WEFTD_ACCEPTOR };
#define AT(field) offsetof(weftd_opts, field)
static const opt table[] = {
  { "--listen", OPT_LISTEN, E | W | A, 0, 0 },
  { "--workers", OPT_NUMBER, E, AT(workers), AT(has_workers) },
  { "--tp", OPT_NUMBER, E | W | A, AT(tp), 0 },
  { "--pp", OPT_NUMBER, E | W | A, AT(pp), 0 },
  { "--dp-size", OPT_NUMBER, E | A, AT(dp_size), AT(has_dp_size) },
  { "--dp-index", OPT_NUMBER, E | A, AT(dp_index), 0 },
  { "--dev", OPT_FLAG, E | A, AT(dev), 0 },
  { "--backend", OPT_TEXT, E | W, AT(backend), 0 },
  { "--cudart", OPT_TEXT, E | W, AT(cudart), 0 },
  { "--nccl", OPT_TEXT, E | W, AT(nccl), 0 },
  { "--device", OPT_NUMBER, W, AT(gpu), AT(has_gpu) },
  { "--allow-ipc-pickle", OPT_FLAG, E | W, AT(allow_ipc_pickle), 0 },
  { "--events", OPT_TEXT, E, AT(events), 0 },
  { "--control", OPT_TEXT, E, AT(control), 0 },
  { "--engine", OPT_TEXT, A, AT(engine), 0 },
  { "--join", OPT_TEXT, E | W, AT(join), 0 },
  { "--join-token-file", OPT_TEXT, E | W, AT(join_token_file), 0 },
  { "--workers-join", OPT_FLAG, E, AT(workers_join), 0 },
  { "--weights-root", OPT_TEXT, E | W, AT(weights_root), 0 },
  { "--tp-plan", OPT_TEXT, E | W, AT(tp_plan), 0 },
  { "--manifest", OPT_TEXT, E | W, AT(manifest), 0 },
  { "--draft", OPT_FLAG, E | W, AT(draft), 0 },
  { "--draft-manifest", OPT_TEXT, E | W, AT(draft_manifest), 0 },
  { "--staging", OPT_TEXT, E | W, AT(staging_name), 0 },
  { "--tcp-allow", OPT_TEXT, E | W, AT(tcp_allow), 0 },
  { "--copy-threads", OPT_NUMBER, E | W, AT(copy_threads), 0 },
  { "--run-dir", OPT_TEXT, E, AT(run_dir), 0 },
  { "--state-dir", OPT_TEXT, E, AT(state_dir), 0 },
  { "--restore", OPT_FLAG, E, AT(restore), 0 },
  { "--engine-id", OPT_TEXT, E, AT(engine_id), 0 },
  { "--log-level", OPT_TEXT, E | W | A, AT(log_level_name), 0 },
  { "--token-file", OPT_TEXT, E | A, AT(token_file), 0 },
  { "--insecure", OPT_FLAG, E | A, AT(insecure), 0 },
  { "--allow-weight-reset", OPT_FLAG, E | A, AT(allow_weight_reset), 0 },
  { "--strict-coverage", OPT_FLAG, E, AT(strict_coverage), 0 },
  { "--require-pause", OPT_FLAG, E, AT(require_pause), 0 },
  { "--pause-lease", OPT_NUMBER, E, AT(pause_lease_s), AT(has_pause_lease) },
  { "--max-body", OPT_NUMBER, E | A, AT(max_body), 0 },
  { "--replica", OPT_REPLICA, E, 0, 0 },
  { "--replica-token-file", OPT_TEXT, E, AT(replica_token_file), 0 },
  { "--member", OPT_TEXT, E, AT(member), 0 },
  { "--member-token-file", OPT_TEXT, E, AT(member_token_file), 0 },
  { "--need-grant", OPT_FLAG, W, AT(need_grant), 0 },
  { "--rank", OPT_NUMBER, W, AT(rank), AT(has_rank) },
  { "--world-size", OPT_NUMBER, W, AT(world_size), AT(has_world_size) },
  { "--incarnation", OPT_NUMBER, W, AT(incarnation), 0 },
  { "--print-routes", OPT_FLAG, E, AT(print_routes), 0 },
  { "--version", OPT_FLAG, E | W | A, AT(version), 0 },
  { "--help", OPT_FLAG, E | W | A, AT(help), 0 },
};

/* ---- mistakes */

unsigned weftd_mistake(const char *fmt, ...)
{
  va_list args;
  va_start(args, fmt);
  (void)fputs("weftd: ", stderr);
  (void)vfprintf(stderr, fmt, args);
  (void)fputc('\n', stderr);
  va_end(args);
  return 1;
}

static const char *env_of(const char *name)
{
  const size_t len = strlen(name);
  for (char **e = environ; e && *e; e++) {
    if (strncmp(*e, name, len) == 0 && (*e)[len] == '=') {
      return *e + len + 1;
    }
  }
  return NULL;
}

static bool read_number(const char *text, uint64_t *out)
{
  uint64_t n = 0;
  if (*text == '\0') {
    return false;
  }
  for (; *text; text++) {
    if (*text < '0' || *text > '9' || n > (UINT64_MAX - 9) / 10) {
      return false;
    }
    n = n * 10 + (uint64_t)(*text - '0');
  }
  *out = n;
  return true;
}

/* ---- argv */

static const opt *find(const char *arg, size_t len, weftd_mode mode)
{
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    if (strlen(table[i].name) == len && memcmp(table[i].name, arg, len) == 0) {
      return (table[i].modes & (unsigned)mode) ? &table[i] : NULL;
    }
  }
  return NULL;
}

static unsigned set(weftd_opts *o, const opt *found, const char *value)
{
  char *field = (char *)o + found->at;
  if (found->seen) {
    *((char *)o + found->seen) = 1;
  }
  switch (found->kind) {
  case OPT_FLAG:
    *field = 1;
    return 0;
  case OPT_TEXT:
    memcpy(field, &value, sizeof value);
    return *value ? 0 : weftd_mistake("%s: an empty value", found->name);
  case OPT_NUMBER: {
    uint64_t n;
    if (!read_number(value, &n)) {
      return weftd_mistake("%s: '%s' is not a number", found->name, value);
    }
    memcpy(field, &n, sizeof n);
    return 0;
  }
  case OPT_LISTEN:
    if (o->listen_count == WEFTD_LISTEN_MAX) {
      return weftd_mistake("--listen: at most %d", (int)WEFTD_LISTEN_MAX);
    }
    o->listen[o->listen_count++] = value;
    return 0;
  case OPT_REPLICA:
    if (o->replica_count == WEFTD_REPLICAS_MAX) {
      return weftd_mistake("--replica: at most %d", (int)WEFTD_REPLICAS_MAX);
    }
    o->replicas[o->replica_count++] = value;
    return 0;
  default:
    return 0;
  }
}

static unsigned read_args(weftd_opts *o, int argc, char **argv)
{
  unsigned bad = 0;
  for (int i = o->mode == WEFTD_ENGINE ? 1 : 2; i < argc; i++) {
    const char *equals = strncmp(argv[i], "--", 2) == 0 ? strchr(argv[i], '=') : NULL;
    const size_t len = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
    const opt *found = find(argv[i], len, o->mode);
    if (!found) {
      bad += weftd_mistake("%s: unknown option; see weftd %s--help", argv[i],
                           o->mode == WEFTD_WORKER     ? "worker "
                           : o->mode == WEFTD_ACCEPTOR ? "acceptor "
                                                       : "");
    } else if (found->kind == OPT_FLAG && equals) {
      bad += weftd_mistake("%s takes no value", found->name);
    } else if (found->kind == OPT_FLAG) {
      bad += set(o, found, "");
    } else if (!equals && i + 1 == argc) {
      bad += weftd_mistake("%s needs a value", found->name);
    } else {
      bad += set(o, found, equals ? equals + 1 : argv[++i]);
    }
  }
  return bad;
}

/* ---- what the values mean */

static unsigned read_level(weftd_opts *o)
{
  static const char *const names[] = { "debug", "info", "warn", "error" };
  if (!o->log_level_name) {
    o->log_level = WEFT_LOG_INFO;
    return 0;
  }
  for (size_t i = 0; i < 4; i++) {
    if (strcmp(o->log_level_name, names[i]) == 0) {
      o->log_level = (weft_log_level)i;
      return 0;
    }
  }
  return weftd_mistake("--log-level: '%s' is none of debug, info, warn, error",
                       o->log_level_name);
}

static unsigned read_token(const char *option, const char *path, char **out)
{
  if (!path) {
    return 0;
  }
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  char *text = calloc(1, WEFTD_TOKEN_MAX + 1);
  const ssize_t n = fd >= 0 && text ? read(fd, text, WEFTD_TOKEN_MAX + 1) : -1;
  const int error = errno;
  if (fd >= 0) {
    (void)close(fd);
  }
  if (n < 0 || n > WEFTD_TOKEN_MAX) {
    free(text);
    return n < 0 ? weftd_mistake("%s: cannot read %s: errno %d", option, path, error)
                 : weftd_mistake("%s: %s holds more than %d bytes", option, path,
                                 (int)WEFTD_TOKEN_MAX);
  }
  size_t len = (size_t)n;
  while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r')) {
    text[--len] = '\0';
  }
  *out = text;
  return len == 0 ? weftd_mistake("%s: %s is empty", option, path)
         : strlen(text) != len || strpbrk(text, "\r\n")
             ? weftd_mistake("%s: %s holds more than one line of text", option, path)
             : 0;
}

static unsigned read_root(weftd_opts *o)
{
  if (!o->weights_root) {
    return 0;
  }
  o->root_path = realpath(o->weights_root, NULL);
  return o->root_path
             ? 0
             : weftd_mistake("--weights-root: %s: errno %d", o->weights_root, errno);
}

static unsigned read_dev(weftd_opts *o)
{
  const char *text = env_of("VLLM_SERVER_DEV_MODE");
  if (o->dev || !text || !*text) {
    return 0;
  }
  uint64_t n;
  if (!read_number(*text == '-' ? text + 1 : text, &n)) {
    return weftd_mistake("VLLM_SERVER_DEV_MODE: '%s' is not a number", text);
  }
  o->dev = n != 0;
  return 0;
}

/* vLLM's name for the same consent. */
static void read_pickle(weftd_opts *o)
{
  const char *text = env_of("VLLM_ALLOW_INSECURE_SERIALIZATION");
  uint64_t n;
  if (text && read_number(text, &n) && n != 0) {
    o->allow_ipc_pickle = true;
  }
}

static unsigned read_rank(weftd_opts *o)
{
  static const char *const names[][2] = { { "RANK", "WORLD_SIZE" },
                                          { "OMPI_COMM_WORLD_RANK",
                                            "OMPI_COMM_WORLD_SIZE" },
                                          { "SLURM_PROCID", "SLURM_NTASKS" } };
  for (size_t i = 0; i < 3 && !(o->has_rank && o->has_world_size); i++) {
    const char *rank = env_of(names[i][0]);
    const char *size = env_of(names[i][1]);
    if (!rank || !size) {
      continue;
    }
    uint64_t r = 0;
    uint64_t s = 0;
    if (!read_number(rank, &r) || !read_number(size, &s)) {
      return weftd_mistake("%s=%s, %s=%s: not numbers", names[i][0], rank, names[i][1],
                           size);
    }
    o->rank = o->has_rank ? o->rank : r;
    o->world_size = o->has_world_size ? o->world_size : s;
    o->has_rank = o->has_world_size = true;
  }
  if (!o->has_rank || !o->has_world_size) {
    return weftd_mistake("--rank and --world-size are needed (or RANK and WORLD_SIZE)");
  }
  return o->world_size == 0 || o->world_size > WORKERS_MAX || o->rank >= o->world_size
             ? weftd_mistake("rank %" PRIu64 " of %" PRIu64 " is impossible", o->rank,
                             o->world_size)
             : 0;
}

static unsigned check_sizes(weftd_opts *o)
{
  const bool shape = o->tp != 0 || o->pp != 0;
  if (o->mode == WEFTD_WORKER && !shape) {
    return 0; /* from its world size */
  }
  o->tp = o->tp ? o->tp : 1;
  o->pp = o->pp ? o->pp : 1;
  o->dp_size = o->dp_size ? o->dp_size : 1;
  if (o->tp > WORKERS_MAX || o->pp > WORKERS_MAX || o->tp * o->pp > WORKERS_MAX ||
      o->workers > WORKERS_MAX || o->dp_size > UINT32_MAX) {
    return weftd_mistake("at most %d workers", (int)WORKERS_MAX);
  }
  if (o->has_workers && o->workers == 0) {
    return weftd_mistake("--workers: at least 1");
  }
  if (o->has_workers && !shape) {
    o->tp = o->workers;
  }
  if (o->has_workers && o->workers != o->tp * o->pp) {
    return weftd_mistake("--workers %" PRIu64 " is not --tp %" PRIu64
                         " times --pp %" PRIu64,
                         o->workers, o->tp, o->pp);
  }
  o->workers = o->tp * o->pp;
  return o->dp_index >= o->dp_size
             ? weftd_mistake("--dp-index %" PRIu64 " is not below --dp-size %" PRIu64,
                             o->dp_index, o->dp_size)
             : 0;
}

static unsigned check_access(const weftd_opts *o)
{
  unsigned bad = 0;
  for (size_t i = 0; i < o->listen_count; i++) {
    weft_why why;
    if (weft_http_address_check(o->listen[i], &why) != WEFT_OK) {
      bad += weftd_mistake("--listen: %s", why.text);
      continue;
    }
    if (weft_http_is_loopback(o->listen[i])) {
      continue;
    }
    if (!o->token_file && !o->insecure) {
      bad += weftd_mistake("--listen %s is not a loopback address: give --token-file, or "
                           "say --insecure",
                           o->listen[i]);
    }
    if (!o->weights_root && o->mode == WEFTD_ENGINE && o->replica_count == 0) {
      bad +=
          weftd_mistake("--listen %s is not a loopback address: give --weights-root, the "
                        "directory that weights may be loaded from",
                        o->listen[i]);
    }
  }
  return bad;
}

static unsigned check_pause(const weftd_opts *o)
{
  enum { DAY_S = 86400 };
  return o->has_pause_lease && (o->pause_lease_s == 0 || o->pause_lease_s > DAY_S)
             ? weftd_mistake("--pause-lease: from 1 to %d seconds", (int)DAY_S)
             : 0;
}

static unsigned check_staging(weftd_opts *o)
{
  const char *name = o->staging_name ? o->staging_name : "shadow";
  o->staging = strcmp(name, "inplace") == 0 ? WEFT_STAGING_INPLACE : WEFT_STAGING_SHADOW;
  if (o->staging == WEFT_STAGING_SHADOW && strcmp(name, "shadow") != 0) {
    return weftd_mistake("--staging %s: it is shadow or inplace", name);
  }
  return 0;
}

static unsigned check_join(const weftd_opts *o)
{
  unsigned bad = 0;
  if (o->replica_count > 0) {
    return 0; /* weftd_fleet.c */
  }
  if (o->mode == WEFTD_ENGINE && o->join && !o->workers_join) {
    bad += weftd_mistake(
        "--join is where workers announce themselves: it needs --workers-join");
  }
  if (o->join && strncmp(o->join, "tcp://", 6) == 0 && !o->join_token_file) {
    bad += weftd_mistake("--join %s: over tcp it needs --join-token-file", o->join);
  }
  return bad;
}

static unsigned check_mode(weftd_opts *o)
{
  if (o->mode == WEFTD_WORKER) {
    unsigned bad = read_rank(o);
    if (o->listen_count > 1) {
      bad += weftd_mistake("--listen: a worker has one socket");
    }
    if (!o->join && o->listen_count == 0) {
      bad += weftd_mistake("--join URL is needed, the engine's join socket");
    }
    return bad;
  }
  if (o->mode == WEFTD_ACCEPTOR && !o->engine) {
    return weftd_mistake("--engine URL is needed, the engine's control socket");
  }
  if (o->listen_count == 0) {
    o->listen[o->listen_count++] = "127.0.0.1:8000";
  }
  return check_access(o);
}

static unsigned check_backend(const weftd_opts *o)
{
  const weft_transfer_ops *backend = weft_transfer_named(o->backend);
  unsigned bad = 0;
  if (!backend) {
    return weftd_mistake(
        "--backend %s: not in this build; there are: " WEFT_TRANSFER_NAMES, o->backend);
  }
  if (o->replica_count > 0) {
    return 0; /* weftd_fleet.c */
  }
  if (o->tp_plan && !backend->nccl) {
    bad += weftd_mistake("--tp-plan is for the nccl and sparse_nccl backends, not for "
                         "--backend %s",
                         backend->name);
  }
  if (o->draft && backend->no_draft) {
    bad += weftd_mistake("--draft: --backend %s has no draft model: %s", backend->name,
                         backend->no_draft);
  }
  return bad;
}

unsigned weftd_opts_read(weftd_opts *o, int argc, char **argv)
{
  *o = (weftd_opts){ .mode = WEFTD_ENGINE };
  if (argc > 1 && strcmp(argv[1], "worker") == 0) {
    o->mode = WEFTD_WORKER;
  } else if (argc > 1 && strcmp(argv[1], "acceptor") == 0) {
    o->mode = WEFTD_ACCEPTOR;
  }
  unsigned bad = read_args(o, argc, argv);
  if (o->help || o->version || o->print_routes) {
    return bad;
  }
  bad += read_level(o);
  bad += read_dev(o);
  read_pickle(o);
  bad += read_token("--token-file", o->token_file, &o->token);
  bad += read_token("--join-token-file", o->join_token_file, &o->join_token);
  bad += read_token("--replica-token-file", o->replica_token_file, &o->replica_token);
  bad += read_token("--member-token-file", o->member_token_file, &o->member_token);
  bad += read_root(o);
  bad += check_sizes(o);
  bad += check_mode(o);
  bad += check_join(o);
  bad += o->mode == WEFTD_ENGINE ? weftd_fleet_check(o) : 0;
  bad += check_pause(o);
  bad += check_staging(o);
  bad += check_backend(o);
  return bad;
}

void weftd_opts_fini(weftd_opts *o)
{
  free(o->token);
  free(o->join_token);
  free(o->replica_token);
  free(o->member_token);
  free(o->root_path);
}
