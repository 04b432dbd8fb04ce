#include "weft_test.h"

#include "descriptors.h"
#include "link_world.h"
#include "weft/process.h"

#include <stdio.h>
#include <time.h>

/* Every test runs over each transport: the same list for all. */
typedef struct world {
  const char *scheme;
  weft_runtime *rt;
  weft_rundir *dir;
  char url[256];
  weft_actor_id echo, port, link;
} world;

static void listen_at(world *w, char *out, size_t cap, const char *name)
{
  if (strcmp(w->scheme, "ipc") == 0) {
    (void)snprintf(out, cap, "ipc://%s/%s", weft_rundir_path(w->dir), name);
  } else if (strcmp(w->scheme, "tcp") == 0) {
    (void)snprintf(out, cap, "tcp://127.0.0.1:0");
  } else {
    (void)snprintf(out, cap, "inproc://%s-%s", weft_rundir_path(w->dir), name);
  }
}

static void open_port(world *w, uint32_t frame_max)
{
  char at[256];
  weft_why why = { 0 };
  listen_at(w, at, sizeof at, "port");
  const echo_args none = { .link_url = NULL };
  assert_ok(weft_runtime_spawn(w->rt, 0, &echo_class, &none, NULL, &w->echo));
  const weft_port_opts o = { .size = sizeof o,
                             .url = at,
                             .to = w->echo,
                             .roles = 1u << ROLE_SERVER,
                             .from_roles = 1u << ROLE_CLIENT,
                             .contexts = 4,
                             .frame_max = frame_max };
  if (weft_port_spawn_on(w->rt, 0, &o, w->url, sizeof w->url, &w->port, &why) !=
      WEFT_OK) {
    fail_msg("%s", why.text);
  }
}

static weft_actor_id open_link(world *w, const char *url, uint32_t connect_ms)
{
  weft_actor_id link = 0;
  const weft_link_opts o = {
    .size = sizeof o, .url = url, .connect_ms = connect_ms, .frame_max = 1u << 20
  };
  assert_ok(weft_link_spawn_on(w->rt, 0, &o, &link));
  return link;
}

static void world_open(world *w)
{
  weft_why why;
  const weft_runtime_opts o = { .size = sizeof o,
                                .loops = 1,
                                .catalogue = &world_catalogue };
  assert_ok(weft_rundir_open(NULL, &w->dir, &why));
  assert_ok(weft_runtime_create(&o, &w->rt));
  assert_ok(weft_runtime_start_all(w->rt));
}

static void world_close(world *w)
{
  weft_runtime_stop(w->rt, 1000);
  weft_runtime_join(w->rt);
  weft_runtime_destroy(w->rt);
  weft_rundir_close(w->dir);
}

static void kill_actor(world *w, weft_actor_id who)
{
  weft_msg *m = weft_msg_heap_new(WEFT_MSG_STOP, sizeof *m);
  assert_non_null(m);
  m->flags = WEFT_MSG_F_RESERVED;
  assert_ok(weft_post(w->rt, who, m));
}

static void echoes(world *w)
{
  uint64_t n = 0;
  for (uint64_t i = 0; i < 200; i++) {
    assert_ok(world_ping(w->rt, w->link, MODE_ECHO, i, 5000, &n));
    assert_int_equal(n, i + 1);
  }
}

static void carries_every_kind_of_field(world *w)
{
  char text[3000];
  memset(text, 'x', sizeof text);
  ping p = { .h = { .type = TYPE_PING },
             .n = UINT64_MAX - 1,
             .text = { text, sizeof text },
             .data = weft_buf_create(NULL, 500000) };
  assert_non_null(p.data);
  memset(p.data->data, 3, p.data->len);
  weft_msg *m = NULL;
  assert_ok(world_ask(w->rt, w->link, &p, 5000, &m));
  assert_non_null(m);
  const ping *a = (const ping *)(const void *)m;
  assert_true(a->n == UINT64_MAX);
  assert_int_equal(a->text.len, sizeof text);
  assert_memory_equal(a->text.p, text, sizeof text);
  assert_int_equal(a->data->len, p.data->len);
  assert_memory_equal(a->data->data, p.data->data, p.data->len);
  weft_msg_drop(&world_catalogue, m);
  weft_buf_unref(p.data);
}

static void a_silent_question_ends_at_its_deadline(world *w)
{
  uint64_t n = 0;
  assert_err(world_ping(w->rt, w->link, MODE_SILENT, 0, 150, &n), WEFT_E_TIMEOUT);
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
}

/* Four contexts; three of them stuck. */
static void slow_questions_do_not_block_others(world *w)
{
  uint64_t n = 0;
  for (int i = 0; i < 3; i++) {
    const ping p = { .h = { .type = TYPE_PING, .corr = 1000u + (unsigned)i },
                     .mode = MODE_SILENT };
    assert_ok(weft_post(w->rt, w->link, weft_msg_dup(&world_catalogue, &p.h)));
  }
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
}

static void plain_messages_arrive(world *w)
{
  uint64_t n = 0;
  for (int i = 0; i < 50; i++) {
    const ping p = { .h = { .type = TYPE_PING } };
    assert_ok(weft_post(w->rt, w->link, weft_msg_dup(&world_catalogue, &p.h)));
  }
  /* Contexts overtake each other, so count until they are all there. */
  for (int i = 0; i < 2000 && n != 50; i++) {
    assert_ok(world_ping(w->rt, w->link, MODE_ECHO, UINT64_MAX, 5000, &n));
  }
  assert_int_equal(n, 50);
}

static void a_message_for_another_role_is_denied(world *w)
{
  const ping p = { .h = { .type = TYPE_SECRET } };
  assert_err(world_ask(w->rt, w->link, &p, 5000, NULL), WEFT_E_DENIED);
}

static void a_message_from_another_role_is_denied(world *w)
{
  uint64_t n = 0;
  const ping p = { .h = { .type = TYPE_FORGED } };
  assert_err(world_ask(w->rt, w->link, &p, 5000, NULL), WEFT_E_DENIED);
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
}

/* A peer that answers with what is not its to say. */
static void what_is_no_answer_does_not_arrive(world *w)
{
  uint64_t n = 0;
  assert_err(world_ping(w->rt, w->link, MODE_SPEAK, 1, 5000, &n), WEFT_E_PROTO);
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
}

static void a_port_names_both_ends(world *w)
{
  char at[256];
  weft_actor_id port;
  weft_why why;
  listen_at(w, at, sizeof at, "open");
  const weft_port_opts any = { .size = sizeof any, .url = at, .to = w->echo };
  weft_port_opts half = any;
  half.roles = 1u << ROLE_SERVER;
  assert_err(weft_port_spawn_on(w->rt, 0, &half, NULL, 0, &port, &why), WEFT_E_INVAL);
  half = any;
  half.from_roles = 1u << ROLE_CLIENT;
  assert_err(weft_port_spawn_on(w->rt, 0, &half, NULL, 0, &port, &why), WEFT_E_INVAL);
}

static void too_large_a_question_fails_at_the_asker(world *w)
{
  uint64_t n = 0;
  ping p = { .h = { .type = TYPE_PING }, .data = weft_buf_create(NULL, 1u << 20) };
  assert_non_null(p.data);
  memset(p.data->data, 0, p.data->len);
  assert_err(world_ask(w->rt, w->link, &p, 5000, NULL), WEFT_E_LIMIT);
  weft_buf_unref(p.data);
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
}

static void too_large_an_answer_fails_at_the_asker(world *w)
{
  uint64_t n = 0;
  assert_err(world_ping(w->rt, w->link, MODE_HUGE, 1, 5000, &n), WEFT_E_LIMIT);
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
}

static void the_far_actors_end_is_told(world *w)
{
  uint64_t n = 0;
  assert_err(world_ping(w->rt, w->link, MODE_QUIT, 1, 5000, &n), WEFT_E_DOWN);
  assert_err(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n), WEFT_E_DOWN);
}

static void a_closed_port_ends_the_link(world *w)
{
  uint64_t n = 0;
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
  kill_actor(w, w->port);
  assert_err(world_ping(w->rt, w->link, MODE_SILENT, 1, 10000, &n), WEFT_E_DOWN);
  assert_err(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n), WEFT_E_DOWN);
}

/* Another port at the same address must not get what was meant for the first. */
static void a_link_never_reconnects(world *w)
{
  uint64_t n = 0;
  if (strcmp(w->scheme, "tcp") == 0) {
    return; /* the port number may be anybody's by then */
  }
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
  kill_actor(w, w->port);
  assert_err(world_ping(w->rt, w->link, MODE_SILENT, 1, 10000, &n), WEFT_E_DOWN);
  const weft_actor_id old = w->link;
  open_port(w, 0);
  assert_err(world_ping(w->rt, old, MODE_ECHO, 1, 500, &n), WEFT_E_DOWN);
  w->link = open_link(w, w->url, 0);
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
}

static void a_link_to_nobody_ends(world *w)
{
  char at[256];
  uint64_t n = 0;
  if (strcmp(w->scheme, "tcp") == 0) {
    (void)snprintf(at, sizeof at, "tcp://127.0.0.1:1");
  } else {
    listen_at(w, at, sizeof at, "nobody");
  }
  const weft_actor_id link = open_link(w, at, 200);
  assert_err(world_ping(w->rt, link, MODE_ECHO, 1, 10000, &n), WEFT_E_DOWN);
}

static void early_questions_wait_for_the_connection(world *w)
{
  char at[256];
  uint64_t n = 0;
  if (strcmp(w->scheme, "tcp") == 0) {
    return; /* its port is known only when it listens */
  }
  listen_at(w, at, sizeof at, "late");
  const weft_actor_id link = open_link(w, at, 10000);
  assert_err(world_ping(w->rt, link, MODE_ECHO, 1, 100, &n), WEFT_E_TIMEOUT);
  const weft_port_opts o = { .size = sizeof o,
                             .url = at,
                             .to = w->echo,
                             .roles = 1u << ROLE_SERVER,
                             .from_roles = 1u << ROLE_CLIENT };
  weft_actor_id port;
  assert_ok(weft_port_spawn_on(w->rt, 0, &o, NULL, 0, &port, NULL));
  assert_ok(world_ping(w->rt, link, MODE_ECHO, 1, 10000, &n));
  assert_int_equal(n, 2);
}

static void a_stopped_link_fails_what_is_open(world *w)
{
  uint64_t n = 0;
  assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
  kill_actor(w, w->link);
  assert_err(world_ping(w->rt, w->link, MODE_SILENT, 1, 5000, &n), WEFT_E_DOWN);
}

static size_t rss_kib(void)
{
  unsigned long size = 0;
  unsigned long pages = 0;
  FILE *f = fopen("/proc/self/statm", "re");
  assert_non_null(f);
  assert_int_equal(fscanf(f, "%lu %lu", &size, &pages), 2);
  (void)fclose(f);
  return pages * 4;
}

static void connect_and_close(world *w, int times)
{
  uint64_t n = 0;
  for (int i = 0; i < times; i++) {
    const weft_actor_id link = open_link(w, w->url, 0);
    assert_ok(world_ping(w->rt, link, MODE_ECHO, 1, 5000, &n));
    kill_actor(w, link);
    assert_err(world_ping(w->rt, link, MODE_ECHO, 1, 5000, &n), WEFT_E_DOWN);
  }
}

/* 3 x 340 cycles over the three transports. */
static void closing_leaves_nothing_behind(world *w)
{
  connect_and_close(w, 20);
  const unsigned fds = descriptors();
  const size_t rss = rss_kib();
  connect_and_close(w, 320);
  for (int i = 0; i < 100 && descriptors() > fds; i++) { /* nng reaps pipes by and by */
    uint64_t n = 0;
    assert_ok(world_ping(w->rt, w->link, MODE_ECHO, 1, 5000, &n));
    const struct timespec t = { .tv_nsec = 10000000 };
    (void)nanosleep(&t, NULL);
  }
  assert_in_range(descriptors(), 0, fds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if !defined(__has_feature) /* clang's way of saying the same */
  assert_in_range(rss_kib(), 0, rss + 8192);
#endif
#endif
  (void)rss;
}

typedef void world_test(world *w);
static const struct {
  const char *name;
  world_test *test;
  uint32_t port_frame_max;
} tests[] = {
#define T(fn, max)                                                                       \
  {                                                                                      \
#fn, fn, max                                                                         \
  }
  T(echoes, 0),
  T(carries_every_kind_of_field, 0),
  T(a_silent_question_ends_at_its_deadline, 0),
  T(slow_questions_do_not_block_others, 0),
  T(plain_messages_arrive, 0),
  T(a_message_for_another_role_is_denied, 0),
  T(a_message_from_another_role_is_denied, 0),
  T(what_is_no_answer_does_not_arrive, 0),
  T(a_port_names_both_ends, 0),
  T(too_large_a_question_fails_at_the_asker, 0),
  T(too_large_an_answer_fails_at_the_asker, 1u << 20),
  T(the_far_actors_end_is_told, 0),
  T(a_closed_port_ends_the_link, 0),
  T(a_link_never_reconnects, 0),
  T(a_link_to_nobody_ends, 0),
  T(early_questions_wait_for_the_connection, 0),
  T(a_stopped_link_fails_what_is_open, 0),
  T(closing_leaves_nothing_behind, 0),
};

static void all_over(const char *scheme)
{
  for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
    world w = { .scheme = scheme };
    print_message("           %s: %s\n", scheme, tests[i].name);
    world_open(&w);
    open_port(&w, tests[i].port_frame_max);
    w.link = open_link(&w, w.url, 0);
    tests[i].test(&w);
    world_close(&w);
  }
}

static void over_inproc(void **state)
{
  (void)state;
  all_over("inproc");
}

static void over_ipc(void **state)
{
  (void)state;
  all_over("ipc");
}

static void over_tcp(void **state)
{
  (void)state;
  all_over("tcp");
}

int main(void)
{
  const struct CMUnitTest all[] = {
    cmocka_unit_test(over_inproc),
    cmocka_unit_test(over_ipc),
    cmocka_unit_test(over_tcp),
  };
  return cmocka_run_group_tests(all, NULL, NULL);
}
