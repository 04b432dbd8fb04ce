#include "weft_test.h"

#include "tcpstore_peer.h"
#include "weft/tcpstore.h"
#include "weft_fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEERS = 4 };

typedef struct world {
  wefti_store store;
  wefti_peer peers[PEERS];
  unsigned changes;
} world;

static void no_news(void *arg, wefti_peer *peer)
{
  (void)arg;
  (void)peer;
}

static void count_change(void *arg, const char *key, size_t len)
{
  (void)key;
  (void)len;
  ((world *)arg)->changes++;
}

static void say(wefti_peer *p, const char *bytes, size_t n)
{
  wefti_peer_feed(p, bytes, n);
}
#define SAY(p, s) say((p), (s), sizeof(s) - 1)

static void world_init(world *w)
{
  *w = (world){ 0 };
  w->store = (wefti_store){ .map = { .keys_max = 64, .bytes_max = 1 << 20 },
                            .news = no_news,
                            .changed = count_change,
                            .changed_arg = w };
  for (unsigned i = 0; i < PEERS; i++) {
    wefti_peer_init(&w->peers[i], &w->store, NULL);
  }
}

static void world_fini(world *w)
{
  for (unsigned i = 0; i < PEERS; i++) {
    wefti_peer_fini(&w->peers[i]);
  }
  wefti_map_fini(&w->store.map);
  assert_int_equal(w->store.map.bytes, 0);
  assert_int_equal(w->store.map.entries, 0);
}

#define HELLO "\0\xce\xf7\x85\x3c"
#define U64(c) c "\0\0\0\0\0\0\0"
#define KEY(len, text) U64(len) text

static void expect(wefti_peer *p, const char *bytes, size_t n)
{
  if (p->err != WEFT_OK || p->out.len - p->out_at != n ||
      (n > 0 && memcmp(p->out.data + p->out_at, bytes, n) != 0)) {
    fail_msg("%s, %zu bytes of output (first 0x%02x), want %zu", weft_err_name(p->err),
             p->out.len - p->out_at, p->out.len > p->out_at ? p->out.data[p->out_at] : 0,
             n);
  }
  wefti_peer_sent(p, n);
}
#define EXPECT(p, s) expect((p), (s), sizeof(s) - 1)
#define ROW(ask, reply)                                                                  \
  {                                                                                      \
    (ask), sizeof(ask) - 1, (reply), sizeof(reply) - 1                                   \
  }

typedef struct row {
  const char *ask;
  size_t ask_len;
  const char *reply;
  size_t reply_len;
} row;

/* One conversation, in order. */
static const row rows[] = {
  ROW(HELLO, ""),
  ROW("\x0d\1\2\3\4", "\1\2\3\4"),
  ROW("\4" KEY("\5", "init/") U64("\1"), U64("\1")),
  ROW("\4" KEY("\5", "init/") U64("\1"), U64("\2")),
  ROW("\3" KEY("\5", "init/"), U64("\1") "2"),
  ROW("\4" KEY("\1", "n") "\xfb\xff\xff\xff\xff\xff\xff\xff",
      "\xfb\xff\xff\xff\xff\xff\xff\xff"),
  ROW("\3" KEY("\1", "n"), U64("\2") "-5"),
  ROW("\1" KEY("\1", "a") KEY("\3", "abc"), ""),
  ROW("\3" KEY("\1", "a"), U64("\3") "abc"),
  ROW("\3" KEY("\4", "none"), U64("\0")),
  ROW("\5" U64("\1") KEY("\1", "a"), "\0"),
  ROW("\5" U64("\2") KEY("\1", "a") KEY("\1", "b"), "\1"),
  ROW("\5" U64("\0"), "\0"),
  ROW("\6" U64("\2") KEY("\1", "a") KEY("\1", "n"), "\0"),
  ROW("\x0c", "\1"), /* nothing to cancel */
  ROW("\7", U64("\3")),
  ROW("\x0b" U64("\2") KEY("\1", "x") KEY("\1", "1") KEY("\1", "y") KEY("\0", ""), ""),
  ROW("\x0a" U64("\3") KEY("\1", "y") KEY("\1", "x") KEY("\1", "q"),
      U64("\0") U64("\1") "1" U64("\0")),
  ROW("\x09" KEY("\1", "x") KEY("\2", "23"), ""),
  ROW("\x09" KEY("\1", "z") KEY("\2", "zz"), ""),
  ROW("\3" KEY("\1", "x"), U64("\3") "123"),
  ROW("\3" KEY("\1", "z"), U64("\2") "zz"),
  ROW("\4" KEY("\1", "x") U64("\1"), "\x7c\0\0\0\0\0\0\0"),
  ROW("\x08" KEY("\1", "z"), U64("\1")),
  ROW("\x08" KEY("\1", "z"), U64("\0")),
  /* COMPARE_SET: absent and empty; absent and not; equal; different */
  ROW("\2" KEY("\1", "c") KEY("\0", "") KEY("\1", "v"), U64("\1") "v"),
  ROW("\2" KEY("\1", "d") KEY("\1", "e") KEY("\1", "v"), U64("\1") "e"),
  ROW("\5" U64("\1") KEY("\1", "d"), "\1"),
  ROW("\2" KEY("\1", "c") KEY("\1", "v") KEY("\2", "ww"), U64("\2") "ww"),
  ROW("\2" KEY("\1", "c") KEY("\1", "v") KEY("\1", "x"), U64("\2") "ww"),
  /* queues */
  ROW("\x10" KEY("\1", "q"), U64("\0")),
  ROW("\x0f" KEY("\1", "q"), U64("\0")),
  ROW("\x0e" KEY("\1", "q") KEY("\1", "1"), ""),
  ROW("\x0e" KEY("\1", "q") KEY("\2", "22"), ""),
  ROW("\x10" KEY("\1", "q"), U64("\2")),
  ROW("\5" U64("\1") KEY("\1", "q"), "\0"),
  ROW("\x0f" KEY("\1", "q"), U64("\2") U64("\1") "1"),
  ROW("\x0f" KEY("\1", "q"), U64("\1") U64("\2") "22"),
  ROW("\x0f" KEY("\1", "q"), U64("\0")),
  ROW("\5" U64("\1") KEY("\1", "q"), "\1"),
  /* a barrier of one, and the keys: newest first */
  ROW("\x12" KEY("\1", "b") U64("\1"), "\0"),
  ROW("\7", U64("\7")),
  ROW("\x11", U64("\7") U64("\1") "b" U64("\1") "c" U64("\1") "y" U64("\1") "x" U64(
                  "\1") "a" U64("\1") "n" U64("\5") "init/"),
};

static void every_request_has_its_answer(void **state)
{
  (void)state;
  world w;
  world_init(&w);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    say(&w.peers[0], rows[i].ask, rows[i].ask_len);
    expect(&w.peers[0], rows[i].reply, rows[i].reply_len);
  }
  assert_true(w.changes > 10);
  world_fini(&w);
}

/* The same, a byte at a time, and all at once. */
static void requests_may_be_cut_and_joined(void **state)
{
  (void)state;
  world w;
  world_init(&w);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (size_t n = 0; n < rows[i].ask_len; n++) {
      assert_true(n == 0 || w.peers[0].out.len == w.peers[0].out_at);
      say(&w.peers[0], rows[i].ask + n, 1);
    }
    expect(&w.peers[0], rows[i].reply, rows[i].reply_len);
  }
  world_fini(&w);
  world_init(&w);
  char asks[4096];
  char replies[4096];
  size_t ask_len = 0;
  size_t reply_len = 0;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    memcpy(asks + ask_len, rows[i].ask, rows[i].ask_len);
    memcpy(replies + reply_len, rows[i].reply, rows[i].reply_len);
    ask_len += rows[i].ask_len;
    reply_len += rows[i].reply_len;
  }
  say(&w.peers[0], asks, ask_len);
  expect(&w.peers[0], replies, reply_len);
  world_fini(&w);
}

/* A client may leave at any byte. */
static void leaving_gives_everything_back(void **state)
{
  (void)state;
  for (size_t i = 1; i < sizeof rows / sizeof rows[0]; i++) {
    for (size_t n = 0; n <= rows[i].ask_len; n++) {
      world w;
      world_init(&w);
      SAY(&w.peers[0], "");
      SAY(&w.peers[0], HELLO);
      say(&w.peers[0], rows[i].ask, n);
      assert_true(n == rows[i].ask_len || w.peers[0].out.len == 0);
      world_fini(&w);
    }
  }
}

static void greet(world *w)
{
  for (unsigned i = 0; i < PEERS; i++) {
    SAY(&w->peers[i], HELLO);
  }
}

static void changes_wake_who_waits(void **state)
{
  (void)state;
  static const row wakes[] = {
    ROW("\1" KEY("\1", "k") KEY("\0", ""), ""),
    ROW("\4" KEY("\1", "k") U64("\1"), U64("\1")),
    ROW("\x09" KEY("\1", "k") KEY("\1", "a"), ""),
    ROW("\x0b" U64("\1") KEY("\1", "k") KEY("\1", "a"), ""),
    ROW("\2" KEY("\1", "k") KEY("\0", "") KEY("\1", "v"), U64("\1") "v"),
    ROW("\x0e" KEY("\1", "k") KEY("\1", "1"), ""),
  };
  for (size_t i = 0; i < sizeof wakes / sizeof wakes[0]; i++) {
    world w;
    world_init(&w);
    greet(&w);
    SAY(&w.peers[0], "\6" U64("\1") KEY("\1", "k"));
    SAY(&w.peers[1], "\6" U64("\3") KEY("\1", "k") KEY("\1", "k") KEY("\1", "j"));
    EXPECT(&w.peers[0], "");
    say(&w.peers[2], wakes[i].ask, wakes[i].ask_len);
    expect(&w.peers[2], wakes[i].reply, wakes[i].reply_len);
    EXPECT(&w.peers[0], "\0");
    EXPECT(&w.peers[1], "");
    SAY(&w.peers[2], "\1" KEY("\1", "j") KEY("\1", "1"));
    EXPECT(&w.peers[1], "\0");
    world_fini(&w);
  }
}

static void waits_are_given_up_and_go_with_their_peer(void **state)
{
  (void)state;
  world w;
  world_init(&w);
  greet(&w);
  SAY(&w.peers[0], "\6" U64("\1") KEY("\1", "k"));
  SAY(&w.peers[1], "\6" U64("\1") KEY("\1", "k"));
  assert_int_equal(w.store.map.entries, 1);
  SAY(&w.peers[0], "\x0c");
  EXPECT(&w.peers[0], "\1");
  wefti_peer_fini(&w.peers[1]);
  wefti_peer_init(&w.peers[1], &w.store, NULL);
  assert_int_equal(w.store.map.entries, 0);
  SAY(&w.peers[2], "\7");
  EXPECT(&w.peers[2], U64("\0")); /* to be waited for is not to exist */
  SAY(&w.peers[2], "\1" KEY("\1", "k") KEY("\1", "1"));
  EXPECT(&w.peers[0], "");
  /* a late success: both answers, in that order */
  SAY(&w.peers[0], "\6" U64("\1") KEY("\1", "l"));
  SAY(&w.peers[2], "\1" KEY("\1", "l") KEY("\1", "1"));
  SAY(&w.peers[0], "\x0c");
  EXPECT(&w.peers[0], "\0\1");
  world_fini(&w);
}

static void what_follows_a_wait_is_done_in_its_turn(void **state)
{
  (void)state;
  world w;
  world_init(&w);
  greet(&w);
  SAY(&w.peers[0], "\6" U64("\1") KEY("\1", "k") "\3" KEY("\1", "k") "\1" KEY("\1", "j")
                       KEY("\1", "2"));
  SAY(&w.peers[1], "\6" U64("\1") KEY("\1", "j"));
  EXPECT(&w.peers[0], "");
  SAY(&w.peers[2], "\1" KEY("\1", "k") KEY("\1", "v"));
  EXPECT(&w.peers[0], "\0" U64("\1") "v");
  EXPECT(&w.peers[1], "\0");
  world_fini(&w);
}

static void a_barrier_opens_for_all(void **state)
{
  (void)state;
  world w;
  world_init(&w);
  greet(&w);
  for (unsigned i = 0; i < 3; i++) {
    SAY(&w.peers[i], "\x12" KEY("\1", "b") U64("\4"));
    EXPECT(&w.peers[i], "");
  }
  SAY(&w.peers[2], "\x0c");
  EXPECT(&w.peers[2], "\1");
  SAY(&w.peers[3], "\x12" KEY("\1", "b") U64("\4"));
  EXPECT(&w.peers[3], "\0");
  EXPECT(&w.peers[0], "\0");
  EXPECT(&w.peers[1], "\0");
  EXPECT(&w.peers[2], "");
  world_fini(&w);
}

static void bad_bytes_end_the_connection(void **state)
{
  (void)state;
  static const struct {
    const char *bytes;
    size_t len;
    weft_err err;
  } bad[] = {
#define BAD(s, e) { (s), sizeof(s) - 1, (e) }
    BAD("\7", WEFT_E_PROTO),                 /* before VALIDATE */
    BAD("GET / HTTP/1.1\r\n", WEFT_E_PROTO), /* somebody else */
    BAD("\0\xce\xf7\x85\x3d", WEFT_E_PROTO), /* magic */
    BAD(HELLO HELLO, WEFT_E_PROTO),          /* twice */
    BAD(HELLO "\x13", WEFT_E_PROTO),         /* opcode */
    BAD(HELLO "\xff", WEFT_E_PROTO),
    BAD(HELLO "\3\1\x20\0\0\0\0\0\0", WEFT_E_LIMIT), /* key of 8,193 */
    BAD(HELLO "\3\xff\xff\xff\xff\xff\xff\xff\xff", WEFT_E_LIMIT),
    BAD(HELLO "\1" KEY("\1", "k") "\1\0\x80\0\0\0\0\0", WEFT_E_LIMIT), /* 8 MiB + 1 */
    BAD(HELLO "\6\1\0\2\0\0\0\0\0", WEFT_E_LIMIT),                     /* 131,073 keys */
    BAD(HELLO "\x0b\xff\xff\xff\xff\xff\xff\xff\xff", WEFT_E_LIMIT),
    BAD(HELLO "\1" KEY("\1", "k") KEY("\1", "x") "\4" KEY("\1", "k") U64("\1"),
        WEFT_E_PROTO), /* no number */
    BAD(HELLO "\1" KEY("\1", "k") KEY("\0", "") "\4" KEY("\1", "k") U64("\1"),
        WEFT_E_PROTO),
    BAD(HELLO "\1" KEY("\1", "k") "\x13\0\0\0\0\0\0\0"
                                  "9223372036854775807"
                                  "\4" KEY("\1", "k") U64("\1"),
        WEFT_E_OVERFLOW),
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    world w;
    world_init(&w);
    say(&w.peers[0], bad[i].bytes, bad[i].len);
    if (w.peers[0].err != bad[i].err) {
      fail_msg("row %zu: %s", i, weft_err_name(w.peers[0].err));
    }
    SAY(&w.peers[0], "\7"); /* nothing more is done for it */
    assert_int_equal(w.peers[0].out.len, 0);
    world_fini(&w);
  }
}

static void limits_hold_to_the_byte(void **state)
{
  (void)state;
  world w;
  world_init(&w);
  w.store.map.bytes_max = (size_t)64 << 20;
  greet(&w);
  char *big = calloc(1, 9 << 20);
  assert_non_null(big);
  SAY(&w.peers[0], "\1\0\x20\0\0\0\0\0\0");
  say(&w.peers[0], big, 8192); /* the longest key */
  SAY(&w.peers[0], "\0\0\x80\0\0\0\0\0");
  say(&w.peers[0], big, 8 << 20); /* the longest value */
  assert_int_equal(w.peers[0].err, WEFT_OK);
  SAY(&w.peers[1], "\3\0\x20\0\0\0\0\0\0");
  say(&w.peers[1], big, 8192);
  assert_int_equal(w.peers[1].out.len, (8 << 20) + 8);
  assert_true(wefti_peer_is_full(&w.peers[1]));
  SAY(&w.peers[1], "\7"); /* not before it has read */
  assert_int_equal(w.peers[1].out.len, (8 << 20) + 8);
  wefti_peer_sent(&w.peers[1], (8 << 20) + 8);
  EXPECT(&w.peers[1], U64("\1"));
  /* APPEND may make a value longer than one request can carry; the budget ends that */
  for (unsigned i = 0; i < 9 && w.peers[2].err == WEFT_OK; i++) {
    SAY(&w.peers[2], "\x09" KEY("\1", "k") "\0\0\x80\0\0\0\0\0");
    say(&w.peers[2], big, 8 << 20);
  }
  assert_int_equal(w.peers[2].err, WEFT_E_LIMIT);
  free(big);
  world_fini(&w);
}

static void keys_and_bytes_are_bounded(void **state)
{
  (void)state;
  world w;
  world_init(&w);
  greet(&w);
  for (unsigned char c = 1; c <= 64; c++) {
    char set[] = "\1" KEY("\1", "_") KEY("\1", "v");
    set[9] = (char)c;
    say(&w.peers[0], set, sizeof set - 1);
    assert_int_equal(w.peers[0].err, WEFT_OK);
  }
  SAY(&w.peers[1], "\6" U64("\1") KEY("\1", "~")); /* a wait takes a place too */
  assert_int_equal(w.peers[1].err, WEFT_E_LIMIT);
  SAY(&w.peers[0], "\1" KEY("\1", "\1") KEY("\2", "ww")); /* one that exists is fine */
  assert_int_equal(w.peers[0].err, WEFT_OK);
  world_fini(&w);
  world_init(&w);
  greet(&w);
  w.store.map.bytes_max = 100000;
  char big[70000] = { 0 };
  SAY(&w.peers[0], "\1" KEY("\1", "k") "\x70\x11\1\0\0\0\0\0");
  say(&w.peers[0], big, sizeof big); /* half a request fills the budget */
  assert_int_equal(w.peers[0].err, WEFT_E_LIMIT);
  SAY(&w.peers[1], "\7");
  EXPECT(&w.peers[1], U64("\0"));
  world_fini(&w);
}

static void memory_may_end_anywhere(void **state)
{
  (void)state;
  FOR_EACH_FAILURE
  {
    world w;
    world_init(&w);
    bool all = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && all; i++) {
      say(&w.peers[0], rows[i].ask, rows[i].ask_len);
      all = w.peers[0].err == WEFT_OK;
      wefti_peer_sent(&w.peers[0], w.peers[0].out.len - w.peers[0].out_at);
    }
    SAY(&w.peers[1], HELLO "\6" U64("\1") KEY("\1", "?"));
    SAY(&w.peers[2], HELLO "\1" KEY("\1", "?") KEY("\1", "v"));
    const bool failed = !all || w.peers[1].err != WEFT_OK || w.peers[2].err != WEFT_OK;
    const unsigned long left = fail_countdown;
    fail_countdown = 0;
    world_fini(&w);
    fail_countdown = left;
    END_UNLESS_FAILED
    assert_true(failed);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_request_has_its_answer),
    cmocka_unit_test(requests_may_be_cut_and_joined),
    cmocka_unit_test(leaving_gives_everything_back),
    cmocka_unit_test(changes_wake_who_waits),
    cmocka_unit_test(waits_are_given_up_and_go_with_their_peer),
    cmocka_unit_test(what_follows_a_wait_is_done_in_its_turn),
    cmocka_unit_test(a_barrier_opens_for_all),
    cmocka_unit_test(bad_bytes_end_the_connection),
    cmocka_unit_test(limits_hold_to_the_byte),
    cmocka_unit_test(keys_and_bytes_are_bounded),
    cmocka_unit_test(memory_may_end_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
