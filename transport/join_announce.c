#include "join_kind.h"
#include "weft/clock.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

enum { PAUSE_MS = 100 };

static void pause_ms(uint64_t ms)
{
  const struct timespec t = { .tv_sec = (time_t)(ms / 1000),
                              .tv_nsec = (long)(ms % 1000) * 1000000 };
  (void)nanosleep(&t, NULL);
}

weft_err weft_join_announce(const char *url, const char *token,
                            const weft_join_hello *hello, uint64_t deadline_ms,
                            weft_why *why)
{
  const uint64_t start = weft_clock_ms();
  const uint64_t end =
      deadline_ms > UINT64_MAX / 2 ? UINT64_MAX / 2 : start + deadline_ms;
  weft_why last = { .err = WEFT_OK, .text = "not tried" };
  if (memchr(hello->url, '\0', sizeof hello->url) == NULL) {
    return weft_whyf(why, WEFT_E_INVAL, "join: the worker's url has no end");
  }
  for (;;) {
    const weft_err err =
        wefti_guest_call(&wefti_join_kind, url, token, hello, end, &last);
    if (err == WEFT_OK) {
      return WEFT_OK;
    }
    if (err != WEFT_E_AGAIN) {
      return weft_whyf(why, err, "%s", last.text);
    }
    const uint64_t now = weft_clock_ms();
    if (now >= end) {
      return weft_whyf(why, WEFT_E_TIMEOUT,
                       "rank %" PRIu32 " could not join in %" PRIu64 " ms: %s",
                       hello->rank, deadline_ms, last.text);
    }
    pause_ms(end - now < PAUSE_MS ? end - now : PAUSE_MS);
  }
}
