/* weft_gpu_check [--cudart PATH] [--nccl PATH] CHECK [MIB [TENSORS]]: see run.py. */
#define _GNU_SOURCE
#include "gpu_check.h"

#include "weft/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

double check_now_s(void)
{
  return (double)weft_clock_ns() * 1e-9;
}

static void print_object(weft_json_writer *w)
{
  char *text = NULL;
  size_t len = 0;
  weft_jw_end(w);
  if (weft_jw_take(w, &text, &len) == WEFT_OK) {
    (void)printf("%s\n", text);
    (void)fflush(stdout);
  }
  free(text);
}

void check_die(const check *c, const char *what, const weft_why *why)
{
  char text[1024];
  weft_json_writer w;
  (void)snprintf(text, sizeof text, "%s%s%s", what, why != NULL ? ": " : "",
                 why != NULL ? why->text : "");
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "check", c->name);
  weft_jw_bool(&w, "ok", false);
  weft_jw_str(&w, "why", text);
  print_object(&w);
  _exit(why != NULL && why->err == WEFT_E_UNAVAIL ? NO_GPU : 1);
}

/* ---- processes */

pid_t check_fork(const check *c, check_fn *fn, int *fd)
{
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    check_die(c, "socketpair", NULL);
  }
  const pid_t child = fork();
  if (child < 0) {
    check_die(c, "fork", NULL);
  }
  (void)close(pair[child != 0]);
  if (child == 0) {
    fn(c, pair[1]);
    _exit(0);
  }
  *fd = pair[0];
  return child;
}

void check_join(const check *c, pid_t child)
{
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) {
    check_die(c, "the other process failed", NULL);
  }
}

void check_tell(const check *c, int fd, const void *data, size_t len)
{
  for (size_t at = 0; at < len;) {
    const ssize_t n = send(fd, (const char *)data + at, len - at, MSG_NOSIGNAL);
    if (n <= 0 && errno != EINTR) {
      check_die(c, "the other process is gone", NULL);
    }
    at += n > 0 ? (size_t)n : 0;
  }
}

void check_hear(const check *c, int fd, void *data, size_t len)
{
  for (size_t at = 0; at < len;) {
    const ssize_t n = recv(fd, (char *)data + at, len - at, 0);
    if (n == 0 || (n < 0 && errno != EINTR)) {
      check_die(c, "the other process is gone", NULL);
    }
    at += n > 0 ? (size_t)n : 0;
  }
}

/* ---- what is moved */

static void make_file(check *c, uint64_t bytes, unsigned tensors)
{
  weft_why why = { 0 };
  weft_st_spec specs[TENSORS_MAX];
  char names[TENSORS_MAX][16];
  weft_st_writer *w = NULL;
  const int64_t each[] = { (int64_t)(bytes / tensors) };
  uint8_t *block = malloc((size_t)each[0] + 1);
  for (unsigned i = 0; i < tensors; i++) {
    (void)snprintf(names[i], sizeof names[i], "t%u", i);
    specs[i] = (weft_st_spec){ names[i], WEFT_DTYPE_UINT8, 1, each };
  }
  c->fd = memfd_create("weft-gpu-check", MFD_CLOEXEC);
  if (block == NULL || c->fd < 0 ||
      weft_st_writer_create(c->fd, specs, tensors, &w, &why) != WEFT_OK) {
    check_die(c, "no memory for what is sent", &why);
  }
  for (unsigned i = 0; i < tensors; i++) {
    for (int64_t b = 0; b < each[0]; b++) {
      block[b] = (uint8_t)((unsigned)b * 7 + ((unsigned)b >> 11) + i * 31 + 1);
    }
    c->want[i] = weft_digest_of(block, (size_t)each[0]);
    if (weft_st_writer_put(w, block, (uint64_t)each[0], &why) != WEFT_OK) {
      check_die(c, "writing what is sent", &why);
    }
  }
  weft_st_writer_destroy(w);
  free(block);
  if (weft_safetensors_read(c->fd, "what is sent", &c->st, &why) != WEFT_OK ||
      c->st == NULL) {
    check_die(c, "reading what is sent", &why);
  }
}

weft_gpu_source *check_source(const check *c, bool nccl, bool dense)
{
  weft_why why = { 0 };
  weft_gpu_source *s = NULL;
  if (c->st == NULL) {
    check_die(c, "nothing was written to be sent", &why);
  }
  const weft_gpu_source_opts opts = { .size = sizeof opts,
                                      .device = &c->device,
                                      .nccl = nccl };
  const weft_gpu_load load = {
    .fd = c->fd, .st = c->st, .count = c->st->count, .dense = dense
  };
  if (weft_gpu_source_create(&opts, &s, &why) != WEFT_OK ||
      weft_gpu_source_load(s, &load, &why) != WEFT_OK) {
    check_die(c, "the sending side", &why);
  }
  return s;
}

/* ---- the receiving side */

unsigned check_threads(void)
{
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return cores < 1 ? 1 : cores > 4 ? 4 : (unsigned)cores;
}

void receiver_open(receiver *r, const check *c, const weft_transfer_ops *ops)
{
  weft_why why = { 0 };
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .device = &c->device,
                                    .threads = check_threads(),
                                    .allow_ipc_pickle = true };
  const weft_memory_cuda_opts memory = { .size = sizeof memory, .device = c->device };
  *r = (receiver){ .c = c, .ops = ops };
  if (c->st == NULL || ops->open(&opts, &r->state, &why) != WEFT_OK ||
      weft_memory_cuda_create(&memory, &r->memory, &why) != WEFT_OK) {
    check_die(c, "the receiving side", &why);
  }
  for (size_t i = 0; i < c->st->count; i++) {
    if (weft_memory_alloc(r->memory, c->st->tensors[i].bytes, &r->extents[i], &why) !=
        WEFT_OK) {
      check_die(c, "device memory", &why);
    }
    r->dst[i] = r->extents[i].ptr;
  }
}

void receiver_close(receiver *r)
{
  for (size_t i = 0; i < r->c->st->count; i++) {
    weft_memory_free(r->memory, &r->extents[i]);
  }
  weft_memory_destroy(r->memory);
  r->ops->close(r->state);
}

char *check_update_info(const check *c, const char *handles)
{
  weft_json_writer w;
  char *text = NULL;
  size_t len = 0;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_array(&w, "names");
  for (size_t i = 0; i < c->st->count; i++) {
    weft_jw_str(&w, NULL, c->st->tensors[i].name);
  }
  weft_jw_end(&w);
  weft_jw_array(&w, "dtype_names");
  for (size_t i = 0; i < c->st->count; i++) {
    weft_jw_str(&w, NULL, "uint8");
  }
  weft_jw_end(&w);
  weft_jw_array(&w, "shapes");
  for (size_t i = 0; i < c->st->count; i++) {
    weft_jw_array(&w, NULL);
    weft_jw_i64(&w, NULL, c->st->tensors[i].shape[0]);
    weft_jw_end(&w);
  }
  weft_jw_end(&w);
  if (handles != NULL) {
    weft_jw_str(&w, "ipc_handles_pickled", handles);
  }
  weft_jw_end(&w);
  if (weft_jw_take(&w, &text, &len) != WEFT_OK) {
    check_die(c, "no memory", NULL);
  }
  return text;
}

weft_plan *receiver_accept(receiver *r, const char *info)
{
  const weft_transfer_who who = { .epoch = 1, .world_size = 1 };
  weft_why why = { 0 };
  weft_plan *plan = NULL;
  if (r->ops->accept(r->state, info, strlen(info), &who, &plan, &why) != WEFT_OK) {
    check_die(r->c, "accept", &why);
  }
  return plan;
}

receive_time receiver_receive(receiver *r, weft_plan *plan)
{
  weft_digest got[TENSORS_MAX];
  weft_why why = { 0 };
  const double from = check_now_s();
  if (r->ops->receive(r->state, plan, r->dst, got, NULL, NULL, NULL, &why) != WEFT_OK) {
    check_die(r->c, "receive", &why);
  }
  const double received = check_now_s();
  if (r->ops->settle(r->state, NULL, NULL, NULL, &why) != WEFT_OK) {
    check_die(r->c, "digests", &why);
  }
  const receive_time t = { received - from, check_now_s() - from };
  r->ops->abandon(r->state, plan);
  for (size_t i = 0; i < r->c->st->count; i++) {
    if (memcmp(&got[i], &r->c->want[i], sizeof got[i]) != 0) {
      check_die(r->c, "other bytes arrived than were sent", NULL);
    }
  }
  return t;
}

receive_time receive_less(receive_time a, receive_time b)
{
  return (receive_time){ a.receive < b.receive ? a.receive : b.receive,
                         a.digested < b.digested ? a.digested : b.digested };
}

static void check_info(const check *c)
{
  weft_device_info info;
  weft_why why = { 0 };
  weft_json_writer w;
  const weft_err err = weft_device_probe(&c->device, true, &info, &why);
  if (err != WEFT_OK) {
    check_die(c, "no GPU to be used", &why);
  }
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "check", c->name);
  weft_jw_bool(&w, "ok", true);
  weft_jw_str(&w, "gpu", info.name);
  weft_jw_str(&w, "cuda", info.cudart);
  weft_jw_str(&w, "nccl", info.nccl);
  weft_jw_u64(&w, "gpus", (uint64_t)info.count);
  print_object(&w);
}

/* ---- */

int main(int argc, char **argv)
{
  static const struct {
    const char *name;
    void (*run)(const check *c);
  } checks[] = {
    { "info", check_info },
    { "ipc", check_ipc },
    { "nccl-alone", check_alone },
    { "nccl-pair", check_pair },
    { "abort-join", check_abort_join },
    { "abort-broadcast", check_abort_broadcast },
  };
  static check c = { .device = { .size = sizeof c.device }, .name = "?", .fd = -1 };
  int at = 1;
  for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
    c.device.cudart = strcmp(argv[at], "--cudart") == 0 ? argv[at + 1] : c.device.cudart;
    c.device.nccl = strcmp(argv[at], "--nccl") == 0 ? argv[at + 1] : c.device.nccl;
  }
  const unsigned long mib = at + 1 < argc ? strtoul(argv[at + 1], NULL, 10) : 64;
  const unsigned long tensors = at + 2 < argc ? strtoul(argv[at + 2], NULL, 10) : 64;
  for (size_t i = 0; at < argc && i < sizeof checks / sizeof *checks; i++) {
    if (strcmp(argv[at], checks[i].name) == 0 && tensors > 0 && tensors <= TENSORS_MAX &&
        mib <= 1 << 20) {
      c.name = checks[i].name;
      weft_device_clear_env();
      make_file(&c, mib > 0 ? (uint64_t)mib << 20 : tensors * 16, (unsigned)tensors);
      checks[i].run(&c);
      weft_safetensors_free(c.st);
      (void)close(c.fd);
      return 0;
    }
  }
  (void)fputs(
      "usage: weft_gpu_check [--cudart PATH] [--nccl PATH] CHECK [MIB [TENSORS]]\n"
      "checks: info ipc nccl-alone nccl-pair abort-join abort-broadcast\n",
      stderr);
  return 2;
}
