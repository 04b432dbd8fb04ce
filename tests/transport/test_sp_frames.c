/* What ipc and tcp write down of the same frames is turned into each other, wherever the
 * bytes are cut. */
#include "weft_test.h"

#include "sp_frames.h"

#include <stdbool.h>
#include <string.h>

enum { BODIES = 5, LONG = 300, GREETING = 8 };
static const size_t bodies[BODIES] = { 4, 0, 1, LONG, 0 };

static size_t stream(bool ipc, uint8_t *out)
{
  size_t n = GREETING;
  memcpy(out, "\0SP\0\0\x30\0", GREETING);
  for (int i = 0; i < BODIES; i++) {
    if (ipc) {
      out[n++] = 1;
    }
    for (int k = 7; k >= 0; k--) {
      out[n++] = (uint8_t)((uint64_t)bodies[i] >> (8 * k));
    }
    for (size_t k = 0; k < bodies[i]; k++) {
      out[n++] = (uint8_t)(k * 7 + (size_t)i);
    }
  }
  return n;
}

static void assert_turned(bool to_ipc, size_t piece)
{
  uint8_t in[1024];
  uint8_t want[1024];
  uint8_t got[1024];
  const size_t n = stream(!to_ipc, in);
  const size_t want_n = stream(to_ipc, want);
  size_t got_n = 0;
  wefti_sp_frames f = { .change = to_ipc ? WEFTI_SP_TO_IPC : WEFTI_SP_TO_TCP,
                        .greeting = GREETING };
  for (size_t i = 0; i < n; i += piece) {
    const size_t k = n - i < piece ? n - i : piece;
    uint8_t out[WEFTI_SP_ROOM(1024)];
    const size_t m = wefti_sp_translate(&f, in + i, k, out);
    assert_true(m <= WEFTI_SP_ROOM(k));
    memcpy(got + got_n, out, m);
    got_n += m;
  }
  assert_int_equal(got_n, want_n);
  assert_memory_equal(got, want, want_n);
}

static void frames_may_be_cut_anywhere(void **state)
{
  (void)state;
  for (size_t piece = 1; piece < 400; piece++) {
    assert_turned(true, piece);
    assert_turned(false, piece);
  }
}

/* The most that a byte may cost: nothing but empty frames, cut after their types. */
static void empty_frames_have_room(void **state)
{
  (void)state;
  uint8_t in[800] = { 0 };
  uint8_t out[WEFTI_SP_ROOM(800)];
  for (size_t n = 1; n <= sizeof in; n++) {
    wefti_sp_frames f = { .change = WEFTI_SP_TO_IPC };
    assert_true(wefti_sp_translate(&f, in, n, out) <= WEFTI_SP_ROOM(n));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(frames_may_be_cut_anywhere),
    cmocka_unit_test(empty_frames_have_room),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
