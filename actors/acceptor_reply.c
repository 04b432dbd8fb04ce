#include "acceptor_priv.h"
#include "silence.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct status_row {
  weft_err err;
  int status;
  const char *type;
} status_row;

/* What is not here is 500. */
static const status_row statuses[] = {
  { WEFT_E_CONFLICT, 409, "Conflict" },
  { WEFT_E_STATE, 409, "Conflict" },
  { WEFT_E_EXISTS, 409, "Conflict" },
  { WEFT_E_PRECOND, 412, "Precondition Failed" },
  { WEFT_E_REUSED, 422, "Unprocessable Entity" },
  { WEFT_E_UNAVAIL, 503, "Service Unavailable" },
  { WEFT_E_FULL, 503, "Service Unavailable" },
  { WEFT_E_DENIED, 403, "Forbidden" },
  { WEFT_E_NOTFOUND, 404, "Not Found" },
  { WEFT_E_INVAL, 400, "Bad Request" },
  { WEFT_E_UNSUPPORTED, 400, "Bad Request" },
  { WEFT_E_LIMIT, 413, "Request Entity Too Large" },
};

static const status_row *status_of(weft_err err)
{
  static const status_row other = { WEFT_E_FAILED, 500, "InternalServerError" };
  for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
    if (statuses[i].err == err) {
      return &statuses[i];
    }
  }
  return &other;
}

static void respond(const wefti_http_ops *ops, weft_http_id id,
                    const weft_http_reply *reply)
{
  ops->respond(ops->arg, id, reply);
}

void wefti_reply_body(const wefti_http_ops *ops, weft_http_id id, int status,
                      const char *body, size_t len)
{
  const weft_http_reply reply = { .status = status, .body = body, .body_len = len };
  respond(ops, id, &reply);
}

void wefti_reply_nomem(const wefti_http_ops *ops, weft_http_id id)
{
  static const char body[] =
      "{\"error\":{\"message\":\"the front end is out of memory; try "
      "again\",\"type\":\"Service Unavailable\",\"param\":null,"
      "\"code\":503}}";
  wefti_reply_body(ops, id, 503, body, sizeof body - 1);
}

/* Sends what w holds; takes w's memory. */
static void finish(const wefti_http_ops *ops, weft_http_id id, int status,
                   weft_json_writer *w)
{
  char *text;
  size_t len;
  if (weft_jw_take(w, &text, &len) != WEFT_OK) {
    weft_jw_fini(w);
    wefti_reply_nomem(ops, id);
    return;
  }
  wefti_reply_body(ops, id, status, text, len);
  free(text);
}

/* Opens {"error":{…, still open. */
static void begin_error(weft_json_writer *w, const status_row *row, const char *message,
                        size_t len, const char *param)
{
  weft_jw_init(w);
  weft_jw_object(w, NULL);
  weft_jw_object(w, "error");
  weft_jw_strn(w, "message", message, len);
  weft_jw_str(w, "type", row->type);
  weft_jw_str(w, "param", param);
  weft_jw_i64(w, "code", row->status);
}

void wefti_reply_problem(const wefti_http_ops *ops, weft_http_id id,
                         const wefti_problem *bad)
{
  const status_row row = { WEFT_E_INVAL, bad->status, bad->type };
  weft_json_writer w;
  begin_error(&w, &row, bad->message, strlen(bad->message),
              bad->param[0] == '\0' ? NULL : bad->param);
  weft_jw_end(&w);
  weft_jw_end(&w);
  finish(ops, id, bad->status, &w);
}

static void write_replicas(weft_json_writer *w, const weft_client_done *done)
{
  if (done->replicas != NULL) {
    weft_jw_raw(w, "replicas", (const char *)done->replicas->data, done->replicas->len);
  }
}

/* {"error":"Failed to pause generation: …"}, as the pause family speaks. */
static void reply_string_error(const wefti_http_ops *ops, const wefti_open *open,
                               const weft_client_done *done, const status_row *row,
                               const char *message, size_t len)
{
  const wefti_route_fact *fact = wefti_route_fact_of(open->route);
  weft_json_writer w;
  char text[1024];
  const int n =
      row->status == 400
          ? snprintf(text, sizeof text, "%.*s", (int)len, message)
          : snprintf(text, sizeof text, "%s: %.*s", fact->failed, (int)len, message);
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "error", n < 0 ? fact->failed : text);
  write_replicas(&w, done);
  weft_jw_end(&w);
  finish(ops, open->id, row->status, &w);
}

static void reply_not_ready(const wefti_http_ops *ops, weft_http_id id,
                            const char *reason, size_t len)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_bool(&w, "ready", false);
  weft_jw_strn(&w, "reason", reason, len);
  weft_jw_end(&w);
  finish(ops, id, 503, &w);
}

static const char *outcome_name(uint32_t outcome)
{
  return outcome == WEFT_OUTCOME_NOT_COMMITTED ? "not_committed"
         : outcome == WEFT_OUTCOME_UNKNOWN     ? "unknown"
                                               : NULL;
}

static void reply_error(const wefti_http_ops *ops, const wefti_open *open,
                        const weft_client_done *done, uint64_t now_ms)
{
  const weft_err err = (weft_err)done->err;
  const status_row *row = status_of(err);
  const char *text = done->message.len > 0 ? done->message.p : weft_strerror(err);
  const size_t len = done->message.len > 0 ? done->message.len : strlen(text);
  if (open->route == WEFTI_ROUTE_READY) {
    reply_not_ready(ops, open->id, text, len);
    return;
  }
  const wefti_route_fact *fact = wefti_route_fact_of(open->route);
  if (fact->failed != NULL) {
    reply_string_error(ops, open, done, row, text, len);
    return;
  }
  weft_json_writer w;
  begin_error(&w, row, text, len, NULL);
  /* Only the engine names it; what answers in its place (a relay, this end) does not. */
  const bool named = done->operation.len > 0;
  if (named) {
    weft_jw_strn(&w, "operation", done->operation.p, done->operation.len);
  } else if (fact->mutates) {
    weft_jw_str(&w, "operation", fact->name);
  }
  if (done->phase.len > 0) {
    weft_jw_strn(&w, "phase", done->phase.p, done->phase.len);
  }
  if (done->culprits.len > 0) {
    weft_jw_strn(&w, "workers", done->culprits.p, done->culprits.len);
  }
  if (named || fact->mutates) {
    weft_jw_u64(&w, "elapsed_ms", named ? done->elapsed_ms : now_ms - open->asked_ms);
  }
  if (outcome_name(done->outcome) != NULL) {
    weft_jw_str(&w, "outcome", outcome_name(done->outcome));
  }
  write_replicas(&w, done);
  weft_jw_end(&w);
  weft_jw_end(&w);
  finish(ops, open->id, row->status, &w);
}

static void reply_member(const wefti_http_ops *ops, const wefti_open *open,
                         const char *key, const char *value, size_t len)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_strn(&w, key, value, len);
  weft_jw_end(&w);
  finish(ops, open->id, 200, &w);
}

/* The object with more members: key, which may be "", and what follows.  NULL = out of
 * memory; else the caller frees it. */
static char *with_members(const char *object, size_t len, const char *key,
                          const char *more, size_t more_len)
{
  const size_t cap = len + strlen(key) + more_len + 2;
  char *all = malloc(cap);
  if (all != NULL) {
    (void)snprintf(all, cap, "%.*s,%s%.*s}", (int)len - 1, object, key, (int)more_len,
                   more);
  }
  return all;
}

/* Of a fleet whose replicas show different things: who shows what, beside the version. */
static void reply_mixed(const wefti_http_ops *ops, const wefti_open *open,
                        const weft_client_done *done)
{
  weft_json_writer w;
  char *text;
  size_t len;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_strn(&w, "weight_version", done->version.p, done->version.len);
  weft_jw_end(&w);
  if (weft_jw_take(&w, &text, &len) != WEFT_OK) {
    weft_jw_fini(&w);
    wefti_reply_nomem(ops, open->id);
    return;
  }
  const weft_buf *more = done->body; /* an object that is not empty */
  char *all = with_members(text, len, "", (const char *)more->data + 1, more->len - 2);
  free(text);
  if (all == NULL) {
    wefti_reply_nomem(ops, open->id);
    return;
  }
  wefti_reply_body(ops, open->id, 200, all, strlen(all));
  free(all);
}

/* The hot path: a version without anything to escape is written on the stack. */
static void reply_info(const wefti_http_ops *ops, const wefti_open *open,
                       weft_str version)
{
  static const char head[] = "{\"weight_version\":\"";
  char body[sizeof head - 1 + WEFTI_VERSION_MAX + 2];
  bool plain = version.len <= WEFTI_VERSION_MAX;
  for (uint32_t i = 0; plain && i < version.len; i++) {
    const unsigned char c = (unsigned char)version.p[i];
    plain = c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
  }
  if (!plain) {
    reply_member(ops, open, "weight_version", version.p, version.len);
    return;
  }
  size_t n = sizeof head - 1;
  memcpy(body, head, n);
  if (version.len > 0) {
    memcpy(body + n, version.p, version.len);
    n += version.len;
  }
  body[n++] = '"';
  body[n++] = '}';
  wefti_reply_body(ops, open->id, 200, body, n);
}

/* {"success":true,"new_version":…} with the headers of a commit. */
static void reply_label(const wefti_http_ops *ops, const wefti_open *open,
                        const weft_client_done *done, weft_http_reply *reply)
{
  weft_json_writer w;
  char *text;
  size_t len;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_bool(&w, "success", true);
  weft_jw_strn(&w, "new_version", (const char *)open->echo->data, open->echo->len);
  write_replicas(&w, done);
  weft_jw_end(&w);
  if (weft_jw_take(&w, &text, &len) != WEFT_OK) {
    /* The label has changed: say so without the echo rather than call it a failure. */
    static const char bare[] = "{\"success\":true}";
    weft_jw_fini(&w);
    reply->body = bare;
    reply->body_len = sizeof bare - 1;
    respond(ops, open->id, reply);
    return;
  }
  reply->body = text;
  reply->body_len = len;
  respond(ops, open->id, reply);
  free(text);
}

static void reply_success(const wefti_http_ops *ops, const wefti_open *open,
                          const weft_client_done *done)
{
  const wefti_route_fact *fact = wefti_route_fact_of(open->route);
  weft_http_header headers[3];
  weft_http_reply reply = { .status = 200, .headers = headers };
  char number[24];
  char *owned = NULL;
  if (done->fenced.len > 0) {
    headers[reply.header_count++] = (weft_http_header){ "Weft-Fenced", done->fenced.p };
  }
  if (done->session.len > 0) {
    headers[reply.header_count++] = (weft_http_header){ "Weft-Session", done->session.p };
  }
  if (fact->commits) {
    (void)snprintf(number, sizeof number, "%" PRIu64, done->sequence);
    headers[reply.header_count++] = (weft_http_header){ "Weft-Sequence", number };
  }
  if (fact->success != NULL) {
    const bool fleet = done->replicas != NULL && fact->success[0] == '{';
    owned = fleet ? with_members(fact->success, strlen(fact->success),
                                 "\"replicas\":", (const char *)done->replicas->data,
                                 done->replicas->len)
                  : NULL;
    reply.body = owned == NULL ? fact->success : owned; /* it did succeed */
    reply.body_len = strlen(reply.body);
  } else if (open->echo != NULL) {
    reply_label(ops, open, done, &reply);
    return;
  } else if (done->body != NULL) {
    reply.body = done->body->data;
    reply.body_len = done->body->len;
  }
  if (open->route == WEFTI_ROUTE_METRICS) {
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  }
  respond(ops, open->id, &reply);
  free(owned);
}

void wefti_reply_done(const wefti_http_ops *ops, const wefti_open *open,
                      const weft_client_done *done, uint64_t now_ms)
{
  if (done->err != WEFT_OK) {
    reply_error(ops, open, done, now_ms);
  } else if (open->route == WEFTI_ROUTE_INFO && done->body != NULL &&
             done->body->len > 2) {
    reply_mixed(ops, open, done);
  } else if (open->route == WEFTI_ROUTE_INFO) {
    reply_info(ops, open, done->version);
  } else {
    reply_success(ops, open, done);
  }
}

/* What is certain of a call that the engine did not answer. */
static weft_outcome silent_outcome(const wefti_open *open, bool asked)
{
  switch (open->route) {
  case WEFTI_ROUTE_INIT: /* these bring no bytes and change no version */
  case WEFTI_ROUTE_SHUTDOWN:
  case WEFTI_ROUTE_START:
  case WEFTI_ROUTE_START_DRAFT:
    return WEFT_OUTCOME_NOT_COMMITTED;
  case WEFTI_ROUTE_UPDATE: /* taken in, it may be in a commit of the session by now */
  case WEFTI_ROUTE_FINISH:
  case WEFTI_ROUTE_LABEL:
  case WEFTI_ROUTE_RESOLVE:
    return asked ? WEFT_OUTCOME_UNKNOWN : WEFT_OUTCOME_NOT_COMMITTED;
  default:
    return WEFT_OUTCOME_NONE;
  }
}

void wefti_reply_silence(const wefti_http_ops *ops, const wefti_open *open,
                         weft_err reason, uint64_t now_ms)
{
  const wefti_route_fact *fact = wefti_route_fact_of(open->route);
  const bool asked = open->corr != 0 && !wefti_was_not_asked(reason);
  const bool unknown = fact->commits && asked;
  char text[256];
  const char *what = reason == WEFT_E_TIMEOUT ? "the engine did not answer in time"
                     : reason == WEFT_E_FULL  ? "the engine is overloaded; try again"
                     : reason == WEFT_E_NOMEM
                         ? "the front end is out of memory; try again"
                     : reason == WEFT_E_LOST   ? "the engine's answer was lost"
                     : reason == WEFT_E_CLOSED ? "the front end is shutting down"
                                               : "the engine is gone";
  const int n = snprintf(text, sizeof text, "%s: %s%s", fact->name, what,
                         unknown ? "; the change may be visible or become so: ask GET "
                                   "/weight_status"
                                 : "");
  const weft_client_done done = {
    .err = reason == WEFT_E_TIMEOUT ? WEFT_E_TIMEOUT : WEFT_E_UNAVAIL,
    .outcome = silent_outcome(open, asked),
    .message = { text, n < 0 ? 0 : (uint32_t)n },
  };
  reply_error(ops, open, &done, now_ms);
}
