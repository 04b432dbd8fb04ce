/* weft_fail.h -- makes the n-th allocation of the code under test fail.  For a test that
 * is one .c file and is linked with WEFT_FAIL_WRAP (tests/CMakeLists.txt).  Not for
 * threads. */
#ifndef WEFT_FAIL_H
#define WEFT_FAIL_H

#include <stdbool.h>
#include <stddef.h>

static unsigned long fail_countdown; /* 0 = off; 1 = the next one fails */
static bool fail_hit;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static bool fail_now(void)
{
  if (fail_countdown == 0 || --fail_countdown > 0) {
    return false;
  }
  fail_hit = true;
  return true;
}

void *__wrap_malloc(size_t size)
{
  return fail_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
  return fail_now() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
  return fail_now() ? NULL : __real_realloc(p, size);
}

/* Runs body with the 1st, 2nd, ... allocation failing until none is hit any more. */
#define FOR_EACH_FAILURE                                                                 \
  for (unsigned long nth_ = 1; (fail_countdown = nth_, fail_hit = false, true); nth_++)
/* At the end of the body: leaves the loop when nothing failed this time. */
#define END_UNLESS_FAILED                                                                \
  {                                                                                      \
    fail_countdown = 0;                                                                  \
    if (!fail_hit) {                                                                     \
      break;                                                                             \
    }                                                                                    \
  }

#endif /* WEFT_FAIL_H */
