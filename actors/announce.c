#include "announce.h"

#include "agreed.h"
#include "patience.h"
#include "weft/clock.h"

#include <stdlib.h>

enum { SLICE_MS = 1000, AGAIN_MS = 3000, TAKEN_AGAIN_MS = 100 };

struct wefti_announce {
  wefti_announce_opts opts;
  pthread_t thread;
  wefti_patience wait;
  weft_why failure; /* the thread's until it was joined */
};

/* false: it is time to end. */
static bool wait_ms(wefti_announce *a, uint64_t ms)
{
  const uint64_t end = weft_clock_ms() + ms;
  wefti_patience_lock(&a->wait);
  for (uint64_t now = weft_clock_ms(); !a->wait.over && now < end;
       now = weft_clock_ms()) {
    wefti_patience_wait(&a->wait, end - now);
  }
  const bool goes_on = !a->wait.over;
  wefti_patience_unlock(&a->wait);
  return goes_on;
}

static void *announce_main(void *arg)
{
  wefti_announce *a = arg;
  wefti_announce_opts *o = &a->opts;
  const uint64_t begun_ms = weft_clock_ms();
  uint64_t heard_ms = begun_ms;
  bool was_in = false;
  uint64_t let_in_ms = 0; /* since when without a break, 0 = not */
  uint64_t pause_ms = 0;
  while (wait_ms(a, pause_ms)) {
    weft_why why = { .err = WEFT_OK, .text = "" };
    const weft_err err = weft_join_announce(o->url, o->token, &o->hello, SLICE_MS, &why);
    if (err == WEFT_OK) {
      heard_ms = weft_clock_ms();
      was_in = true;
      let_in_ms = let_in_ms ? let_in_ms : heard_ms;
      const bool moved =
          o->on_let_in && o->on_let_in(o->arg, heard_ms - let_in_ms, &o->hello);
      pause_ms = moved ? 0 : AGAIN_MS;
    } else if (err == WEFT_E_EXISTS && !was_in &&
               weft_clock_ms() - begun_ms < WEFTI_TAKEN_MS) {
      pause_ms = TAKEN_AGAIN_MS; /* by one that has died, or hangs */
    } else if (err != WEFT_E_TIMEOUT || weft_clock_ms() - heard_ms > o->patience_ms) {
      a->failure = why;
      o->on_failed(o->arg);
      break;
    } else {
      let_in_ms = 0;
      pause_ms = 0;
    }
  }
  return NULL;
}

weft_err wefti_announce_start(const wefti_announce_opts *opts, wefti_announce **out)
{
  wefti_announce *a = calloc(1, sizeof *a);
  if (!a) {
    return WEFT_E_NOMEM;
  }
  a->opts = *opts;
  weft_err err = wefti_patience_init(&a->wait);
  if (err == WEFT_OK && pthread_create(&a->thread, NULL, announce_main, a) != 0) {
    wefti_patience_fini(&a->wait);
    err = WEFT_E_SYS;
  }
  if (err != WEFT_OK) {
    free(a);
    return err;
  }
  *out = a;
  return WEFT_OK;
}

void wefti_announce_stop(wefti_announce *a, weft_why *why)
{
  if (!a) {
    return;
  }
  wefti_patience_end(&a->wait);
  (void)pthread_join(a->thread, NULL);
  if (a->failure.err != WEFT_OK && why) {
    *why = a->failure;
  }
  wefti_patience_fini(&a->wait);
  free(a);
}
