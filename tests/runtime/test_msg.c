#include "weft_test.h"

#include "msg_pack.h"
#include "sample_catalogue.h"

#include <stdlib.h>
#include <string.h>

static const weft_catalogue *const cat = &sample_catalogue;

/* A message with every kind of field; the caller unrefs body. */
static sample_mix make_mix(void)
{
  weft_buf *body = weft_buf_create("body\0bytes", 10);
  assert_non_null(body);
  return (sample_mix){ .h = { .type = SAMPLE_MIX, .corr = 77, .due_ms = 5000 },
                       .small = 0xdeadbeef,
                       .large = 0x0123456789abcdefu,
                       .text = WEFT_STR("hello"),
                       .body = body,
                       .tail = { NULL, 0 } };
}

static void assert_mix_equal(const sample_mix *m, const sample_mix *want)
{
  assert_int_equal(m->h.type, SAMPLE_MIX);
  assert_int_equal(m->small, want->small);
  assert_int_equal(m->large, want->large);
  assert_int_equal(m->text.len, want->text.len);
  assert_memory_equal(m->text.p, want->text.p, want->text.len);
  assert_int_equal(m->text.p[m->text.len], 0);
  assert_int_equal(m->tail.len, 0);
  assert_string_equal(m->tail.p, ""); /* never NULL after a copy */
  assert_int_equal(m->body->len, want->body->len);
  assert_memory_equal(m->body->data, want->body->data, want->body->len);
}

static void desc_of_knows_its_types_only(void **state)
{
  (void)state;
  assert_string_equal(weft_msg_desc_of(cat, SAMPLE_PING)->name, "ping");
  assert_null(weft_msg_desc_of(cat, 0));
  assert_null(weft_msg_desc_of(cat, SAMPLE_GAP)); /* a hole in the table */
  assert_null(weft_msg_desc_of(cat, cat->count));
  assert_null(weft_msg_desc_of(NULL, SAMPLE_PING));
}

static void dup_owns_its_strings_and_shares_bufs(void **state)
{
  (void)state;
  char text[] = "volatile";
  sample_mix m = make_mix();
  m.text = (weft_str){ text, 8 };
  weft_msg *copy = weft_msg_dup(cat, &m.h);
  assert_non_null(copy);
  memset(text, 'x', 8);
  const sample_mix *c = (const sample_mix *)copy;
  assert_string_equal(c->text.p, "volatile");
  assert_ptr_equal(c->body, m.body);
  assert_true((copy->flags & WEFT_MSG_F_DEEP) != 0);
  weft_msg_drop(cat, copy);
  assert_int_equal(m.body->len, 10); /* ours is still there */
  weft_buf_unref(m.body);
  weft_msg_drop(cat, NULL);
}

static void dup_refuses_a_type_of_unknown_size(void **state)
{
  (void)state;
  const weft_msg host = { .type = WEFT_MSG_USER_FIRST };
  assert_null(weft_msg_dup(cat, &host));
  weft_msg *m = weft_msg_heap_new(WEFT_MSG_USER_FIRST, sizeof(sample_ping));
  assert_non_null(m);
  assert_int_equal(m->type, WEFT_MSG_USER_FIRST);
  ((sample_ping *)m)->n = 9;
  weft_msg *copy = wefti_msg_clone(cat, m); /* its size is known from its memory */
  assert_non_null(copy);
  assert_int_equal(((sample_ping *)copy)->n, 9);
  weft_msg_drop(cat, m);
  weft_msg_drop(cat, copy);
  assert_null(weft_msg_heap_new(WEFT_MSG_USER_FIRST, sizeof(weft_msg) - 1));
}

static void what_is_encoded_is_decoded(void **state)
{
  (void)state;
  sample_mix m = make_mix();
  m.h.flags = WEFT_MSG_F_REPLY | WEFT_MSG_F_RESERVED;
  uint8_t frame[256];
  size_t len = 0;
  assert_ok(weft_msg_encode(cat, &m.h, 2000, frame, sizeof frame, &len));
  assert_int_equal(len, WEFT_FRAME_HEADER + 4 + 8 + 4 + 5 + 4 + 10 + 4);
  weft_msg *out = NULL;
  assert_ok(weft_msg_decode(cat, frame, len, 100000, &out));
  assert_mix_equal((const sample_mix *)out, &m);
  assert_int_equal(out->corr, 77);
  assert_int_equal(out->due_ms, 103000); /* 3,000 ms were left */
  assert_int_equal(out->flags, WEFT_MSG_F_REPLY | WEFT_MSG_F_DEEP);
  weft_msg_drop(cat, out);
  out = NULL;
  frame[4] |= WEFT_MSG_F_RESERVED; /* no peer takes the room that is kept here */
  assert_err(weft_msg_decode(cat, frame, len, 100000, &out), WEFT_E_PROTO);
  assert_null(out);
  weft_buf_unref(m.body);
}

static void frame_has_the_documented_bytes(void **state)
{
  (void)state;
  const sample_ping m = { .h = { .type = SAMPLE_PING,
                                 .flags = WEFT_MSG_F_REPLY,
                                 .corr = 0x0102030405060708u,
                                 .due_ms = 0 },
                          .n = 0x0a0b0c0d };
  static const uint8_t want[] = { 'w', 1, 1, 0, 1, 0, 0, 0, 8, 7, 6,  5,  4,  3,
                                  2,   1, 0, 0, 0, 0, 4, 0, 0, 0, 13, 12, 11, 10 };
  uint8_t frame[sizeof want];
  size_t len = 0;
  assert_ok(weft_msg_encode(cat, &m.h, 1, frame, sizeof frame, &len));
  assert_int_equal(len, sizeof want);
  assert_memory_equal(frame, want, sizeof want);
}

static void null_buf_and_empty_buf_differ(void **state)
{
  (void)state;
  sample_mix m = { .h = { .type = SAMPLE_MIX } };
  uint8_t frame[128];
  size_t len = 0;
  weft_msg *out = NULL;
  assert_ok(weft_msg_encode(cat, &m.h, 0, frame, sizeof frame, &len));
  assert_ok(weft_msg_decode(cat, frame, len, 0, &out));
  assert_null(((const sample_mix *)out)->body);
  weft_msg_drop(cat, out);
  m.body = weft_buf_create("", 0);
  assert_ok(weft_msg_encode(cat, &m.h, 0, frame, sizeof frame, &len));
  assert_ok(weft_msg_decode(cat, frame, len, 0, &out));
  assert_int_equal(((const sample_mix *)out)->body->len, 0);
  weft_msg_drop(cat, out);
  weft_buf_unref(m.body);
}

static void encode_says_how_much_room_it_needs(void **state)
{
  (void)state;
  sample_mix m = make_mix();
  uint8_t frame[256];
  size_t need = 0;
  assert_err(weft_msg_encode(cat, &m.h, 0, NULL, 0, &need), WEFT_E_LIMIT);
  size_t len = 0;
  assert_err(weft_msg_encode(cat, &m.h, 0, frame, need - 1, &len), WEFT_E_LIMIT);
  assert_ok(weft_msg_encode(cat, &m.h, 0, frame, need, &len));
  assert_int_equal(len, need);
  const weft_msg host = { .type = WEFT_MSG_USER_FIRST };
  assert_err(weft_msg_encode(cat, &host, 0, frame, sizeof frame, &len), WEFT_E_NOTFOUND);
  weft_buf_unref(m.body);
}

static void deadlines_stay_deadlines(void **state)
{
  (void)state;
  static const struct {
    uint64_t due, now, want;
  } cases[] = {
    { 0, 50, 0 },                                    /* none */
    { 50, 50, 1001 },                                /* over: as little as can be said */
    { 10, 50, 1001 },                                /* long over */
    { 51, 50, 1001 },                                /* 1 ms */
    { UINT64_MAX, 50, 1000 + (uint64_t)UINT32_MAX }, /* capped */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const sample_ping m = { .h = { .type = SAMPLE_PING, .due_ms = cases[i].due } };
    uint8_t frame[64];
    size_t len = 0;
    weft_msg *out = NULL;
    assert_ok(weft_msg_encode(cat, &m.h, cases[i].now, frame, sizeof frame, &len));
    assert_ok(weft_msg_decode(cat, frame, len, 1000, &out));
    assert_int_equal(out->due_ms, cases[i].want);
    weft_msg_drop(cat, out);
  }
}

static void field_limits_hold_at_limit_and_one_more(void **state)
{
  (void)state;
  const size_t str_max = 1u << 20;
  const size_t cap = str_max + 256;
  char *text = calloc(1, str_max + 1);
  uint8_t *frame = malloc(cap);
  assert_non_null(text);
  assert_non_null(frame);
  sample_mix m = { .h = { .type = SAMPLE_MIX }, .text = { text, (uint32_t)str_max } };
  size_t len = 0;
  weft_msg *out = NULL;
  assert_ok(weft_msg_encode(cat, &m.h, 0, frame, cap, &len));
  assert_ok(weft_msg_decode(cat, frame, len, 0, &out));
  assert_int_equal(((const sample_mix *)out)->text.len, str_max);
  weft_msg_drop(cat, out);
  m.text.len++;
  assert_err(weft_msg_encode(cat, &m.h, 0, frame, cap, &len), WEFT_E_OVERFLOW);
  /* the same on the receiving side: one byte more, claimed and present */
  m.text.len--;
  assert_ok(weft_msg_encode(cat, &m.h, 0, frame, cap, &len));
  frame[20]++;                           /* payload */
  frame[WEFT_FRAME_HEADER + 4 + 8] += 1; /* text */
  frame[len] = 0;
  assert_err(weft_msg_decode(cat, frame, len + 1, 0, &out), WEFT_E_LIMIT);
  free(frame);
  free(text);
}

static void every_prefix_is_truncated(void **state)
{
  (void)state;
  sample_mix m = make_mix();
  uint8_t frame[256];
  size_t len = 0;
  assert_ok(weft_msg_encode(cat, &m.h, 0, frame, sizeof frame, &len));
  for (size_t n = 0; n < len; n++) {
    uint8_t *exact = malloc(n == 0 ? 1 : n);
    assert_non_null(exact);
    memcpy(exact, frame, n);
    weft_msg *out = NULL;
    assert_err(weft_msg_decode(cat, exact, n, 0, &out), WEFT_E_TRUNCATED);
    assert_null(out);
    free(exact);
  }
  /* and with a header that agrees to the shorter payload */
  for (size_t n = WEFT_FRAME_HEADER; n < len; n++) {
    frame[20] = (uint8_t)(n - WEFT_FRAME_HEADER);
    weft_msg *out = NULL;
    assert_err(weft_msg_decode(cat, frame, n, 0, &out), WEFT_E_TRUNCATED);
    assert_null(out);
  }
  weft_buf_unref(m.body);
}

static void broken_frames_are_refused(void **state)
{
  (void)state;
  static const struct {
    size_t at;
    uint8_t byte;
    weft_err want;
  } cases[] = {
    { 0, 'W', WEFT_E_PROTO },
    { 1, 2, WEFT_E_PROTO },
    { 2, SAMPLE_GAP, WEFT_E_NOTFOUND },
    { 3, 0x80, WEFT_E_NOTFOUND },
    { 4, 4, WEFT_E_PROTO },
    { 7, 1, WEFT_E_PROTO },
    { 20, 3, WEFT_E_TRAILING },
    { 20, 5, WEFT_E_TRUNCATED },
    { 23, 0xff, WEFT_E_TRUNCATED },
  };
  const sample_ping m = { .h = { .type = SAMPLE_PING }, .n = 1 };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    uint8_t frame[64];
    size_t len = 0;
    weft_msg *out = NULL;
    assert_ok(weft_msg_encode(cat, &m.h, 0, frame, sizeof frame, &len));
    frame[cases[i].at] = cases[i].byte;
    assert_err(weft_msg_decode(cat, frame, len, 0, &out), cases[i].want);
    assert_null(out);
  }
  uint8_t frame[64] = { 0 };
  size_t len = 0;
  weft_msg *out = NULL;
  assert_ok(weft_msg_encode(cat, &m.h, 0, frame, sizeof frame, &len));
  frame[20] = 5; /* the payload has a byte that no field wants */
  assert_err(weft_msg_decode(cat, frame, len + 1, 0, &out), WEFT_E_TRAILING);
  assert_err(weft_msg_decode(cat, frame, len + 2, 0, &out), WEFT_E_TRAILING);
}

static void system_messages_can_be_copied(void **state)
{
  (void)state;
  const weft_down_msg down = { .h = { .type = WEFT_MSG_DOWN }, .who = 5, .reason = 3 };
  weft_msg *copy = weft_msg_dup(NULL, &down.h);
  assert_non_null(copy);
  assert_int_equal(((const weft_down_msg *)copy)->who, 5);
  weft_msg_drop(NULL, copy);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(desc_of_knows_its_types_only),
    cmocka_unit_test(dup_owns_its_strings_and_shares_bufs),
    cmocka_unit_test(dup_refuses_a_type_of_unknown_size),
    cmocka_unit_test(what_is_encoded_is_decoded),
    cmocka_unit_test(frame_has_the_documented_bytes),
    cmocka_unit_test(null_buf_and_empty_buf_differ),
    cmocka_unit_test(encode_says_how_much_room_it_needs),
    cmocka_unit_test(deadlines_stay_deadlines),
    cmocka_unit_test(field_limits_hold_at_limit_and_one_more),
    cmocka_unit_test(every_prefix_is_truncated),
    cmocka_unit_test(broken_frames_are_refused),
    cmocka_unit_test(system_messages_can_be_copied),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
