/* What the glue around child processes tells the supervisor, which the test plays. */
#define _GNU_SOURCE /* mkdtemp, usleep */
#include "weft_test.h"

#include "assembly_members.h"
#include "weft/messages.h"
#include "weft/runtime.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIFE = 7, PATIENCE_MS = 20000 };

typedef struct world {
  weft_runtime *rt;
  wefti_members *members;
  atomic_bool open;  /* the supervisor works */
  atomic_bool stuck; /* it has begun to do nothing */
  atomic_uint exits, alive, spawn_err;
  atomic_bool looked;
} world;

static weft_err give_world(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  memcpy(self, args, sizeof(world *));
  return WEFT_OK;
}

static weft_err supervisor_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  world *w = *(world **)self;
  atomic_store(&w->stuck, true);
  while (!atomic_load(&w->open)) {
    (void)sched_yield();
  }
  if (msg->type == WEFT_MSG_PROC_EXIT) {
    const weft_proc_exit *gone = (const weft_proc_exit *)msg;
    if (gone->incarnation == LIFE && strcmp(gone->why.p, "exited with status 0") == 0) {
      atomic_fetch_add(&w->exits, 1);
    }
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}
static const weft_actor_class supervisor_class = {
  .name = "supervisor",
  .state_size = sizeof(world *),
  .init = give_world,
  .on = supervisor_on,
};

static void look(void *arg)
{
  world *w = arg;
  atomic_store(&w->alive, wefti_members_alive(w->members));
  atomic_store(&w->looked, true);
}

static void start_child(void *arg)
{
  world *w = arg;
  const wefti_member_ops ops = wefti_members_ops(w->members);
  atomic_store(&w->spawn_err, (unsigned)ops.spawn(ops.arg, 0, LIFE, NULL));
}

static uint32_t alive(world *w)
{
  atomic_store(&w->looked, false);
  assert_ok(weft_loop_call(weft_runtime_loop(w->rt, 0), look, w));
  while (!atomic_load(&w->looked)) {
    (void)sched_yield();
  }
  return atomic_load(&w->alive);
}

static void an_exit_is_told_however_full_the_supervisor_is(void **state)
{
  (void)state;
  world w = { 0 };
  world *self = &w;
  char dir[] = "/tmp/weft-members-XXXXXX";
  weft_actor_id supervisor;
  assert_non_null(mkdtemp(dir));
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = 2,
                                   .catalogue = weft_messages() };
  assert_ok(weft_runtime_create(&opts, &w.rt));
  const weft_spawn_opts small = { .mailbox = 4 };
  assert_ok(weft_runtime_spawn(w.rt, 1, &supervisor_class, &self, &small, &supervisor));
  const wefti_members_opts members = { .workers = WEFT_WORKERS_PROCESSES,
                                       .program = "/bin/true",
                                       .run_dir = dir,
                                       .world_size = 1,
                                       .tp = 1,
                                       .pp = 1 };
  char join_url[WEFTI_URL_MAX];
  assert_ok(wefti_members_create(w.rt, &members, &w.members, NULL));
  assert_ok(wefti_members_begin(w.members, supervisor, join_url, NULL));
  assert_ok(weft_runtime_start_all(w.rt));

  const weft_proc_exit other = { .h = { .type = WEFT_MSG_PROC_EXIT,
                                        .flags = WEFT_MSG_F_RESERVED } };
  assert_ok(wefti_post(w.rt, supervisor, &other.h));
  while (!atomic_load(&w.stuck)) {
    (void)sched_yield();
  }
  while (wefti_post(w.rt, supervisor, &other.h) == WEFT_OK) {
  }
  assert_ok(weft_loop_call(weft_runtime_loop(w.rt, 0), start_child, &w));
  while (alive(&w) != 0) {
    (void)usleep(1000);
  }
  assert_int_equal(atomic_load(&w.spawn_err), WEFT_OK);
  assert_int_equal(atomic_load(&w.exits), 0);
  atomic_store(&w.open, true);
  for (unsigned ms = 0; ms < PATIENCE_MS && atomic_load(&w.exits) == 0; ms++) {
    (void)usleep(1000);
  }
  assert_int_equal(atomic_load(&w.exits), 1);
  weft_runtime_stop(w.rt, PATIENCE_MS);
  weft_runtime_join(w.rt);
  wefti_members_destroy(w.members);
  weft_runtime_destroy(w.rt);
  assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_exit_is_told_however_full_the_supervisor_is),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
