#define _GNU_SOURCE
#include "rep.h"
#include "weft/pubsub.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { REQUEST_MAX = 64 << 10, BATCH = 64 };

struct weft_jsonrep {
  wefti_rep *rep;
  weft_io *io;
  weft_jsonrep_fn *on_request;
  void *arg;
  bool *gone; /* see on_wake */
  int event;  /* eventfd: a wake-up can then neither fail nor outlive us */
  uint64_t ids[WEFTI_REP_CONTEXTS_MAX]; /* by slot; 0 = nothing to answer */
  uint64_t last_id;
  unsigned contexts;
};

/* On a thread of nng. */
static void wake(void *arg)
{
  const weft_jsonrep *r = arg;
  const uint64_t one = 1;
  ssize_t n;
  do {
    n = write(r->event, &one, sizeof one); /* EAGAIN: it is up already */
  } while (n < 0 && errno == EINTR);
}

static void drop_slot(weft_jsonrep *r, unsigned slot)
{
  r->ids[slot] = 0;
  wefti_rep_answer(r->rep, slot, NULL);
}

/* false = r is gone. */
static bool take_one(weft_jsonrep *r, unsigned slot, nng_msg *msg)
{
  weft_buf *text = nng_msg_len(msg) > REQUEST_MAX /* inproc knows no limit */
                       ? NULL
                       : weft_buf_create(nng_msg_body(msg), nng_msg_len(msg));
  nng_msg_free(msg);
  if (text == NULL) {
    drop_slot(r, slot);
    return true;
  }
  bool gone = false;
  r->gone = &gone;
  r->ids[slot] = ++r->last_id;
  r->on_request(r->arg, r->ids[slot], text);
  weft_buf_unref(text);
  if (!gone) {
    r->gone = NULL;
  }
  return !gone;
}

static void on_wake(void *arg, int fd, unsigned events)
{
  (void)events;
  weft_jsonrep *r = arg;
  uint64_t count;
  (void)!read(fd, &count, sizeof count);
  for (unsigned i = 0; i < r->contexts; i++) {
    (void)wefti_rep_gone(r->rep, i); /* whoever answers finds out */
  }
  unsigned slot;
  nng_msg *msg;
  for (unsigned i = 0; i < BATCH; i++) {
    if (!wefti_rep_next(r->rep, &slot, &msg)) {
      return;
    }
    if (!take_one(r, slot, msg)) {
      return;
    }
  }
  wake(r); /* the rest after the others' turn */
}

/* NOLINTNEXTLINE(readability-function-size): the interface has nine parameters */
weft_err weft_jsonrep_create(weft_loop *loop, const char *url, unsigned contexts,
                             weft_jsonrep_fn *on_request, void *arg, char *url_out,
                             size_t url_cap, weft_jsonrep **out, weft_why *why)
{
  weft_jsonrep *r = calloc(1, sizeof *r);
  if (r == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url);
  }
  r->on_request = on_request;
  r->arg = arg;
  r->contexts = contexts;
  r->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  weft_err err = WEFT_OK;
  if (r->event < 0) {
    err = weft_whyf(why, WEFT_E_SYS, "%s: eventfd: errno %d", url, errno);
  }
  if (err == WEFT_OK) {
    err = weft_io_create(loop, r->event, WEFT_IO_READ, on_wake, r, &r->io);
    if (err != WEFT_OK) {
      r->io = NULL;
      (void)weft_whyf(why, err, "%s: cannot watch the socket", url);
    }
  }
  if (err == WEFT_OK) {
    wefti_rep_opts opts = { .url = url, .contexts = contexts, .recv_max = REQUEST_MAX };
    opts.url_out = url_out;
    opts.url_cap = url_cap;
    err = wefti_rep_create(&opts, &r->rep, why);
  }
  if (err != WEFT_OK) {
    weft_jsonrep_destroy(r);
    return err;
  }
  wefti_rep_start(r->rep, wake, r);
  *out = r;
  return WEFT_OK;
}

void weft_jsonrep_answer(weft_jsonrep *rep, uint64_t id, const void *json, size_t len)
{
  for (unsigned i = 0; id != 0 && i < rep->contexts; i++) {
    if (rep->ids[i] == id) {
      rep->ids[i] = 0;
      wefti_rep_answer(rep->rep, i, wefti_nng_msg(json, len)); /* no memory: no answer */
      return;
    }
  }
}

void weft_jsonrep_destroy(weft_jsonrep *rep)
{
  if (rep == NULL) {
    return;
  }
  if (rep->gone != NULL) {
    *rep->gone = true;
  }
  wefti_rep_destroy(rep->rep); /* no wake after this */
  weft_io_destroy(rep->io);
  if (rep->event >= 0) {
    (void)close(rep->event);
  }
  free(rep);
}
