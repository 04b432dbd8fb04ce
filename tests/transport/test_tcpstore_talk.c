#include "weft_test.h"

#include "tcpstore_peer.h"
#include "tcpstore_talk.h"
#include "weft_fail.h"

#include <stdio.h>
#include <string.h>

enum { NONCE = 0x04030201 };
static const char *const keys[] = { "/a", "/b", "/c" };

#define U64(c) c "\0\0\0\0\0\0\0"

static void expect_out(wefti_talk *t, const char *bytes, size_t n)
{
  if (t->out.len != n || memcmp(t->out.data, bytes, n) != 0) {
    fail_msg("%zu bytes, want %zu", t->out.len, n);
  }
  wefti_sb_drop(&t->out, n);
}
#define EXPECT_OUT(t, s) expect_out((t), (s), sizeof(s) - 1)

static weft_err hear(wefti_talk *t, const char *bytes, size_t n, weft_tcpstore_answer *a)
{
  wefti_talk_news news = WEFTI_TALK_POLL;
  assert_true(wefti_talk_feed(t, bytes, n));
  const weft_err err = wefti_talk_next(t, &news, a, NULL);
  assert_true(err != WEFT_OK || news == WEFTI_TALK_DONE);
  return err;
}
#define HEAR(t, s, a) hear((t), (s), sizeof(s) - 1, (a))

/* Each request is one piece, and as the contract spells it. */
static void requests_are_spelt_right(void **state)
{
  (void)state;
  wefti_talk t;
  weft_tcpstore_answer a;
  wefti_talk_init(&t, 100);
  assert_true(wefti_talk_hello(&t, NONCE, true));
  EXPECT_OUT(&t, "\0\xce\xf7\x85\x3c\x0d\1\2\3\4");
  assert_ok(HEAR(&t, "\1\2\3\4", &a));
  assert_true(wefti_talk_add(&t, "init/", 1));
  EXPECT_OUT(&t, "\4" U64("\5") "init/" U64("\1"));
  assert_ok(HEAR(&t, U64("\2"), &a));
  assert_int_equal(a.number, 2);
  assert_true(wefti_talk_get(&t, keys, 1));
  EXPECT_OUT(&t, "\6" U64("\1") U64("\2") "/a");
  assert_err(HEAR(&t, "\0", &a), WEFT_E_AGAIN);
  EXPECT_OUT(&t, "\3" U64("\2") "/a");
  assert_ok(HEAR(&t, U64("\3") "xyz", &a));
  assert_memory_equal(a.value, "xyz", 3);
  assert_true(wefti_talk_set(&t, "/s", "v", 1));
  EXPECT_OUT(&t, "\1" U64("\2") "/s" U64("\1") "v");
  assert_true(wefti_talk_flushed(&t));
  assert_false(wefti_talk_flushed(&t));
  assert_true(wefti_talk_remove(&t, "/s"));
  EXPECT_OUT(&t, "\x08" U64("\2") "/s");
  assert_ok(HEAR(&t, U64("\1"), &a));
  wefti_talk_fini(&t);
  wefti_talk_init(&t, 100);
  assert_true(wefti_talk_hello(&t, NONCE, false));
  EXPECT_OUT(&t, "\0\xce\xf7\x85\x3c\5" U64("\1") U64("\5") "init/");
  assert_ok(HEAR(&t, "\1", &a));
  wefti_talk_fini(&t);
}

static void candidates_are_asked_one_by_one(void **state)
{
  (void)state;
  wefti_talk t;
  weft_tcpstore_answer a;
  wefti_talk_news news;
  wefti_talk_init(&t, 100);
  assert_true(wefti_talk_get(&t, keys, 3));
  EXPECT_OUT(&t, "\5" U64("\1") U64("\2") "/a");
  assert_err(HEAR(&t, "\1", &a), WEFT_E_AGAIN);
  EXPECT_OUT(&t, "\5" U64("\1") U64("\2") "/b");
  assert_err(HEAR(&t, "\1", &a), WEFT_E_AGAIN);
  EXPECT_OUT(&t, "\5" U64("\1") U64("\2") "/c");
  assert_true(wefti_talk_feed(&t, "\1", 1));
  assert_ok(wefti_talk_next(&t, &news, &a, NULL));
  assert_int_equal(news, WEFTI_TALK_POLL);
  assert_err(wefti_talk_next(&t, &news, &a, NULL), WEFT_E_AGAIN);
  assert_int_equal(t.out.len, 0);
  assert_true(wefti_talk_poll(&t));
  assert_true(wefti_talk_poll(&t)); /* once */
  EXPECT_OUT(&t, "\5" U64("\1") U64("\2") "/a");
  assert_err(HEAR(&t, "\1", &a), WEFT_E_AGAIN);
  EXPECT_OUT(&t, "\5" U64("\1") U64("\2") "/b");
  assert_err(HEAR(&t, "\0", &a), WEFT_E_AGAIN);
  EXPECT_OUT(&t, "\3" U64("\2") "/b");
  assert_ok(HEAR(&t, U64("\0"), &a));
  assert_int_equal(a.which, 1);
  assert_int_equal(a.len, 0);
  wefti_talk_fini(&t);
}

/* Nothing but the cancel goes out before the answer to it; then the next question does.
 */
static void a_question_waits_for_the_end_of_the_last(void **state)
{
  (void)state;
  static const struct {
    const char *heard;
    size_t len;
  } ends[] = { { "\1", 1 }, { "\0\1", 2 } };
  for (size_t i = 0; i < 2; i++) {
    wefti_talk t;
    weft_tcpstore_answer a;
    wefti_talk_init(&t, 100);
    assert_true(wefti_talk_get(&t, keys, 1));
    wefti_sb_drop(&t.out, t.out.len);
    assert_true(wefti_talk_cancel(&t));
    EXPECT_OUT(&t, "\x0c");
    assert_true(wefti_talk_set(&t, "/lost", "v", 1));
    assert_true(wefti_talk_cancel(&t));
    assert_true(wefti_talk_add(&t, "/n", 1));
    assert_int_equal(t.out.len, 0);
    assert_err(hear(&t, ends[i].heard, ends[i].len, &a), WEFT_E_AGAIN);
    EXPECT_OUT(&t, "\4" U64("\2") "/n" U64("\1"));
    assert_ok(HEAR(&t, U64("\7"), &a));
    assert_int_equal(a.number, 7);
    wefti_talk_fini(&t);
  }
  /* any other answer is swallowed whole */
  wefti_talk t;
  weft_tcpstore_answer a;
  wefti_talk_init(&t, 100);
  assert_true(wefti_talk_get(&t, keys, 1));
  assert_err(HEAR(&t, "\0", &a), WEFT_E_AGAIN);
  wefti_sb_drop(&t.out, t.out.len);
  assert_true(wefti_talk_cancel(&t));
  assert_int_equal(t.out.len, 0);
  assert_err(HEAR(&t, U64("\3") "ab", &a), WEFT_E_AGAIN);
  assert_true(t.given_up);
  assert_err(HEAR(&t, "c", &a), WEFT_E_AGAIN);
  assert_false(t.given_up);
  wefti_talk_fini(&t);
}

static void a_prefix_is_no_answer(void **state)
{
  (void)state;
  static const char said[] = "\0" U64("\5") "value";
  for (size_t n = 0; n + 1 < sizeof said; n++) {
    wefti_talk t;
    weft_tcpstore_answer a;
    wefti_talk_init(&t, 5);
    assert_true(wefti_talk_get(&t, keys, 1));
    assert_err(hear(&t, said, n, &a), WEFT_E_AGAIN);
    assert_ok(hear(&t, said + n, sizeof said - 1 - n, &a));
    assert_memory_equal(a.value, "value", 5);
    wefti_talk_fini(&t);
  }
}

static void wrong_answers_end_it(void **state)
{
  (void)state;
  wefti_talk t;
  weft_tcpstore_answer a;
  wefti_talk_init(&t, 4);
  assert_err(HEAR(&t, "\0", &a), WEFT_E_PROTO); /* nobody asked */
  wefti_talk_fini(&t);
  wefti_talk_init(&t, 4);
  assert_true(wefti_talk_hello(&t, NONCE, true));
  assert_err(HEAR(&t, "\1\2\3\5", &a), WEFT_E_PROTO);
  wefti_talk_fini(&t);
  wefti_talk_init(&t, 4);
  assert_true(wefti_talk_get(&t, keys, 2));
  assert_err(HEAR(&t, "\2", &a), WEFT_E_PROTO);
  wefti_talk_fini(&t);
  wefti_talk_init(&t, 4);
  assert_true(wefti_talk_get(&t, keys, 1));
  assert_err(HEAR(&t, "\0" U64("\5"), &a), WEFT_E_LIMIT); /* one over value_max */
  wefti_talk_fini(&t);
  wefti_talk_init(&t, 4);
  assert_true(wefti_talk_get(&t, keys, 1));
  assert_true(wefti_talk_cancel(&t));
  assert_err(HEAR(&t, "\0\0", &a), WEFT_E_PROTO);
  wefti_talk_fini(&t);
}

/* ---- with the server, without sockets */

static void no_news(void *arg, wefti_peer *peer)
{
  (void)arg;
  (void)peer;
}

/* Carries at most n bytes each way until nothing moves. */
static bool carry(wefti_talk *t, wefti_peer *p, size_t n)
{
  for (;;) {
    const size_t there = t->out.len < n ? t->out.len : n;
    wefti_peer_feed(p, t->out.data, there);
    wefti_sb_drop(&t->out, there);
    const size_t left = p->out.len - p->out_at;
    const size_t back = left < n ? left : n;
    if (back > 0 && !wefti_talk_feed(t, p->out.data + p->out_at, back)) {
      return false;
    }
    wefti_peer_sent(p, back);
    if (p->err != WEFT_OK) {
      return false;
    }
    wefti_talk_news news;
    weft_tcpstore_answer a;
    const weft_err err = wefti_talk_next(t, &news, &a, NULL);
    if (err == WEFT_OK) {
      return news == WEFTI_TALK_DONE;
    }
    if (err != WEFT_E_AGAIN || (there == 0 && back == 0)) {
      return false;
    }
  }
}

static bool converse(size_t piece)
{
  wefti_store store = { .map = { .keys_max = 16, .bytes_max = 1 << 20 },
                        .news = no_news };
  wefti_peer p;
  wefti_talk t;
  wefti_peer_init(&p, &store, NULL);
  wefti_talk_init(&t, 1000);
  bool good = wefti_talk_hello(&t, NONCE, piece % 2 == 0) && carry(&t, &p, piece) &&
              wefti_talk_add(&t, "/a", 41) && carry(&t, &p, piece) &&
              wefti_talk_get(&t, keys, 1) && carry(&t, &p, piece) &&
              wefti_talk_get(&t, keys, 3) && carry(&t, &p, piece) &&
              wefti_talk_set(&t, "/b", "bb", 2);
  if (good) {
    (void)carry(&t, &p, piece);
    good = wefti_talk_flushed(&t) && wefti_talk_get(&t, keys + 1, 2) &&
           carry(&t, &p, piece) && wefti_talk_remove(&t, "/b") && carry(&t, &p, piece) &&
           store.map.present == 1;
  }
  wefti_talk_fini(&t);
  wefti_peer_fini(&p);
  wefti_map_fini(&store.map);
  return good;
}

static void both_ends_agree_however_it_is_cut(void **state)
{
  (void)state;
  for (size_t piece = 1; piece < 40; piece++) {
    assert_true(converse(piece));
  }
}

static void memory_may_end_anywhere(void **state)
{
  (void)state;
  FOR_EACH_FAILURE
  {
    const bool good = converse(7);
    END_UNLESS_FAILED
    assert_false(good);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(requests_are_spelt_right),
    cmocka_unit_test(candidates_are_asked_one_by_one),
    cmocka_unit_test(a_question_waits_for_the_end_of_the_last),
    cmocka_unit_test(a_prefix_is_no_answer),
    cmocka_unit_test(wrong_answers_end_it),
    cmocka_unit_test(both_ends_agree_however_it_is_cut),
    cmocka_unit_test(memory_may_end_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
