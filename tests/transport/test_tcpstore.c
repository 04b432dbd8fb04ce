#define _GNU_SOURCE
#include "weft_test.h"

#include "on_loop.h"
#include "store_script.h"
#include "tcpstore_client.h"
#include "weft/runtime.h"
#include "weft/tcpstore.h"

#include <stdio.h>

enum { CLIENTS = 8 };

/* What the last fn said, and how often one was called. */
typedef struct box {
  counter count;
  weft_err err;
  char text[WEFT_WHY_MAX];
  uint8_t value[64];
  size_t len;
  unsigned which;
  int64_t number;
} box;

typedef struct rig {
  weft_runtime *rt;
  weft_loop *loop;
  weft_tcpstore_server *server;
  uint16_t port;
  counter changes;
  weft_tcpstore *clients[CLIENTS];
  box boxes[CLIENTS];
} rig;

/* A call to be made on the loop. */
typedef struct order {
  rig *r;
  unsigned i;
  weft_tcpstore_opts opts;
  weft_tcpstore_server_opts server_opts;
  const char *const *keys;
  size_t count;
  const void *value;
  size_t len;
  int64_t delta;
  uint64_t timeout_ms;
  weft_err err;
  weft_why why;
  unsigned attempts;
} order;

static void answered(void *arg, const weft_tcpstore_answer *a)
{
  box *b = arg;
  b->err = a->err;
  (void)snprintf(b->text, sizeof b->text, "%s", a->text);
  b->len = a->len;
  if (a->len > 0 && a->len <= sizeof b->value) {
    memcpy(b->value, a->value, a->len);
  }
  b->which = a->which;
  b->number = a->number;
  counter_up(&b->count);
}

static void on_changed(void *arg, const char *key, size_t len)
{
  (void)key;
  (void)len;
  counter_up(arg);
}

static void do_serve(void *arg)
{
  order *o = arg;
  o->err =
      weft_tcpstore_server_create(o->r->loop, &o->server_opts, &o->r->server, &o->why);
}

static void do_open(void *arg)
{
  order *o = arg;
  o->err = weft_tcpstore_open(o->r->loop, &o->opts, answered, &o->r->boxes[o->i],
                              &o->r->clients[o->i], &o->why);
}

static void do_get(void *arg)
{
  order *o = arg;
  o->err = weft_tcpstore_get(o->r->clients[o->i], o->keys, o->count, o->timeout_ms,
                             answered, &o->r->boxes[o->i]);
}

static void do_set(void *arg)
{
  order *o = arg;
  o->err = weft_tcpstore_set(o->r->clients[o->i], o->keys[0], o->value, o->len,
                             o->timeout_ms, answered, &o->r->boxes[o->i]);
}

static void do_add(void *arg)
{
  order *o = arg;
  o->err = weft_tcpstore_add(o->r->clients[o->i], o->keys[0], o->delta, o->timeout_ms,
                             answered, &o->r->boxes[o->i]);
}

static void do_remove(void *arg)
{
  order *o = arg;
  o->err = weft_tcpstore_remove(o->r->clients[o->i], o->keys[0], o->timeout_ms, answered,
                                &o->r->boxes[o->i]);
}

static void do_text(void *arg)
{
  order *o = arg;
  (void)snprintf(o->why.text, sizeof o->why.text, "%s",
                 weft_tcpstore_text(o->r->clients[o->i]));
}

static void do_cancel(void *arg)
{
  order *o = arg;
  weft_tcpstore_cancel(o->r->clients[o->i]);
}

static void do_destroy(void *arg)
{
  order *o = arg;
  weft_tcpstore_destroy(o->r->clients[o->i]);
  o->r->clients[o->i] = NULL;
}

static void do_server_set(void *arg)
{
  order *o = arg;
  o->err = weft_tcpstore_server_set(o->r->server, o->keys[0], o->value, o->len);
}

static void do_server_get(void *arg)
{
  order *o = arg;
  const uint8_t *value;
  o->err = weft_tcpstore_server_get(o->r->server, o->keys[0], &value, &o->len)
               ? WEFT_OK
               : WEFT_E_NOTFOUND;
  o->value = value;
}

static void do_server_add(void *arg)
{
  order *o = arg;
  o->err = weft_tcpstore_server_add(o->r->server, o->keys[0], o->delta, &o->delta);
}

static void do_attempts(void *arg)
{
  order *o = arg;
  o->attempts = o->r->clients[o->i]->attempts;
}

static void do_end(void *arg)
{
  rig *r = arg;
  for (unsigned i = 0; i < CLIENTS; i++) {
    weft_tcpstore_destroy(r->clients[i]);
    r->clients[i] = NULL;
  }
  weft_tcpstore_server_destroy(r->server);
  r->server = NULL;
}

static void rig_open(rig *r)
{
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  *r = (rig){ .changes = COUNTER_INIT };
  for (unsigned i = 0; i < CLIENTS; i++) {
    r->boxes[i].count = (counter)COUNTER_INIT;
  }
  assert_ok(weft_runtime_create(&opts, &r->rt));
  assert_ok(weft_runtime_start_all(r->rt));
  r->loop = weft_runtime_loop(r->rt, 0);
}

static void serve(rig *r, const weft_tcpstore_server_opts *opts)
{
  order o = { .r = r, .server_opts = *opts };
  o.server_opts.size = sizeof o.server_opts;
  o.server_opts.changed = on_changed;
  o.server_opts.changed_arg = &r->changes;
  on_loop(r->loop, do_serve, &o);
  if (o.err != WEFT_OK) {
    fail_msg("%s", o.why.text);
  }
  r->port = weft_tcpstore_server_port(r->server);
  assert_int_not_equal(r->port, 0);
}

static void rig_close(rig *r)
{
  on_loop(r->loop, do_end, r);
  weft_runtime_stop(r->rt, 1000);
  weft_runtime_join(r->rt);
  weft_runtime_destroy(r->rt);
}

static void open_client(rig *r, unsigned i, const char *host, uint16_t port, bool join,
                        uint64_t timeout_ms)
{
  order o = { .r = r,
              .i = i,
              .opts = { .size = sizeof o.opts,
                        .host = host,
                        .port = port,
                        .join = join,
                        .timeout_ms = timeout_ms } };
  on_loop(r->loop, do_open, &o);
  if (o.err != WEFT_OK) {
    fail_msg("%s", o.why.text);
  }
}

/* The n-th answer of client i. */
static box *wait_answer(rig *r, unsigned i, unsigned n)
{
  assert_true(counter_wait(&r->boxes[i].count, n));
  return &r->boxes[i];
}

static void must_join(rig *r, unsigned i)
{
  open_client(r, i, "127.0.0.1", r->port, true, 20000);
  box *b = wait_answer(r, i, 1);
  if (b->err != WEFT_OK) {
    fail_msg("%s", b->text);
  }
}

static weft_err ask(rig *r, unsigned i, weft_call_fn *fn, const char *key,
                    const char *value, int64_t delta, uint64_t timeout_ms)
{
  order o = { .r = r,
              .i = i,
              .keys = &key,
              .count = 1,
              .value = value,
              .len = value == NULL ? 0 : strlen(value),
              .delta = delta,
              .timeout_ms = timeout_ms };
  on_loop(r->loop, fn, &o);
  return o.err;
}

/* ---- with our server */

static void clients_join_and_share(void **state)
{
  (void)state;
  rig r;
  rig_open(&r);
  serve(&r, &(weft_tcpstore_server_opts){ 0 });
  must_join(&r, 0);
  assert_int_equal(r.boxes[0].number, 1);
  must_join(&r, 1);
  assert_int_equal(r.boxes[1].number, 2);
  assert_true(counter_wait(&r.changes, 2));
  /* waits, then is told */
  assert_ok(ask(&r, 0, do_get, "/broadcast_from/0/0", NULL, 0, 0));
  assert_err(ask(&r, 0, do_get, "/x", NULL, 0, 0), WEFT_E_STATE);
  assert_ok(ask(&r, 1, do_set, "/broadcast_from/0/0", "the id", 0, 0));
  box *b = wait_answer(&r, 0, 2);
  assert_int_equal(b->err, WEFT_OK);
  assert_int_equal(b->len, 6);
  assert_memory_equal(b->value, "the id", 6);
  assert_int_equal(wait_answer(&r, 1, 2)->err, WEFT_OK);
  assert_ok(ask(&r, 1, do_add, "/n", NULL, -7, 0));
  assert_int_equal(wait_answer(&r, 1, 3)->number, -7);
  assert_ok(ask(&r, 1, do_remove, "/n", NULL, 0, 0));
  assert_int_equal(wait_answer(&r, 1, 4)->number, 1);
  /* the host sees it, and may have a hand in it */
  const char *key = "/broadcast_from/0/0";
  order o = { .r = &r, .keys = &key };
  on_loop(r.loop, do_server_get, &o);
  assert_int_equal(o.err, WEFT_OK);
  assert_int_equal(o.len, 6);
  key = WEFT_TCPSTORE_INIT_KEY;
  o.delta = 1;
  on_loop(r.loop, do_server_add, &o);
  assert_int_equal(o.delta, 3);
  key = "/nothing";
  on_loop(r.loop, do_server_get, &o);
  assert_int_equal(o.err, WEFT_E_NOTFOUND);
  key = "/broadcast_from/0/0";
  on_loop(r.loop, do_server_add, &o);
  assert_int_equal(o.err, WEFT_E_PROTO);
  assert_ok(ask(&r, 0, do_get, "/from_host", NULL, 0, 0));
  assert_ok(ask(&r, 0, do_server_set, "/from_host", "", 0, 0));
  b = wait_answer(&r, 0, 3);
  assert_int_equal(b->err, WEFT_OK);
  assert_int_equal(b->len, 0);
  rig_close(&r);
}

static void several_keys_are_looked_for_in_turn(void **state)
{
  (void)state;
  static const char *const keys[] = { "/g/g//cuda//0", "/default_pg/0//cuda//0" };
  rig r;
  rig_open(&r);
  serve(&r, &(weft_tcpstore_server_opts){ .host = "::1" });
  open_client(&r, 0, "[::1]", r.port, false, 20000);
  assert_int_equal(wait_answer(&r, 0, 1)->err, WEFT_OK);
  order o = { .r = &r, .keys = keys, .count = 2 };
  on_loop(r.loop, do_get, &o);
  assert_ok(o.err);
  open_client(&r, 1, "::1", r.port, true, 20000);
  assert_int_equal(wait_answer(&r, 1, 1)->err, WEFT_OK);
  assert_ok(ask(&r, 1, do_set, keys[1], "raw", 0, 0));
  box *b = wait_answer(&r, 0, 2);
  assert_int_equal(b->err, WEFT_OK);
  assert_int_equal(b->which, 1);
  assert_memory_equal(b->value, "raw", 3);
  rig_close(&r);
}

static void a_wait_is_given_up_and_the_next_one_works(void **state)
{
  (void)state;
  rig r;
  rig_open(&r);
  serve(&r, &(weft_tcpstore_server_opts){ 0 });
  must_join(&r, 0);
  assert_ok(ask(&r, 0, do_get, "/never", NULL, 0, 0));
  ask(&r, 0, do_cancel, NULL, NULL, 0, 0);
  ask(&r, 0, do_cancel, NULL, NULL, 0, 0);
  assert_ok(ask(&r, 0, do_add, "/n", NULL, 5, 0));
  assert_int_equal(wait_answer(&r, 0, 2)->number, 5); /* the cancelled one said nothing */
  /* by its deadline */
  assert_ok(ask(&r, 0, do_get, "/never", NULL, 0, 30));
  box *b = wait_answer(&r, 0, 3);
  assert_int_equal(b->err, WEFT_E_TIMEOUT);
  assert_non_null(strstr(b->text, "within 30 ms"));
  assert_ok(ask(&r, 0, do_set, "/now", "v", 0, 0));
  assert_int_equal(wait_answer(&r, 0, 4)->err, WEFT_OK);
  assert_ok(ask(&r, 0, do_get, "/now", NULL, 0, 0));
  b = wait_answer(&r, 0, 5);
  assert_int_equal(b->err, WEFT_OK);
  assert_memory_equal(b->value, "v", 1);
  /* polls too */
  static const char *const keys[] = { "/p", "/q" };
  order o = { .r = &r, .keys = keys, .count = 2, .timeout_ms = 120 };
  on_loop(r.loop, do_get, &o);
  assert_ok(o.err);
  assert_int_equal(wait_answer(&r, 0, 6)->err, WEFT_E_TIMEOUT);
  on_loop(r.loop, do_get, &o);
  ask(&r, 0, do_cancel, NULL, NULL, 0, 0);
  assert_ok(ask(&r, 0, do_add, "/n", NULL, 1, 0));
  assert_int_equal(wait_answer(&r, 0, 7)->number, 6);
  rig_close(&r);
}

static void a_server_that_goes_is_told(void **state)
{
  (void)state;
  rig r;
  rig_open(&r);
  serve(&r, &(weft_tcpstore_server_opts){ .conns_max = 2 });
  must_join(&r, 0);
  must_join(&r, 1);
  open_client(&r, 2, "127.0.0.1", r.port, true, 150); /* one too many */
  box *b = wait_answer(&r, 2, 1);
  assert_int_equal(b->err, WEFT_E_TIMEOUT);
  assert_non_null(strstr(b->text, "closed the connection on our handshake"));
  assert_ok(ask(&r, 0, do_get, "/never", NULL, 0, 0));
  order o = { .r = &r, .i = 1 };
  on_loop(r.loop, do_destroy, &o);
  weft_tcpstore_server *server = r.server;
  r.server = NULL;
  on_loop(r.loop, (weft_call_fn *)(void (*)(void))weft_tcpstore_server_destroy, server);
  b = wait_answer(&r, 0, 2);
  assert_int_equal(b->err, WEFT_E_DOWN);
  assert_non_null(strstr(b->text, "closed the connection"));
  assert_err(ask(&r, 0, do_get, "/never", NULL, 0, 0), WEFT_E_DOWN);
  o.i = 0;
  on_loop(r.loop, do_text, &o);
  assert_string_equal(o.why.text, b->text);
  rig_close(&r);
}

/* ---- with nobody, or somebody else */

static void places_that_are_none_are_refused(void **state)
{
  (void)state;
  static const struct {
    const char *host;
    uint16_t port;
    const char *says;
  } rows[] = {
    { NULL, 1, "no master address" },
    { "", 1, "no master address" },
    { "[]", 1, "no master address" },
    { "0.0.0.0", 1, "'0.0.0.0' is one to listen on" },
    { "::", 1, "'::' is one to listen on" },
    { "[::]", 1, "'::' is one to listen on" },
    { "*", 1, "one to listen on" },
    { "127.0.0.1", 0, "port 0" },
  };
  rig r;
  rig_open(&r);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    order o = { .r = &r,
                .opts = {
                    .size = sizeof o.opts, .host = rows[i].host, .port = rows[i].port } };
    on_loop(r.loop, do_open, &o);
    if (o.err != WEFT_E_INVAL || strstr(o.why.text, rows[i].says) == NULL) {
      fail_msg("row %zu: %s", i, o.why.text);
    }
  }
  /* another spelling of "any" is found when it is looked up */
  open_client(&r, 0, "0", 9, true, 100);
  box *b = wait_answer(&r, 0, 1);
  assert_int_equal(b->err, WEFT_E_TIMEOUT);
  assert_non_null(strstr(b->text, "any address"));
  rig_close(&r);
}

#define VALIDATE_PING 10
#define VALIDATE_CHECK (5 + 1 + 8 + 8 + 5)
#define ADD_INIT (1 + 8 + 5 + 8)
#define SEND(s) .send = (s), .len = sizeof(s) - 1
#define ONE "\1\0\0\0\0\0\0\0"

static void a_listener_may_be_late(void **state)
{
  (void)state;
  static const turn turns[] = { { VALIDATE_PING, .echo = true },
                                { ADD_INIT, SEND(ONE) },
                                CONNECTION_END };
  rig r;
  script s;
  rig_open(&r);
  script_bind(&s, turns, 1);
  open_client(&r, 0, "localhost", s.port, true, 20000);
  order o = { .r = &r };
  while (o.attempts < 3) {
    on_loop(r.loop, do_attempts, &o);
  }
  assert_int_equal(r.boxes[0].count.n, 0);
  script_listen(&s);
  box *b = wait_answer(&r, 0, 1);
  if (b->err != WEFT_OK) {
    fail_msg("%s", b->text);
  }
  assert_int_equal(b->number, 1);
  rig_close(&r);
  script_end(&s);
}

static void nobody_is_a_timeout_with_a_reason(void **state)
{
  (void)state;
  rig r;
  script s;
  rig_open(&r);
  script_bind(&s, NULL, 0);
  open_client(&r, 0, "127.0.0.1", s.port, true, 200);
  box *b = wait_answer(&r, 0, 1);
  char want[64];
  (void)snprintf(want, sizeof want, "TCPStore 127.0.0.1:%u: cannot connect within 200 ms",
                 s.port);
  assert_int_equal(b->err, WEFT_E_TIMEOUT);
  assert_non_null(strstr(b->text, want));
  assert_non_null(strstr(b->text, "connection refused"));
  open_client(&r, 1, "no-such-host.invalid", 1, true, 300);
  b = wait_answer(&r, 1, 1);
  assert_int_equal(b->err, WEFT_E_TIMEOUT);
  /* gone while the name is looked up */
  open_client(&r, 2, "no-such-host.invalid", 1, true, 20000);
  order o = { .r = &r, .i = 2 };
  on_loop(r.loop, do_destroy, &o);
  rig_close(&r);
  (void)close(s.fd);
}

typedef struct hostile {
  const char *what;
  const turn *turns;
  size_t connections;
  bool get; /* fails in the get behind the join, not in the join */
  uint64_t timeout_ms;
  weft_err err;
  const char *says;
} hostile;

#define JOIN                                                                             \
  { VALIDATE_PING, .echo = true },                                                       \
  {                                                                                      \
    ADD_INIT, SEND(ONE)                                                                  \
  }
#define WAIT_K (1 + 8 + 8 + 2)
#define GET_K (1 + 8 + 2)

static const turn silent[] = { { 0 }, CONNECTION_END };
static const turn alien[] = { { 1, SEND("HTTP/1.1 400 Bad Request\r\n") },
                              CONNECTION_END };
static const turn half_nonce[] = { { VALIDATE_PING, SEND("\1\2"), .hang_up = true },
                                   CONNECTION_END,
                                   { VALIDATE_CHECK, .hang_up = true },
                                   CONNECTION_END };
static const turn dies_in_join[] = { { VALIDATE_PING, .echo = true },
                                     { ADD_INIT, SEND("\1\0\0"), .hang_up = true },
                                     CONNECTION_END };
static const turn silent_in_join[] = { { VALIDATE_PING, .echo = true }, CONNECTION_END };
static const turn chatty[] = { { VALIDATE_PING, .echo = true },
                               { ADD_INIT, SEND(ONE "\0") },
                               { WAIT_K, SEND("") },
                               CONNECTION_END };
static const turn odd_stop[] = { JOIN, { WAIT_K, SEND("\1") }, CONNECTION_END };
static const turn huge[] = {
  JOIN, { WAIT_K, SEND("\0") }, { GET_K, SEND("\0\0\0\0\0\1\0\0") }, CONNECTION_END
};
static const turn over_by_one[] = {
  JOIN, { WAIT_K, SEND("\0") }, { GET_K, SEND("\1\0\x80\0\0\0\0\0") }, CONNECTION_END
};
static const turn cut_value[] = { JOIN,
                                  { WAIT_K, SEND("\0") },
                                  { GET_K, SEND("\3\0\0\0\0\0\0\0ab"), .hang_up = true },
                                  CONNECTION_END };
static const turn cut_length[] = {
  JOIN, { WAIT_K, SEND("\0") }, { GET_K, SEND("\3\0\0"), .hang_up = true }, CONNECTION_END
};
static const turn no_value[] = { JOIN, { WAIT_K, SEND("\0") }, CONNECTION_END };

static const hostile hostiles[] = {
  { "silent", silent, 1, false, 150, WEFT_E_TIMEOUT, "no answer to our handshake" },
  { "alien", alien, 1, false, 20000, WEFT_E_PROTO, "does not speak TCPStore" },
  { "half nonce", half_nonce, 2, false, 300, WEFT_E_TIMEOUT, "cannot connect" },
  { "dies in join", dies_in_join, 1, false, 20000, WEFT_E_DOWN, "while we joined" },
  { "silent in join", silent_in_join, 1, false, 150, WEFT_E_TIMEOUT, "no answer" },
  { "chatty", chatty, 1, true, 20000, WEFT_E_PROTO, "nobody asked for" },
  { "odd stop", odd_stop, 1, true, 20000, WEFT_E_PROTO, "answered 0x01 to WAIT" },
  { "huge", huge, 1, true, 20000, WEFT_E_LIMIT, "1099511627776 bytes" },
  { "over by one", over_by_one, 1, true, 20000, WEFT_E_LIMIT, "8388609 bytes" },
  { "cut value", cut_value, 1, true, 20000, WEFT_E_DOWN, "closed the connection" },
  { "cut length", cut_length, 1, true, 20000, WEFT_E_DOWN, "closed the connection" },
  { "no value", no_value, 1, true, 100, WEFT_E_TIMEOUT, "within 100 ms" },
};

static void hostile_servers_are_named(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof hostiles / sizeof hostiles[0]; i++) {
    const hostile *h = &hostiles[i];
    rig r;
    script s;
    rig_open(&r);
    script_bind(&s, h->turns, h->connections);
    script_listen(&s);
    open_client(&r, 0, "127.0.0.1", s.port, true, h->get ? 20000 : h->timeout_ms);
    box *b = wait_answer(&r, 0, 1);
    if (h->get) {
      const weft_err err =
          b->err == WEFT_OK ? ask(&r, 0, do_get, "/k", NULL, 0, h->timeout_ms) : b->err;
      /* What nobody asked for may come before the question. */
      if (err == WEFT_OK) {
        b = wait_answer(&r, 0, 2);
      } else {
        assert_true(h->turns == chatty);
        b->err = h->err;
        (void)snprintf(b->text, sizeof b->text, "%s", h->says);
      }
    }
    if (b->err != h->err || strstr(b->text, h->says) == NULL) {
      fail_msg("%s: %s: %s", h->what, weft_err_name(b->err), b->text);
    }
    rig_close(&r);
    script_end(&s);
  }
}

static void old_servers_get_no_ping(void **state)
{
  (void)state;
  static const turn turns[] = { { VALIDATE_PING, .hang_up = true },
                                CONNECTION_END,
                                { VALIDATE_CHECK, SEND("\1") },
                                { ADD_INIT, SEND(ONE) },
                                CONNECTION_END };
  rig r;
  script s;
  rig_open(&r);
  script_bind(&s, turns, 2);
  script_listen(&s);
  open_client(&r, 0, "127.0.0.1", s.port, true, 20000);
  box *b = wait_answer(&r, 0, 1);
  if (b->err != WEFT_OK) {
    fail_msg("%s", b->text);
  }
  rig_close(&r);
  script_end(&s);
}

/* Success and our cancel pass each other: 00, then 01. */
static void a_late_success_is_swallowed(void **state)
{
  (void)state;
  static const turn turns[] = { JOIN,
                                { WAIT_K, SEND("") },
                                { 1, SEND("\0\1") },
                                { WAIT_K, SEND("\0"), .drip = true },
                                { GET_K, SEND("\3\0\0\0\0\0\0\0abc"), .drip = true },
                                CONNECTION_END };
  rig r;
  script s;
  rig_open(&r);
  script_bind(&s, turns, 1);
  script_listen(&s);
  open_client(&r, 0, "127.0.0.1", s.port, true, 20000);
  assert_int_equal(wait_answer(&r, 0, 1)->err, WEFT_OK);
  assert_ok(ask(&r, 0, do_get, "/k", NULL, 0, 30));
  assert_int_equal(wait_answer(&r, 0, 2)->err, WEFT_E_TIMEOUT);
  assert_ok(ask(&r, 0, do_get, "/k", NULL, 0, 20000));
  box *b = wait_answer(&r, 0, 3);
  assert_int_equal(b->err, WEFT_OK);
  assert_memory_equal(b->value, "abc", 3);
  rig_close(&r);
  script_end(&s);
}

/* ---- clients of another kind */

static int raw_client(uint16_t port)
{
  struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
  return fd;
}

static void strangers_are_shown_the_door(void **state)
{
  (void)state;
  rig r;
  rig_open(&r);
  serve(&r, &(weft_tcpstore_server_opts){ .handshake_ms = 50 });
  uint8_t b[8];
  int fd = raw_client(r.port); /* says nothing */
  assert_int_equal(recv(fd, b, sizeof b, 0), 0);
  (void)close(fd);
  fd = raw_client(r.port);
  assert_int_equal(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
  assert_true(recv(fd, b, sizeof b, 0) <= 0);
  (void)close(fd);
  fd = raw_client(r.port); /* half a hello */
  assert_int_equal(send(fd, "\0\xce\xf7", 3, 0), 3);
  assert_int_equal(recv(fd, b, sizeof b, 0), 0);
  (void)close(fd);
  /* half a request freezes nobody else */
  fd = raw_client(r.port);
  assert_int_equal(send(fd, "\0\xce\xf7\x85\x3c\1\1\0", 8, 0), 8);
  must_join(&r, 0);
  assert_ok(ask(&r, 0, do_add, "/n", NULL, 2, 0));
  assert_int_equal(wait_answer(&r, 0, 2)->number, 2);
  (void)close(fd);
  rig_close(&r);
}

/* Requests without reading a single answer: the server holds no more than a few. */
static void who_does_not_read_is_not_read(void **state)
{
  (void)state;
  rig r;
  rig_open(&r);
  serve(&r, &(weft_tcpstore_server_opts){ .bytes_max = 4 << 20 });
  char *big = calloc(1, 1 << 20);
  assert_non_null(big);
  order o = { .r = &r, .keys = &(const char *){ "/big" }, .value = big, .len = 1 << 20 };
  on_loop(r.loop, do_server_set, &o);
  assert_ok(o.err);
  free(big);
  const int fd = raw_client(r.port);
  assert_int_equal(send(fd, "\0\xce\xf7\x85\x3c", 5, 0), 5);
  static const char get[] = "\3\4\0\0\0\0\0\0\0/big";
  for (unsigned i = 0; i < 64; i++) {
    assert_int_equal(send(fd, get, sizeof get - 1, MSG_NOSIGNAL), sizeof get - 1);
  }
  must_join(&r, 0); /* within the budget, so others have room */
  uint8_t *in = malloc(1 << 16);
  assert_non_null(in);
  size_t got = 0;
  while (got < (size_t)64 * ((1 << 20) + 8)) {
    const ssize_t n = recv(fd, in, 1 << 16, 0);
    if (n <= 0) {
      fail_msg("ended after %zu bytes", got);
    }
    got += (size_t)n;
  }
  free(in);
  (void)close(fd);
  rig_close(&r);
}

static void a_port_that_is_taken_is_told(void **state)
{
  (void)state;
  rig r;
  rig_open(&r);
  serve(&r, &(weft_tcpstore_server_opts){ 0 });
  weft_tcpstore_server *first = r.server;
  order o = { .r = &r, .server_opts = { .size = sizeof o.server_opts, .port = r.port } };
  on_loop(r.loop, do_serve, &o);
  assert_int_equal(o.err, WEFT_E_SYS);
  assert_non_null(strstr(o.why.text, "the port is taken"));
  o.server_opts =
      (weft_tcpstore_server_opts){ .size = sizeof o.server_opts, .host = "localhost" };
  on_loop(r.loop, do_serve, &o);
  assert_int_equal(o.err, WEFT_E_INVAL);
  assert_ptr_equal(r.server, first);
  rig_close(&r);
}

/* ---- fn that destroys */

static void destroys(void *arg, const weft_tcpstore_answer *a)
{
  rig *r = arg;
  r->boxes[0].err = a->err;
  weft_tcpstore_destroy(r->clients[0]);
  r->clients[0] = NULL;
  counter_up(&r->boxes[0].count);
}

static void do_get_and_destroy(void *arg)
{
  order *o = arg;
  o->err = weft_tcpstore_get(o->r->clients[0], o->keys, 1, o->timeout_ms, destroys, o->r);
}

static void fn_may_destroy(void **state)
{
  (void)state;
  static const char *const keys[] = { "init/", "/never" };
  for (unsigned i = 0; i < 2; i++) {
    rig r;
    rig_open(&r);
    serve(&r, &(weft_tcpstore_server_opts){ 0 });
    must_join(&r, 0);
    order o = { .r = &r, .keys = &keys[i], .timeout_ms = 50 };
    on_loop(r.loop, do_get_and_destroy, &o);
    assert_ok(o.err);
    assert_int_equal(wait_answer(&r, 0, 2)->err, i == 0 ? WEFT_OK : WEFT_E_TIMEOUT);
    rig_close(&r);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(clients_join_and_share),
    cmocka_unit_test(several_keys_are_looked_for_in_turn),
    cmocka_unit_test(a_wait_is_given_up_and_the_next_one_works),
    cmocka_unit_test(a_server_that_goes_is_told),
    cmocka_unit_test(places_that_are_none_are_refused),
    cmocka_unit_test(a_listener_may_be_late),
    cmocka_unit_test(nobody_is_a_timeout_with_a_reason),
    cmocka_unit_test(hostile_servers_are_named),
    cmocka_unit_test(old_servers_get_no_ping),
    cmocka_unit_test(a_late_success_is_swallowed),
    cmocka_unit_test(strangers_are_shown_the_door),
    cmocka_unit_test(who_does_not_read_is_not_read),
    cmocka_unit_test(a_port_that_is_taken_is_told),
    cmocka_unit_test(fn_may_destroy),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
