/* calls_text.h -- private to calls.c: requests of the embedder as messages, answers as
 * results.  No state, no threads. */
#ifndef WEFT_ACTORS_CALLS_TEXT_H
#define WEFT_ACTORS_CALLS_TEXT_H

#include "weft/weft.h"

typedef struct wefti_query_call {
  weft_client_query query; /* first */
  char limit[16];
} wefti_query_call;

typedef union wefti_any_call {
  weft_msg h;
  weft_client_init init;
  weft_client_start start;
  weft_client_update update;
  weft_client_finish finish;
  weft_client_label label;
  weft_client_abort abort;
  weft_client_pause pause;
  weft_client_resolve resolve;
  weft_client_query query;
  wefti_query_call limited;
} wefti_any_call;

/* INVAL when a field that the operation needs is missing or too long. */
weft_err wefti_call_check(const weft_request *r) WEFT_MUST_USE;
/* Builds the message; it borrows from r and info, a buffer made of r->json. */
weft_err wefti_call_fill(wefti_any_call *call, const weft_request *r, weft_buf *info)
    WEFT_MUST_USE;

void wefti_result_from(weft_result *out, const weft_client_done *done); /* borrows */
void wefti_result_failed(weft_result *out, weft_err err, weft_outcome outcome);
weft_result *wefti_result_dup(const weft_result *from); /* one block; NULL = no memory */

#endif /* WEFT_ACTORS_CALLS_TEXT_H */
