/* The collectives of the NCCL double: queued on the stand-in's streams, in the order of
 * their calls. */
#define _GNU_SOURCE
#include "fake_nccl.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct collective {
  fake_comm *comm;
  fake_head head;
  const char *from;
  char *to;
  void *stream;
  bool hang, kill;
} collective;

static int parse_count(const char *knob, const char *name)
{
  const char *text = getenv(knob);
  const size_t len = strlen(name);
  return text != NULL && strncmp(text, name, len) == 0 && text[len] == ':'
             ? atoi(text + len + 1)
             : -1;
}

/* A kernel whose peers failed spins until somebody aborts. */
static void stuck(fake_comm *c, int code, const char *text)
{
  if (code != NCCL_OK) {
    fake_set_state(c, code, text);
  }
  while (!atomic_load(&c->aborted)) {
    fake_nap_us(1000);
  }
}

static bool move(const collective *o)
{
  fake_comm *c = o->comm;
  const size_t n = (size_t)o->head.bytes;
  const bool root = (int)o->head.root == c->rank;
  if (o->head.kind == FAKE_ALL_REDUCE) {
    return fake_send(c->fd, o->from, n, &c->aborted) &&
           fake_recv(c->fd, o->to, n, &c->aborted);
  }
  if (o->kill) {
    (void)(root ? fake_send(c->fd, o->from, n / 2, &c->aborted)
                : fake_recv(c->fd, o->to, n / 2, &c->aborted));
    (void)raise(SIGKILL);
  }
  if (!root) {
    return fake_recv(c->fd, o->to, n, &c->aborted);
  }
  if (o->to != o->from) {
    memmove(o->to, o->from, n);
  }
  return fake_send(c->fd, o->from, n, &c->aborted);
}

static void run_collective(void *arg)
{
  collective *o = arg;
  fake_comm *c = o->comm;
  fake_verdict v = { 0 };
  (void)pthread_mutex_lock(&c->lock);
  while (c->ended + 1 != o->head.sequence) {
    (void)pthread_cond_wait(&c->changed, &c->lock);
  }
  (void)pthread_mutex_unlock(&c->lock);
  if (o->hang) {
    stuck(c, NCCL_OK, NULL);
  } else if (!fake_send(c->fd, &o->head, sizeof o->head, &c->aborted) ||
             !fake_recv(c->fd, &v, sizeof v, &c->aborted)) {
    stuck(c, NCCL_REMOTE, "connection closed by remote peer");
  } else if (v.code != 0) {
    stuck(c, (int)v.code, v.text);
  } else if (!move(o)) {
    stuck(c, NCCL_REMOTE, "connection closed by remote peer in the middle of the bytes");
  }
  (void)pthread_mutex_lock(&c->lock);
  c->queued--;
  c->ended++;
  (void)pthread_cond_broadcast(&c->changed);
  (void)pthread_mutex_unlock(&c->lock);
  free(o);
}

static void *launch_main(void *arg)
{
  collective *o = arg;
  fake_comm *c = o->comm;
  fake_nap_us(weft_fake_number("WEFT_FAKE_NCCL_LAUNCH_US", 200));
  (void)pthread_mutex_lock(&c->lock);
  const int code = weft_fake_enqueue(o->stream, run_collective, o);
  if (c->state == NCCL_IN_PROGRESS) {
    c->state = code == 0 ? NCCL_OK : NCCL_SYSTEM;
  }
  (void)pthread_cond_broadcast(&c->changed);
  (void)pthread_mutex_unlock(&c->lock);
  return NULL;
}

static int submit(collective *o)
{
  fake_comm *c = o->comm;
  pthread_t thread;
  (void)pthread_mutex_lock(&c->lock);
  const int state = c->state;
  if (state == NCCL_OK) {
    o->head.sequence = ++c->sequence;
    c->queued++;
    c->state = c->blocking ? NCCL_OK : NCCL_IN_PROGRESS;
  }
  (void)pthread_mutex_unlock(&c->lock);
  if (state != NCCL_OK) {
    free(o);
    return state == NCCL_IN_PROGRESS
               ? fake_say(NCCL_USAGE, "a call on a communicator that is in progress")
               : fake_say(state, c->text);
  }
  if (c->blocking) {
    return weft_fake_enqueue(o->stream, run_collective, o) == 0 ? NCCL_OK : NCCL_SYSTEM;
  }
  if (pthread_create(&thread, NULL, launch_main, o) != 0) {
    return NCCL_SYSTEM;
  }
  (void)pthread_detach(thread);
  return NCCL_IN_PROGRESS;
}

static size_t size_of(int type)
{
  static const unsigned char sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
  return type >= 0 && type < (int)sizeof sizes ? sizes[type] : 0;
}

static int collective_call(const char *function, const char *name, collective o,
                           size_t count, int type)
{
  static atomic_int broadcasts, reductions;
  const int fault = weft_fake_fault(function);
  const size_t size = size_of(type);
  if (fault != 0) {
    return fake_say(fault, "the test asked for this failure");
  }
  if (o.comm == NULL || o.comm->magic != FAKE_COMM_MAGIC || size == 0) {
    return fake_say(NCCL_ARGUMENT, "no communicator, or no such type");
  }
  if (count == 0) {
    return NCCL_OK; /* as the real one: nothing happens */
  }
  o.head.bytes = count * size;
  /* Broadcasts are sent as bytes whatever the type, so only those are compared. */
  o.head.type = o.head.kind == FAKE_BROADCAST ? 1 : (uint32_t)type;
  o.from = weft_fake_view(o.from, o.head.bytes);
  o.to = weft_fake_view(o.to, o.head.bytes);
  if (o.to == NULL || o.from == NULL) {
    return fake_say(NCCL_ARGUMENT, "a buffer is not device memory of that size");
  }
  const int number =
      1 + atomic_fetch_add(o.head.kind == FAKE_BROADCAST ? &broadcasts : &reductions, 1);
  o.hang = parse_count("WEFT_FAKE_NCCL_HANG", name) == number;
  o.kill = parse_count("WEFT_FAKE_NCCL_KILL", name) == number;
  collective *own = malloc(sizeof *own);
  if (own == NULL) {
    return NCCL_SYSTEM;
  }
  *own = o;
  return submit(own);
}

FAKE_API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                           void *comm, void *stream)
{
  const collective o = { .comm = comm,
                         .head = { .kind = FAKE_BROADCAST, .root = (uint32_t)root },
                         .from = comm != NULL && ((fake_comm *)comm)->rank == root ? from
                                                                                   : to,
                         .to = to,
                         .stream = stream };
  return collective_call("ncclBroadcast", "broadcast", o, count, type);
}

FAKE_API int ncclBcast(void *buffer, size_t count, int type, int root, void *comm,
                       void *stream)
{
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

FAKE_API int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
                           void *comm, void *stream)
{
  if (type != 7 || op != 0 || count > FAKE_REDUCE_MAX / sizeof(float)) {
    return fake_say(NCCL_ARGUMENT, "the double adds float32 only, at most 1 MiB");
  }
  const collective o = { .comm = comm,
                         .head = { .kind = FAKE_ALL_REDUCE },
                         .from = from,
                         .to = to,
                         .stream = stream };
  return collective_call("ncclAllReduce", "all_reduce", o, count, type);
}

/* ---- there because vLLM's wrapper does not load a library without them; nobody calls
 * them */

FAKE_API int ncclCommWindowRegister(void *comm, void *buffer, size_t size, void **window,
                                    int flags)
{
  (void)comm, (void)buffer, (void)size, (void)window, (void)flags;
  return fake_say(NCCL_USAGE, "the double has no windows");
}

FAKE_API int ncclCommWindowDeregister(void *comm, void *window)
{
  (void)comm, (void)window;
  return fake_say(NCCL_USAGE, "the double has no windows");
}

FAKE_API int ncclCommSuspend(void *comm, int flags)
{
  (void)comm, (void)flags;
  return fake_say(NCCL_USAGE, "the double's communicators cannot be suspended");
}

FAKE_API int ncclCommResume(void *comm)
{
  (void)comm;
  return fake_say(NCCL_USAGE, "the double's communicators cannot be suspended");
}
