#define _GNU_SOURCE /* gettid */
#include "agreed.h"
#include "assembly.h"
#include "lend.h"
#include "weft/checked.h"
#include "weft/clock.h"
#include "weft/host_sender.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* A loan: one set, to one rank, on a thread of its own.  It ends when that rank has
 * everything or leaves, when nobody comes or nothing moves, after WEFTI_LOAN_MS, or when
 * it is told to.  The engine has one at a time, so the next loan tells the one before to:
 * whom that was for has died, or has given up.  It need not have ended yet. */

enum { SECRET_BYTES = 32, NICE = 10, LOANS_MAX = 4 };

typedef struct loan {
  wefti_device *device;
  weft_host_sender *sender;
  weft_host_piece *pieces;
  const weft_snapshot *snapshot; /* pinned */
  uint64_t due_ms;
  pthread_t thread;
  bool started;       /* thread is to be joined; until over the rest is its own */
  atomic_bool over;   /* release by the thread at its end, acquire before the join */
  atomic_bool cancel; /* relaxed: carries no data */
} loan;

struct wefti_lending {
  wefti_device *device;
  wefti_lender ops;
  loan loans[LOANS_MAX];
};

static void on_progress(void *arg, uint64_t bytes)
{
  loan *l = arg;
  (void)bytes;
  if (weft_clock_ms() >= l->due_ms) {
    atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
  }
}

static void *lend_main(void *arg)
{
  loan *l = arg;
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

static weft_err describe(const loan *l, const char *secret, const weft_snapshot *s,
                         weft_buf **info)
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

static void forget(loan *l)
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

static weft_err open_sender(loan *l, const weft_snapshot *s, const char *towards,
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
                                       .no_progress_ms = LEND_QUIET_MS };
  return weft_host_sender_create_memory(&opts, l->pieces, s->tensor_count, &l->sender,
                                        why);
}

static weft_err start(loan *l, const weft_snapshot *s)
{
  l->snapshot = s;
  l->due_ms = weft_clock_ms() + WEFTI_LOAN_MS;
  atomic_store_explicit(&l->cancel, false, memory_order_relaxed);
  atomic_store_explicit(&l->over, false, memory_order_relaxed);
  l->started = pthread_create(&l->thread, NULL, lend_main, l) == 0;
  return l->started ? WEFT_OK : WEFT_E_SYS;
}

static void stop(void *arg)
{
  wefti_lending *lending = arg;
  for (size_t i = 0; i < LOANS_MAX; i++) {
    atomic_store_explicit(&lending->loans[i].cancel, true, memory_order_relaxed);
  }
}

/* A place for another loan, or NULL: too many have yet to see that they are to end. */
static loan *find_place(wefti_lending *lending)
{
  for (size_t i = 0; i < LOANS_MAX; i++) {
    loan *l = &lending->loans[i];
    if (!l->started || atomic_load_explicit(&l->over, memory_order_acquire)) {
      forget(l);
      return l;
    }
  }
  return NULL;
}

static weft_err begin(loan *l, const weft_snapshot *snapshot, const char *towards,
                      weft_buf **info, weft_why *why)
{
  char secret[2 * SECRET_BYTES + 1];
  weft_err err = make_secret(secret);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "no secret: %s", weft_strerror(err));
  }
  err = open_sender(l, snapshot, towards, secret, why);
  if (err != WEFT_OK) {
    return err;
  }
  weft_buf *text = NULL;
  err = describe(l, secret, snapshot, &text);
  err = err == WEFT_OK ? start(l, snapshot) : err;
  if (err != WEFT_OK) {
    weft_buf_unref(text);
    return weft_whyf(why, err, "the loan cannot start: %s", weft_strerror(err));
  }
  *info = text;
  return WEFT_OK;
}

static weft_err lend(void *arg, const weft_snapshot *snapshot, const char *towards,
                     weft_buf **info, weft_why *why)
{
  wefti_lending *lending = arg;
  stop(lending);
  loan *l = find_place(lending);
  if (l == NULL) {
    return weft_whyf(why, WEFT_E_UNAVAIL, "its last %d loans have not ended yet",
                     LOANS_MAX);
  }
  const weft_err err = begin(l, snapshot, towards, info, why);
  if (err != WEFT_OK) {
    forget(l);
  }
  return err;
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
  for (size_t i = 0; i < LOANS_MAX; i++) {
    l->loans[i].device = device;
  }
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
  for (size_t i = 0; i < LOANS_MAX; i++) {
    forget(&l->loans[i]);
  }
  l->device->lender = NULL;
  free(l);
}
