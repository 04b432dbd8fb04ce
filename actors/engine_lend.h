/* engine_lend.h -- private to the engine_*.c files: how a rank that came back without
 * weights gets them from another one that holds the same set.  Not here: weights of a
 * last life, which come back without the engine (worker_recall.c). */
#ifndef WEFT_ACTORS_ENGINE_LEND_H
#define WEFT_ACTORS_ENGINE_LEND_H

#include "weft/actor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct engine_member;

enum { ENGINE_LEND_TEXT = 320 };

/* One loan at a time. */
typedef struct engine_loan {
  enum { LOAN_NONE, LOAN_ASKED, LOAN_FETCHED } stage; /* lend asked, fetch asked */
  uint32_t borrower, lender;
  uint64_t borrower_incarnation, lender_incarnation;
  uint64_t corr, op; /* of the question under way */
} engine_loan;

/* What a member has done for loans, in this incarnation. */
typedef struct engine_lent {
  uint64_t incarnation;           /* that the rest is of */
  bool cannot_lend, cannot_fetch; /* it said so */
  bool fetched;                   /* says that it has them; its next heartbeat shows it */
  uint64_t not_before_ms;         /* of its next attempt to get weights */
  uint32_t failures;
  uint32_t last_lender; /* who was asked last; the next one is tried first */
  uint64_t lender_incarnation;
  char why[200]; /* the last failure */
} engine_lent;

/* After every message: begins, gives up or leaves alone. */
void engine_lend_look(weft_ctx *ctx, struct engine *e);
/* true: msg was an answer about the loan. */
bool engine_lend_answer(weft_ctx *ctx, struct engine *e, const weft_msg *msg);
/* What is to be expected of m, which is behind and has none. */
void engine_lend_text(const struct engine *e, const struct engine_member *m, char *out,
                      size_t cap);

#endif /* WEFT_ACTORS_ENGINE_LEND_H */
