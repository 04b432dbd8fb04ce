#include "weft_test.h"

#include "join_kind.h"
#include "on_loop.h"
#include "weft/join.h"
#include "weft/process.h"
#include "weft/pubsub.h"
#include "weft/runtime.h"

#include <stdio.h>
#include <string.h>

typedef struct hall {
  weft_runtime *rt;
  weft_rundir *dir;
  weft_join_server *server;
  const char *at, *token;
  char url[256];
  unsigned joined;
  weft_join_hello last;
  weft_err verdict, err;
  weft_why why;
} hall;

static weft_err on_join(void *arg, const weft_join_hello *hello, weft_why *why)
{
  hall *h = arg;
  h->joined++;
  h->last = *hello;
  return h->verdict == WEFT_OK ? WEFT_OK : weft_whyf(why, h->verdict, "rank 3 is taken");
}

static void do_open(void *arg)
{
  hall *h = arg;
  h->err = weft_join_listen(weft_runtime_loop(h->rt, 0), h->at, h->token, on_join, h,
                            h->url, sizeof h->url, &h->server, &h->why);
}

static void do_close(void *arg)
{
  weft_join_close(((hall *)arg)->server);
}

static void hall_open(hall *h, const char *scheme, const char *token)
{
  char at[256];
  *h = (hall){ .token = token };
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  assert_ok(weft_rundir_open(NULL, &h->dir, &h->why));
  assert_ok(weft_runtime_create(&o, &h->rt));
  assert_ok(weft_runtime_start_all(h->rt));
  (void)snprintf(at, sizeof at, "ipc://%s/join", weft_rundir_path(h->dir));
  h->at = strcmp(scheme, "tcp") == 0 ? "tcp://127.0.0.1:0" : at;
  on_loop(weft_runtime_loop(h->rt, 0), do_open, h);
}

static void hall_close(hall *h)
{
  on_loop(weft_runtime_loop(h->rt, 0), do_close, h);
  weft_runtime_stop(h->rt, 100);
  weft_runtime_join(h->rt);
  weft_runtime_destroy(h->rt);
  weft_rundir_close(h->dir);
}

static weft_join_hello hello_of(uint32_t rank)
{
  weft_join_hello h = {
    .rank = rank, .world_size = 8, .pid = 77, .incarnation = UINT64_MAX - 1
  };
  (void)snprintf(h.url, sizeof h.url, "tcp://127.0.0.1:4000");
  return h;
}

static void the_right_token_is_let_in(void **state)
{
  (void)state;
  static const char *const schemes[] = { "tcp", "ipc" };
  for (int i = 0; i < 2; i++) {
    hall h;
    hall_open(&h, schemes[i], "open sesame");
    assert_ok(h.err);
    weft_join_hello hello = hello_of(3);
    hello.draft = 1;
    if (i == 0) { /* with all that may be said */
      hello.settings = (weft_join_settings){ .frames = UINT64_MAX - 2, .tp = 4, .pp = 2 };
      (void)snprintf(hello.settings.backend, sizeof hello.settings.backend, "nccl");
      (void)snprintf(hello.settings.staging, sizeof hello.settings.staging, "shadow");
      (void)snprintf(hello.settings.tp_plan, sizeof hello.settings.tp_plan, "x:1");
    }
    assert_ok(weft_join_announce(h.url, "open sesame", &hello, 5000, &h.why));
    assert_int_equal(h.joined, 1);
    assert_int_equal(h.last.rank, 3);
    assert_int_equal(h.last.world_size, 8);
    assert_int_equal(h.last.draft, 1);
    assert_true(h.last.settings.frames == hello.settings.frames);
    assert_int_equal(h.last.settings.tp, hello.settings.tp);
    assert_int_equal(h.last.settings.pp, hello.settings.pp);
    assert_string_equal(h.last.settings.backend, hello.settings.backend);
    assert_string_equal(h.last.settings.staging, hello.settings.staging);
    assert_string_equal(h.last.settings.tp_plan, hello.settings.tp_plan);
    assert_true(h.last.incarnation == UINT64_MAX - 1);
    assert_string_equal(h.last.url, hello.url);
    hall_close(&h);
  }
}

static void the_wrong_token_is_denied_at_once(void **state)
{
  (void)state;
  static const char *const wrong[] = { "open sesam", "open sesame ", "", NULL };
  hall h;
  hall_open(&h, "tcp", "open sesame");
  const weft_join_hello hello = hello_of(1);
  for (int i = 0; i < 4; i++) {
    assert_err(weft_join_announce(h.url, wrong[i], &hello, 60000, &h.why), WEFT_E_DENIED);
  }
  assert_int_equal(h.joined, 0);
  hall_close(&h);
}

static void tcp_wants_a_token(void **state)
{
  (void)state;
  hall h;
  hall_open(&h, "tcp", "");
  assert_err(h.err, WEFT_E_INVAL);
  hall_close(&h);
  hall_open(&h, "ipc", NULL);
  assert_ok(h.err);
  const weft_join_hello hello = hello_of(0);
  assert_ok(weft_join_announce(h.url, NULL, &hello, 5000, &h.why));
  assert_int_equal(h.joined, 1);
  hall_close(&h);
}

static void the_engines_verdict_comes_back(void **state)
{
  (void)state;
  hall h;
  hall_open(&h, "tcp", "t");
  h.verdict = WEFT_E_EXISTS;
  const weft_join_hello hello = hello_of(3);
  assert_err(weft_join_announce(h.url, "t", &hello, 5000, &h.why), WEFT_E_EXISTS);
  assert_non_null(strstr(h.why.text, "rank 3 is taken"));
  hall_close(&h);
}

static void nobody_there_is_retried_until_the_deadline(void **state)
{
  (void)state;
  weft_why why = { 0 };
  const weft_join_hello hello = hello_of(0);
  assert_err(weft_join_announce("tcp://127.0.0.1:1", "t", &hello, 300, &why),
             WEFT_E_TIMEOUT);
}

static weft_buf *say(const hall *h, const char *text)
{
  weft_buf *b = NULL;
  assert_ok(weft_jsonreq(h->url, text, strlen(text), 5000, &b, NULL));
  return b;
}

#define HELLO                                                                            \
  "{\"join\":1,\"nonce\":\"%064d\",\"url\":\"tcp://1.2.3.4:5\",\"rank\":0,"              \
  "\"world_size\":1,\"pid\":1,\"draft\":1,\"incarnation\":\"9\"}"

/* A proof is good for one try; more than the half-open places are no way to keep out. */
static void replays_and_floods_get_nowhere(void **state)
{
  (void)state;
  hall h;
  char text[600];
  hall_open(&h, "tcp", "t");
  for (int i = 0; i < 300; i++) {
    (void)snprintf(text, sizeof text, HELLO, i);
    weft_buf_unref(say(&h, text));
  }
  const weft_join_hello hello = hello_of(0);
  assert_ok(weft_join_announce(h.url, "t", &hello, 5000, &h.why));
  /* By hand, so that the same proof can be sent twice. */
  (void)snprintf(text, sizeof text, HELLO, 7);
  weft_buf *b = say(&h, text);
  weft_join_hello hello_7 = { .world_size = 1, .pid = 1, .draft = 1, .incarnation = 9 };
  (void)snprintf(hello_7.url, sizeof hello_7.url, "tcp://1.2.3.4:5");
  wefti_nonces nonces;
  char hex[WEFTI_HEX];
  (void)snprintf(hex, sizeof hex, "%064d", 7);
  assert_true(wefti_unhex(hex, nonces.guest));
  const char *at = strstr((const char *)b->data, "\"nonce\":\"");
  assert_non_null(at);
  char nonce[WEFTI_HEX];
  (void)snprintf(nonce, sizeof nonce, "%.64s", at + 9);
  assert_true(wefti_unhex(nonce, nonces.host));
  weft_buf_unref(b);
  uint8_t proof[WEFTI_PROOF];
  assert_true(
      wefti_handshake_prove(&wefti_join_kind, "worker", "t", &nonces, &hello_7, proof));
  wefti_hex(proof, hex);
  (void)snprintf(text, sizeof text, "{\"prove\":\"%s\",\"proof\":\"%s\"}", nonce, hex);
  b = say(&h, text);
  assert_non_null(strstr((const char *)b->data, "\"ok\":true"));
  weft_buf_unref(b);
  b = say(&h, text);
  assert_non_null(strstr((const char *)b->data, "\"error\""));
  weft_buf_unref(b);
  assert_int_equal(h.joined, 2);
  hall_close(&h);
}

static void rubbish_is_answered_with_an_error(void **state)
{
  (void)state;
  static const char *const bad[] = { "",
                                     "{",
                                     "[]",
                                     "{}",
                                     "{\"join\":2}",
                                     "{\"join\":1}",
                                     "{\"prove\":1}",
                                     "{\"prove\":\"00\",\"proof\":\"zz\"}",
                                     "{\"join\":1,\"nonce\":\"00\"}",
                                     "\xff\xfe" };
  hall h;
  hall_open(&h, "tcp", "t");
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    weft_buf *b = say(&h, bad[i]);
    assert_non_null(strstr((const char *)b->data, "\"error\""));
    weft_buf_unref(b);
  }
  assert_int_equal(h.joined, 0);
  hall_close(&h);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_right_token_is_let_in),
    cmocka_unit_test(the_wrong_token_is_denied_at_once),
    cmocka_unit_test(tcp_wants_a_token),
    cmocka_unit_test(the_engines_verdict_comes_back),
    cmocka_unit_test(nobody_there_is_retried_until_the_deadline),
    cmocka_unit_test(replays_and_floods_get_nowhere),
    cmocka_unit_test(rubbish_is_answered_with_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
