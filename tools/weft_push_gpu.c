/* weft push --source nccl and ipc: a trainer without Python.  What is collective runs on
 * a thread beside the request that asks the workers for it, as in vLLM's trainer. */
#include "push.h"
#include "weft/gpu_source.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
  GPUS_MAX = 64,
  PATIENCE_S = 300, /* as the HTTP calls have by default */
  BUFFERS = 2
};
#define BUFFER_BYTES (UINT64_C(1) << 30) /* vLLM's default */

struct push_gpu {
  push *p;
  bool ipc;
  weft_gpu_source *sources[GPUS_MAX]; /* nccl: one */
  size_t count;
  weft_gpu_packing packing;
  char *handles; /* ipc, packed: of the buffer, the same for every chunk */
  uint64_t buffer_bytes;
  unsigned ranks;
  uint64_t timeout_ms;
  /* the thread beside a call; relaxed: what else it wrote is read after joining it */
  bool sending; /* else joining */
  atomic_bool cancel, failed, done;
  weft_err err;
  weft_why why;
};

bool push_is_gpu(const cli_opts *opts)
{
  return strcmp(opts->source, "nccl") == 0 || strcmp(opts->source, "ipc") == 0;
}

/* ---- options */

static bool number(const char *name, const char *text, uint64_t max, uint64_t *out)
{
  char *end = NULL;
  errno = 0;
  const unsigned long long n = strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || n > max) {
    cli_warn("%s %s: not a whole number up to %llu", name, text, (unsigned long long)max);
    return false;
  }
  *out = n;
  return true;
}

static bool read_options(push_gpu *g, int *device)
{
  const cli_opts *const o = g->p->opts;
  uint64_t n = 0;
  g->packing = (weft_gpu_packing){ o->packed, BUFFER_BYTES };
  if (o->rendezvous != NULL && strcmp(o->rendezvous, "store") != 0 &&
      strcmp(o->rendezvous, "id") != 0) {
    cli_warn("push: --rendezvous must be store or id, not %s", o->rendezvous);
    return false;
  }
  if ((o->packed_bytes != NULL || o->packed_buffers != 0) && !o->packed) {
    cli_warn("push: --packed-buffer-bytes and --packed-buffers need --packed");
    return false;
  }
  if (o->packed_bytes != NULL && !number("--packed-buffer-bytes", o->packed_bytes,
                                         INT64_MAX, &g->packing.buffer_bytes)) {
    return false;
  }
  if (o->device != NULL && !number("--device", o->device, 4096, &n)) {
    return false;
  }
  *device = o->device != NULL ? (int)n : -1;
  return true;
}

/* ---- the GPUs of this process */

static int open_sources(push_gpu *g, int device)
{
  const cli_opts *const o = g->p->opts;
  weft_why why = { .err = WEFT_OK };
  weft_device_opts d = { .size = sizeof d,
                         .cudart = o->cudart,
                         .nccl = o->nccl,
                         .device = device < 0 ? 0 : device };
  weft_device_info info;
  weft_err err = weft_device_probe(&d, !g->ipc, &info, &why);
  const int count = g->ipc && device < 0 && err == WEFT_OK ? info.count : 1;
  for (int i = 0; i < count && i < GPUS_MAX && err == WEFT_OK; i++) {
    const weft_gpu_source_opts opts = {
      .size = sizeof opts, .device = &d, .nccl = !g->ipc, .cancel = &g->cancel
    };
    err = weft_gpu_source_create(&opts, &g->sources[g->count], &why);
    g->count += err == WEFT_OK;
    d.device++;
  }
  if (err != WEFT_OK) {
    cli_warn("--source %s: %s", o->source, why.text);
    return CLI_USAGE;
  }
  if (!o->quiet && !o->json) {
    const weft_device_info *const at = weft_gpu_source_info(g->sources[0]);
    fprintf(stderr, "%s, CUDA %s%s%s\n", at->name, at->cudart,
            at->nccl[0] != '\0' ? ", NCCL " : "", at->nccl);
  }
  return CLI_DONE;
}

/* Room for the largest chunk of any file, once: its handle is sent with each of them. */
static int reserve(push_gpu *g, char *const *paths)
{
  weft_why why = { .err = WEFT_OK };
  weft_err err = WEFT_OK;
  struct stat st;
  uint64_t most = 1;
  for (size_t i = 0; i < g->p->opts->file_count; i++) {
    if (stat(paths[i], &st) == 0 && (uint64_t)st.st_size > most) {
      most = (uint64_t)st.st_size;
    }
  }
  g->buffer_bytes = most < g->packing.buffer_bytes ? most : g->packing.buffer_bytes;
  g->buffer_bytes = g->buffer_bytes > 0 ? g->buffer_bytes : 1;
  for (size_t i = 0; i < g->count && err == WEFT_OK; i++) {
    err = weft_gpu_source_reserve(g->sources[i], g->buffer_bytes, &why);
  }
  if (err == WEFT_OK) {
    err =
        weft_gpu_sources_export(g->sources, g->count, g->buffer_bytes, &g->handles, &why);
  }
  if (err != WEFT_OK) {
    cli_warn("--source ipc: %s", why.text);
    return CLI_USAGE;
  }
  return CLI_DONE;
}

/* ---- calls with something beside them */

static void *beside_main(void *arg)
{
  push_gpu *const g = arg;
  g->err =
      g->sending
          ? weft_gpu_source_broadcast(g->sources[0], &g->packing, g->timeout_ms, &g->why)
          : weft_gpu_source_join(g->sources[0], g->ranks, g->timeout_ms, &g->why);
  atomic_store_explicit(&g->failed, g->err != WEFT_OK, memory_order_relaxed);
  atomic_store_explicit(&g->done, true, memory_order_relaxed);
  return NULL;
}

static int post_beside(push_gpu *g, const char *path, const char *body)
{
  pthread_t thread;
  atomic_store_explicit(&g->failed, false, memory_order_relaxed);
  atomic_store_explicit(&g->done, false, memory_order_relaxed);
  if (pthread_create(&thread, NULL, beside_main, g) != 0) {
    cli_warn("cannot start a thread");
    return CLI_REFUSED;
  }
  g->p->beside_failed = &g->failed;
  const int code = push_post(g->p, path, body);
  g->p->beside_failed = NULL;
  while (!atomic_load_explicit(&g->done, memory_order_relaxed)) {
    if (code != CLI_DONE || cli_interrupted()) {
      atomic_store_explicit(&g->cancel, true, memory_order_relaxed);
    }
    (void)nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
  }
  (void)pthread_join(thread, NULL);
  if (g->err != WEFT_OK && g->err != WEFT_E_CANCELLED) {
    cli_warn("rank 0, %s: %s", path + 1, g->why.text);
  }
  return code == CLI_DONE && g->err != WEFT_OK ? CLI_REFUSED : code;
}

/* Ends the object that w has open, posts it and frees it. */
static int post_json(push_gpu *g, const char *path, weft_json_writer *w, bool beside)
{
  char *body = NULL;
  size_t len = 0;
  weft_jw_end(w);
  weft_jw_end(w);
  if (weft_jw_take(w, &body, &len) != WEFT_OK) {
    cli_warn("out of memory, or a tensor's name that is not UTF-8");
    return CLI_REFUSED;
  }
  const int code = beside ? post_beside(g, path, body) : push_post(g->p, path, body);
  free(body);
  return code;
}

/* ---- init */

/* The state of the server's session, into out; "" = none, or it does not say. */
static int session_state(push *p, char *out, size_t cap)
{
  cli_reply reply;
  weft_json *status = NULL;
  int code = CLI_DONE;
  out[0] = '\0';
  cli_http_do(p->http, &(cli_call){ .method = "GET", .path = "/weight_status" }, &reply);
  if (reply.status == 0) {
    code = cli_failed(p->opts, p->http, "weight_status", &reply);
  } else if (reply.status == 200 &&
             weft_json_parse(reply.body, reply.len, NULL, &status, NULL) == WEFT_OK) {
    (void)snprintf(out, cap, "%s",
                   cli_str(weft_json_get(status, "session"), "state", ""));
  }
  weft_json_free(status);
  cli_reply_fini(&reply);
  return code;
}

/* An init ends the session of somebody else: not without being asked to.  One that is
 * being given up already is waited for. */
static int check_free(push *p)
{
  enum { LOOK_MS = 50, ENDING_S = 10 };
  char state[32];
  const double until = cli_now_s() + ENDING_S;
  int code = session_state(p, state, sizeof state);
  while (code == CLI_DONE && strcmp(state, "aborting") == 0 && cli_now_s() < until &&
         !cli_interrupted()) {
    (void)nanosleep(&(struct timespec){ .tv_nsec = LOOK_MS * 1000000L }, NULL);
    code = session_state(p, state, sizeof state);
  }
  if (code == CLI_DONE && state[0] != '\0' && strcmp(state, "aborting") != 0 &&
      !p->opts->take_over) {
    cli_warn("an update session is open at %s already; --take-over ends it",
             cli_http_base(p->http));
    code = CLI_REFUSED;
  }
  return code;
}

static int find_ranks(push_gpu *g)
{
  push *const p = g->p;
  cli_reply reply;
  weft_json *size = NULL;
  const int code = cli_get_json(p->opts, p->http, "/get_world_size", &reply, &size);
  if (code != CLI_DONE) {
    return code;
  }
  const uint64_t workers = cli_u64(size, "world_size");
  weft_json_free(size);
  cli_reply_fini(&reply);
  if (workers == 0 || workers >= 1000000) {
    cli_warn("%s has %llu workers", cli_http_base(p->http), (unsigned long long)workers);
    return CLI_REFUSED;
  }
  g->ranks = p->opts->world_size != 0 ? p->opts->world_size : (unsigned)workers + 1;
  return CLI_DONE;
}

/* Where the workers find the NCCL id. */
static int put_rendezvous(push_gpu *g, weft_json_writer *w)
{
  const cli_opts *const o = g->p->opts;
  char host[256] = "127.0.0.1";
  unsigned port = 0;
  uint16_t bound = 0;
  weft_why why = { .err = WEFT_OK };
  if (o->rendezvous != NULL && strcmp(o->rendezvous, "id") == 0) {
    char id[WEFT_NCCL_ID_TEXT];
    weft_gpu_source_id(g->sources[0], id);
    weft_jw_str(w, "nccl_unique_id_b64", id);
    return CLI_DONE;
  }
  if (o->listen != NULL && !push_split_address(o->listen, host, sizeof host, &port)) {
    return CLI_USAGE;
  }
  if (weft_gpu_source_serve(g->sources[0], host, (uint16_t)port, &bound, &why) !=
      WEFT_OK) {
    cli_warn("--listen: %s", why.text);
    return CLI_USAGE;
  }
  weft_jw_str(w, "master_address", host);
  weft_jw_u64(w, "master_port", bound);
  return CLI_DONE;
}

static int init(push_gpu *g)
{
  weft_json_writer w;
  int code = g->ipc ? CLI_DONE : find_ranks(g);
  if (code != CLI_DONE) {
    return code;
  }
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_object(&w, "init_info");
  weft_jw_bool(&w, "packed", g->packing.packed);
  if (!g->ipc) {
    const unsigned buffers = g->p->opts->packed_buffers;
    weft_jw_u64(&w, "rank_offset", 1);
    weft_jw_u64(&w, "world_size", g->ranks);
    if (g->packing.packed) {
      weft_jw_u64(&w, "packed_buffer_size_bytes", g->packing.buffer_bytes);
      weft_jw_u64(&w, "packed_num_buffers", buffers != 0 ? buffers : BUFFERS);
    }
    code = put_rendezvous(g, &w);
  }
  if (code != CLI_DONE) {
    weft_jw_fini(&w);
    return code;
  }
  return post_json(g, "/init_weight_transfer_engine", &w, !g->ipc);
}

int push_gpu_open(push *p, char *const *paths)
{
  int device = -1;
  push_gpu *const g = calloc(1, sizeof *g);
  if (g == NULL) {
    cli_warn("out of memory");
    return CLI_REFUSED;
  }
  weft_device_clear_env();
  p->gpu = g;
  g->p = p;
  g->ipc = strcmp(p->opts->source, "ipc") == 0;
  g->timeout_ms =
      UINT64_C(1000) * (p->opts->timeout_s != 0 ? p->opts->timeout_s + 5 : PATIENCE_S);
  if (!read_options(g, &device)) {
    return CLI_USAGE;
  }
  int code = check_free(p);
  if (code == CLI_DONE) {
    code = open_sources(g, device);
  }
  if (code == CLI_DONE && g->ipc && g->packing.packed) {
    code = reserve(g, paths);
  }
  return code == CLI_DONE ? init(g) : code;
}

void push_gpu_close(push *p, int code)
{
  push_gpu *const g = p->gpu;
  bool free_to_go = true;
  if (g == NULL) {
    return;
  }
  for (size_t i = 0; i < g->count; i++) {
    free_to_go = weft_gpu_source_destroy(g->sources[i]) && free_to_go;
  }
  if (!free_to_go) { /* NCCL and CUDA would wait for each other in their destructors */
    cli_warn("ncclCommAbort does not come back: ending without it");
    (void)fflush(stdout);
    _exit(code);
  }
  free(g->handles);
  free(g);
  p->gpu = NULL;
}

/* ---- updates */

static int load(push_gpu *g, const char *path, const weft_gpu_load *what)
{
  weft_why why = { .err = WEFT_OK };
  for (size_t i = 0; i < g->count; i++) {
    if (weft_gpu_source_load(g->sources[i], what, &why) != WEFT_OK) {
      cli_warn("%s: %s", path, why.text);
      return CLI_REFUSED;
    }
  }
  return CLI_DONE;
}

static void begin_update(weft_json_writer *w, const weft_gpu_load *what)
{
  weft_jw_init(w);
  weft_jw_object(w, NULL);
  weft_jw_object(w, "update_info");
  push_lists(w, what->st, what->first, what->count);
}

static int update_nccl(push_gpu *g, const char *path, const weft_gpu_load *what)
{
  weft_json_writer w;
  const int code = load(g, path, what);
  if (code != CLI_DONE) {
    return code;
  }
  begin_update(&w, what);
  g->sending = true;
  return post_json(g, "/update_weights", &w, true);
}

static int update_ipc(push_gpu *g, const char *path, const weft_gpu_load *what)
{
  weft_json_writer w;
  weft_why why = { .err = WEFT_OK };
  char *handles = NULL;
  const int code = load(g, path, what);
  if (code != CLI_DONE) {
    return code;
  }
  if (!g->packing.packed &&
      weft_gpu_sources_export(g->sources, g->count, 0, &handles, &why) != WEFT_OK) {
    cli_warn("%s: %s", path, why.text);
    return CLI_REFUSED;
  }
  begin_update(&w, what);
  weft_jw_str(&w, "ipc_handles_pickled", handles != NULL ? handles : g->handles);
  if (g->packing.packed) {
    weft_jw_array(&w, "tensor_sizes");
    for (size_t i = 0; i < what->count; i++) {
      weft_jw_u64(&w, NULL, what->st->tensors[what->first + i].bytes);
    }
    weft_jw_end(&w);
  }
  free(handles);
  return post_json(g, "/update_weights", &w, false);
}

/* One call for each chunk, which ends before it would exceed the buffer. */
static int update_ipc_packed(push_gpu *g, const char *path, weft_gpu_load *what)
{
  const weft_st_tensor *const t = what->st->tensors;
  int code = CLI_DONE;
  for (size_t i = 0; i < what->st->count && code == CLI_DONE; i += what->count) {
    uint64_t bytes = t[i].bytes;
    if (bytes > g->buffer_bytes) {
      cli_warn("%s: '%s' has %llu bytes, more than --packed-buffer-bytes", path,
               t[i].name, (unsigned long long)bytes);
      return CLI_USAGE;
    }
    what->first = i;
    what->count = 1;
    while (i + what->count < what->st->count &&
           t[i + what->count].bytes <= g->buffer_bytes - bytes) {
      bytes += t[i + what->count++].bytes;
    }
    code = update_ipc(g, path, what);
  }
  return code;
}

int push_update_gpu(push *p, const char *path)
{
  push_gpu *const g = p->gpu;
  weft_safetensors *st = NULL;
  weft_why why = { .err = WEFT_OK };
  int code = CLI_USAGE;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    cli_warn("%s: cannot be read", path);
    return CLI_USAGE;
  }
  if (weft_safetensors_read(fd, path, &st, &why) != WEFT_OK) {
    cli_warn("%s", why.text);
  } else {
    weft_gpu_load what = {
      .fd = fd, .st = st, .count = st->count, .dense = g->packing.packed
    };
    code = !g->ipc             ? update_nccl(g, path, &what)
           : g->packing.packed ? update_ipc_packed(g, path, &what)
                               : update_ipc(g, path, &what);
  }
  weft_safetensors_free(st);
  close(fd);
  return code;
}
