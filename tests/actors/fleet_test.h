/* fleet_test.h -- what the tests of a fleet share: one world, and expectations of it. */
#ifndef WEFT_TESTS_ACTORS_FLEET_TEST_H
#define WEFT_TESTS_ACTORS_FLEET_TEST_H

#include "weft_test.h"

#include "fleet_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { C = FLEET_COORDINATOR };

static inline void begin(fleet_world *w, const fleet_opts *opts)
{
  fleet_start(w, opts);
  if (w->broken) {
    fail_msg("%s", w->why);
  }
}

static inline void end(fleet_world *w)
{
  const bool broken = w->broken;
  fleet_stop(w);
  if (broken) {
    fail_msg("%s", w->why);
  }
}

static inline void expect_at(const fleet_world *w, const fleet_answer *a, weft_err err,
                             int line)
{
  if (w->broken || !a->came || a->err != err) {
    fail_msg("line %d: %s: got %s, want %s: %s", line,
             a->came ? "answered" : "not answered", weft_err_name(a->err),
             weft_err_name(err), w->broken ? w->why : a->message);
  }
}
#define expect(w, a, err) expect_at((w), (a), (err), __LINE__)

static inline void expect_text(const fleet_answer *a, const char *text)
{
  if (strstr(a->message, text) == NULL) {
    fail_msg("'%s' is not in '%s'", text, a->message);
  }
}

#define expect_version(w, engine, version_)                                              \
  do {                                                                                   \
    const fleet_answer *a_ = fleet_query((w), (engine), WEFT_QUERY_INFO);                \
    expect((w), a_, WEFT_OK);                                                            \
    assert_string_equal(a_->version, version_);                                          \
  } while (0)

#define push(w, info, version_)                                                          \
  do {                                                                                   \
    expect((w), fleet_begin((w), C), WEFT_OK);                                           \
    expect((w), fleet_update((w), C, info), WEFT_OK);                                    \
    expect((w), fleet_finish((w), C, version_), WEFT_OK);                                \
  } while (0)

/* All show it, all are ready. */
#define expect_fleet(w, version_)                                                        \
  do {                                                                                   \
    expect((w), fleet_query((w), C, WEFT_QUERY_READY), WEFT_OK);                         \
    expect_version((w), C, version_);                                                    \
    for (unsigned i_ = 0; i_ < (w)->replicas; i_++) {                                    \
      expect_version((w), i_, version_);                                                 \
      expect((w), fleet_query((w), i_, WEFT_QUERY_READY), WEFT_OK);                      \
    }                                                                                    \
  } while (0)

#endif /* WEFT_TESTS_ACTORS_FLEET_TEST_H */
