/* Who is let in at the door for workers of others, and when again. */
#include "weft_test.h"

#include "assembly_members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static weft_err fake_post(weft_runtime *rt, weft_actor_id to, const weft_msg *tmpl);
static uint64_t fake_now(const weft_loop *loop);
#define wefti_post fake_post
#define weft_loop_now_ms fake_now
#include "../../actors/assembly_joins.c"

enum { SUPERVISOR = 11, WATCHER = 12, LINK = 13 };

typedef struct door_world {
  uint64_t now_ms;
  unsigned ready, watched; /* messages */
  weft_err err;            /* of the next posts */
  wefti_members members;
  wefti_joined joined[2];
} door_world;

static door_world *the(void)
{
  static door_world world;
  return &world;
}

static uint64_t fake_now(const weft_loop *loop)
{
  (void)loop;
  return the()->now_ms;
}

static weft_err fake_post(weft_runtime *rt, weft_actor_id to, const weft_msg *tmpl)
{
  (void)rt;
  door_world *w = the();
  if (w->err != WEFT_OK) {
    return w->err;
  }
  w->ready += to == SUPERVISOR && tmpl->type == WEFT_MSG_PROC_READY;
  w->watched += to == WATCHER && tmpl->type == WEFT_MSG_MEMBER_UP;
  return WEFT_OK;
}

/* A worker that was started as the engine was. */
static weft_join_hello alike(uint64_t incarnation)
{
  weft_join_hello hello = the()->members.terms;
  hello.rank = 1;
  hello.incarnation = incarnation;
  return hello;
}

static weft_err come(uint64_t incarnation, const char *url)
{
  weft_join_hello hello = alike(incarnation);
  (void)snprintf(hello.url, sizeof hello.url, "%s", url);
  return on_join(&the()->members, &hello, NULL);
}

static door_world *begin(weft_runtime **rt)
{
  door_world *w = the();
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  assert_ok(weft_runtime_create(&opts, rt));
  *w = (door_world){ .now_ms = 5 };
  w->members = (wefti_members){ .rt = *rt,
                                .supervisor = SUPERVISOR,
                                .watcher = WATCHER,
                                .world_size = 2,
                                .tp = 2,
                                .pp = 1,
                                .joined = w->joined };
  assert_ok(make_terms(&w->members, NULL));
  return w;
}

static void one_that_was_never_dialled_back_is_taken_in_anew(void **state)
{
  (void)state;
  weft_runtime *rt;
  door_world *w = begin(&rt);
  assert_ok(come(5, "ipc:///a"));
  assert_int_equal(w->ready, 1);
  w->now_ms += 3000;
  assert_ok(come(5, "ipc:///a"));
  assert_int_equal(w->ready, 1); /* it is under way */
  assert_err(come(6, "ipc:///b"), WEFT_E_EXISTS);
  w->now_ms += CONNECT_MS;
  assert_ok(come(5, "ipc:///c")); /* the supervisor would not have it the first time */
  assert_int_equal(w->ready, 2);
  assert_string_equal(w->joined[1].url, "ipc:///c");
  wefti_joins_connected(&w->members, "ipc:///c", LINK);
  assert_int_equal(w->watched, 1);
  w->now_ms += 2 * CONNECT_MS;
  assert_ok(come(5, "ipc:///c"));
  assert_int_equal(w->ready, 2); /* now it is in */
  forget_link(&w->members, LINK);
  assert_ok(come(6, "ipc:///d"));
  assert_int_equal(w->ready, 3);
  weft_runtime_destroy(rt);
}

static void one_without_a_draft_model_is_refused_where_there_is_one(void **state)
{
  (void)state;
  weft_runtime *rt;
  door_world *w = begin(&rt);
  weft_why why = { .text = "" };
  weft_join_hello hello = alike(5);
  (void)snprintf(hello.url, sizeof hello.url, "ipc:///a");
  w->members.terms.draft = 1;
  assert_err(on_join(&w->members, &hello, &why), WEFT_E_INVAL);
  assert_non_null(strstr(why.text, "rank 1 is without a draft model"));
  assert_non_null(strstr(why.text, "--draft"));
  assert_int_equal(w->ready, 0);
  hello.draft = 1;
  assert_ok(on_join(&w->members, &hello, &why));
  w->members.terms.draft = 0; /* the other way round nothing is amiss */
  hello.rank = 0;
  assert_ok(on_join(&w->members, &hello, &why));
  assert_int_equal(w->ready, 2);
  weft_runtime_destroy(rt);
}

/* Refused with both sides' words and what to do; what was let in would not have worked.
 */
static void refused(const weft_join_hello *hello, const char *theirs, const char *ours,
                    const char *now)
{
  const door_world *w = the();
  weft_why why = { .text = "" };
  assert_err(on_join(&the()->members, hello, &why), WEFT_E_INVAL);
  if (strstr(why.text, theirs) == NULL || strstr(why.text, ours) == NULL ||
      strstr(why.text, now) == NULL) {
    fail_msg("'%s' lacks one of: %s, %s, %s", why.text, theirs, ours, now);
  }
  assert_int_equal(w->ready, 0);
}

static void one_of_another_world_is_refused(void **state)
{
  (void)state;
  weft_runtime *rt;
  (void)begin(&rt);
  weft_join_hello hello = alike(5);
  hello.world_size = 3;
  refused(&hello, "rank 1 of 3", "this engine has 2 workers", "");
  hello = alike(5);
  hello.rank = 2;
  refused(&hello, "rank 2 of 2", "this engine has 2 workers", "");
  weft_runtime_destroy(rt);
}

static void one_with_another_backend_is_refused(void **state)
{
  (void)state;
  weft_runtime *rt;
  (void)begin(&rt);
  weft_join_hello hello = alike(5);
  (void)snprintf(hello.settings.backend, sizeof hello.settings.backend, "nccl");
  refused(&hello, "rank 1 was started with --backend nccl",
          "its engine with --backend host", "start the worker with the engine's");
  weft_runtime_destroy(rt);
}

static void one_of_another_shape_is_refused(void **state)
{
  (void)state;
  weft_runtime *rt;
  (void)begin(&rt);
  weft_join_hello hello = alike(5);
  hello.settings.tp = 1;
  hello.settings.pp = 2;
  refused(&hello, "with --tp 1 --pp 2", "its engine with --tp 2 --pp 1",
          "start the worker with the engine's");
  weft_runtime_destroy(rt);
}

static void one_with_another_staging_is_refused(void **state)
{
  (void)state;
  weft_runtime *rt;
  door_world *w = begin(&rt);
  weft_join_hello hello = alike(5);
  w->members.inplace = true;
  assert_ok(make_terms(&w->members, NULL));
  refused(&hello, "with --staging shadow", "its engine with --staging inplace",
          "start the worker with the engine's");
  hello = alike(5);
  w->members.inplace = false;
  assert_ok(make_terms(&w->members, NULL));
  refused(&hello, "with --staging inplace", "its engine with --staging shadow",
          "start the worker with the engine's");
  weft_runtime_destroy(rt);
}

static void write_plan(char path[64], const char *text)
{
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  (void)close(fd);
}

static void one_with_another_tp_plan_is_refused(void **state)
{
  (void)state;
  weft_runtime *rt;
  char one[64] = "/tmp/weft-plan-XXXXXX";
  char same[64] = "/tmp/weft-plan-XXXXXX";
  char other[64] = "/tmp/weft-plan-XXXXXX";
  write_plan(one, "{\"a*\":0,\"b\":null}");
  write_plan(same, "{ \"a*\" : 0,\n \"b\" : null }\n");
  write_plan(other, "{\"a*\":1,\"b\":null}");
  door_world *w = begin(&rt);
  const char *const none = "no --tp-plan";
  const char *const some = "a --tp-plan of xxh3-128:";
  const char *const now = "give the worker the engine's file";
  const weft_join_hello without = alike(5);
  w->members.tp_plan = other;
  assert_ok(make_terms(&w->members, NULL));
  const weft_join_hello another = alike(5);
  refused(&without, none, some, now);
  w->members.tp_plan = one;
  assert_ok(make_terms(&w->members, NULL));
  refused(&without, none, some, now);
  refused(&another, some, some, now);
  const weft_join_hello hello = alike(5);
  w->members.tp_plan = NULL;
  assert_ok(make_terms(&w->members, NULL));
  refused(&hello, some, none, now);
  w->members.tp_plan = same;
  assert_ok(make_terms(&w->members, NULL));
  assert_ok(on_join(&w->members, &hello, NULL));
  (void)unlink(one);
  (void)unlink(same);
  (void)unlink(other);
  weft_why why = { .text = "" };
  assert_err(make_terms(&w->members, &why), WEFT_E_NOTFOUND); /* the engine's start */
  assert_non_null(strstr(why.text, same));
  weft_runtime_destroy(rt);
}

static void one_that_speaks_other_frames_is_refused(void **state)
{
  (void)state;
  for (unsigned replicas = 0; replicas < 2; replicas++) {
    weft_runtime *rt;
    door_world *w = begin(&rt);
    w->members.replicas = replicas != 0;
    assert_ok(make_terms(&w->members, NULL));
    weft_join_hello hello = alike(5);
    hello.settings.frames++;
    refused(&hello, replicas ? "replica 1 speaks another" : "rank 1 speaks another",
            replicas ? "its coordinator" : "its engine", "the same weft on both sides");
    weft_runtime_destroy(rt);
  }
}

/* A worker from before there were settings in a hello; a fleet's engines have their own.
 */
static void one_that_says_nothing_of_its_settings_is_let_in(void **state)
{
  (void)state;
  for (unsigned replicas = 0; replicas < 2; replicas++) {
    weft_runtime *rt;
    door_world *w = begin(&rt);
    w->members.replicas = replicas != 0;
    assert_ok(make_terms(&w->members, NULL));
    weft_join_hello hello = alike(5);
    hello.settings = (weft_join_settings){ .frames = 0 };
    assert_ok(on_join(&w->members, &hello, NULL));
    hello.rank = 0;
    hello.settings = w->members.terms.settings;
    assert_ok(on_join(&w->members, &hello, NULL));
    assert_int_equal(w->ready, 2);
    weft_runtime_destroy(rt);
  }
}

static void a_link_that_nobody_watches_does_not_keep_its_rank(void **state)
{
  (void)state;
  weft_runtime *rt;
  door_world *w = begin(&rt);
  assert_ok(come(5, "ipc:///a"));
  w->err = WEFT_E_FULL;
  wefti_joins_connected(&w->members, "ipc:///a", LINK);
  w->err = WEFT_OK;
  assert_int_equal(w->joined[1].incarnation, 0);
  weft_runtime_destroy(rt);
}

static void no_room_at_the_supervisor_is_said_to_the_worker(void **state)
{
  (void)state;
  weft_runtime *rt;
  door_world *w = begin(&rt);
  w->err = WEFT_E_FULL;
  assert_err(come(5, "ipc:///a"), WEFT_E_UNAVAIL); /* that passes: it asks again */
  w->err = WEFT_OK;
  assert_ok(come(5, "ipc:///a"));
  assert_int_equal(w->ready, 1);
  weft_runtime_destroy(rt);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(one_that_was_never_dialled_back_is_taken_in_anew),
    cmocka_unit_test(one_without_a_draft_model_is_refused_where_there_is_one),
    cmocka_unit_test(one_of_another_world_is_refused),
    cmocka_unit_test(one_with_another_backend_is_refused),
    cmocka_unit_test(one_of_another_shape_is_refused),
    cmocka_unit_test(one_with_another_staging_is_refused),
    cmocka_unit_test(one_with_another_tp_plan_is_refused),
    cmocka_unit_test(one_that_speaks_other_frames_is_refused),
    cmocka_unit_test(one_that_says_nothing_of_its_settings_is_let_in),
    cmocka_unit_test(a_link_that_nobody_watches_does_not_keep_its_rank),
    cmocka_unit_test(no_room_at_the_supervisor_is_said_to_the_worker),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
