/* A joined worker whose port nobody gets through to opens another one. */
#define _GNU_SOURCE /* mkdtemp, usleep */
#include "weft_test.h"

#define QUIET_MS 2000 /* less than between two announcements */
#undef _GNU_SOURCE    /* it says so itself */
#include "../../actors/assembly_worker.c"
#include "weft/link.h"
#include "weft/messages.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { URLS = 8, LIFE = 21, PATIENCE = 30000 };

/* The engine: lets everybody in and dials nobody but the second address. */
typedef struct door_world {
  weft_runtime *rt;
  char join_url[WEFTI_URL_MAX];
  char urls[URLS][WEFTI_URL_MAX];
  atomic_uint count;
  weft_err worker_err;
  char why[WEFT_WHY_MAX];
} door_world;

static weft_err let_in(void *arg, const weft_join_hello *hello, weft_why *why)
{
  door_world *w = arg;
  (void)why;
  const unsigned at = atomic_load(&w->count);
  if (at < URLS) {
    memcpy(w->urls[at], hello->url, sizeof w->urls[at]);
    atomic_store(&w->count, at + 1);
  }
  return hello->incarnation == LIFE ? WEFT_OK : WEFT_E_INVAL;
}

static void *run_worker(void *arg)
{
  door_world *w = arg;
  weft_why why = { .err = WEFT_OK };
  const weft_worker_opts opts = {
    .size = sizeof opts, .world_size = 1, .incarnation = LIFE, .join = w->join_url
  };
  w->worker_err = weft_worker_run(&opts, &why);
  memcpy(w->why, why.text, sizeof w->why);
  return NULL;
}

static void wait_for(door_world *w, unsigned count)
{
  for (unsigned ms = 0; ms < PATIENCE && atomic_load(&w->count) < count; ms++) {
    (void)usleep(1000);
  }
  assert_true(atomic_load(&w->count) >= count);
}

static weft_err adopt(door_world *w, const char *url)
{
  const weft_link_opts opts = { .size = sizeof opts, .url = url };
  const weft_w_adopt m = {
    .h.type = WEFT_MSG_W_ADOPT, .boot = 1, .incarnation = LIFE, .op = 1, .world_size = 1
  };
  weft_actor_id link;
  weft_msg *answer = NULL;
  assert_ok(weft_link_spawn_on(w->rt, 0, &opts, &link));
  const weft_err err =
      weft_call(w->rt, link, weft_msg_dup(weft_messages(), &m.h), PATIENCE, &answer);
  if (err == WEFT_OK) {
    assert_int_equal(answer->type, WEFT_MSG_W_STATE);
    weft_msg_drop(weft_messages(), answer);
  }
  return err;
}

static void a_port_that_is_not_asked_is_replaced(void **state)
{
  (void)state;
  door_world w = { .rt = NULL };
  char dir[] = "/tmp/weft-moves-XXXXXX";
  char url[WEFTI_URL_MAX];
  weft_join_server *door;
  pthread_t thread;
  assert_non_null(mkdtemp(dir));
  (void)snprintf(url, sizeof url, "ipc://%s/join", dir);
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = 1,
                                   .catalogue = weft_messages() };
  assert_ok(weft_runtime_create(&opts, &w.rt));
  assert_ok(weft_join_listen(weft_runtime_loop(w.rt, 0), url, NULL, let_in, &w,
                             w.join_url, sizeof w.join_url, &door, NULL));
  assert_ok(weft_runtime_start_all(w.rt));
  assert_int_equal(pthread_create(&thread, NULL, run_worker, &w), 0);
  wait_for(&w, 3); /* the first, again, and at another address at once */
  assert_string_equal(w.urls[0], w.urls[1]);
  assert_string_not_equal(w.urls[1], w.urls[2]);
  assert_ok(adopt(&w, w.urls[2]));
  wait_for(&w, 4);
  assert_string_equal(w.urls[2], w.urls[3]); /* it was asked: it stays there */
  assert_int_equal(kill(getpid(), SIGTERM), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(w.worker_err, WEFT_OK);
  weft_runtime_stop(w.rt, PATIENCE);
  weft_runtime_join(w.rt);
  weft_join_close(door);
  weft_runtime_destroy(w.rt);
  (void)unlink(url + sizeof "ipc://" - 1);
  assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
  wefti_block_ends(); /* the worker takes SIGTERM by itself */
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_port_that_is_not_asked_is_replaced),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
