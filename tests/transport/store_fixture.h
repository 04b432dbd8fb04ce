/* store_fixture.h -- a TCPStore server on a loop of its own, with keys that a test sets
 * when it likes.  Not a test itself; misbehaving servers are in store_script.h. */
#ifndef WEFT_TEST_STORE_FIXTURE_H
#define WEFT_TEST_STORE_FIXTURE_H

#include "weft_test.h"

#include "on_loop.h"
#include "weft/runtime.h"
#include "weft/tcpstore.h"

typedef struct store {
  weft_runtime *rt;
  weft_tcpstore_server *server;
  uint16_t port;
  weft_err err;
  /* of the call under way */
  const char *key;
  const void *value;
  size_t len;
  char got[32];
} store;

static inline void store_open_here(void *arg)
{
  store *s = arg;
  const weft_tcpstore_server_opts opts = { .size = sizeof opts };
  s->err =
      weft_tcpstore_server_create(weft_runtime_loop(s->rt, 0), &opts, &s->server, NULL);
  if (s->err == WEFT_OK) {
    s->port = weft_tcpstore_server_port(s->server);
  }
}

static inline void store_set_here(void *arg)
{
  store *s = arg;
  s->err = weft_tcpstore_server_set(s->server, s->key, s->value, s->len);
}

static inline void store_get_here(void *arg)
{
  store *s = arg;
  const uint8_t *value;
  size_t len;
  s->got[0] = '\0';
  if (weft_tcpstore_server_get(s->server, s->key, &value, &len) && len < sizeof s->got) {
    memcpy(s->got, value, len);
    s->got[len] = '\0';
  }
}

static inline void store_close_here(void *arg)
{
  store *s = arg;
  weft_tcpstore_server_destroy(s->server);
}

static inline void store_open(store *s)
{
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  *s = (store){ 0 };
  assert_ok(weft_runtime_create(&opts, &s->rt));
  assert_ok(weft_runtime_start_all(s->rt));
  on_loop(weft_runtime_loop(s->rt, 0), store_open_here, s);
  assert_ok(s->err);
}

static inline void store_set(store *s, const char *key, const void *value, size_t len)
{
  s->key = key;
  s->value = value;
  s->len = len;
  on_loop(weft_runtime_loop(s->rt, 0), store_set_here, s);
  assert_ok(s->err);
}

/* A short text; "" when there is none. */
static inline const char *store_get(store *s, const char *key)
{
  s->key = key;
  on_loop(weft_runtime_loop(s->rt, 0), store_get_here, s);
  return s->got;
}

static inline void store_close(store *s)
{
  on_loop(weft_runtime_loop(s->rt, 0), store_close_here, s);
  weft_runtime_stop(s->rt, 0);
  weft_runtime_join(s->rt);
  weft_runtime_destroy(s->rt);
}

#endif /* WEFT_TEST_STORE_FIXTURE_H */
