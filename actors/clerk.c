#include "clerk.h"

#include "weft/json.h"
#include "weft/messages.h"

#include <stdlib.h>
#include <string.h>

/* ---- compare */

typedef struct pair {
  const char *key, *value;
} pair;

static int by_key(const void *a, const void *b)
{
  return strcmp(((const pair *)a)->key, ((const pair *)b)->key);
}

/* Members of object, sorted; *count of them.  NULL = out of memory. */
static pair *pairs_of(const weft_json *object, size_t *count)
{
  const size_t n = weft_json_count(object);
  pair *pairs = calloc(n + 1, sizeof *pairs);
  if (pairs == NULL) {
    return NULL;
  }
  *count = 0;
  for (const weft_json *m = weft_json_first(object); m != NULL; m = weft_json_next(m)) {
    const char *value = weft_json_str(m);
    pairs[(*count)++] = (pair){ weft_json_key(m), value == NULL ? "" : value };
  }
  qsort(pairs, *count, sizeof *pairs, by_key);
  return pairs;
}

static void write_mismatches(weft_json_writer *w, const pair *a, size_t na, const pair *b,
                             size_t nb)
{
  size_t i = 0;
  size_t j = 0;
  while (i < na || j < nb) {
    const int order = i == na ? 1 : j == nb ? -1 : strcmp(a[i].key, b[j].key);
    if (order == 0) {
      if (strcmp(a[i].value, b[j].value) != 0) {
        weft_jw_str(w, NULL, a[i].key);
      }
      i++;
      j++;
    } else {
      weft_jw_str(w, NULL, order < 0 ? a[i++].key : b[j++].key);
    }
  }
}

static weft_buf *write_body(const pair *a, size_t na, const pair *b, size_t nb)
{
  weft_json_writer list;
  weft_jw_init(&list);
  weft_jw_array(&list, NULL);
  write_mismatches(&list, a, na, b, nb);
  weft_jw_end(&list);
  weft_buf *mismatches = weft_jw_take_buf(&list);
  if (mismatches == NULL) {
    return NULL;
  }
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_bool(&w, "match", mismatches->len == 2); /* [] */
  weft_jw_raw(&w, "mismatches", (const char *)mismatches->data, mismatches->len);
  weft_jw_end(&w);
  weft_buf_unref(mismatches);
  return weft_jw_take_buf(&w);
}

static weft_err compare_trees(const weft_json *now, const weft_json *baseline,
                              weft_buf **out, weft_why *why)
{
  size_t na = 0;
  size_t nb = 0;
  pair *a = pairs_of(now, &na);
  pair *b = pairs_of(baseline, &nb);
  *out = a == NULL || b == NULL ? NULL : write_body(a, na, b, nb);
  free(a);
  free(b);
  return *out == NULL
             ? weft_whyf(why, WEFT_E_NOMEM,
                         "out of memory to compare %zu checksums with %zu; try again",
                         weft_json_count(now), weft_json_count(baseline))
             : WEFT_OK;
}

weft_err wefti_clerk_compare(const weft_buf *now, const weft_buf *baseline,
                             weft_buf **out, weft_why *why)
{
  weft_json *a = NULL;
  weft_json *b = NULL;
  weft_err err = weft_json_parse(now->data, now->len, NULL, &a, why);
  if (err == WEFT_OK) {
    err = weft_json_parse(baseline->data, baseline->len, NULL, &b, why);
  }
  if (err == WEFT_OK) {
    err = compare_trees(a, b, out, why);
  }
  weft_json_free(a);
  weft_json_free(b);
  return err;
}

/* ---- the actor */

static void on_compare(weft_ctx *ctx, const weft_clerk_compare *m)
{
  weft_why why = { WEFT_OK, "" };
  weft_buf *body = NULL;
  weft_err err;
  if (m->h.due_ms != 0 && m->h.due_ms <= weft_now_ms(ctx)) {
    err = weft_whyf(&why, WEFT_E_TIMEOUT, "nobody waits for it any more");
  } else if (m->now == NULL || m->baseline == NULL) {
    err = weft_whyf(&why, WEFT_E_INVAL, "one of the two sides is missing");
  } else {
    err = wefti_clerk_compare(m->now, m->baseline, &body, &why);
  }
  const weft_clerk_done done = { .h = { .type = WEFT_MSG_CLERK_DONE },
                                 .err = (uint32_t)err,
                                 .text = { why.text, (uint32_t)strlen(why.text) },
                                 .body = body };
  (void)weft_reply(ctx, weft_return_of(&m->h), weft_msg_make(ctx, &done.h));
  weft_buf_unref(body);
}

static weft_err clerk_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)self;
  switch (msg->type) {
  case WEFT_MSG_CLERK_COMPARE:
    on_compare(ctx, (const weft_clerk_compare *)msg);
    return WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return WEFT_E_STATE; /* not ours: a bug in the sender */
  }
}

const weft_actor_class wefti_clerk_class = {
  .name = "clerk",
  .on = clerk_on,
};
