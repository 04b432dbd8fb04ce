/* weft/pubsub.h -- the publisher's nng pub socket, the snapshot socket beside it, and a
 * subscriber that closes gaps by itself.  Not here: what an event says
 * (actors/publisher.c). */
#ifndef WEFT_PUBSUB_H
#define WEFT_PUBSUB_H

#include "weft/base.h"
#include "weft/buf.h"
#include "weft/err.h"
#include "weft/loop.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

/* ---- pub: topic + one space + JSON text per message.  Send buffer raised. */
typedef struct weft_pub weft_pub;
WEFT_API weft_err weft_pub_create(const char *url, char *url_out, size_t url_cap,
                                  weft_pub **out, weft_why *why) WEFT_MUST_USE;
WEFT_API weft_err weft_pub_send(weft_pub *pub, const char *topic, const void *json,
                                size_t len);
WEFT_API void weft_pub_destroy(weft_pub *pub);

/* ---- JSON rep: one request text in, one answer text out.  on_request runs on the loop;
 * the answer may come later, once per id.  Requests over 64 KiB are dropped by the
 * socket. */
typedef struct weft_jsonrep weft_jsonrep;
typedef void weft_jsonrep_fn(void *arg, uint64_t id,
                             weft_buf *request); /* borrows request */
WEFT_API weft_err weft_jsonrep_create(weft_loop *loop, const char *url, unsigned contexts,
                                      weft_jsonrep_fn *on_request, void *arg,
                                      char *url_out, size_t url_cap, weft_jsonrep **out,
                                      weft_why *why) WEFT_MUST_USE;
WEFT_API void weft_jsonrep_answer(weft_jsonrep *rep, uint64_t id, const void *json,
                                  size_t len);
WEFT_API void weft_jsonrep_destroy(weft_jsonrep *rep);

/* A blocking JSON request for tools and threads that are no loop.  *answer is owned by
 * the caller.  Errors: TIMEOUT, SYS (cannot connect), LIMIT. */
WEFT_API weft_err weft_jsonreq(const char *url, const void *json, size_t len,
                               uint64_t timeout_ms, weft_buf **answer, weft_why *why)
    WEFT_MUST_USE;

/* ---- subscriber for threads that are no loop.  Follows events_url, and when a number is
 * missing, the boot_id is new, or at start, asks snapshot_url; so next gives every commit
 * once and in order, or one resync with the engine's status when the engine no longer
 * has what was missed. */
typedef struct weft_sub weft_sub;
typedef enum weft_sub_kind {
  WEFT_SUB_STATUS, /* where things stand: at start and after a reconnect */
  WEFT_SUB_EVENT,  /* topic and json as published */
  WEFT_SUB_RESYNC  /* commits were missed for good: json is the status */
} weft_sub_kind;
typedef struct weft_sub_event {
  weft_sub_kind kind;
  char topic[64];
  weft_buf *json; /* owned by the caller */
} weft_sub_event;
WEFT_API weft_err weft_sub_create(const char *events_url, const char *snapshot_url,
                                  weft_sub **out, weft_why *why) WEFT_MUST_USE;
/* Blocks up to timeout_ms. Errors: TIMEOUT (nothing came), CLOSED (interrupted). */
WEFT_API weft_err weft_sub_next(weft_sub *sub, uint64_t timeout_ms, weft_sub_event *out)
    WEFT_MUST_USE;
WEFT_API void weft_sub_interrupt(weft_sub *sub); /* any thread */
WEFT_API void weft_sub_destroy(weft_sub *sub);

WEFT_END_DECLS

#endif /* WEFT_PUBSUB_H */
