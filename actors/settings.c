#include "settings.h"

#include "weft/digest.h"
#include "weft/messages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- what is said */

static uint64_t mix(uint64_t before, const void *data, size_t len)
{
  const uint64_t both[2] = { before, weft_digest_of(data, len).lo };
  return weft_digest_of(both, sizeof both).lo;
}

/* Of all that workers are sent and answer, in the order of the wire. */
static uint64_t frames_of(const weft_catalogue *cat)
{
  uint64_t sum = WEFT_FRAME_VERSION;
  for (uint16_t type = 1; type < cat->count; type++) {
    const weft_msg_desc *d = &cat->descs[type];
    if (d->name == NULL || (d->from != WEFT_ROLE_WORKER && d->to != WEFT_ROLE_WORKER)) {
      continue;
    }
    sum = mix(sum, &type, sizeof type);
    for (uint16_t i = 0; i < d->field_count; i++) {
      const uint32_t kind = d->fields[i].kind;
      sum = mix(sum, d->fields[i].name, strlen(d->fields[i].name));
      sum = mix(sum, &kind, sizeof kind);
    }
  }
  return sum != 0 ? sum : 1;
}

void wefti_settings_say(const wefti_settings *s, weft_join_settings *out)
{
  *out = (weft_join_settings){ .frames = frames_of(weft_messages()) };
  if (s == NULL) {
    return;
  }
  out->tp = s->tp;
  out->pp = s->pp;
  (void)snprintf(out->backend, sizeof out->backend, "%s",
                 s->backend != NULL ? s->backend : "host");
  (void)snprintf(out->staging, sizeof out->staging, "%s",
                 s->inplace ? "inplace" : "shadow");
  if (s->tp_plan != NULL) {
    weft_digest_text(weft_tp_plan_digest(s->tp_plan), out->tp_plan);
  }
}

/* ---- whether they agree */

enum { WORDS_MAX = 96 };
typedef void words_fn(const weft_join_settings *s, char out[WORDS_MAX]);

static void backend_words(const weft_join_settings *s, char out[WORDS_MAX])
{
  (void)snprintf(out, WORDS_MAX, "--backend %s", s->backend);
}

static void shape_words(const weft_join_settings *s, char out[WORDS_MAX])
{
  (void)snprintf(out, WORDS_MAX, "--tp %" PRIu32 " --pp %" PRIu32, s->tp, s->pp);
}

static void staging_words(const weft_join_settings *s, char out[WORDS_MAX])
{
  (void)snprintf(out, WORDS_MAX, "--staging %s", s->staging);
}

static void plan_words(const weft_join_settings *s, char out[WORDS_MAX])
{
  if (s->tp_plan[0] == '\0') {
    (void)snprintf(out, WORDS_MAX, "no --tp-plan");
  } else {
    (void)snprintf(out, WORDS_MAX, "a --tp-plan of %s", s->tp_plan);
  }
}

static const struct {
  words_fn *words; /* equal words: they agree */
  const char *now; /* what to do */
} settings[] = {
  { backend_words, "start the worker with the engine's" },
  { shape_words, "start the worker with the engine's" },
  { staging_words, "start the worker with the engine's" },
  { plan_words, "give the worker the engine's file, or neither of them one" },
};

static weft_err compare(const weft_join_settings *ours, const weft_join_hello *theirs,
                        weft_why *why)
{
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
    char engine[WORDS_MAX];
    char worker[WORDS_MAX];
    settings[i].words(ours, engine);
    settings[i].words(&theirs->settings, worker);
    if (strcmp(engine, worker) != 0) {
      return weft_whyf(why, WEFT_E_INVAL,
                       "rank %" PRIu32 " was started with %s, its engine with %s: %s",
                       theirs->rank, worker, engine, settings[i].now);
    }
  }
  return WEFT_OK;
}

weft_err wefti_settings_agree(const weft_join_hello *ours, const weft_join_hello *theirs,
                              weft_why *why)
{
  const bool replica = ours->settings.backend[0] == '\0';
  if (theirs->world_size != ours->world_size || theirs->rank >= ours->world_size) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "%s %" PRIu32 " of %" PRIu32 ": this engine has %" PRIu32 " %s",
                     replica ? "replica" : "rank", theirs->rank, theirs->world_size,
                     ours->world_size, replica ? "replicas" : "workers");
  }
  if (theirs->settings.frames != 0 && theirs->settings.frames != ours->settings.frames) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "%s %" PRIu32 " speaks another version of weft's frames than its "
                     "%s: run the same weft on both sides",
                     replica ? "replica" : "rank", theirs->rank,
                     replica ? "coordinator" : "engine");
  }
  if (replica) {
    return WEFT_OK;
  }
  if (ours->draft != 0 && theirs->draft == 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "rank %" PRIu32 " is without a draft model, this engine has one: "
                     "start the worker with --draft",
                     theirs->rank);
  }
  /* One that says nothing of them is older than they are. */
  return theirs->settings.frames == 0 ? WEFT_OK : compare(&ours->settings, theirs, why);
}
