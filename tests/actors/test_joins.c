/* Who is let in at the door for workers of others, and when again. */
#include "weft_test.h"

#include "assembly_members.h"

#include <stdio.h>

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

static weft_err come(uint64_t incarnation, const char *url)
{
  weft_join_hello hello = { .rank = 1, .world_size = 2, .incarnation = incarnation };
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
                                .joined = w->joined };
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
  weft_join_hello hello = {
    .url = "ipc:///a", .rank = 1, .world_size = 2, .incarnation = 5
  };
  w->members.draft = true;
  assert_err(on_join(&w->members, &hello, &why), WEFT_E_INVAL);
  assert_non_null(strstr(why.text, "rank 1 is without a draft model"));
  assert_non_null(strstr(why.text, "--draft"));
  assert_int_equal(w->ready, 0);
  hello.draft = 1;
  assert_ok(on_join(&w->members, &hello, &why));
  w->members.draft = false; /* the other way round nothing is amiss */
  hello.rank = 0;
  assert_ok(on_join(&w->members, &hello, &why));
  assert_int_equal(w->ready, 2);
  weft_runtime_destroy(rt);
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
  assert_err(come(5, "ipc:///a"), WEFT_E_FULL);
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
    cmocka_unit_test(a_link_that_nobody_watches_does_not_keep_its_rank),
    cmocka_unit_test(no_room_at_the_supervisor_is_said_to_the_worker),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
