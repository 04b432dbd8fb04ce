/* Questions that only workers can answer, beside whatever the session does: the live
 * table of one of them, checksums or the destructive reset of all. */
#include "clerk.h"
#include "engine.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct engine_check {
  struct engine_check *next;
  engine_call *call; /* NULL: a query, answered through ret */
  weft_return ret;
  uint64_t started_ms;
  uint32_t what;             /* weft_query */
  uint64_t weights_sequence; /* visible when asked */
  uint32_t open;
  uint64_t *corr;      /* [world], 0 = not asked or answered */
  weft_buf **parts;    /* [world] */
  uint64_t clerk_corr; /* compare: asked the clerk, 0 = not or answered */
  weft_buf *compared;  /* … and its answer */
  weft_err err;
  char text[256];
} engine_check;

static void check_free(weft_ctx *ctx, engine *e, engine_check *c)
{
  for (uint32_t i = 0; c->parts != NULL && i < e->world; i++) {
    weft_buf_unref(c->parts[i]);
  }
  weft_buf_unref(c->compared);
  engine_call_free(ctx, e, c->call);
  weft_free(ctx, c->parts);
  weft_free(ctx, c->corr);
  weft_free(ctx, c);
}

void engine_check_fini(weft_ctx *ctx, engine *e)
{
  engine_check *c;
  while ((c = e->checks) != NULL) {
    e->checks = c->next;
    check_free(ctx, e, c);
  }
}

static void answer(weft_ctx *ctx, engine *e, engine_check *c, const engine_answer *a)
{
  if (c->call != NULL) { /* the coordinator's answer is of its own kind, too */
    engine_call *call = c->call;
    c->call = NULL;
    engine_answer_call(ctx, e, call, a);
    return;
  }
  engine_reply_to(ctx, e, c->ret, CALL_QUERY, c->started_ms, a);
}

/* ---- bodies */

static weft_buf *weights_body(const engine *e, const weft_buf *table)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "version", e->visible.version);
  weft_jw_u64(&w, "weights_sequence", e->visible.weights_sequence);
  engine_jw_digest(&w, "digest", e->visible.weights_sequence, e->visible.digest_hi,
                   e->visible.digest_lo);
  weft_jw_raw(&w, "tensors", (const char *)table->data, table->len);
  weft_jw_end(&w);
  return weft_jw_take_buf(&w);
}

static uint8_t *append(uint8_t *at, const void *text, size_t len)
{
  memcpy(at, text, len);
  return at + len;
}

/* Joins the members of every rank's object into one object: {a}, {b} → {a,b}. */
static weft_buf *joined_body(const engine *e, const engine_check *c, const char *open,
                             const char *close)
{
  const size_t open_len = strlen(open);
  const size_t close_len = strlen(close);
  size_t total = open_len + close_len;
  bool first = true;
  for (uint32_t i = 0; i < e->world; i++) {
    if (c->parts[i]->len > 2) { /* not {} */
      total += c->parts[i]->len - 2 + (first ? 0 : 1);
      first = false;
    }
  }
  weft_buf *buf = weft_buf_create(NULL, total);
  if (buf == NULL) {
    return NULL;
  }
  uint8_t *at = append(buf->data, open, open_len);
  first = true;
  for (uint32_t i = 0; i < e->world; i++) {
    const weft_buf *part = c->parts[i];
    if (part->len <= 2) {
      continue;
    }
    at = first ? at : append(at, ",", 1);
    first = false;
    at = append(at, part->data + 1, part->len - 2);
  }
  (void)append(at, close, close_len);
  return buf;
}

/* ---- the answer */

/* A rank may have published what is not visible yet: its table would stand under the
 * wrong version. */
static bool weights_changed(const engine *e, const engine_check *c)
{
  return c->weights_sequence != e->visible.weights_sequence ||
         e->session.state == WEFTI_COMMITTING;
}

static bool is_compare(const engine_check *c)
{
  return c->call != NULL && c->call->ask.type == 0 &&
         c->call->action == WEFT_CHECK_COMPARE;
}

static bool is_upstream(const engine_check *c)
{
  return c->call != NULL && c->call->ask.type != 0;
}

static void end(weft_ctx *ctx, engine *e, engine_check *c)
{
  engine_answer a = { .err = c->err };
  weft_why why = { WEFT_E_NOMEM, "out of memory" };
  weft_buf *body = NULL;
  if (c->err != WEFT_OK) {
    (void)snprintf(a.message, sizeof a.message, "%s", c->text);
  } else if (c->what == WEFT_QUERY_WEIGHTS && weights_changed(e, c)) {
    why = (weft_why){ WEFT_E_UNAVAIL, "the weights were changing meanwhile; ask again" };
  } else if (c->what == WEFT_QUERY_WEIGHTS) {
    body = is_upstream(c) ? weft_buf_ref(c->parts[0]) : weights_body(e, c->parts[0]);
  } else if (c->what == WEFT_QUERY_RESET) {
    body = weft_buf_create("{\"status\":\"reset\"}", 18);
  } else if (is_compare(c)) {
    body = weft_buf_ref(c->compared);
  } else {
    body = is_upstream(c) ? joined_body(e, c, "{", "}")
                          : joined_body(e, c, "{\"checksums\":{", "}}");
  }
  if (c->err == WEFT_OK && body == NULL) {
    a.err = why.err;
    (void)snprintf(a.message, sizeof a.message, "%s: %.400s",
                   c->what == WEFT_QUERY_WEIGHTS ? "weights" : "weight_checker",
                   why.text);
  }
  a.body = body;
  answer(ctx, e, c, &a);
  weft_buf_unref(body);
  for (uint32_t i = 0; i < e->world; i++) {
    weft_ask_cancel(ctx, c->corr[i]);
  }
  weft_ask_cancel(ctx, c->clerk_corr);
  for (engine_check **at = &e->checks; *at != NULL; at = &(*at)->next) {
    if (*at == c) {
      *at = c->next;
      break;
    }
  }
  check_free(ctx, e, c);
}

static void fail(const engine *e, engine_check *c, weft_err err, uint32_t rank,
                 const char *text)
{
  if (c->err == WEFT_OK) {
    c->err = err;
    (void)snprintf(c->text, sizeof c->text, "%.20s %" PRIu32 ": %.200s", engine_unit(e),
                   rank, text);
  }
}

/* {"dp0:… : the length of that name's first part, with its quote. */
static size_t dp_len(const weft_buf *part)
{
  const uint8_t *colon = part->len < 3 ? NULL : memchr(part->data, ':', part->len);
  return colon == NULL ? 0 : (size_t)(colon - part->data);
}

/* Two replicas with one dp number would hide each other's tensors. */
static void check_replicas(const engine *e, engine_check *c)
{
  for (uint32_t i = 1; i < e->world; i++) {
    const size_t len = dp_len(c->parts[i]);
    for (uint32_t j = 0; len != 0 && j < i; j++) {
      if (dp_len(c->parts[j]) == len &&
          memcmp(c->parts[i]->data, c->parts[j]->data, len) == 0) {
        fail(e, c, WEFT_E_FAILED, i,
             "it has the data parallel number of another one; give each its own "
             "(--dp-index), or none");
      }
    }
  }
}

/* ---- compare: the clerk does it, or this loop when there is none */

static void compare_failed(engine_check *c, weft_err err, const char *text)
{
  c->err = err == WEFT_OK ? WEFT_E_FAILED : err;
  (void)snprintf(c->text, sizeof c->text, "weight_checker: %s", text);
}

/* false: it is over already, c->err or c->compared says how. */
static bool compare_begin(weft_ctx *ctx, engine *e, engine_check *c)
{
  weft_buf *now = joined_body(e, c, "{", "}");
  weft_why why = { WEFT_OK, "" };
  if (now == NULL) {
    compare_failed(c, WEFT_E_NOMEM, "out of memory");
    return false;
  }
  if (e->args.clerk != 0) {
    const weft_clerk_compare m = { .h = { .type = WEFT_MSG_CLERK_COMPARE },
                                   .now = now,
                                   .baseline = c->call->info };
    c->clerk_corr = weft_ask(ctx, e->args.clerk, weft_msg_make(ctx, &m.h),
                             engine_call_left_ms(ctx, c->call));
    weft_buf_unref(now);
    return true;
  }
  const weft_err err = wefti_clerk_compare(now, c->call->info, &c->compared, &why);
  weft_buf_unref(now);
  if (err != WEFT_OK) {
    compare_failed(c, err, why.text);
  }
  return false;
}

/* All parts are here, or one failed. */
static void gathered(weft_ctx *ctx, engine *e, engine_check *c)
{
  if (c->err == WEFT_OK && c->what == WEFT_QUERY_CHECKSUM && e->fleet.replicas != NULL) {
    check_replicas(e, c);
  }
  if (c->err == WEFT_OK && is_compare(c) && compare_begin(ctx, e, c)) {
    return;
  }
  end(ctx, e, c);
}

static void on_clerk(weft_ctx *ctx, engine *e, engine_check *c, const weft_msg *msg)
{
  c->clerk_corr = 0;
  if (msg->type == WEFT_MSG_CLERK_DONE) {
    const weft_clerk_done *done = (const weft_clerk_done *)msg;
    c->compared = weft_buf_ref(done->body);
    if (done->err != WEFT_OK || done->body == NULL) {
      compare_failed(c, (weft_err)done->err,
                     done->text.len > 0 ? done->text.p : "the comparison failed");
    }
  } else if (msg->type == WEFT_MSG_ASK_FAILED) {
    const weft_err err = (weft_err)((const weft_ask_failed_msg *)msg)->reason;
    compare_failed(c, err,
                   err == WEFT_E_TIMEOUT ? "the comparison was not done in time"
                   : err == WEFT_E_FULL  ? "too many comparisons are under way; try again"
                   : err == WEFT_E_NOMEM
                       ? "out of memory"
                       : "what compares has failed; restart the server, or ask for "
                         "action='checksum' and compare them yourself");
  } else {
    compare_failed(c, WEFT_E_PROTO, "the comparison was answered with something else");
  }
  end(ctx, e, c);
}

static void ask_rank(weft_ctx *ctx, engine *e, engine_check *c, uint32_t rank,
                     uint64_t within_ms)
{
  const engine_member *m = &e->members[rank];
  if (!engine_member_usable(m)) {
    fail(e, c, WEFT_E_UNAVAIL, rank, m->why[0] == '\0' ? "is not in" : m->why);
    return;
  }
  c->open++;
  c->corr[rank] =
      weft_ask(ctx, m->actor,
               weft_msg_make(ctx, &(weft_w_query){ .h.type = WEFT_MSG_W_QUERY,
                                                   .boot = e->args.boot_id,
                                                   .incarnation = m->incarnation,
                                                   .op = ++e->op_last,
                                                   .what = c->what }
                                       .h),
               within_ms);
}

/* Asks the first rank only, or all.  Takes call. */
static void begin(weft_ctx *ctx, engine *e, engine_call *call, weft_return ret,
                  uint32_t what)
{
  engine_check *c = weft_alloc(ctx, sizeof *c);
  const uint64_t now = weft_now_ms(ctx);
  if (c != NULL) {
    c->corr = weft_alloc(ctx, e->world * sizeof *c->corr);
    c->parts = weft_alloc(ctx, e->world * sizeof(weft_buf *));
  }
  if (c == NULL || c->corr == NULL || c->parts == NULL) {
    engine_answer a = { .err = WEFT_E_NOMEM,
                        .message = "engine: out of memory for a question; try again" };
    engine_check none = { .call = call, .ret = ret, .started_ms = now };
    answer(ctx, e, &none, &a);
    if (c != NULL) {
      check_free(ctx, e, c);
    }
    return;
  }
  c->call = call;
  c->ret = ret;
  c->what = what;
  c->started_ms = now;
  c->weights_sequence = e->visible.weights_sequence;
  c->next = e->checks;
  e->checks = c;
  const uint64_t within_ms =
      call == NULL ? WEFTI_WORKER_QUERY_MS : engine_call_left_ms(ctx, call);
  for (uint32_t i = 0; i < (what == WEFT_QUERY_WEIGHTS ? 1 : e->world); i++) {
    ask_rank(ctx, e, c, i, within_ms);
  }
  if (c->open == 0 || c->err != WEFT_OK) {
    gathered(ctx, e, c);
  }
}

/* Whose question to a worker corr is; NULL = nobody's. */
static engine_check *check_of(engine *e, uint64_t corr, uint32_t *rank)
{
  for (engine_check *c = e->checks; c != NULL && corr != 0; c = c->next) {
    for (uint32_t r = 0; r < e->world; r++) {
      if (c->corr[r] == corr) {
        *rank = r;
        return c;
      }
    }
  }
  return NULL;
}

static bool clerk_answer(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  for (engine_check *c = e->checks; c != NULL && msg->corr != 0; c = c->next) {
    if (c->clerk_corr == msg->corr) {
      on_clerk(ctx, e, c, msg);
      return true;
    }
  }
  return false;
}

static void on_refused(engine *e, engine_check *c, uint32_t rank, const weft_w_refused *r)
{
  if (r->err == WEFT_E_CANCELLED) { /* by start or abort of an update, which come first */
    fail(e, c, WEFT_E_UNAVAIL, rank, "was called away to a weight update; ask again");
    return;
  }
  fail(e, c, r->err == WEFT_OK ? WEFT_E_FAILED : (weft_err)r->err, rank,
       r->text.p == NULL ? "refused" : r->text.p);
}

static void on_no_answer(engine *e, engine_check *c, uint32_t rank, weft_err err)
{
  if (err == WEFT_E_DOWN && c->what != WEFT_QUERY_RESET) {
    fail(e, c, WEFT_E_UNAVAIL, rank, "went down meanwhile; ask again when it is back");
    return;
  }
  fail(e, c, err, rank,
       err == WEFT_E_TIMEOUT ? "has not answered in time"
       : err == WEFT_E_LIMIT ? "has an answer that is too large for one message"
                             : weft_strerror(err));
}

bool engine_check_answer(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  uint32_t rank = 0;
  engine_check *c = check_of(e, msg->corr, &rank);
  if (c == NULL) {
    return clerk_answer(ctx, e, msg);
  }
  c->corr[rank] = 0;
  c->open--;
  if (c->what == WEFT_QUERY_RESET && msg->type != WEFT_MSG_W_REFUSED &&
      c->weights_sequence == e->visible.weights_sequence) {
    e->was_reset = true; /* for certain, or for all we know */
  }
  if (msg->type == WEFT_MSG_W_ANSWER && ((const weft_w_answer *)msg)->json != NULL &&
      ((const weft_w_answer *)msg)->json->len >= 2) {
    c->parts[rank] = weft_buf_ref(((const weft_w_answer *)msg)->json);
  } else if (msg->type == WEFT_MSG_W_REFUSED) {
    on_refused(e, c, rank, (const weft_w_refused *)msg);
  } else if (msg->type == WEFT_MSG_ASK_FAILED) {
    on_no_answer(e, c, rank, (weft_err)((const weft_ask_failed_msg *)msg)->reason);
  } else {
    fail(e, c, WEFT_E_PROTO, rank, "answered with something else");
  }
  if (c->open == 0 || c->err != WEFT_OK) {
    gathered(ctx, e, c);
  }
  return true;
}

void engine_check_upstream(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (call->action == WEFT_QUERY_RESET && !e->args.allow_weight_reset) {
    engine_answer_err(
        ctx, e, call, WEFT_E_DENIED,
        "a reset destroys the live weights; this replica allows it only when "
        "started with --allow-weight-reset");
  } else {
    begin(ctx, e, call, call->ret, call->action);
  }
}

void engine_check_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (call->action == WEFT_CHECK_RESET && !e->args.allow_weight_reset) {
    engine_answer_err(
        ctx, e, call, WEFT_E_DENIED,
        "weight_checker: action='reset' destroys the live weights; the server "
        "allows it only when started with --allow-weight-reset");
    return;
  }
  if (call->action == WEFT_CHECK_COMPARE && call->info == NULL) {
    engine_answer_err(ctx, e, call, WEFT_E_INVAL,
                      "action='compare' requires a 'baseline' object");
    return;
  }
  begin(ctx, e, call, call->ret,
        call->action == WEFT_CHECK_RESET ? WEFT_QUERY_RESET : WEFT_QUERY_CHECKSUM);
}

void engine_check_weights(weft_ctx *ctx, engine *e, weft_return ret)
{
  begin(ctx, e, NULL, ret, WEFT_QUERY_WEIGHTS);
}
