/* announce.h -- private to actors/.  A joined worker's thread that introduces it to the
 * engine, and again every few seconds: an engine that came back takes it in anew, one
 * that knows it answers the same.  Not the exchange itself (weft/join.h). */
#ifndef WEFT_ACTORS_ANNOUNCE_H
#define WEFT_ACTORS_ANNOUNCE_H

#include "weft/err.h"
#include "weft/join.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct wefti_announce wefti_announce;
typedef struct wefti_announce_opts {
  const char *url, *token; /* borrowed until stop */
  weft_join_hello hello;
  uint64_t patience_ms; /* without an engine */
  /* On the announcing thread, once: it is no use any more.  Whose rank is taken is told
   * after WEFTI_TAKEN_MS: the one before may have died, or be taken for dead by then. */
  void (*on_failed)(void *arg);
  /* On the announcing thread, each time that it was let in, for_ms after the first time
   * of those in a row.  May write another address into *hello; true: say so at once.  May
   * be NULL. */
  bool (*on_let_in)(void *arg, uint64_t for_ms, weft_join_hello *hello);
  void *arg;
} wefti_announce_opts;

weft_err wefti_announce_start(const wefti_announce_opts *opts, wefti_announce **out)
    WEFT_MUST_USE;
/* Waits for the thread; *why says what on_failed was about, why->err OK if it was not
 * called.  NULL is a no-op. */
void wefti_announce_stop(wefti_announce *announce, weft_why *why);

#endif /* WEFT_ACTORS_ANNOUNCE_H */
