#define _GNU_SOURCE /* gettid */
#include "assembly.h"
#include "lend.h"
#include "weft/checked.h"
#include "weft/host_sender.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* One loan at a time: one set, to one rank, on a thread of its own.  It ends when that
 * rank has everything or leaves, when nobody comes or nothing moves, after LEND_MS, or
 * when it is told to. */

enum { QUIET_MS = 10000, LEND_MS = 600000, SECRET_BYTES = 32, NICE = 10 };

struct wefti_lending {
  wefti_device *device;
  wefti_lender ops;
  /* ---- of the loan; the thread's own until over */
  weft_host_sender *sender;
  weft_host_piece *pieces;
  const weft_snapshot *snapshot; /* pinned */
  uint64_t due_ms;
  pthread_t thread;
  bool started;       /* thread is to be joined */
  atomic_bool over;   /* release by the thread at its end, acquire before the join */
  atomic_bool cancel; /* relaxed: carries no data */
};

static uint64_t now_ms(void)
{
  struct timespec ts = { 0 };
  (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
  return (uint64_t)ts.tv_sec * 1000U + (uint64_t)ts.tv_nsec / 1000000U;
}

static void on_progress(void *arg, uint64_t bytes)
{
  wefti_lending *l = arg;
  (void)bytes;
  if (now_ms() >= l->due_ms) {
    atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
  }
}

static void *lend_main(void *arg)
{
  wefti_lending *l = arg;
  (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
  /* How it ended is told by who took it. */
  const weft_err err = weft_host_sender_run(l->sender, &l->cancel, on_progress, l, NULL);
  (void)err;
  weft_host_sender_destroy(l->sender);
  weft_store_unpin(l->device->store, l->snapshot);
  l->sender = NULL;
  l->snapshot = NULL;
  atomic_store_explicit(&l->over, true, memory_order_release);
  return NULL;
}

/* ---- what is said of it: an update_info */

static void list_tensors(weft_json_writer *w, const weft_snapshot *s)
{
  weft_jw_array(w, "names");
  for (size_t i = 0; i < s->tensor_count; i++) {
    weft_jw_str(w, NULL, s->tensors[i].name);
  }
  weft_jw_end(w);
  weft_jw_array(w, "dtype_names");
  for (size_t i = 0; i < s->tensor_count; i++) {
    weft_jw_str(w, NULL, s->tensors[i].dtype);
  }
  weft_jw_end(w);
  weft_jw_array(w, "shapes");
  for (size_t i = 0; i < s->tensor_count; i++) {
    weft_jw_array(w, NULL);
    for (unsigned d = 0; d < s->tensors[i].ndim; d++) {
      weft_jw_i64(w, NULL, s->tensors[i].shape[d]);
    }
    weft_jw_end(w);
  }
  weft_jw_end(w);
}

static weft_err describe(const wefti_lending *l, const char *secret,
                         const weft_snapshot *s, weft_buf **info)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_object(&w, "source");
  weft_jw_str(&w, "kind", "tcp");
  weft_jw_str(&w, "address", weft_host_sender_address(l->sender));
  weft_jw_str(&w, "token", secret);
  weft_jw_end(&w);
  list_tensors(&w, s);
  weft_jw_end(&w);
  return wefti_json_buf(&w, info);
}

/* ---- where to listen, for whom */

/* A numeric address only: the loop that we are on does not wait for name servers. */
static weft_err choose_host(const char *towards, char host[WEFTI_URL_MAX], weft_why *why)
{
  if (strncmp(towards, "tcp://", 6) != 0) {
    (void)snprintf(host, WEFTI_URL_MAX, "127.0.0.1");
    return WEFT_OK;
  }
  const char *at = towards + 6;
  if (*at != '[' && at[strspn(at, "0123456789.")] != ':') {
    return weft_whyf(why, WEFT_E_UNSUPPORTED, "%.200s is not a numeric address", towards);
  }
  char url[WEFTI_URL_MAX];
  const weft_err err = wefti_local_towards(towards, url, why);
  if (err == WEFT_OK) { /* tcp://HOST:0 */
    const bool v6 = url[6] == '[';
    const size_t end = strlen(url) - strlen(":0") - v6;
    (void)snprintf(host, WEFTI_URL_MAX, "%.*s", (int)(end - 6 - v6), url + 6 + v6);
  }
  return err;
}

static weft_err make_secret(char out[2 * SECRET_BYTES + 1])
{
  uint8_t bytes[SECRET_BYTES];
  const weft_err err = wefti_random(bytes, sizeof bytes);
  for (size_t i = 0; i < sizeof bytes; i++) {
    (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
  }
  return err;
}

/* ---- a loan */

static void forget(wefti_lending *l)
{
  if (l->started) {
    (void)pthread_join(l->thread, NULL);
    l->started = false;
  }
  weft_host_sender_destroy(l->sender);
  l->sender = NULL;
  free(l->pieces);
  l->pieces = NULL;
}

static weft_err open_sender(wefti_lending *l, const weft_snapshot *s, const char *towards,
                            const char *secret, weft_why *why)
{
  char host[WEFTI_URL_MAX];
  weft_err err = choose_host(towards, host, why);
  if (err != WEFT_OK) {
    return err;
  }
  const size_t count = s->tensor_count > 0 ? s->tensor_count : 1;
  l->pieces = calloc(count, sizeof *l->pieces);
  if (l->pieces == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "out of memory to lend %zu tensors",
                     s->tensor_count);
  }
  for (size_t i = 0; i < s->tensor_count; i++) {
    l->pieces[i] =
        (weft_host_piece){ .data = s->tensors[i].data, .bytes = s->tensors[i].bytes };
  }
  const weft_host_sender_opts opts = { .size = sizeof opts,
                                       .host = host,
                                       .token = secret,
                                       .workers = 1,
                                       .no_progress_ms = QUIET_MS };
  return weft_host_sender_create_memory(&opts, l->pieces, s->tensor_count, &l->sender,
                                        why);
}

static weft_err start(wefti_lending *l, const weft_snapshot *s)
{
  l->snapshot = s;
  l->due_ms = now_ms() + LEND_MS;
  atomic_store_explicit(&l->cancel, false, memory_order_relaxed);
  atomic_store_explicit(&l->over, false, memory_order_relaxed);
  l->started = pthread_create(&l->thread, NULL, lend_main, l) == 0;
  return l->started ? WEFT_OK : WEFT_E_SYS;
}

static weft_err lend(void *arg, const weft_snapshot *snapshot, const char *towards,
                     weft_buf **info, weft_why *why)
{
  wefti_lending *l = arg;
  char secret[2 * SECRET_BYTES + 1];
  if (l->started && !atomic_load_explicit(&l->over, memory_order_acquire)) {
    return weft_whyf(why, WEFT_E_UNAVAIL, "it lends them already");
  }
  forget(l);
  weft_err err = make_secret(secret);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "no secret: %s", weft_strerror(err));
  }
  weft_buf *text = NULL;
  err = open_sender(l, snapshot, towards, secret, why);
  if (err == WEFT_OK) {
    err = describe(l, secret, snapshot, &text);
    err = err == WEFT_OK ? start(l, snapshot) : err;
    if (err != WEFT_OK) {
      (void)weft_whyf(why, err, "the loan cannot start: %s", weft_strerror(err));
      weft_buf_unref(text);
    }
  }
  if (err != WEFT_OK) {
    forget(l);
    return err;
  }
  *info = text;
  return WEFT_OK;
}

static void stop(void *arg)
{
  wefti_lending *l = arg;
  atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
}

weft_err wefti_lending_create(wefti_device *device, wefti_lending **out)
{
  *out = NULL;
  if (device->transfer->info != NULL) { /* GPU memory */
    return WEFT_OK;
  }
  wefti_lending *l = calloc(1, sizeof *l);
  if (l == NULL) {
    return WEFT_E_NOMEM;
  }
  l->device = device;
  l->ops =
      (wefti_lender){ .lend = lend, .stop = stop, .take = wefti_lend_take, .arg = l };
  device->lender = &l->ops;
  *out = l;
  return WEFT_OK;
}

wefti_device *wefti_lending_device(const wefti_lending *l)
{
  return l->device;
}

void wefti_lending_destroy(wefti_lending *l)
{
  if (l == NULL) {
    return;
  }
  stop(l);
  forget(l);
  l->device->lender = NULL;
  free(l);
}
