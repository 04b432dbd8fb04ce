#include "weft_test.h"

#include "weft/digest.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Known answers: `xxhsum -H2` and `sha256sum` of the same bytes. */
static void known_answers(void **state)
{
  (void)state;
  char text[WEFT_DIGEST_TEXT];
  weft_digest_text(weft_digest_of("", 0), text);
  assert_string_equal(text, "xxh3-128:99aa06d3014798d86001c324468d497f");
  weft_digest_text(weft_digest_of("weft\n", 5), text);
  assert_string_equal(text, "xxh3-128:a9aa0752f07e7acc2c625edfda306d0d");
  uint8_t raw[WEFT_SHA256_BYTES];
  char hex[WEFT_SHA256_TEXT];
  assert_ok(weft_sha256("weft\n", 5, raw, hex));
  assert_string_equal(hex,
                      "261810a34c2798477964ccd631586139aa18feec334e146337c9e6f2486d0560");
  assert_ok(weft_sha256(NULL, 0, raw, NULL));
  assert_int_equal(raw[0], 0xe3);
}

static void a_cancelled_sha256_is_no_sha256(void **state)
{
  (void)state;
  enum { N = (8 << 20) + 5 }; /* more than one piece */
  uint8_t *data = calloc(1, N);
  uint8_t whole[WEFT_SHA256_BYTES], raw[WEFT_SHA256_BYTES];
  char text[WEFT_SHA256_TEXT] = "untouched";
  atomic_bool cancel = false;
  assert_non_null(data);
  data[N - 1] = 1;
  assert_ok(weft_sha256(data, N, whole, NULL));
  assert_ok(weft_sha256_until(data, N, &cancel, raw, NULL));
  assert_memory_equal(whole, raw, sizeof raw);
  cancel = true;
  assert_err(weft_sha256_until(data, N, &cancel, raw, text), WEFT_E_CANCELLED);
  assert_string_equal(text, "untouched");
  free(data);
}

static void streaming_is_the_same_in_any_pieces(void **state)
{
  (void)state;
  enum { N = 5000 };
  uint8_t data[N];
  for (size_t i = 0; i < N; i++) {
    data[i] = (uint8_t)(i * 131 + (i >> 8));
  }
  weft_hasher *h = weft_hasher_create();
  assert_non_null(h);
  const weft_digest want = weft_digest_of(data, N);
  for (size_t piece = 1; piece < N; piece = piece * 2 + 1) {
    weft_hasher_reset(h);
    for (size_t at = 0; at < N; at += piece) {
      weft_hasher_update(h, data + at, N - at < piece ? N - at : piece);
    }
    assert_true(weft_digest_equal(weft_hasher_value(h), want));
  }
  weft_hasher_destroy(h);
}

static void set_layout_is_what_the_header_says(void **state)
{
  (void)state;
  const int64_t shape[] = { 2, 300 };
  const weft_digest d = { 0x0102030405060708u, 0x090a0b0c0d0e0f10u };
  static const uint8_t bytes[] = {
    1, 0, 0, 0, 'w', 4, 0, 0, 0,  'i', 'n', 't', '8', 2,  0,  0, 0,
    2, 0, 0, 0, 0,   0, 0, 0, 44, 1,   0,   0,   0,   0,  0,  0, 1,
    2, 3, 4, 5, 6,   7, 8, 9, 10, 11,  12,  13,  14,  15, 16,
  };
  weft_hasher *h = weft_hasher_create();
  assert_non_null(h);
  assert_true(weft_digest_equal(weft_hasher_value(h), weft_digest_of(NULL, 0)));
  weft_hasher_add_tensor(h, "w", "int8", 2, shape, d);
  assert_true(
      weft_digest_equal(weft_hasher_value(h), weft_digest_of(bytes, sizeof bytes)));
  weft_hasher_destroy(h);
}

static void text_and_bytes_go_both_ways(void **state)
{
  (void)state;
  const weft_digest d = { 0xfedcba9876543210u, 0x0123456789abcdefu };
  uint8_t raw[WEFT_DIGEST_BYTES];
  weft_digest_store(d, raw);
  assert_int_equal(raw[0], 0xfe);
  assert_int_equal(raw[15], 0xef);
  assert_true(weft_digest_equal(weft_digest_load(raw), d));
  char text[WEFT_DIGEST_TEXT];
  weft_digest_text(d, text);
  weft_digest back = { 0, 0 };
  assert_true(weft_digest_parse(text, &back));
  assert_true(weft_digest_equal(back, d));
  assert_false(weft_digest_parse("xxh3-128:00", &back));
  text[20] = 'G';
  assert_false(weft_digest_parse(text, &back));
  text[20] = '0';
  text[0] = 'y';
  assert_false(weft_digest_parse(text, &back));
}

/* Of any sizes, with any number of threads, which come only for large ones. */
static void pieces_are_hashed_at_once(void **state)
{
  (void)state;
  enum { PIECES = 24, BYTES = 72 << 20 };
  uint8_t *bytes = malloc(BYTES);
  weft_piece pieces[PIECES];
  weft_digest got[PIECES];
  size_t at = 0;
  uint64_t total = 0;
  assert_non_null(bytes);
  for (size_t i = 0; i < BYTES; i += 512) { /* no two are alike */
    memset(bytes + i, (int)(i >> 9), 512);
    memcpy(bytes + i, &i, sizeof i);
  }
  for (size_t i = 0; i < PIECES; i++) {
    const size_t n = i == 3   ? (size_t)33 << 20
                     : i == 9 ? 4 << 20
                     : i % 4  ? i * 1000 + 7
                              : i % 8 * (size_t)500000;
    pieces[i] = (weft_piece){ n > 0 ? bytes + at : NULL, n };
    at += n;
  }
  assert_true(at <= BYTES);
  pieces[PIECES - 1] = (weft_piece){ bytes, BYTES };
  for (size_t i = 0; i < PIECES; i++) {
    total += pieces[i].bytes;
  }
  for (unsigned threads = 0; threads <= 5; threads++) {
    atomic_uint_fast64_t done = 7; /* what is there is added to */
    memset(got, 0, sizeof got);
    assert_ok(weft_digest_pieces(pieces, PIECES, threads, NULL, &done, got));
    assert_int_equal(atomic_load(&done), 7 + total);
    for (size_t i = 0; i < PIECES; i++) {
      assert_true(weft_digest_equal(
          got[i], weft_digest_of(pieces[i].data, (size_t)pieces[i].bytes)));
    }
  }
  atomic_bool cancel = false;
  assert_ok(weft_digest_pieces(pieces, 0, 4, &cancel, NULL, NULL));
  assert_ok(weft_digest_pieces(pieces, 1, 4, &cancel, NULL, got));
  atomic_store(&cancel, true);
  assert_err(weft_digest_pieces(pieces, PIECES, 4, &cancel, NULL, got), WEFT_E_CANCELLED);
  free(bytes);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(known_answers),
    cmocka_unit_test(a_cancelled_sha256_is_no_sha256),
    cmocka_unit_test(streaming_is_the_same_in_any_pieces),
    cmocka_unit_test(set_layout_is_what_the_header_says),
    cmocka_unit_test(text_and_bytes_go_both_ways),
    cmocka_unit_test(pieces_are_hashed_at_once),
  };
  return cmocka_run_group_tests_name("transport.digest", tests, NULL, NULL);
}
