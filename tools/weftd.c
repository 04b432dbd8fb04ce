#define _GNU_SOURCE
#include "weftd.h"

#include "weft/json.h"
#include "weft/serve.h"
#include "weft/weft.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

enum { NOFILE_MIN = 64 /* without any client */ };
enum { HEAP_PIECE_MAX = 128 << 10 /* bytes; larger ones are mapped by themselves */ };

/* A thin program over the library: options in, one line out, the library does the rest.
 */

static void say(int fd, const char *text, size_t len)
{
  while (len > 0) {
    const ssize_t n = write(fd, text, len);
    if (n < 0 && errno != EINTR) {
      return; /* nobody listens: no reason to stop serving */
    }
    if (n > 0) {
      text += n;
      len -= (size_t)n;
    }
  }
}

/* Takes what w holds, with a newline behind it. */
static void say_json(weft_json_writer *w)
{
  char *text = NULL;
  size_t len = 0;
  if (weft_jw_take(w, &text, &len) == WEFT_OK) {
    text[len] = '\n'; /* in place of the NUL: one write, one line */
    say(STDOUT_FILENO, text, len + 1);
    free(text);
  }
  weft_jw_fini(w);
}

static void add_http(weft_json_writer *w, const char *const *http, size_t count)
{
  weft_jw_str(w, "http", count > 0 ? http[0] : "");
  if (count > 1) {
    weft_jw_array(w, "listen");
    for (size_t i = 0; i < count; i++) {
      weft_jw_str(w, NULL, http[i]);
    }
    weft_jw_end(w);
  }
}

static void say_engine(const weft_engine *engine, bool ready)
{
  weft_engine_info info;
  weft_engine_info_get(engine, &info);
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_bool(&w, "ready", ready);
  add_http(&w, info.http, info.http_count);
  weft_jw_str(&w, "events", info.events_url);
  weft_jw_str(&w, "snapshot", info.snapshot_url);
  weft_jw_str(&w, "control", info.control_url);
  if (*info.join_url) {
    weft_jw_str(&w, "join", info.join_url);
  }
  if (*info.member_url) {
    weft_jw_str(&w, "member", info.member_url);
  }
  if (info.replicas > 0) {
    weft_jw_u64(&w, "replicas", info.replicas);
  } else {
    weft_jw_u64(&w, "workers", info.workers);
  }
  weft_jw_str(&w, "boot_id", info.boot_id);
  weft_jw_end(&w);
  say_json(&w);
}

static void on_engine_ready(void *arg, weft_engine *engine)
{
  (void)arg;
  say_engine(engine, true);
}

static void on_acceptor_ready(void *arg, const char *const *http, size_t count)
{
  (void)arg;
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_bool(&w, "ready", true);
  add_http(&w, http, count);
  weft_jw_end(&w);
  say_json(&w);
}

static int failed(const weft_why *why)
{
  (void)fprintf(stderr, "weftd: %s\n", why->text);
  const bool usage =
      why->err == WEFT_E_INVAL || why->err == WEFT_E_LIMIT || why->err == WEFT_E_DENIED;
  return usage ? WEFTD_USAGE : WEFTD_FAILED;
}

/* Connections and slabs take descriptors; the soft limit is for programs that select().
 */
static bool raise_nofile(void)
{
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return true;
  }
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur < NOFILE_MIN) {
    (void)fprintf(stderr,
                  "weftd: only %llu files may be open at a time, and %d are needed at "
                  "least; raise the limit (ulimit -n)\n",
                  (unsigned long long)limit.rlim_cur, NOFILE_MIN);
    return false;
  }
  return true;
}

static int run_engine(const weftd_opts *o)
{
  sigset_t ends;
  (void)sigemptyset(&ends);
  (void)sigaddset(&ends, SIGTERM);
  (void)sigaddset(&ends, SIGINT);
  (void)pthread_sigmask(SIG_BLOCK, &ends, NULL); /* before there are threads */
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n < 0) {
    (void)fprintf(stderr, "weftd: /proc/self/exe: errno %d\n", errno);
    return WEFTD_FAILED;
  }
  self[n] = '\0';
  const weft_engine_opts opts = {
    .size = sizeof opts,
    .workers = o->workers_join ? WEFT_WORKERS_JOIN : WEFT_WORKERS_PROCESSES,
    .tp = (uint32_t)o->tp,
    .pp = (uint32_t)o->pp,
    .dp_size = (uint32_t)o->dp_size,
    .dp_index = (uint32_t)o->dp_index,
    .worker_program = self,
    .backend = o->backend,
    .engine_id = o->engine_id,
    .run_dir = o->run_dir,
    .state_dir = o->state_dir,
    .restore = o->restore,
    .weights_root = o->root_path,
    .tcp_allow = o->tcp_allow,
    .http = o->listen,
    .http_count = o->listen_count,
    .http_token = o->token,
    .insecure = o->insecure,
    .dev = o->dev,
    .http_body_max = o->max_body,
    .events_url = o->events,
    .control_url = o->control,
    .join_url = o->join,
    .join_token = o->join_token,
    .strict_coverage = o->strict_coverage,
    .allow_weight_reset = o->allow_weight_reset,
    .copy_threads = (unsigned)o->copy_threads,
    .cudart = o->cudart,
    .nccl = o->nccl,
    .allow_ipc_pickle = o->allow_ipc_pickle,
    .tp_plan = o->tp_plan,
    .manifest = o->manifest,
    .staging = o->staging,
    .require_pause = o->require_pause,
    .pause_lease_ms = o->pause_lease_s * 1000,
    .replicas = o->replicas,
    .replica_count = o->replica_count,
    .replica_token = o->replica_token,
    .member_url = o->member,
    .member_token = o->member_token,
    .draft = o->draft,
    .draft_manifest = o->draft_manifest,
    .on_ready = on_engine_ready,
    .log = weft_log_stderr,
    .log_level = o->log_level,
  };
  weft_engine *engine = NULL;
  weft_why why;
  if (weft_engine_create(&opts, &engine, &why) != WEFT_OK) {
    return failed(&why);
  }
  if (o->workers_join || o->replica_count > 0 || o->member) {
    /* Whoever starts the workers, or the rest of the fleet, has to know where. */
    say_engine(engine, false);
  }
  int signo = 0;
  while (sigwait(&ends, &signo) != 0) {
  }
  weft_engine_destroy(engine);
  return WEFTD_DONE;
}

/* A megabyte of update_info comes and goes with each call.  glibc would keep the largest
 * that it has ever seen; a fixed threshold gives such pieces back at once.  (Workers make
 * many of them in a row and give back between updates.) */
static void bound_heap(void)
{
#ifdef __GLIBC__
  (void)mallopt(M_MMAP_THRESHOLD, HEAP_PIECE_MAX);
#endif
}

static int run_worker(const weftd_opts *o)
{
  const weft_worker_opts opts = {
    .size = sizeof opts,
    .rank = (uint32_t)o->rank,
    .world_size = (uint32_t)o->world_size,
    .incarnation = o->incarnation,
    .listen = o->listen_count > 0 ? o->listen[0] : NULL,
    .join = o->join,
    .join_token = o->join_token,
    .backend = o->backend,
    .weights_root = o->root_path,
    .tcp_allow = o->tcp_allow,
    .copy_threads = (unsigned)o->copy_threads,
    .tp = (uint32_t)o->tp,
    .pp = (uint32_t)o->pp,
    .log = weft_log_stderr,
    .log_level = o->log_level,
    .cudart = o->cudart,
    .nccl = o->nccl,
    .has_gpu = o->has_gpu,
    .gpu = (uint32_t)o->gpu,
    .allow_ipc_pickle = o->allow_ipc_pickle,
    .tp_plan = o->tp_plan,
    .manifest = o->manifest,
    .need_grant = o->need_grant,
    .draft = o->draft,
    .draft_manifest = o->draft_manifest,
    .staging = o->staging,
  };
  weft_why why;
  return weft_worker_run(&opts, &why) == WEFT_OK ? WEFTD_DONE : failed(&why);
}

static int run_acceptor(const weftd_opts *o)
{
  const weft_acceptor_opts opts = {
    .size = sizeof opts,
    .engine = o->engine,
    .http = o->listen,
    .http_count = o->listen_count,
    .http_token = o->token,
    .insecure = o->insecure,
    .dev = o->dev,
    .allow_weight_reset = o->allow_weight_reset,
    .http_body_max = o->max_body,
    .tp = (uint32_t)o->tp,
    .pp = (uint32_t)o->pp,
    .dp_size = (uint32_t)o->dp_size,
    .dp_index = (uint32_t)o->dp_index,
    .on_ready = on_acceptor_ready,
    .log = weft_log_stderr,
    .log_level = o->log_level,
  };
  weft_why why;
  return weft_acceptor_run(&opts, &why) == WEFT_OK ? WEFTD_DONE : failed(&why);
}

static int print_routes(void)
{
  const char *method;
  const char *path;
  bool is_dev;
  for (size_t i = 0; weft_route_at(i, &method, &path, &is_dev); i++) {
    (void)printf("%s %s%s\n", method, path, is_dev ? " dev" : "");
  }
  return WEFTD_DONE;
}

static int run(const weftd_opts *o)
{
  if (o->help) {
    weftd_help(o->mode);
    return WEFTD_DONE;
  }
  if (o->version) {
    (void)printf("weftd %s\n", weft_version());
    return WEFTD_DONE;
  }
  if (o->print_routes) {
    return print_routes();
  }
  if (!raise_nofile()) {
    return WEFTD_FAILED;
  }
  (void)signal(SIGPIPE, SIG_IGN);
  (void)signal(SIGXFSZ, SIG_IGN); /* a write that is over the limit fails, that is all */
  if (o->mode != WEFTD_WORKER) {
    bound_heap();
  }
  return o->mode == WEFTD_WORKER     ? run_worker(o)
         : o->mode == WEFTD_ACCEPTOR ? run_acceptor(o)
                                     : run_engine(o);
}

int main(int argc, char **argv)
{
  weftd_opts opts;
  const int code = weftd_opts_read(&opts, argc, argv) > 0 ? WEFTD_USAGE : run(&opts);
  weftd_opts_fini(&opts);
  return code;
}
