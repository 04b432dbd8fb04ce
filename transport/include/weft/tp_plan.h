/* weft/tp_plan.h -- which dimension of which tensors tensor parallel ranks share among
 * themselves, so that each keeps its slice of what everybody is sent.  Not here: cutting
 * (the backends), and layouts in which a slice is not one piece of a dimension. */
#ifndef WEFT_TP_PLAN_H
#define WEFT_TP_PLAN_H

#include "weft/base.h"
#include "weft/digest.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>

WEFT_BEGIN_DECLS

typedef struct weft_tp_plan weft_tp_plan;

/* JSON: {"pattern": dimension, ...}.  Patterns are a shell's (* ? [ ]) for whole names;
 * the first that fits counts, null keeps the tensor whole, as does none.  *out is the
 * caller's.  Errors: INVAL, NOMEM; load also NOTFOUND, SYS, LIMIT (a file over 1 MiB). */
WEFT_API weft_err weft_tp_plan_parse(const void *text, size_t len, weft_tp_plan **out,
                                     weft_why *why) WEFT_MUST_USE;
WEFT_API weft_err weft_tp_plan_load(const char *path, weft_tp_plan **out, weft_why *why)
    WEFT_MUST_USE;
WEFT_API void weft_tp_plan_free(weft_tp_plan *plan); /* NULL is a no-op */
/* Of its rules, in their order: the same however they are written. */
WEFT_API weft_digest weft_tp_plan_digest(const weft_tp_plan *plan);
/* Any thread.  false: name is kept whole. */
WEFT_API bool weft_tp_plan_find(const weft_tp_plan *plan, const char *name,
                                unsigned *dim);

WEFT_END_DECLS

#endif /* WEFT_TP_PLAN_H */
