/* Requests beside the calls, on the same connections: refused ones, of which nothing may
 * reach the engine, what a front end answers by itself, and readers. */
#include "full_http.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct odd {
  http_fate fate;
  int status;
  const char *method, *path, *body;
} odd;

#define BAD(path, body)                                                                  \
  {                                                                                      \
    FATE_REFUSED, 400, "POST", path, body                                                \
  }
static const odd odds[] = {
  { FATE_VERSION, 200, "GET", "/weight_info", NULL },
  BAD("/init_weight_transfer_engine", "{\"init_info\":{}"),
  BAD("/init_weight_transfer_engine", "{\"init_info\":[]}"),
  { FATE_LOCAL, 200, "GET", "/health", NULL },
  BAD("/start_weight_update?timeout_s=0", NULL),
  BAD("/start_weight_update?timeout_s=soon", NULL),
  { FATE_VERSION, 200, "GET", "/weight_info", NULL },
  BAD("/update_weights", "{}"),
  BAD("/update_weights", "{\"update_info\":[{},1]}"),
  { FATE_STREAM, 200, "GET", "/weight_events", NULL },
  BAD("/finish_weight_update", "{\"weight_version\":\"v1\",\"expected_version\":7}"),
  BAD("/finish_weight_update", "{\"weight_version\":\"v1\",\"strict\":1}"),
  BAD("/finish_weight_update?timeout_s=-1", "{}"),
  { FATE_VERSION, 200, "GET", "/weight_info", NULL },
  BAD("/update_weight_version", "{\"new_version\":null}"),
  BAD("/update_weight_version", "[\"v1\"]"),
  BAD("/abort_weight_update", "{\"reason\":{}}"),
  { FATE_LOCAL, 200, "GET", "/get_world_size", NULL },
  { FATE_LOCAL, 200, "POST", "/abort_requests", "{}" },
  { FATE_REFUSED, 403, "POST", "/weight_checker", "{\"action\":\"reset\"}" },
  { FATE_ASKED, 200, "GET", "/ready", NULL },
  { FATE_ASKED, 200, "GET", "/metrics", NULL },
  { FATE_ASKED, 200, "GET", "/weight_versions?limit=3", NULL },
  { FATE_REFUSED, 400, "GET", "/weight_versions?limit=0", NULL },
};

void full_odd(full *w, unsigned client, uint32_t which)
{
  const odd *o = &odds[which % (sizeof odds / sizeof odds[0])];
  http_text text = { .method = o->method, .key = which % 5 == 0 ? "odd" : NULL };
  if (w->clients[client].way == 0) {
    return;
  }
  if (o->fate == FATE_STREAM) { /* after its own number: see op_stream */
    (void)snprintf(text.path, sizeof text.path, "%s?after=%u", o->path,
                   w->http->count + 1);
  } else {
    (void)snprintf(text.path, sizeof text.path, "%s", o->path);
  }
  char body[128];
  if (o->body != NULL) {
    text.len = (size_t)snprintf(body, sizeof body, "%s", o->body);
    text.body = body;
  }
  http_request *r = full_front_take(w, client, &text);
  if (r != NULL) {
    r->fate = o->fate;
    r->status = o->status;
  }
}

/* Some version that was visible between question and answer. */
static void check_version(full *w, const http_request *r, const weft_http_reply *reply)
{
  const full_boot *b = full_now(w);
  weft_json *root = NULL;
  weft_why why;
  if (weft_json_parse(reply->body, reply->body_len, NULL, &root, &why) != WEFT_OK) {
    full_break(w, "weight_info is no JSON: %s", why.text);
    return;
  }
  const char *got = weft_json_str(weft_json_get(root, "weight_version"));
  bool found = b->forgets || r->boot != w->boot;
  for (uint64_t s = r->seen; s <= b->visible && got != NULL && !found; s++) {
    found = strcmp(got, s == 0 ? "default" : b->versions[s % FULL_RECORDS]) == 0;
  }
  if (!found) {
    full_break(w, "I8: a reader is told '%s', from %" PRIu64 " to %" PRIu64 " '%s'", got,
               r->seen, b->visible, b->version);
  }
  weft_json_free(root);
}

void full_odd_answer(full *w, http_request *r, const weft_http_reply *reply)
{
  if (r->fate == FATE_VERSION && reply->status == 200) {
    check_version(w, r, reply);
  } else if (r->fate == FATE_REFUSED || r->fate == FATE_LOCAL) {
    const bool no_memory = reply->status == 503 && w->allocs_failed > 0;
    if (reply->status != (r->fate == FATE_REFUSED ? r->status : 200) && !no_memory) {
      full_break(w, "a request that is to be answered %d is answered %d", r->status,
                 reply->status);
    }
  } else if (r->fate == FATE_STREAM) {
    full_break(w, "a stream is answered %d", reply->status);
  }
}
