/* The API of the NCCL double; what it does: fake_nccl.h. */
#define _GNU_SOURCE
#include "fake_nccl.h"

#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct fake_config { /* head of ncclConfig_t */
  size_t size;
  unsigned magic, version;
  int blocking;
} fake_config;

static _Thread_local char last_text[FAKE_TEXT];

int fake_say(int code, const char *text)
{
  (void)snprintf(last_text, sizeof last_text, "%s", text);
  return code;
}

void fake_nap_us(long us)
{
  const struct timespec t = { us / 1000000, us % 1000000 * 1000 };
  (void)nanosleep(&t, NULL);
}

void fake_set_state(fake_comm *c, int state, const char *text)
{
  (void)pthread_mutex_lock(&c->lock);
  c->state = state;
  if (text != NULL) {
    (void)snprintf(c->text, sizeof c->text, "%s", text);
  }
  (void)pthread_cond_broadcast(&c->changed);
  (void)pthread_mutex_unlock(&c->lock);
}

int fake_state_of(fake_comm *c)
{
  (void)pthread_mutex_lock(&c->lock);
  const int state = c->state;
  (void)pthread_mutex_unlock(&c->lock);
  return state;
}

int fake_nccl_version(void)
{
  return (int)weft_fake_number("WEFT_FAKE_NCCL_VERSION", 22809);
}

/* ---- joining */

static int connect_root(fake_comm *c)
{
  const long patience_ms = weft_fake_number("WEFT_FAKE_NCCL_CONNECT_MS", 60000);
  const int one = 1;
  for (long waited = 0; waited <= patience_ms && !atomic_load(&c->aborted);
       waited += 20) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&c->root, sizeof c->root) == 0) {
      (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      return fd;
    }
    if (fd >= 0) {
      (void)close(fd);
    }
    fake_nap_us(20000);
  }
  return -1;
}

static void join(fake_comm *c)
{
  fake_hello m = { FAKE_MAGIC,
                   (uint32_t)fake_nccl_version(),
                   (uint32_t)c->ranks,
                   (uint32_t)c->rank,
                   { 0 } };
  memcpy(m.uuid, c->uuid, sizeof m.uuid);
  fake_verdict v;
  c->fd = connect_root(c);
  if (c->fd < 0 || !fake_send(c->fd, &m, sizeof m, &c->aborted)) {
    fake_set_state(c, NCCL_REMOTE, "the root of the unique id does not answer");
  } else if (!fake_recv(c->fd, &v, sizeof v, &c->aborted)) {
    fake_set_state(c, NCCL_REMOTE, "the root closed the connection");
  } else {
    fake_set_state(c, (int)v.code, v.text);
  }
}

static void *join_main(void *arg)
{
  join(arg);
  return NULL;
}

FAKE_API int ncclGetVersion(int *version)
{
  *version = fake_nccl_version();
  return weft_fake_fault("ncclGetVersion");
}

FAKE_API int ncclGetUniqueId(fake_id *id)
{
  const int fault = weft_fake_fault("ncclGetUniqueId");
  memset(id, 0, sizeof *id);
  if (fault != 0 || fake_hub_start(&id->at) != 0) {
    return fault != 0 ? fault : NCCL_SYSTEM;
  }
  id->magic = UINT64_C(0x5f0587cba68b667c) ^ (uint64_t)getpid();
  return NCCL_OK;
}

static void free_comm(fake_comm *c)
{
  if (c->joining) {
    (void)pthread_join(c->joiner, NULL);
  }
  if (c->fd >= 0) {
    (void)close(c->fd);
  }
  c->magic = 0;
  (void)pthread_mutex_destroy(&c->lock);
  (void)pthread_cond_destroy(&c->changed);
  free(c);
}

FAKE_API int ncclCommInitRankConfig(void **comm, int ranks, fake_id id, int rank,
                                    const fake_config *config)
{
  const int fault = weft_fake_fault("ncclCommInitRankConfig");
  *comm = NULL;
  if (fault != 0) {
    return fault;
  }
  if (rank < 0 || rank >= ranks || ranks > FAKE_RANKS_MAX) {
    return fake_say(NCCL_ARGUMENT, "Invalid rank requested");
  }
  if (config != NULL && (config->size < sizeof *config || config->magic != 0xcafebeef)) {
    return fake_say(NCCL_ARGUMENT, "ncclConfig_t argument not initialized");
  }
  fake_comm *c = calloc(1, sizeof *c);
  if (c == NULL) {
    return NCCL_SYSTEM;
  }
  *c = (fake_comm){ .magic = FAKE_COMM_MAGIC,
                    .fd = -1,
                    .rank = rank,
                    .ranks = ranks,
                    .root = id.at,
                    .state = NCCL_IN_PROGRESS };
  (void)pthread_mutex_init(&c->lock, NULL);
  (void)pthread_cond_init(&c->changed, NULL);
  const long forced = weft_fake_number("NCCL_COMM_BLOCKING", INT_MIN);
  c->blocking = config == NULL || config->blocking != 0;
  c->blocking = forced == INT_MIN ? c->blocking : forced != 0;
  c->device = weft_fake_current(c->uuid);
  if (c->blocking) {
    join(c);
    const int state = c->state;
    if (state != NCCL_OK) {
      (void)fake_say(state, c->text);
      free_comm(c);
      return state;
    }
    *comm = c;
    return NCCL_OK;
  }
  c->joining = pthread_create(&c->joiner, NULL, join_main, c) == 0;
  *comm = c;
  return c->joining ? NCCL_IN_PROGRESS : NCCL_SYSTEM;
}

FAKE_API int ncclCommInitRank(void **comm, int ranks, fake_id id, int rank)
{
  return ncclCommInitRankConfig(comm, ranks, id, rank, NULL);
}

FAKE_API int ncclCommGetAsyncError(void *comm, int *err)
{
  const int fault = weft_fake_fault("ncclCommGetAsyncError");
  *err = fake_state_of(comm);
  return fault;
}

FAKE_API int ncclCommCount(void *comm, int *count)
{
  *count = ((fake_comm *)comm)->ranks;
  return NCCL_OK;
}

FAKE_API int ncclCommUserRank(void *comm, int *rank)
{
  *rank = ((fake_comm *)comm)->rank;
  return NCCL_OK;
}

FAKE_API int ncclCommCuDevice(void *comm, int *device)
{
  *device = ((fake_comm *)comm)->device;
  return NCCL_OK;
}

/* ---- the end */

static void wait_idle(fake_comm *c)
{
  (void)pthread_mutex_lock(&c->lock);
  while (c->queued > 0) {
    (void)pthread_cond_wait(&c->changed, &c->lock);
  }
  (void)pthread_mutex_unlock(&c->lock);
}

static bool abort_hangs(void)
{
  const char *knob = getenv("WEFT_FAKE_NCCL_ABORT_HANG");
  return knob != NULL && (knob[0] == '/' ? access(knob, F_OK) == 0 : atoi(knob) != 0);
}

FAKE_API int ncclCommAbort(void *comm)
{
  fake_comm *c = comm;
  const int fault = weft_fake_fault("ncclCommAbort");
  if (fault != 0 || c == NULL) {
    return fault;
  }
  while (abort_hangs()) {
    fake_nap_us(10000);
  }
  atomic_store(&c->aborted, true);
  if (c->fd >= 0 && !c->joining) {
    (void)shutdown(c->fd, SHUT_RDWR);
  }
  wait_idle(c);
  free_comm(c);
  return NCCL_OK;
}

FAKE_API int ncclCommFinalize(void *comm)
{
  const int fault = weft_fake_fault("ncclCommFinalize");
  if (fault == 0) {
    wait_idle(comm);
  }
  return fault;
}

FAKE_API int ncclCommDestroy(void *comm)
{
  fake_comm *c = comm;
  const int fault = weft_fake_fault("ncclCommDestroy");
  if (fault != 0 || c == NULL) {
    return fault;
  }
  wait_idle(c);
  const fake_head bye = { .kind = FAKE_BYE };
  if (c->fd >= 0) {
    (void)fake_send(c->fd, &bye, sizeof bye, NULL);
  }
  free_comm(c);
  return NCCL_OK;
}

FAKE_API int ncclGroupStart(void)
{
  return NCCL_OK; /* calls in a group go one by one: no test here needs more */
}

FAKE_API int ncclGroupEnd(void)
{
  return NCCL_OK;
}

FAKE_API const char *ncclGetErrorString(int code)
{
  static const char *const texts[] = {
    "no error",
    "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "internal error - please report this issue to the NCCL developers",
    "invalid argument (run with NCCL_DEBUG=WARN for details)",
    "invalid usage (run with NCCL_DEBUG=WARN for details)",
    "remote process exited or there was a network error",
    "NCCL operation in progress"
  };
  return code >= 0 && code < 8 ? texts[code] : "unknown result code";
}

FAKE_API const char *ncclGetLastError(void *comm)
{
  const fake_comm *c = comm;
  return c != NULL && c->magic == FAKE_COMM_MAGIC && c->text[0] != '\0' ? c->text
                                                                        : last_text;
}

/* vLLM's wrapper wants these to exist.  Not built here: they say so. */
#define NOT_HERE(name)                                                                   \
  FAKE_API int name(void)                                                                \
  {                                                                                      \
    return fake_say(NCCL_USAGE, #name " is not in this test double");                    \
  }
NOT_HERE(ncclReduce)
NOT_HERE(ncclAllGather)
NOT_HERE(ncclReduceScatter)
NOT_HERE(ncclSend)
NOT_HERE(ncclRecv)
