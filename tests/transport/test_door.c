#include "weft_test.h"

#include "door_kind.h"
#include "on_loop.h"
#include "weft/door.h"
#include "weft/process.h"
#include "weft/pubsub.h"
#include "weft/runtime.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct house {
  weft_runtime *rt;
  weft_rundir *dir;
  weft_door *door;
  const char *at, *token;
  char url[256];
  unsigned invited;
  weft_invitation last;
  weft_err verdict, err;
  bool leaves; /* the door is closed while it answers */
  weft_why why;
} house;

static weft_err on_invited(void *arg, const weft_invitation *invitation, weft_why *why)
{
  house *h = arg;
  h->invited++;
  h->last = *invitation;
  if (h->leaves) {
    weft_door_close(h->door);
    h->door = NULL;
  }
  return h->verdict == WEFT_OK ? WEFT_OK
                               : weft_whyf(why, h->verdict, "of fleet other already");
}

static void do_open(void *arg)
{
  house *h = arg;
  h->err = weft_door_listen(weft_runtime_loop(h->rt, 0), h->at, h->token, on_invited, h,
                            h->url, sizeof h->url, &h->door, &h->why);
}

static void do_close(void *arg)
{
  weft_door_close(((house *)arg)->door);
}

static void house_open(house *h, const char *scheme, const char *token)
{
  char at[256];
  *h = (house){ .token = token };
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  assert_ok(weft_rundir_open(NULL, &h->dir, &h->why));
  assert_ok(weft_runtime_create(&o, &h->rt));
  assert_ok(weft_runtime_start_all(h->rt));
  (void)snprintf(at, sizeof at, "ipc://%s/door", weft_rundir_path(h->dir));
  h->at = strcmp(scheme, "tcp") == 0 ? "tcp://127.0.0.1:0" : at;
  on_loop(weft_runtime_loop(h->rt, 0), do_open, h);
}

static void house_close(house *h)
{
  on_loop(weft_runtime_loop(h->rt, 0), do_close, h);
  weft_runtime_stop(h->rt, 100);
  weft_runtime_join(h->rt);
  weft_runtime_destroy(h->rt);
  weft_rundir_close(h->dir);
}

static weft_invitation invitation_of(uint32_t rank)
{
  return (weft_invitation){ .join_url = "ipc:///run/coordinator/join.sock",
                            .fleet = "fleet one",
                            .boot = UINT64_MAX - 2,
                            .rank = rank,
                            .size = 4 };
}

static void the_right_token_invites(void **state)
{
  (void)state;
  static const char *const schemes[] = { "tcp", "ipc" };
  for (int i = 0; i < 2; i++) {
    house h;
    house_open(&h, schemes[i], "open sesame");
    assert_ok(h.err);
    const weft_invitation in = invitation_of(3);
    assert_ok(weft_door_invite(h.url, "open sesame", &in, 5000, &h.why));
    assert_int_equal(h.invited, 1);
    assert_string_equal(h.last.join_url, in.join_url);
    assert_string_equal(h.last.fleet, "fleet one");
    assert_true(h.last.boot == UINT64_MAX - 2);
    assert_int_equal(h.last.rank, 3);
    assert_int_equal(h.last.size, 4);
    house_close(&h);
  }
}

static void a_wrong_token_is_denied_and_never_heard(void **state)
{
  (void)state;
  static const char *const wrong[] = { "open sesam", "open sesame ", "", NULL };
  house h;
  house_open(&h, "tcp", "open sesame");
  const weft_invitation in = invitation_of(1);
  for (int i = 0; i < 4; i++) {
    assert_err(weft_door_invite(h.url, wrong[i], &in, 5000, &h.why), WEFT_E_DENIED);
    assert_non_null(strstr(h.why.text, "token"));
  }
  assert_int_equal(h.invited, 0);
  house_close(&h);
}

static void tcp_wants_a_token(void **state)
{
  (void)state;
  house h;
  house_open(&h, "tcp", "");
  assert_err(h.err, WEFT_E_INVAL);
  house_close(&h);
  house_open(&h, "ipc", NULL);
  assert_ok(h.err);
  const weft_invitation in = invitation_of(0);
  assert_ok(weft_door_invite(h.url, NULL, &in, 5000, &h.why));
  house_close(&h);
}

static void a_refusal_names_its_reason(void **state)
{
  (void)state;
  house h;
  house_open(&h, "ipc", NULL);
  h.verdict = WEFT_E_EXISTS;
  const weft_invitation in = invitation_of(0);
  assert_err(weft_door_invite(h.url, NULL, &in, 5000, &h.why), WEFT_E_EXISTS);
  assert_non_null(strstr(h.why.text, "of fleet other already"));
  house_close(&h);
}

static void who_is_not_there_is_invited_again_later(void **state)
{
  (void)state;
  weft_why why = { .err = WEFT_OK };
  const weft_invitation in = invitation_of(0);
  assert_err(weft_door_invite("tcp://127.0.0.1:1", "t", &in, 300, &why), WEFT_E_AGAIN);
  assert_true(why.text[0] != '\0');
}

/* Takes connections and never says a word. */
static void one_that_never_answers_costs_only_its_time(void **state)
{
  (void)state;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in at = { .sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  socklen_t len = sizeof at;
  assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 &&
              listen(fd, 4) == 0 && getsockname(fd, (struct sockaddr *)&at, &len) == 0);
  char url[64];
  (void)snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
  weft_why why = { .err = WEFT_OK };
  const weft_invitation in = invitation_of(0);
  assert_err(weft_door_invite(url, "t", &in, 200, &why), WEFT_E_AGAIN);
  assert_non_null(strstr(why.text, "cannot connect"));
  (void)close(fd);
}

static weft_buf *say(const house *h, const char *text)
{
  weft_buf *b = NULL;
  assert_ok(weft_jsonreq(h->url, text, strlen(text), 5000, &b, NULL));
  return b;
}

#define HELLO                                                                            \
  "{\"invite\":1,\"nonce\":\"%064d\",\"join\":\"ipc:///run/coordinator/join.sock\","     \
  "\"fleet\":\"fleet one\",\"boot\":\"18446744073709551613\",\"rank\":%d,\"size\":4}"

/* A proof is of these facts and these nonces, for one try. */
static void replays_and_floods_get_nowhere(void **state)
{
  (void)state;
  house h;
  char text[600];
  house_open(&h, "tcp", "t");
  for (int i = 0; i < 200; i++) {
    (void)snprintf(text, sizeof text, HELLO, i, 0);
    weft_buf_unref(say(&h, text));
  }
  const weft_invitation in = invitation_of(0);
  assert_ok(weft_door_invite(h.url, "t", &in, 5000, &h.why));
  assert_int_equal(h.invited, 1);
  for (int rank = 1; rank >= 0; rank--) { /* proved: rank 0; said: 1, then 0 */
    (void)snprintf(text, sizeof text, HELLO, 7, rank);
    weft_buf *b = say(&h, text);
    const char *at = strstr((const char *)b->data, "\"nonce\":\"");
    assert_non_null(at);
    char nonce[WEFTI_HEX];
    char hex[WEFTI_HEX];
    wefti_nonces nonces;
    (void)snprintf(nonce, sizeof nonce, "%.64s", at + 9);
    weft_buf_unref(b);
    (void)snprintf(hex, sizeof hex, "%064d", 7);
    assert_true(wefti_unhex(hex, nonces.guest) && wefti_unhex(nonce, nonces.host));
    uint8_t proof[WEFTI_PROOF];
    assert_true(
        wefti_handshake_prove(&wefti_door_kind, "coordinator", "t", &nonces, &in, proof));
    wefti_hex(proof, hex);
    (void)snprintf(text, sizeof text, "{\"prove\":\"%s\",\"proof\":\"%s\"}", nonce, hex);
    b = say(&h, text);
    assert_non_null(strstr((const char *)b->data, rank == 0 ? "\"ok\":true" : "token"));
    weft_buf_unref(b);
    b = say(&h, text);
    assert_non_null(strstr((const char *)b->data, "no such handshake"));
    weft_buf_unref(b);
  }
  assert_int_equal(h.invited, 2);
  house_close(&h);
}

static void rubbish_is_answered_with_an_error(void **state)
{
  (void)state;
#define N64 "0000000000000000000000000000000000000000000000000000000000000000"
#define BAD(join, fleet, boot, rank)                                                     \
  "{\"invite\":1,\"nonce\":\"" N64 "\",\"join\":" join ",\"fleet\":" fleet               \
  ",\"boot\":" boot ",\"rank\":" rank ",\"size\":2}"
  static const char *const bad[] = { "",
                                     "{",
                                     "[]",
                                     "{\"join\":1}",
                                     "{\"invite\":2}",
                                     "{\"invite\":1}",
                                     "{\"prove\":1}",
                                     BAD("\"gopher://x\"", "\"f\"", "\"1\"", "0"),
                                     BAD("\"ipc:///x\"", "\"\"", "\"1\"", "0"),
                                     BAD("\"ipc:///x\"", "\"f\"", "\"0\"", "0"),
                                     BAD("\"ipc:///x\"", "\"f\"", "1", "0"),
                                     BAD("\"ipc:///x\"", "\"f\"", "\"1\"", "2"),
                                     BAD("\"ipc:///x\"", "\"f\"", "\"1\"", "-1"),
                                     "\xff\xfe" };
  house h;
  house_open(&h, "tcp", "t");
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    weft_buf *b = say(&h, bad[i]);
    assert_non_null(strstr((const char *)b->data, "\"error\""));
    weft_buf_unref(b);
  }
  weft_buf *b = say(&h, BAD("\"ipc:///x\"", "\"f\"", "\"1\"", "1"));
  assert_non_null(strstr((const char *)b->data, "\"proof\"")); /* and this is none */
  weft_buf_unref(b);
  assert_int_equal(h.invited, 0);
  house_close(&h);
}

static void a_door_may_close_while_it_answers(void **state)
{
  (void)state;
  house h;
  house_open(&h, "ipc", NULL);
  h.leaves = true;
  const weft_invitation in = invitation_of(0);
  assert_err(weft_door_invite(h.url, NULL, &in, 1000, &h.why), WEFT_E_AGAIN);
  assert_int_equal(h.invited, 1);
  house_close(&h);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_right_token_invites),
    cmocka_unit_test(a_wrong_token_is_denied_and_never_heard),
    cmocka_unit_test(tcp_wants_a_token),
    cmocka_unit_test(a_refusal_names_its_reason),
    cmocka_unit_test(who_is_not_there_is_invited_again_later),
    cmocka_unit_test(one_that_never_answers_costs_only_its_time),
    cmocka_unit_test(replays_and_floods_get_nowhere),
    cmocka_unit_test(rubbish_is_answered_with_an_error),
    cmocka_unit_test(a_door_may_close_while_it_answers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
