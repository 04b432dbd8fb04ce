#include "weft/tp_plan.h"

#include "weft/dtype.h"
#include "weft/json.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 20 };

struct weft_tp_plan {
  weft_json *rules; /* an object that was checked */
  weft_digest digest;
};

static weft_err check(const weft_json *rules, weft_why *why)
{
  if (weft_json_kind_of(rules) != WEFT_JSON_OBJECT) {
    return weft_whyf(why, WEFT_E_INVAL, "TP plan: not an object of patterns");
  }
  for (const weft_json *v = weft_json_first(rules); v != NULL; v = weft_json_next(v)) {
    int64_t dim = 0;
    if (weft_json_kind_of(v) != WEFT_JSON_NULL &&
        (!weft_json_i64(v, &dim) || dim < 0 || dim >= WEFT_DIMS_MAX)) {
      return weft_whyf(why, WEFT_E_INVAL,
                       "TP plan: '%.200s' is not a dimension (0 to %d) or null",
                       weft_json_key(v), WEFT_DIMS_MAX - 1);
    }
  }
  return WEFT_OK;
}

static weft_err digest_rules(weft_tp_plan *plan, weft_why *why)
{
  weft_hasher *h = weft_hasher_create();
  if (h == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "TP plan: no memory");
  }
  for (const weft_json *v = weft_json_first(plan->rules); v != NULL;
       v = weft_json_next(v)) {
    int64_t dim;
    const uint8_t rule = weft_json_i64(v, &dim) ? (uint8_t)dim : UINT8_MAX;
    weft_hasher_update(h, weft_json_key(v), strlen(weft_json_key(v)) + 1);
    weft_hasher_update(h, &rule, sizeof rule);
  }
  plan->digest = weft_hasher_value(h);
  weft_hasher_destroy(h);
  return WEFT_OK;
}

weft_err weft_tp_plan_parse(const void *text, size_t len, weft_tp_plan **out,
                            weft_why *why)
{
  weft_why inner = { 0 };
  weft_tp_plan *plan = calloc(1, sizeof *plan);
  if (plan == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "TP plan: no memory");
  }
  weft_err err = weft_json_parse(text, len, NULL, &plan->rules, &inner);
  if (err != WEFT_OK) {
    err = weft_whyf(why, err == WEFT_E_NOMEM ? err : WEFT_E_INVAL, "TP plan: %.400s",
                    inner.text);
  } else {
    err = check(plan->rules, why);
    err = err == WEFT_OK ? digest_rules(plan, why) : err;
  }
  if (err != WEFT_OK) {
    weft_tp_plan_free(plan);
    return err;
  }
  *out = plan;
  return WEFT_OK;
}

static weft_err read_file(const char *path, char *text, size_t *len, weft_why *why)
{
  FILE *f = fopen(path, "rbe");
  if (f == NULL) {
    return errno == ENOENT
               ? weft_whyf(why, WEFT_E_NOTFOUND, "TP plan %.300s: no such file", path)
               : weft_whyf(why, WEFT_E_SYS, "TP plan %.300s: cannot be opened (errno %d)",
                           path, errno);
  }
  *len = fread(text, 1, FILE_MAX + 1, f);
  const bool bad = ferror(f) != 0;
  (void)fclose(f);
  if (bad) {
    return weft_whyf(why, WEFT_E_SYS, "TP plan %.300s: it cannot be read", path);
  }
  return *len > FILE_MAX ? weft_whyf(why, WEFT_E_LIMIT,
                                     "TP plan %.300s: more than %d bytes", path, FILE_MAX)
                         : WEFT_OK;
}

weft_err weft_tp_plan_load(const char *path, weft_tp_plan **out, weft_why *why)
{
  size_t len = 0;
  char *text = malloc(FILE_MAX + 1);
  if (text == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "TP plan: no memory");
  }
  weft_err err = read_file(path, text, &len, why);
  if (err == WEFT_OK) {
    err = weft_tp_plan_parse(text, len, out, why);
  }
  free(text);
  return err;
}

void weft_tp_plan_free(weft_tp_plan *plan)
{
  if (plan != NULL) {
    weft_json_free(plan->rules);
    free(plan);
  }
}

weft_digest weft_tp_plan_digest(const weft_tp_plan *plan)
{
  return plan->digest;
}

bool weft_tp_plan_find(const weft_tp_plan *plan, const char *name, unsigned *dim)
{
  for (const weft_json *v = weft_json_first(plan->rules); v != NULL;
       v = weft_json_next(v)) {
    if (fnmatch(weft_json_key(v), name, 0) == 0) {
      int64_t d;
      const bool sliced = weft_json_i64(v, &d);
      *dim = sliced ? (unsigned)d : 0;
      return sliced;
    }
  }
  return false;
}
