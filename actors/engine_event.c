/* What the publisher is told: events, and the status whenever it changes.  (PUBLISH, the
 * word to the workers, is a round: engine_commit.c.) */
#include "engine.h"
#include "weft/json.h"

#include <inttypes.h>
#include <string.h>

static void send_event(weft_ctx *ctx, engine *e, const char *topic, uint64_t sequence,
                       weft_json_writer *w)
{
  weft_buf *json = weft_jw_take_buf(w);
  if (json != NULL && e->args.publisher != 0) {
    (void)weft_send(
        ctx, e->args.publisher,
        weft_msg_make(ctx, &(weft_event){ .h.type = WEFT_MSG_EVENT,
                                          .h.flags = WEFT_MSG_F_RESERVED,
                                          .topic = { topic, (uint32_t)strlen(topic) },
                                          .sequence = sequence,
                                          .json = json }
                                .h));
  }
  weft_buf_unref(json);
}

void engine_event_commit(weft_ctx *ctx, engine *e, const engine_visible *previous,
                         bool label, engine_which which)
{
  const engine_visible *v = &e->visible;
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "type", "commit");
  weft_jw_str(&w, "kind", label ? "label" : "weights");
  weft_jw_str(&w, "engine_id", e->engine_id);
  engine_jw_hex64(&w, "boot_id", e->args.boot_id);
  weft_jw_u64(&w, "sequence", v->sequence);
  weft_jw_u64(&w, "weights_sequence", v->weights_sequence);
  weft_jw_str(&w, "version", v->version);
  weft_jw_str(&w, "previous", previous->version);
  if (!label) {
    weft_jw_str(&w, "set", engine_set_name(which));
  }
  engine_jw_set_digest(&w, e, which);
  weft_jw_u64(&w, "tensors", v->sets[which].tensors);
  weft_jw_u64(&w, "bytes", v->sets[which].bytes);
  weft_jw_u64(&w, "workers", e->world);
  engine_jw_time(&w, "committed_at", v->at_ms);
  weft_jw_end(&w);
  weft_log(ctx, WEFT_LOG_INFO,
           "commit sequence=%" PRIu64 " kind=%s set=%s version=%s tensors=%" PRIu64
           " bytes=%" PRIu64,
           v->sequence, label ? "label" : "weights", engine_set_name(which), v->version,
           v->sets[which].tensors, v->sets[which].bytes);
  send_event(ctx, e, "weights.commit", v->sequence, &w);
  engine_event_status(ctx, e);
}

void engine_event_session(weft_ctx *ctx, engine *e, const char *what, const char *reason)
{
  char id[64];
  engine_session_id(e, e->session.epoch, id, sizeof id);
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "type", what);
  weft_jw_str(&w, "engine_id", e->engine_id);
  engine_jw_hex64(&w, "boot_id", e->args.boot_id);
  weft_jw_str(&w, "session", id);
  weft_jw_str(&w, "set", engine_set_name(e->session.which));
  weft_jw_u64(&w, "received_tensors", e->session.received_tensors);
  weft_jw_u64(&w, "received_bytes", e->session.received_bytes);
  if (reason != NULL) {
    weft_jw_str(&w, "reason", reason);
  }
  weft_jw_end(&w);
  send_event(ctx, e, "weights.session", 0, &w);
}

void engine_event_worker(weft_ctx *ctx, engine *e, const engine_member *m,
                         const char *what)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "type", what);
  weft_jw_str(&w, "engine_id", e->engine_id);
  engine_jw_hex64(&w, "boot_id", e->args.boot_id);
  weft_jw_u64(&w, engine_unit(e), m->rank);
  engine_jw_hex64(&w, "incarnation", m->incarnation);
  weft_jw_str(&w, "why", m->why);
  weft_jw_end(&w);
  send_event(ctx, e, "weights.worker", 0, &w);
}

void engine_event_status(weft_ctx *ctx, engine *e)
{
  if (e->args.publisher == 0) {
    return;
  }
  weft_buf *json = engine_status_json(ctx, e);
  if (json == NULL) {
    return;
  }
  (void)weft_send(
      ctx, e->args.publisher,
      weft_msg_make(ctx, &(weft_event_status){ .h.type = WEFT_MSG_EVENT_STATUS,
                                               .h.flags = WEFT_MSG_F_RESERVED,
                                               .json = json }
                              .h));
  weft_buf_unref(json);
}
