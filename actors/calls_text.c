#include "calls_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- results */

static const char *text_of(weft_str s)
{
  return s.p ? s.p : "";
}

void wefti_result_from(weft_result *out, const weft_client_done *done)
{
  *out = (weft_result){
    .err = (weft_err)done->err,
    .outcome = (weft_outcome)done->outcome,
    .sequence = done->sequence,
    .elapsed_ms = done->elapsed_ms,
    .message = text_of(done->message),
    .operation = text_of(done->operation),
    .phase = text_of(done->phase),
    .culprits = text_of(done->culprits),
    .session = text_of(done->session),
    .version = text_of(done->version),
    .fenced = text_of(done->fenced),
    .body = done->body ? (const char *)done->body->data : "",
    .body_len = done->body ? done->body->len : 0,
  };
}

void wefti_result_failed(weft_result *out, weft_err err, weft_outcome outcome)
{
  *out = (weft_result){ .err = err,
                        .outcome = outcome,
                        .message = weft_strerror(err),
                        .operation = "",
                        .phase = "",
                        .culprits = "",
                        .session = "",
                        .version = "",
                        .fenced = "",
                        .body = "" };
}

weft_result *wefti_result_dup(const weft_result *from)
{
  const char *texts[] = { from->message, from->operation, from->phase, from->culprits,
                          from->session, from->version,   from->fenced };
  enum { TEXTS = sizeof texts / sizeof texts[0] };
  size_t need = sizeof(weft_result) + from->body_len + 1;
  for (size_t i = 0; i < TEXTS; i++) {
    need += strlen(texts[i]) + 1;
  }
  weft_result *copy = malloc(need);
  if (!copy) {
    return NULL;
  }
  char *at = (char *)(copy + 1);
  for (size_t i = 0; i < TEXTS; i++) {
    const size_t n = strlen(texts[i]) + 1;
    memcpy(at, texts[i], n);
    texts[i] = at;
    at += n;
  }
  memcpy(at, from->body, from->body_len);
  at[from->body_len] = '\0';
  *copy = *from;
  copy->message = texts[0];
  copy->operation = texts[1];
  copy->phase = texts[2];
  copy->culprits = texts[3];
  copy->session = texts[4];
  copy->version = texts[5];
  copy->fenced = texts[6];
  copy->body = at;
  return copy;
}

void weft_result_free(weft_result *result)
{
  free(result);
}

/* ---- requests */

static weft_str str_of(const char *text)
{
  return text ? (weft_str){ text, (uint32_t)strlen(text) } : (weft_str){ NULL, 0 };
}

#define FILL_CALL(call, request)                                                         \
  do {                                                                                   \
    (call)->timeout_ms = (request)->timeout_ms;                                          \
    (call)->idem_key = str_of((request)->idempotency_key);                               \
    (call)->body_hash = hash_of(request);                                                \
    (call)->session = str_of((request)->session);                                        \
  } while (0)

static uint64_t hash_bytes(uint64_t h, const void *data, size_t len)
{
  const uint8_t *p = data;
  for (size_t i = 0; i < len; i++) { /* FNV-1a */
    h = (h ^ p[i]) * 0x100000001b3U;
  }
  return h;
}

static uint64_t hash_text(uint64_t h, const char *text)
{
  return text ? hash_bytes(h, text, strlen(text) + 1) : h;
}

/* Tells a repeated idempotency key apart from a reused one. */
static uint64_t hash_of(const weft_request *r)
{
  if (!r->idempotency_key) {
    return 0;
  }
  const uint8_t head[] = {
    (uint8_t)r->op, r->strict,          r->draft,
    r->commit,      r->version != NULL, r->expected_version != NULL
  };
  uint64_t h = hash_bytes(0xcbf29ce484222325U, head, sizeof head);
  if (r->json) {
    h = hash_bytes(h, r->json, r->json_len);
  }
  h = hash_text(h, r->version);
  return hash_text(h, r->expected_version);
}

static void fill_query(wefti_any_call *call, weft_query what)
{
  call->query.h.type = WEFT_MSG_CLIENT_QUERY;
  call->query.what = what;
}

static void fill_versions(wefti_query_call *call, uint32_t limit)
{
  call->query.h.type = WEFT_MSG_CLIENT_QUERY;
  call->query.what = WEFT_QUERY_VERSIONS;
  if (limit != 0) {
    (void)snprintf(call->limit, sizeof call->limit, "%" PRIu32, limit);
    call->query.arg = str_of(call->limit);
  }
}

weft_err wefti_call_fill(wefti_any_call *call, const weft_request *r, weft_buf *info)
{
  memset(call, 0, sizeof *call);
  switch (r->op) {
  case WEFT_OP_INIT:
    call->h.type = WEFT_MSG_CLIENT_INIT;
    FILL_CALL(&call->init, r);
    call->init.info = info;
    break;
  case WEFT_OP_START:
    call->h.type = WEFT_MSG_CLIENT_START;
    FILL_CALL(&call->start, r);
    call->start.draft = r->draft;
    break;
  case WEFT_OP_UPDATE:
    call->h.type = WEFT_MSG_CLIENT_UPDATE;
    FILL_CALL(&call->update, r);
    call->update.info = info;
    break;
  case WEFT_OP_FINISH:
    call->h.type = WEFT_MSG_CLIENT_FINISH;
    FILL_CALL(&call->finish, r);
    call->finish.has_version = r->version != NULL;
    call->finish.version = str_of(r->version);
    call->finish.has_expected = r->expected_version != NULL;
    call->finish.expected = str_of(r->expected_version);
    call->finish.strict = r->strict;
    break;
  case WEFT_OP_ABORT:
    call->h.type = WEFT_MSG_CLIENT_ABORT;
    FILL_CALL(&call->abort, r);
    call->abort.reason = str_of(r->version);
    break;
  case WEFT_OP_SET_VERSION:
    call->h.type = WEFT_MSG_CLIENT_LABEL;
    FILL_CALL(&call->label, r);
    call->label.version = str_of(r->version);
    call->label.has_expected = r->expected_version != NULL;
    call->label.expected = str_of(r->expected_version);
    break;
  case WEFT_OP_PAUSE:
  case WEFT_OP_RESUME:
    call->h.type = WEFT_MSG_CLIENT_PAUSE;
    FILL_CALL(&call->pause, r);
    call->pause.action = r->op == WEFT_OP_PAUSE ? WEFT_PAUSE : WEFT_RESUME;
    call->pause.mode = str_of(r->version ? r->version : "abort");
    call->pause.clear_cache = 1;
    break;
  case WEFT_OP_RESOLVE:
    call->h.type = WEFT_MSG_CLIENT_RESOLVE;
    FILL_CALL(&call->resolve, r);
    call->resolve.commit = r->commit;
    break;
  case WEFT_OP_GET_VERSION:
    fill_query(call, WEFT_QUERY_INFO);
    break;
  case WEFT_OP_STATUS:
    fill_query(call, WEFT_QUERY_STATUS);
    break;
  case WEFT_OP_WEIGHTS:
    fill_query(call, WEFT_QUERY_WEIGHTS);
    break;
  case WEFT_OP_READY:
    fill_query(call, WEFT_QUERY_READY);
    break;
  case WEFT_OP_VERSIONS:
    fill_versions(&call->limited, r->limit);
    break;
  default:
    return WEFT_E_INVAL;
  }
  return WEFT_OK;
}

weft_err wefti_call_check(const weft_request *r)
{
  const bool takes_json = r->op == WEFT_OP_INIT || r->op == WEFT_OP_UPDATE;
  if (r->size != sizeof *r || (takes_json && !r->json) ||
      (r->op == WEFT_OP_SET_VERSION && !r->version)) {
    return WEFT_E_INVAL;
  }
  const char *texts[] = { r->version, r->expected_version };
  for (size_t i = 0; i < 2; i++) {
    if (texts[i] && strlen(texts[i]) > WEFT_VERSION_MAX) {
      return WEFT_E_INVAL;
    }
  }
  return WEFT_OK;
}
