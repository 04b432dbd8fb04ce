#define _GNU_SOURCE
#include "weft_test.h"

#include "link_world.h"
#include "on_loop.h"
#include "weft/process.h"

#include <stdio.h>
#include <string.h>

#ifndef WEFT_TEST_CHILD
#error "the path of the child program"
#endif

/* An engine and a worker process, each with a port and a link to the other's. */
typedef struct pair {
  weft_runtime *rt;
  weft_rundir *dir;
  weft_actor_id echo, port, asker, link;
  char own_url[256], child_at[256], child_url[256];
  weft_process *process;
  weft_err spawned;
  counter messages, exits;
} pair;

static void on_message(void *arg, const void *data, size_t len, int *fds, size_t nfds)
{
  pair *p = arg;
  (void)fds;
  (void)nfds;
  const size_t n = len < sizeof p->child_url - 1 ? len : sizeof p->child_url - 1;
  memcpy(p->child_url, data, n);
  p->child_url[n] = '\0';
  counter_up(&p->messages);
}

static void on_exit_(void *arg, int status)
{
  pair *p = arg;
  (void)status;
  counter_up(&p->exits);
}

static void do_spawn(void *arg)
{
  pair *p = arg;
  weft_why why = { 0 };
  char name[] = "child";
  char what[] = "port";
  char *argv[] = { name, what, p->child_at, p->own_url, NULL };
  const weft_process_opts o = { .size = sizeof o,
                                .path = WEFT_TEST_CHILD,
                                .argv = argv,
                                .on_message = on_message,
                                .on_exit = on_exit_,
                                .arg = p };
  p->spawned = weft_process_spawn(weft_runtime_loop(p->rt, 0), &o, &p->process, &why);
}

static void do_destroy(void *arg)
{
  pair *p = arg;
  weft_process_destroy(p->process);
  p->process = NULL;
}

static void pair_open(pair *p, bool tcp)
{
  *p = (pair){ .messages = COUNTER_INIT, .exits = COUNTER_INIT };
  weft_why why = { 0 };
  const weft_runtime_opts o = { .size = sizeof o,
                                .loops = 1,
                                .catalogue = &world_catalogue };
  const echo_args none = { .link_url = NULL };
  char at[256];
  assert_ok(weft_rundir_open(NULL, &p->dir, &why));
  assert_ok(weft_runtime_create(&o, &p->rt));
  assert_ok(weft_runtime_start_all(p->rt));
  assert_ok(weft_runtime_spawn(p->rt, 0, &echo_class, &none, NULL, &p->echo));
  assert_ok(weft_runtime_spawn(p->rt, 0, &asker_class, NULL, NULL, &p->asker));
  if (tcp) {
    (void)snprintf(at, sizeof at, "tcp://127.0.0.1:0");
    (void)snprintf(p->child_at, sizeof p->child_at, "tcp://127.0.0.1:0");
  } else {
    (void)snprintf(at, sizeof at, "ipc://%s/engine", weft_rundir_path(p->dir));
    (void)snprintf(p->child_at, sizeof p->child_at, "ipc://%s/worker",
                   weft_rundir_path(p->dir));
  }
  const weft_port_opts po = { .size = sizeof po,
                              .url = at,
                              .to = p->echo,
                              .roles = 1u << ROLE_SERVER,
                              .from_roles = 1u << ROLE_CLIENT,
                              .contexts = 16 };
  if (weft_port_spawn_on(p->rt, 0, &po, p->own_url, sizeof p->own_url, &p->port, &why) !=
      WEFT_OK) {
    fail_msg("%s", why.text);
  }
}

static void pair_start_child(pair *p, unsigned life)
{
  on_loop(weft_runtime_loop(p->rt, 0), do_spawn, p);
  assert_ok(p->spawned);
  assert_true(counter_wait(&p->messages, life));
  const weft_link_opts o = { .size = sizeof o, .url = p->child_url };
  assert_ok(weft_link_spawn_on(p->rt, 0, &o, &p->link));
}

static void pair_close(pair *p)
{
  on_loop(weft_runtime_loop(p->rt, 0), do_destroy, p);
  weft_runtime_stop(p->rt, 1000);
  weft_runtime_join(p->rt);
  weft_runtime_destroy(p->rt);
  weft_rundir_close(p->dir);
}

static done ask_many(pair *p, go g)
{
  weft_msg *m = NULL;
  g.h = (weft_msg){ .type = TYPE_GO };
  g.link = p->link;
  assert_ok(weft_call(p->rt, p->asker, weft_msg_dup(&world_catalogue, &g.h), 25000, &m));
  const done d = *(const done *)(const void *)m;
  weft_msg_drop(&world_catalogue, m);
  return d;
}

/* 20 lives of the worker, 500 questions each, the worker killed by one of them. */
static void every_question_ends_once(pair *p)
{
  unsigned seed = 4711;
  uint64_t ok = 0;
  for (unsigned life = 1; life <= 20; life++) {
    pair_start_child(p, life);
    seed = seed * 1103515245u + 12345u;
    const uint64_t die_at = 1 + (seed >> 8) % 500;
    const done d =
        ask_many(p, (go){ .count = 500, .die_at = die_at, .timeout_ms = 20000 });
    assert_int_equal(d.ok + d.down, 500);
    assert_int_equal(d.timeout + d.other + d.wrong, 0);
    assert_true(d.down > 0);
    assert_true(d.ok < die_at + ASKER_WINDOW);
    ok += d.ok;
    assert_true(counter_wait(&p->exits, life));
    on_loop(weft_runtime_loop(p->rt, 0), do_destroy, p);
  }
  assert_true(ok > 0);
}

static void kills_over_ipc(void **state)
{
  (void)state;
  pair p;
  pair_open(&p, false);
  every_question_ends_once(&p);
  pair_close(&p);
}

static void kills_over_tcp(void **state)
{
  (void)state;
  pair p;
  pair_open(&p, true);
  every_question_ends_once(&p);
  pair_close(&p);
}

/* Engine -> worker -> engine: through both pairs of link and port. */
static void two_pairs_relay(void **state)
{
  (void)state;
  for (int tcp = 0; tcp < 2; tcp++) {
    pair p;
    pair_open(&p, tcp != 0);
    pair_start_child(&p, 1);
    const done d =
        ask_many(&p, (go){ .count = 2000, .mode = MODE_RELAY, .timeout_ms = 20000 });
    assert_int_equal(d.ok, 2000);
    assert_int_equal(d.wrong, 0);
    pair_close(&p);
  }
}

/* A stopped worker (SIGSTOP) holds up nobody's deadline, nor the end of the link. */
static void a_stopped_worker_only_times_out(void **state)
{
  (void)state;
  pair p;
  pair_open(&p, false);
  pair_start_child(&p, 1);
  assert_int_equal(ask_many(&p, (go){ .count = 10, .timeout_ms = 5000 }).ok, 10);
  assert_int_equal(kill(weft_process_pid(p.process), SIGSTOP), 0);
  const done d = ask_many(&p, (go){ .count = 100, .timeout_ms = 100 });
  assert_int_equal(d.timeout, 100);
  assert_int_equal(kill(weft_process_pid(p.process), SIGCONT), 0);
  assert_int_equal(ask_many(&p, (go){ .count = 10, .timeout_ms = 10000 }).ok, 10);
  pair_close(&p);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(two_pairs_relay),
    cmocka_unit_test(kills_over_ipc),
    cmocka_unit_test(kills_over_tcp),
    cmocka_unit_test(a_stopped_worker_only_times_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
