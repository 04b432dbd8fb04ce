/* Calls of clients as HTTP requests, and what their answers say. */
#include "full_http.h"

#include "weft/buf.h"
#include "weft/json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call's number is in its timeout_s, which reaches the engine as it is: so it is known
 * there. */
enum { TAGS = 512, BODY_MAX = 512, LONG = 300 * 1024, LOOK_MS = 5000, TABLE_MS = 30000 };
static_assert((int)TAGS >= (int)FULL_CALLS, "one tag for each call");

/* ---- requests */

typedef struct writer {
  char *out;
  size_t len, cap;
  unsigned spelling;
  unsigned members;
} writer;

static void put_text(writer *b, const char *text)
{
  const size_t n = strlen(text);
  if (b->len + n < b->cap) {
    memcpy(b->out + b->len, text, n + 1);
    b->len += n;
  }
}

static void put_name(writer *b, const char *name)
{
  put_text(b, b->members++ == 0 ? "{" : ",");
  put_text(b, b->spelling % 2 != 0 ? " \"" : "\"");
  put_text(b, name);
  put_text(b, b->spelling % 2 != 0 ? "\" :\t" : "\":");
}

static void put_string(writer *b, const char *name, const char *value)
{
  char first[8];
  put_name(b, name);
  put_text(b, "\"");
  if (b->spelling / 2 % 2 != 0 && value[0] != '\0') { /* as an escape */
    (void)snprintf(first, sizeof first, "\\u%04x", (unsigned)(unsigned char)value[0]);
    put_text(b, first);
    value++;
  }
  put_text(b, value);
  put_text(b, "\"");
}

/* A member that nobody asks for, of so many bytes. */
static void put_long(writer *b, size_t n)
{
  put_text(b, ",\"pad\":\"");
  if (b->len + n < b->cap) {
    memset(b->out + b->len, 'x', n);
    b->len += n;
    b->out[b->len] = '\0';
  }
  put_text(b, "\"");
}

static void put_change(writer *b, const full_call *c)
{
  const bool finish = c->type == WEFT_MSG_CLIENT_FINISH;
  if (c->has_expected && b->spelling / 4 % 2 != 0) {
    put_string(b, "expected_version", c->expected);
  }
  if (c->has_version) {
    put_string(b, finish ? "weight_version" : "new_version", c->version);
  } else if (b->spelling / 8 % 2 != 0) {
    put_name(b, "weight_version");
    put_text(b, "null");
  }
  if (c->has_expected && b->spelling / 4 % 2 == 0) {
    put_string(b, "expected_version", c->expected);
  }
}

static bool is_long(const full_call *c)
{
  return c->type == WEFT_MSG_CLIENT_UPDATE && c->spelling % 64 == 3;
}

static void put_update(writer *b, const full *w, const full_call *c)
{
  char info[64];
  put_name(b, "update_info");
  (void)snprintf(info, sizeof info, "{\"push\":%u,\"mask\":%u", c->push,
                 w->pushes[c->push].mask);
  put_text(b, info);
  if (is_long(c) && c->spelling / 64 % 2 != 0) { /* a long thing to copy */
    put_long(b, LONG);
  }
  put_text(b, "}");
  if (is_long(c) && c->spelling / 64 % 2 == 0) { /* ... only to read */
    put_long(b, LONG);
  }
}

static void put_body(writer *b, const full *w, const full_call *c)
{
  switch (c->type) {
  case WEFT_MSG_CLIENT_INIT:
    put_name(b, "init_info");
    put_text(b, "{}");
    break;
  case WEFT_MSG_CLIENT_UPDATE:
    put_update(b, w, c);
    break;
  case WEFT_MSG_CLIENT_FINISH:
  case WEFT_MSG_CLIENT_LABEL:
    put_change(b, c);
    break;
  default:
    return;
  }
  if (b->members > 0) {
    put_text(b, "}");
  }
}

static const char *path_of(const full_call *c)
{
  switch (c->type) {
  case WEFT_MSG_CLIENT_INIT:
    return "/init_weight_transfer_engine";
  case WEFT_MSG_CLIENT_START:
    return c->draft ? "/start_draft_weight_update" : "/start_weight_update";
  case WEFT_MSG_CLIENT_UPDATE:
    return "/update_weights";
  case WEFT_MSG_CLIENT_FINISH:
    return "/finish_weight_update";
  case WEFT_MSG_CLIENT_LABEL:
    return "/update_weight_version";
  case WEFT_MSG_CLIENT_ABORT:
    return "/abort_weight_update";
  default:
    return c->has_expected  ? "/weight_status"
           : c->has_version ? "/weights"
                            : "/weight_info";
  }
}

weft_err full_http_put(full *w, unsigned client, full_call *call, uint32_t timeout_ms)
{
  const unsigned index = (unsigned)(call - w->calls);
  const bool query = call->type == WEFT_MSG_CLIENT_QUERY;
  http_text text = { .method = query ? "GET" : "POST" };
  writer b = { .cap = BODY_MAX + (is_long(call) ? LONG : 0), .spelling = call->spelling };
  b.out = malloc(b.cap);
  if (b.out == NULL) {
    abort();
  }
  call->by_http = true;
  if (query) {
    call->allowed_ms = call->has_version ? TABLE_MS : LOOK_MS;
    (void)snprintf(text.path, sizeof text.path, "%s", path_of(call));
  } else {
    const uint64_t ms = timeout_ms / TAGS * TAGS + TAGS + index;
    call->allowed_ms = ms;
    (void)snprintf(text.path, sizeof text.path, "%s?timeout_s=%" PRIu64 ".%03u",
                   path_of(call), ms / 1000, (unsigned)(ms % 1000));
  }
  text.key = call->key[0] == '\0' ? NULL : call->key;
  text.session = call->with_session ? call->session : NULL;
  put_body(&b, w, call);
  text.body = b.len == 0 ? NULL : b.out;
  text.len = b.len;
  http_request *r = full_front_take(w, client, &text);
  free(b.out);
  if (r == NULL) {
    return WEFT_E_UNAVAIL;
  }
  r->fate = FATE_CALL;
  r->call = index;
  r->is_long = is_long(call);
  call->caller = r->peer;
  call->step_from = w->steps;
  return WEFT_OK;
}

/* ---- answers */

typedef struct answer {
  int status;
  const char *session; /* NULL: no such header */
  const char *sequence;
  weft_json *root; /* NULL: no JSON */
} answer;

typedef struct status_row {
  int status;
  weft_err err;
  const char *type;
} status_row;

static const status_row *row_of(int status)
{
  static const status_row rows[] = { { 200, WEFT_OK, "" },
                                     { 400, WEFT_E_INVAL, "Bad Request" },
                                     { 403, WEFT_E_DENIED, "Forbidden" },
                                     { 404, WEFT_E_NOTFOUND, "Not Found" },
                                     { 409, WEFT_E_CONFLICT, "Conflict" },
                                     { 412, WEFT_E_PRECOND, "Precondition Failed" },
                                     { 413, WEFT_E_LIMIT, "Request Entity Too Large" },
                                     { 422, WEFT_E_REUSED, "Unprocessable Entity" },
                                     { 503, WEFT_E_UNAVAIL, "Service Unavailable" },
                                     { 500, WEFT_E_FAILED, "InternalServerError" } };
  unsigned i = 0;
  while (rows[i].status != status && i + 1 < sizeof rows / sizeof rows[0]) {
    i++;
  }
  return &rows[i];
}

static const char *text_of(const weft_json *o, const char *key)
{
  const char *s = weft_json_str(weft_json_get(o, key));
  return s == NULL ? "" : s;
}

static void copy(char *out, size_t cap, const char *s)
{
  (void)snprintf(out, cap, "%s", s);
}

/* What the contract wants in a 200. */
static bool says_success(const full_call *c, const answer *a)
{
  const char *said = text_of(a->root, "message");
  switch (c->type) {
  case WEFT_MSG_CLIENT_INIT:
    return strcmp(said, "Weight transfer initialized") == 0;
  case WEFT_MSG_CLIENT_START:
    return strcmp(said, c->draft ? "Draft weight update started"
                                 : "Weight update started") == 0 &&
           a->session != NULL;
  case WEFT_MSG_CLIENT_UPDATE:
    return strcmp(said, "Weights updated") == 0;
  case WEFT_MSG_CLIENT_FINISH:
    return strcmp(said, "Weight update finished") == 0 && a->sequence != NULL;
  case WEFT_MSG_CLIENT_LABEL:
    return weft_json_bool(weft_json_get(a->root, "success"), false) &&
           strcmp(text_of(a->root, "new_version"), c->version) == 0 &&
           a->sequence != NULL;
  case WEFT_MSG_CLIENT_ABORT:
    return strcmp(said, "Weight update aborted") == 0;
  default:
    return a->root != NULL;
  }
}

static void read_success(full_call *c, const answer *a)
{
  int64_t n = 0;
  c->no_sequence = true;
  c->no_version = true;
  if (a->sequence != NULL) {
    c->no_sequence = false;
    c->sequence = strtoull(a->sequence, NULL, 10);
  }
  if (a->session != NULL) {
    copy(c->got_session, sizeof c->got_session, a->session);
  }
  if (c->type == WEFT_MSG_CLIENT_QUERY && c->has_version) {
    return;
  }
  if (c->type == WEFT_MSG_CLIENT_QUERY) {
    const char *key = c->has_expected ? "version" : "weight_version";
    c->no_version = false;
    copy(c->got_version, sizeof c->got_version, text_of(a->root, key));
    if (c->has_expected && weft_json_i64(weft_json_get(a->root, "sequence"), &n)) {
      c->no_sequence = false;
      c->sequence = (uint64_t)n;
    }
  } else if (c->has_version) { /* it was this change that was answered */
    c->no_version = false;
    copy(c->got_version, sizeof c->got_version, c->version);
  }
}

/* A front end, or the way from it to the engine, has given up. */
static bool is_silence(const char *message)
{
  static const char *const words[] = { "the engine did not answer in time",
                                       "the engine is overloaded",
                                       "the front end is",
                                       "the engine's answer was lost",
                                       "the engine is gone",
                                       "engine at ipc:///sim" };
  for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (strstr(message, words[i]) != NULL) {
      return true;
    }
  }
  return false;
}

static void read_error(full *w, full_call *c, const answer *a)
{
  const weft_json *e = weft_json_get(a->root, "error");
  int64_t code = 0;
  const char *outcome = text_of(e, "outcome");
  copy(c->message, sizeof c->message, text_of(e, "message"));
  c->no_sequence = true;
  c->no_version = true;
  c->silent = is_silence(c->message);
  c->outcome = strcmp(outcome, "unknown") == 0         ? WEFT_OUTCOME_UNKNOWN
               : strcmp(outcome, "not_committed") == 0 ? WEFT_OUTCOME_NOT_COMMITTED
                                                       : WEFT_OUTCOME_NONE;
  if (!weft_json_i64(weft_json_get(e, "code"), &code) || code != a->status ||
      c->message[0] == '\0' || row_of(a->status)->status != a->status ||
      strcmp(text_of(e, "type"), row_of(a->status)->type) != 0) {
    full_break(w, "%s is answered %d with no error that says so", path_of(c), a->status);
  }
  if (c->type != WEFT_MSG_CLIENT_QUERY && c->outcome == WEFT_OUTCOME_NONE &&
      outcome[0] != '\0') {
    full_break(w, "%s: no such outcome: %s", path_of(c), outcome);
  }
}

/* The engine's answer comes first, as long as nothing keeps it. */
static void check_silence(full *w, const http_front *f, const full_call *c)
{
  if (c->silent && f->index != HTTP_REMOTE &&
      strstr(c->message, "did not answer in time") != NULL &&
      w->excused_until <= c->asked_ms && f->stood_ms < c->asked_ms) {
    full_break(w, "I5: %s", c->message);
  }
}

static void over(full *w, full_call *c)
{
  full_client *client = &w->clients[c->client];
  c->open = false;
  c->answered_ms = weft_sim_now_ms(w->sim);
  c->step_to = w->steps;
  client->pending = false;
}

static void conclude(full *w, const http_front *f, full_call *c, const answer *a)
{
  full_client *client = &w->clients[c->client];
  c->err = row_of(a->status)->err;
  if (c->err != WEFT_OK) {
    read_error(w, c, a);
    check_silence(w, f, c);
  } else if (!says_success(c, a)) {
    full_break(w, "%s: 200 without what the contract says", path_of(c));
  } else {
    read_success(c, a);
  }
  if (c->got_session[0] != '\0') {
    copy(client->session, sizeof client->session, c->got_session);
  }
}

void full_http_answer(full *w, http_request *r, const weft_http_reply *reply)
{
  full_call *c = &w->calls[r->call];
  const http_front *f = &w->http->fronts[r->front];
  answer a = { .status = reply->status };
  weft_why why;
  for (size_t i = 0; i < reply->header_count; i++) {
    const weft_http_header *h = &reply->headers[i];
    a.session = strcmp(h->name, "Weft-Session") == 0 ? h->value : a.session;
    a.sequence = strcmp(h->name, "Weft-Sequence") == 0 ? h->value : a.sequence;
  }
  if (weft_json_parse(reply->body, reply->body_len, NULL, &a.root, &why) != WEFT_OK) {
    full_break(w, "%s: the answer is no JSON: %s", path_of(c), why.text);
    return;
  }
  over(w, c);
  conclude(w, f, c, &a);
  weft_json_free(a.root);
  const bool late = f->stood_ms >= c->asked_ms && f->stood_ms != 0;
  full_check_answer(w, c, late);
  if (c->err == WEFT_OK && c->has_expected && c->type == WEFT_MSG_CLIENT_QUERY) {
    weft_buf *body = weft_buf_create(reply->body, reply->body_len);
    full_check_status(w, body);
    weft_buf_unref(body);
  }
}

void full_http_lost(full *w, http_request *r)
{
  r->over = true;
  if (r->fate == FATE_CALL) {
    full_call *c = &w->calls[r->call];
    over(w, c);
    c->err = WEFT_E_DOWN;
    c->outcome = WEFT_OUTCOME_UNKNOWN;
    c->no_sequence = true;
    c->no_version = true;
  }
}

/* ---- after every step */

static bool is_call(uint16_t type)
{
  return type != 0 && type < WEFT_MSG_CLIENT_DONE && type != WEFT_MSG_CLIENT_QUERY &&
         type != WEFT_MSG_CLIENT_GONE;
}

/* The connection's number as the engine has it. */
static void learn_caller(full *w, const weft_msg *m)
{
  const weft_client_init *head = (const weft_client_init *)m; /* all begin alike */
  full_call *c = &w->calls[head->timeout_ms % TAGS];
  if (head->timeout_ms >= TAGS && head->timeout_ms % TAGS < w->call_count && c->by_http) {
    c->at_engine = head->caller;
  }
}

static void check_request(full *w, const weft_http_call *m)
{
  const http_request *r = &w->http->requests[m->id - 1];
  const http_front *f = &w->http->fronts[r->front];
  const wefti_acceptor_counts *counts;
  if (!f->up || r->life != f->life || !weft_sim_alive(w->sim, f->acceptor)) {
    return;
  }
  counts = wefti_acceptor_counts_of(weft_sim_state(w->sim, f->acceptor));
  if (r->fate == FATE_REFUSED || r->fate == FATE_LOCAL || r->fate == FATE_STREAM) {
    if (counts->forwarded != f->forwarded) {
      full_break(w, "a request to be answered by the front end reaches the engine");
    } else if (!r->answered) {
      full_break(w, "I5: the front end does not answer what it refuses");
    }
  }
}

void full_http_step(full *w, const weft_msg *delivered)
{
  full_http *h = w->http;
  if (delivered->type == WEFT_MSG_HTTP_REQUEST) {
    check_request(w, (const weft_http_call *)delivered);
  } else if (is_call(delivered->type) && delivered->to == w->engine &&
             (delivered->from == h->fronts[0].acceptor ||
              delivered->from == h->fronts[HTTP_REMOTE].wire)) {
    learn_caller(w, delivered);
  }
  for (unsigned i = 0; i < HTTP_FRONTS; i++) {
    http_front *f = &h->fronts[i];
    const void *state = f->up ? weft_sim_state(w->sim, f->acceptor) : NULL;
    if (state != NULL) {
      f->forwarded = wefti_acceptor_counts_of(state)->forwarded;
    }
  }
}

/* A hang-up takes no longer than this to be known, when nothing is in its way; and than
 * this when it could get lost, beside what a link takes. */
enum { KNOWN_MS = 60, KNOWN_AGAIN_MS = 2200 };

/* The newest call of the connection for which the engine is at work. */
static const full_call *running_for(const full *w, const engine *e)
{
  for (unsigned i = w->call_count; i-- > 0;) {
    const full_call *c = &w->calls[i];
    if (c->boot == w->boot && c->at_engine == e->call->caller) {
      return c;
    }
  }
  return NULL;
}

void full_http_check_gone(full *w)
{
  const engine *e = weft_sim_state(w->sim, w->engine);
  if (e == NULL || e->call == NULL || !engine_call_wanted(e->call) || w->engine_frozen ||
      (e->call->idem != NULL && e->call->idem->waiter_count > 0)) {
    return;
  }
  const full_call *c = running_for(w, e);
  if (c == NULL || !c->by_http || c->open || c->err != WEFT_E_DOWN) {
    return;
  }
  const http_front *f = &w->http->fronts[w->clients[c->client].way - 1];
  const bool again = f->wire_most_ms > 0 || w->allocs_failed > 0 || w->flooded;
  const uint64_t known_ms =
      again ? KNOWN_AGAIN_MS + UINT64_C(2) * f->wire_most_ms : KNOWN_MS;
  uint64_t since = c->answered_ms;
  since = f->stood_ms > since ? f->stood_ms : since;
  since = w->excused_until > since ? w->excused_until : since;
  if (!f->frozen && since + known_ms < weft_sim_now_ms(w->sim)) {
    full_break(w, "I7: for the engine client %u is there, which has hung up in its %s",
               c->client, path_of(c));
  }
}

void full_http_check_end(full *w)
{
  const full_http *h = w->http;
  for (unsigned i = 0; i < h->count; i++) {
    const http_request *r = &h->requests[i];
    const http_front *f = &h->fronts[r->front];
    if (!r->answered && r->life == f->life && f->up && !(r->over && r->is_long)) {
      full_break(w, "I5: request %u of client %u has no answer%s", i + 1, r->client,
                 r->over ? ", which nobody would have read" : "");
    }
  }
}
