/* Streams, events and copies of the cudart double.  Bytes move when the stream's thread
 * comes to it, after a delay: who does not wait sees old ones. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { EVENT_MAGIC = 0x77664531, PAGE = 4096, INTERPROCESS = 4 };

typedef struct op {
  struct op *next;
  fake_op_fn *fn;
  void *arg;
} op;

struct fake_stream {
  struct fake_stream *next;
  pthread_t thread;
  op *first, **last;
  int device;
  bool busy, ending;
};

static fake_stream *null_stream;

static void nap_us(long us)
{
  if (us > 0) {
    const struct timespec t = { us / 1000000, us % 1000000 * 1000 };
    (void)nanosleep(&t, NULL);
  }
}

static void *stream_main(void *arg)
{
  fake_stream *s = arg;
  fake_world *w = weft_fake_world();
  weft_fake_lock();
  for (;;) {
    while (s->first == NULL && !s->ending) {
      (void)pthread_cond_wait(&w->changed, &w->lock);
    }
    if (s->first == NULL) {
      break;
    }
    op *o = s->first;
    s->first = o->next;
    s->last = s->first == NULL ? &s->first : s->last;
    s->busy = true;
    weft_fake_unlock();
    nap_us(weft_fake_number("WEFT_FAKE_STREAM_DELAY_US", 50));
    o->fn(o->arg);
    free(o);
    weft_fake_lock();
    s->busy = false;
    (void)pthread_cond_broadcast(&w->changed);
  }
  weft_fake_unlock();
  return NULL;
}

static fake_stream *make_stream(void)
{
  fake_stream *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return NULL;
  }
  s->last = &s->first;
  s->device = fake_device();
  if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
    free(s);
    return NULL;
  }
  s->next = weft_fake_world()->streams;
  weft_fake_world()->streams = s;
  return s;
}

static fake_stream *stream_of(void *stream) /* locked */
{
  if (stream != NULL) {
    return stream;
  }
  if (null_stream == NULL) {
    null_stream = make_stream();
  }
  return null_stream;
}

int weft_fake_enqueue(void *stream, fake_op_fn *fn, void *arg)
{
  op *o = calloc(1, sizeof *o);
  if (o == NULL) {
    return 2;
  }
  o->fn = fn;
  o->arg = arg;
  weft_fake_lock();
  fake_stream *s = stream_of(stream);
  if (s != NULL) {
    *s->last = o;
    s->last = &o->next;
    (void)pthread_cond_broadcast(&weft_fake_world()->changed);
  } else {
    free(o);
  }
  weft_fake_unlock();
  return s != NULL ? 0 : 2;
}

static bool idle(const fake_stream *s)
{
  return s->first == NULL && !s->busy;
}

void fake_drain(void)
{
  fake_world *w = weft_fake_world();
  weft_fake_lock();
  for (fake_stream *s = w->streams; s != NULL;) {
    if (s->device != fake_device() || idle(s)) {
      s = s->next;
    } else {
      (void)pthread_cond_wait(&w->changed, &w->lock);
      s = w->streams;
    }
  }
  weft_fake_unlock();
}

FAKE_API int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
  (void)flags;
  const int fault = weft_fake_fault("cudaStreamCreateWithFlags");
  if (fault != 0) {
    return fault;
  }
  weft_fake_lock();
  fake_stream *s = make_stream();
  weft_fake_unlock();
  if (s == NULL) {
    return 2;
  }
  *stream = s;
  return 0;
}

FAKE_API int cudaStreamCreate(void **stream)
{
  return cudaStreamCreateWithFlags(stream, 0);
}

FAKE_API int cudaStreamDestroy(void *stream)
{
  fake_stream *s = stream;
  fake_world *w = weft_fake_world();
  weft_fake_lock();
  s->ending = true;
  (void)pthread_cond_broadcast(&w->changed);
  weft_fake_unlock();
  (void)pthread_join(s->thread, NULL);
  weft_fake_lock();
  fake_stream **at = &w->streams;
  while (*at != s) {
    at = &(*at)->next;
  }
  *at = s->next;
  weft_fake_unlock();
  free(s);
  return 0;
}

FAKE_API int cudaStreamQuery(void *stream)
{
  const int fault = weft_fake_fault("cudaStreamQuery");
  if (fault != 0) {
    return fault;
  }
  weft_fake_lock();
  const fake_stream *s = stream_of(stream);
  const int code = s != NULL && idle(s) ? 0 : 600;
  weft_fake_unlock();
  return code;
}

FAKE_API int cudaStreamSynchronize(void *stream)
{
  fake_world *w = weft_fake_world();
  const int fault = weft_fake_fault("cudaStreamSynchronize");
  if (fault != 0) {
    return fault;
  }
  weft_fake_lock();
  const fake_stream *s = stream_of(stream);
  while (s != NULL && !idle(s)) {
    (void)pthread_cond_wait(&w->changed, &w->lock);
  }
  weft_fake_unlock();
  return 0;
}

FAKE_API int cudaDeviceSynchronize(void)
{
  const int fault = weft_fake_fault("cudaDeviceSynchronize");
  if (fault == 0) {
    fake_drain();
  }
  return fault;
}

/* ---- copies */

typedef struct copy {
  char *to;
  const char *from; /* NULL: fill */
  size_t n;
  int value;
} copy;

static void run_copy(void *arg)
{
  copy *c = arg;
  if (c->from != NULL) {
    memmove(c->to, c->from, c->n);
  } else {
    memset(c->to, c->value, c->n);
  }
  free(c);
}

static int queue_copy(copy c, void *stream)
{
  copy *own = malloc(sizeof *own);
  if (own == NULL) {
    return 2;
  }
  *own = c;
  const int code = weft_fake_enqueue(stream, run_copy, own);
  if (code != 0) {
    free(own);
  }
  return code;
}

FAKE_API int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream)
{
  const int fault = weft_fake_fault("cudaMemcpyAsync");
  if (fault != 0 || n == 0) {
    return fault;
  }
  const bool to_device = kind == 1 || kind == 3, from_device = kind == 2 || kind == 3;
  char *dst = to_device ? weft_fake_view(to, n) : to;
  const char *src = from_device ? weft_fake_view(from, n) : from;
  if (kind < 0 || kind > 3 || dst == NULL || src == NULL ||
      (!to_device && weft_fake_view(to, 0) != NULL) ||
      (!from_device && weft_fake_view(from, 0) != NULL)) {
    return 1;
  }
  return queue_copy((copy){ .to = dst, .from = src, .n = n }, stream);
}

FAKE_API int cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
  const int code = cudaMemcpyAsync(to, from, n, kind, NULL);
  return code == 0 ? cudaStreamSynchronize(NULL) : code;
}

FAKE_API int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
                               size_t from_pitch, size_t width, size_t height, int kind,
                               void *stream)
{
  int code = 0;
  for (size_t i = 0; i < height && code == 0; i++) {
    code = cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch,
                           width, kind, stream);
  }
  return code;
}

FAKE_API int cudaMemsetAsync(void *ptr, int value, size_t n, void *stream)
{
  const int fault = weft_fake_fault("cudaMemsetAsync");
  char *dst = weft_fake_view(ptr, n);
  if (fault != 0 || dst == NULL) {
    return fault != 0 ? fault : 1;
  }
  return queue_copy((copy){ .to = dst, .n = n, .value = value }, stream);
}

/* ---- events */

typedef struct event_op {
  fake_event *event;
  uint64_t generation;
  bool wait;
} event_op;

static fake_event_state *map_state(int fd)
{
  void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? NULL : at;
}

static int make_event(unsigned flags, fake_event **out)
{
  fake_event *e = calloc(1, sizeof *e);
  if (e == NULL) {
    return 2;
  }
  e->refs = 1;
  e->fd = -1;
  if ((flags & INTERPROCESS) != 0) {
    e->fd = memfd_create("weft-fake-event", MFD_CLOEXEC);
    e->state = e->fd >= 0 && ftruncate(e->fd, PAGE) == 0 ? map_state(e->fd) : NULL;
  } else {
    e->state = calloc(1, sizeof *e->state);
  }
  if (e->state == NULL) {
    free(e);
    return 2;
  }
  *out = e;
  return 0;
}

void fake_event_drop(fake_event *e)
{
  if (--e->refs > 0) {
    return;
  }
  if (e->fd >= 0) {
    (void)munmap(e->state, PAGE);
    (void)close(e->fd);
  } else {
    free(e->state);
  }
  free(e);
}

FAKE_API int cudaEventCreateWithFlags(void **event, unsigned flags)
{
  const int fault = weft_fake_fault("cudaEventCreateWithFlags");
  fake_event *e = NULL;
  const int code = fault != 0 ? fault : make_event(flags, &e);
  if (code == 0) {
    *event = e;
  }
  return code;
}

FAKE_API int cudaEventDestroy(void *event)
{
  weft_fake_lock();
  fake_event_drop(event);
  weft_fake_unlock();
  return 0;
}

static bool reached(const fake_event *e, uint64_t generation)
{
  return atomic_load(&e->state->completed) >= generation;
}

static void run_event(void *arg)
{
  event_op *o = arg;
  fake_world *w = weft_fake_world();
  weft_fake_lock();
  if (o->wait) {
    while (!reached(o->event, o->generation)) { /* perhaps in another process: look */
      struct timespec t;
      (void)clock_gettime(CLOCK_REALTIME, &t);
      t.tv_nsec += 1000000;
      t.tv_sec += t.tv_nsec / 1000000000;
      t.tv_nsec %= 1000000000;
      (void)pthread_cond_timedwait(&w->changed, &w->lock, &t);
    }
  } else if (!reached(o->event, o->generation)) {
    atomic_store(&o->event->state->completed, o->generation);
  }
  fake_event_drop(o->event);
  (void)pthread_cond_broadcast(&w->changed);
  weft_fake_unlock();
  free(o);
}

static int queue_event(fake_event *e, void *stream, bool wait)
{
  event_op *o = malloc(sizeof *o);
  if (o == NULL) {
    return 2;
  }
  weft_fake_lock();
  e->refs++;
  const uint64_t generation = wait ? atomic_load(&e->state->recorded)
                                   : atomic_fetch_add(&e->state->recorded, 1) + 1;
  weft_fake_unlock();
  *o = (event_op){ e, generation, wait };
  const int code = weft_fake_enqueue(stream, run_event, o);
  if (code != 0) {
    weft_fake_lock();
    fake_event_drop(e);
    weft_fake_unlock();
    free(o);
  }
  return code;
}

FAKE_API int cudaEventRecord(void *event, void *stream)
{
  const int fault = weft_fake_fault("cudaEventRecord");
  return fault != 0 ? fault : queue_event(event, stream, false);
}

FAKE_API int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
  (void)flags;
  const int fault = weft_fake_fault("cudaStreamWaitEvent");
  return fault != 0 ? fault : queue_event(event, stream, true);
}

FAKE_API int cudaEventQuery(void *event)
{
  const fake_event *e = event;
  const int fault = weft_fake_fault("cudaEventQuery");
  if (fault != 0) {
    return fault;
  }
  weft_fake_lock();
  const bool done = reached(e, atomic_load(&e->state->recorded));
  weft_fake_unlock();
  return done ? 0 : 600;
}

FAKE_API int cudaEventSynchronize(void *event)
{
  int code;
  while ((code = cudaEventQuery(event)) == 600) {
    nap_us(100);
  }
  return code;
}

typedef struct wire_event {
  uint32_t magic;
  int32_t pid, fd;
  uint64_t inode;
} wire_event;

FAKE_API int cudaIpcGetEventHandle(fake_handle *handle, void *event)
{
  const fake_event *e = event;
  struct stat st;
  if (e->fd < 0 || e->imported || fstat(e->fd, &st) != 0) {
    return 400;
  }
  const wire_event w = { EVENT_MAGIC, getpid(), e->fd, st.st_ino };
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &w, sizeof w);
  return 0;
}

FAKE_API int cudaIpcOpenEventHandle(void **event, fake_handle handle)
{
  const int fault = weft_fake_fault("cudaIpcOpenEventHandle");
  wire_event w;
  memcpy(&w, &handle, sizeof w);
  if (fault != 0 || w.magic != EVENT_MAGIC || w.pid == getpid()) {
    return fault != 0 ? fault : 400;
  }
  char path[64];
  (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", w.pid, w.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat st;
  fake_event *e = fd >= 0 ? calloc(1, sizeof *e) : NULL;
  if (e != NULL && fstat(fd, &st) == 0 && st.st_ino == w.inode) {
    e->state = map_state(fd);
  }
  if (e == NULL || e->state == NULL) {
    free(e);
    if (fd >= 0) {
      (void)close(fd);
    }
    return 400;
  }
  e->refs = 1;
  e->fd = fd;
  e->imported = true;
  *event = e;
  return 0;
}
