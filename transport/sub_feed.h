/* sub_feed.h -- the pure half of the subscriber: which events are new, what to ask when
 * something is missing, and what the caller gets.  No socket, no clock, no lock. */
#ifndef WEFT_TRANSPORT_SUB_FEED_H
#define WEFT_TRANSPORT_SUB_FEED_H

#include "weft/pubsub.h"

#include <stdbool.h>

enum { WEFTI_BOOT_MAX = 64, WEFTI_ASK_MAX = 96 };

typedef enum wefti_ask_kind {
  WEFTI_ASK_NOTHING,
  WEFTI_ASK_STATUS, /* {"get":"status"} */
  WEFTI_ASK_EVENTS  /* {"get":"events","after":N} */
} wefti_ask_kind;

typedef struct wefti_feed_item {
  struct wefti_feed_item *next;
  weft_sub_event event;
} wefti_feed_item;

typedef struct wefti_feed {
  bool synced;       /* boot and last are known */
  bool show_status;  /* the next status goes to the caller: start, reconnect */
  bool must_resync;  /* the engine could not fill a gap: its status ends it */
  bool held_checked; /* the held event's boot was asked about */
  char boot[WEFTI_BOOT_MAX];
  uint64_t last;        /* highest sequence handed out */
  unsigned no_progress; /* replays in a row that did not help */
  wefti_ask_kind want;
  weft_buf *status;    /* to be shown after the replay that was asked for */
  weft_sub_event held; /* json NULL = none: what revealed a gap, looked at again later */
  wefti_feed_item *ready, **ready_tail;
} wefti_feed;

void wefti_feed_init(wefti_feed *f);
void wefti_feed_fini(wefti_feed *f);
/* The stream (re)started or lost something, or nothing came for a while (show false). */
void wefti_feed_check(wefti_feed *f, bool show);
/* A published message.  Only while want is NOTHING or an idle check is under way.
 * Errors: NOMEM (nothing changed); bad messages are ignored. */
weft_err wefti_feed_event(wefti_feed *f, const void *data, size_t len) WEFT_MUST_USE;
/* Text of the request that want stands for; returns its length. */
size_t wefti_feed_ask(const wefti_feed *f, char out[WEFTI_ASK_MAX]);
/* The answer to kind.  Errors: NOMEM, PROTO (ask again). */
weft_err wefti_feed_answer(wefti_feed *f, wefti_ask_kind kind, const void *data,
                           size_t len) WEFT_MUST_USE;
/* What the caller gets next.  false = nothing. */
bool wefti_feed_pop(wefti_feed *f, weft_sub_event *out);

#endif /* WEFT_TRANSPORT_SUB_FEED_H */
