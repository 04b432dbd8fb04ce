/* Who invites whom to a fleet, how an invitation is followed, and which options make
 * none.
 */
#include "weft_test.h"

#include "assembly.h"
#include "attend.h"
#include "inviter.h"
#include "on_loop.h"
#include "weft/join.h"
#include "weft/process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DOORS = 3, HELLOS = 10000 };

typedef struct place {
  weft_runtime *rt;
  weft_rundir *dir;
  weft_door *doors[DOORS];
  weft_join_server *join;
  char url[DOORS][256], join_url[256];
  counter heard[DOORS], joined;
  weft_invitation first[DOORS];
  weft_join_hello hellos[HELLOS];
  size_t which; /* of open_door */
} place;

static unsigned count_of(counter *c)
{
  (void)pthread_mutex_lock(&c->lock);
  const unsigned n = c->n;
  (void)pthread_mutex_unlock(&c->lock);
  return n;
}

static weft_err hear(place *p, size_t which, const weft_invitation *invitation)
{
  if (count_of(&p->heard[which]) == 0) {
    p->first[which] = *invitation; /* nobody reads it yet */
  }
  counter_up(&p->heard[which]);
  return WEFT_OK;
}

static weft_err hear_0(void *arg, const weft_invitation *invitation, weft_why *why)
{
  (void)why;
  return hear(arg, 0, invitation);
}

static weft_err hear_1(void *arg, const weft_invitation *invitation, weft_why *why)
{
  (void)why;
  return hear(arg, 1, invitation);
}

static void open_door(void *arg)
{
  static weft_door_fn *const hears[] = { hear_0, hear_1 };
  place *p = arg;
  char at[256];
  (void)snprintf(at, sizeof at, "ipc://%s/door%zu", weft_rundir_path(p->dir), p->which);
  assert_ok(weft_door_listen(weft_runtime_loop(p->rt, 0), at, "t", hears[p->which], p,
                             p->url[p->which], sizeof p->url[p->which],
                             &p->doors[p->which], NULL));
}

static weft_err on_join(void *arg, const weft_join_hello *hello, weft_why *why)
{
  place *p = arg;
  (void)why;
  if (p->joined.n < HELLOS) {
    p->hellos[p->joined.n] = *hello;
  }
  counter_up(&p->joined);
  return WEFT_OK;
}

static void open_join(void *arg)
{
  place *p = arg;
  char at[256];
  (void)snprintf(at, sizeof at, "ipc://%s/join", weft_rundir_path(p->dir));
  assert_ok(weft_join_listen(weft_runtime_loop(p->rt, 0), at, "t", on_join, p,
                             p->join_url, sizeof p->join_url, &p->join, NULL));
}

static void close_all(void *arg)
{
  place *p = arg;
  for (size_t i = 0; i < DOORS; i++) {
    weft_door_close(p->doors[i]);
  }
  weft_join_close(p->join);
}

static void place_open(place *p)
{
  static const counter zero = COUNTER_INIT;
  *p = (place){ .rt = NULL };
  for (size_t i = 0; i < DOORS; i++) {
    p->heard[i] = zero;
  }
  p->joined = zero;
  assert_ok(wefti_runtime_make(1, NULL, NULL, WEFT_LOG_INFO, &p->rt));
  assert_ok(weft_rundir_open(NULL, &p->dir, NULL));
  assert_ok(weft_runtime_start_all(p->rt));
}

static void place_close(place *p)
{
  on_loop(weft_runtime_loop(p->rt, 0), close_all, p);
  weft_runtime_stop(p->rt, 1000);
  weft_runtime_join(p->rt);
  weft_runtime_destroy(p->rt);
  weft_rundir_close(p->dir);
}

/* Takes connections and never says a word. */
static int silent_door(char url[256])
{
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in at = { .sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  socklen_t len = sizeof at;
  assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 &&
              listen(fd, 64) == 0 && getsockname(fd, (struct sockaddr *)&at, &len) == 0);
  (void)snprintf(url, 256, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
  return fd;
}

static void all_are_invited_again_and_again_whoever_is_silent(void **state)
{
  (void)state;
  static place p;
  place_open(&p);
  p.which = 0;
  on_loop(weft_runtime_loop(p.rt, 0), open_door, &p);
  const int fd = silent_door(p.url[2]);
  (void)snprintf(p.url[1], sizeof p.url[1], "ipc://%s/door1", weft_rundir_path(p.dir));
  const char *const urls[] = { p.url[0], p.url[1], p.url[2] };
  const wefti_inviter_opts opts = {
    .urls = urls,
    .token = "t",
    .invitation = { .join_url = "ipc:///j", .fleet = "f", .boot = 7, .size = 3 },
    .pause_ms = 10,
    .again_ms = 3600000
  };
  wefti_inviter *inviter;
  assert_ok(wefti_inviter_start(&opts, &inviter));
  assert_true(counter_wait(&p.heard[0], 5));
  p.which = 1; /* comes late */
  on_loop(weft_runtime_loop(p.rt, 0), open_door, &p);
  assert_true(counter_wait(&p.heard[1], 5));
  assert_int_equal(p.first[0].rank, 0);
  assert_int_equal(p.first[1].rank, 1);
  assert_int_equal(p.first[1].size, 3);
  assert_string_equal(p.first[1].fleet, "f");
  assert_string_equal(p.first[1].join_url, "ipc:///j");
  assert_true(p.first[1].boot == 7);
  /* One that is in is left alone, one that is out again is invited at once. */
  wefti_inviter_note(inviter, 0, true);
  assert_true(counter_wait(&p.heard[1], count_of(&p.heard[1]) + 5));
  const unsigned before = count_of(&p.heard[0]);
  assert_true(counter_wait(&p.heard[1], count_of(&p.heard[1]) + 5));
  assert_true(count_of(&p.heard[0]) <= before + 1); /* one that was under way */
  wefti_inviter_note(inviter, 0, false);
  assert_true(counter_wait(&p.heard[0], before + 3));
  wefti_inviter_destroy(inviter);
  (void)close(fd);
  place_close(&p);
}

static void an_invitation_is_followed_and_a_deaf_port_replaced(void **state)
{
  (void)state;
  static place p;
  place_open(&p);
  on_loop(weft_runtime_loop(p.rt, 0), open_join, &p);
  const wefti_attend_opts opts = { .rt = p.rt,
                                   .engine = 0,
                                   .run_dir = weft_rundir_path(p.dir),
                                   .token = "t",
                                   .incarnation = 99,
                                   .quiet_ms = 1 };
  wefti_attend *attend;
  assert_ok(wefti_attend_start(&opts, &attend));
  weft_invitation in = { .fleet = "f", .boot = 7, .rank = 1, .size = 2 };
  (void)snprintf(in.join_url, sizeof in.join_url, "%s", p.join_url);
  wefti_attend_follow(attend, &in);
  assert_true(counter_wait(&p.joined, 1));
  assert_int_equal(p.hellos[0].rank, 1);
  assert_int_equal(p.hellos[0].world_size, 2);
  assert_true(p.hellos[0].incarnation == 99);
  assert_int_equal(p.hellos[0].pid, getpid());
  /* Let in, and not a word on the port: soon it is another one. */
  unsigned n = 1;
  do {
    wefti_attend_follow(attend, &in);
    assert_true(counter_wait(&p.joined, ++n));
    assert_true(n < HELLOS);
  } while (strcmp(p.hellos[0].url, p.hellos[n - 1].url) == 0);
  wefti_attend_destroy(attend);
  place_close(&p);
}

/* ---- options */

typedef struct wrong {
  const char *what;
  weft_engine_opts opts;
  weft_err err;
  const char *says;
} wrong;

static void each_mistake_is_named(void **state)
{
  (void)state;
  static const char *const ipc[] = { "ipc:///tmp/a", "ipc:///tmp/b" };
  static const char *const twice[] = { "ipc:///tmp/a", "ipc:///tmp/a" };
  static const char *const tcp[] = { "ipc:///tmp/a", "tcp://127.0.0.1:7" };
  char dir[] = "/tmp/weft-test-fleet-XXXXXX";
  assert_non_null(mkdtemp(dir));
#define COMMON .size = sizeof(weft_engine_opts), .workers = WEFT_WORKERS_THREADS
  const wrong wrongs[] = {
    { "both",
      { COMMON, .replicas = ipc, .replica_count = 2, .member_url = "ipc:///x",
        .state_dir = dir },
      WEFT_E_INVAL,
      "fleet of fleets" },
    { "no state",
      { COMMON, .replicas = ipc, .replica_count = 2 },
      WEFT_E_INVAL,
      "state directory" },
    { "member without state",
      { COMMON, .member_url = "ipc:///x" },
      WEFT_E_INVAL,
      "state directory" },
    { "tcp replica",
      { COMMON, .replicas = tcp, .replica_count = 2, .state_dir = dir },
      WEFT_E_DENIED,
      "tcp://127.0.0.1:7" },
    { "tcp member",
      { COMMON, .member_url = "tcp://127.0.0.1:0", .state_dir = dir },
      WEFT_E_DENIED,
      "token" },
    { "twice",
      { COMMON, .replicas = twice, .replica_count = 2, .state_dir = dir },
      WEFT_E_INVAL,
      "twice" },
    { "restore",
      { COMMON, .replicas = ipc, .replica_count = 2, .state_dir = dir, .restore = true },
      WEFT_E_INVAL,
      "restore" },
    { "manifest",
      { COMMON, .replicas = ipc, .replica_count = 2, .state_dir = dir, .manifest = "/m" },
      WEFT_E_INVAL,
      "manifest" },
    { "dp size",
      { COMMON, .replicas = ipc, .replica_count = 2, .state_dir = dir, .dp_size = 3 },
      WEFT_E_INVAL,
      "dp_size 3" },
    { "too many",
      { COMMON, .replicas = ipc, .replica_count = 257, .state_dir = dir },
      WEFT_E_LIMIT,
      "at most 256" },
    { "anywhere",
      { COMMON, .replicas = tcp, .replica_count = 2, .state_dir = dir,
        .replica_token = "t", .join_url = "tcp://0.0.0.0:0" },
      WEFT_E_INVAL,
      "0.0.0.0" },
  };
  for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
    weft_engine *engine = NULL;
    weft_why why = { .err = WEFT_OK, .text = "" };
    assert_err(weft_engine_create(&wrongs[i].opts, &engine, &why), wrongs[i].err);
    if (strstr(why.text, wrongs[i].says) == NULL) {
      fail_msg("%s: \"%s\" does not say \"%s\"", wrongs[i].what, why.text,
               wrongs[i].says);
    }
  }
  (void)rmdir(dir); /* nothing was made in it */
  assert_int_not_equal(access(dir, F_OK), 0);
}

static void a_member_that_nobody_adopted_serves_no_pin(void **state)
{
  (void)state;
  weft_rundir *dir;
  char door[256];
  char journal[256];
  assert_ok(weft_rundir_open(NULL, &dir, NULL));
  (void)snprintf(door, sizeof door, "ipc://%s/door", weft_rundir_path(dir));
  (void)snprintf(journal, sizeof journal, "%s/state", weft_rundir_path(dir));
  const weft_engine_opts opts = { COMMON, .state_dir = journal, .member_url = door };
  weft_engine *engine;
  weft_engine_info info;
  weft_pinned pinned;
  weft_why why = { .err = WEFT_OK };
  assert_ok(weft_engine_create(&opts, &engine, &why));
  weft_engine_info_get(engine, &info);
  assert_string_equal(info.member_url, door);
  assert_err(weft_pin(engine, 0, 0, &pinned, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "cut off"));
  assert_err(weft_pin(engine, 0, 1, &pinned, &why), WEFT_E_UNAVAIL);
  weft_engine_destroy(engine);
  char command[300];
  (void)snprintf(command, sizeof command, "rm -r '%s'", journal);
  assert_int_equal(system(command), 0);
  weft_rundir_close(dir);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(all_are_invited_again_and_again_whoever_is_silent),
    cmocka_unit_test(an_invitation_is_followed_and_a_deaf_port_replaced),
    cmocka_unit_test(each_mistake_is_named),
    cmocka_unit_test(a_member_that_nobody_adopted_serves_no_pin),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
