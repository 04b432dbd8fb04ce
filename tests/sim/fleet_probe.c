/* Readers that ask every engine of a simulated fleet at the very moments at which
 * something became visible somewhere, or is about to: I8 for what engines say. */
#include "fleet_parties.h"

#include <inttypes.h>

enum {
  PROBES_MAX = 512,
  WAIT_MS = 2500 /* I6: what is held is answered within 2 s, whatever dies */
};

typedef struct probe_self {
  fleet_world *w;
  struct {
    uint64_t corr, asked_ms; /* corr 0 = free */
    unsigned engine;
    int told; /* what had been shown by anybody when it asked */
  } open[PROBES_MAX];
} probe_self;

static void probe_ask(weft_ctx *ctx, probe_self *s, unsigned engine)
{
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY,
                                .what = WEFT_QUERY_INFO };
  for (unsigned i = 0; i < PROBES_MAX; i++) {
    if (s->open[i].corr == 0) {
      s->open[i].corr =
          weft_ask(ctx, s->w->engines[engine].actor, weft_msg_make(ctx, &m.h), 60000);
      s->open[i].asked_ms = weft_now_ms(ctx);
      s->open[i].engine = engine;
      s->open[i].told = s->w->told;
      return;
    }
  }
}

static void probe_answer(weft_ctx *ctx, probe_self *s, unsigned i,
                         const weft_client_done *d)
{
  const unsigned engine = s->open[i].engine;
  const fleet_engine *e = &s->w->engines[engine];
  const int told = s->open[i].told;
  const uint64_t waited = weft_now_ms(ctx) - s->open[i].asked_ms;
  const unsigned at = d->sequence % FLEET_SHOWN_MAX;
  const bool known = e->ages[at].sequence == d->sequence;
  s->w->probed++;
  if (waited > WAIT_MS) {
    fleet_break(s->w, "I6: engine %u answered weight_info after %" PRIu64 " ms", engine,
                waited);
  } else if (d->err == WEFT_OK && s->w->strict && known && e->ages[at].age < told) {
    fleet_break(s->w,
                "I8: change %d was shown, engine %u said change %d to who asked later",
                told, engine, e->ages[at].age);
  } else if (d->err == WEFT_OK && s->w->strict && !known && told > 0 &&
             engine != FLEET_COORDINATOR) {
    fleet_break(s->w,
                "I8: change %d was shown, replica %u said %" PRIu64
                ", which it never showed",
                told, engine, d->sequence);
  }
}

static weft_err probe_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  probe_self *s = self;
  if (msg->type == WEFT_MSG_CLIENT_GONE) { /* now */
    for (unsigned i = 0; i < FLEET_ENGINES; i++) {
      if (s->w->engines[i].alive) {
        probe_ask(ctx, s, i);
      }
    }
  }
  for (unsigned i = 0; i < PROBES_MAX && msg->corr != 0; i++) {
    if (s->open[i].corr != msg->corr) {
      continue;
    }
    if (msg->type == WEFT_MSG_CLIENT_DONE) {
      probe_answer(ctx, s, i, (const weft_client_done *)msg);
    } else if (msg->type == WEFT_MSG_ASK_FAILED &&
               ((const weft_ask_failed_msg *)msg)->reason == WEFT_E_TIMEOUT) {
      fleet_break(s->w, "I5: engine %u never answered weight_info", s->open[i].engine);
    }
    s->open[i].corr = 0;
    break;
  }
  return WEFT_OK;
}

const weft_actor_class fleet_probe_class = { "probe", sizeof(probe_self),
                                             fleet_take_pointer, NULL, probe_on };
