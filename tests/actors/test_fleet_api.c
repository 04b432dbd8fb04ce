/* A coordinator and a member of its fleet through the embedder's interface: what the
 * member's readers get, and when they get nothing.  Built twice, as test_engine_api.c. */
#include "api_world.h"

#ifdef API_PROGRAM
#define KIND WEFT_WORKERS_PROCESSES
#define PROGRAM API_PROGRAM
#else
#define KIND WEFT_WORKERS_THREADS
#define PROGRAM NULL
#endif

typedef struct fleet {
  api_world w; /* its engine: the member */
  weft_engine *coordinator;
  char door[96], state[2][96];
} fleet;

static void start_coordinator(fleet *f)
{
  const char *const replicas[] = { f->door };
  const weft_engine_opts opts = { .size = sizeof opts,
                                  .tp = API_WORKERS,
                                  .state_dir = f->state[0],
                                  .engine_id = "the fleet",
                                  .replicas = replicas,
                                  .replica_count = 1,
                                  .log = api_log,
                                  .log_level = WEFT_LOG_WARN };
  api_ok(weft_engine_create(&opts, &f->coordinator, &why_));
  api_ok(weft_engine_wait_ready(f->coordinator, API_PATIENCE_S * 1000, &why_));
}

static void fleet_begin(fleet *f)
{
  api_create(&f->w);
  (void)snprintf(f->door, sizeof f->door, "ipc://%s/door", f->w.dir);
  (void)snprintf(f->state[0], sizeof f->state[0], "%s/coordinator", f->w.dir);
  (void)snprintf(f->state[1], sizeof f->state[1], "%s/member", f->w.dir);
  weft_engine_opts opts = api_opts(&f->w, KIND, PROGRAM);
  opts.state_dir = f->state[1];
  opts.member_url = f->door;
  api_ok(weft_engine_create(&opts, &f->w.engine, &why_));
  start_coordinator(f);
  api_ok(weft_engine_wait_ready(f->w.engine, API_PATIENCE_S * 1000, &why_));
}

static void fleet_end(fleet *f)
{
  char command[256];
  weft_engine_destroy(f->coordinator);
  for (int i = 0; i < 2; i++) {
    (void)snprintf(command, sizeof command, "rm -r '%s'", f->state[i]);
    assert_int_equal(system(command), 0);
  }
  api_end(&f->w);
}

/* The default pin of a worker of the member, until it answers err and says so.  (A
 * worker's own grant ends a little earlier, with words of its own.) */
static void await_pin(fleet *f, uint32_t rank, weft_err err, const char *says,
                      weft_pinned *out)
{
  weft_why why = { .text = "" };
  const struct timespec pause = { .tv_nsec = 5000000 };
  for (int i = 0; i < API_PATIENCE_S * 200; i++) {
    const weft_err got = weft_pin(f->w.engine, rank, 0, out, &why);
    if (got == err && strstr(why.text, says) != NULL) {
      return;
    }
    if (got == WEFT_OK) {
      weft_unpin(out);
    }
    (void)nanosleep(&pause, NULL);
  }
  fail_msg("rank %u: no pin that answers %s", rank, weft_err_name(err));
}

/* Once the coordinator has answered: what it has committed, or nothing yet. */
static void never_older(fleet *f, int value)
{
  for (uint32_t rank = 0; rank < API_WORKERS; rank++) {
    weft_pinned p;
    weft_why why = { .text = "" };
    weft_err err = WEFT_E_NOT_YET;
    for (int i = 0; err == WEFT_E_NOT_YET && i < API_PATIENCE_S * 1000; i++) {
      err = weft_pin(f->w.engine, rank, 0, &p, &why);
      if (err == WEFT_E_NOT_YET) {
        (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
      }
    }
    if (err != WEFT_OK) {
      fail_msg("rank %u: %s", rank, why.text);
    }
    assert_int_equal(api_value(&p), value);
    weft_unpin(&p);
  }
}

static void a_member_serves_what_its_coordinator_has_committed(void **state)
{
  (void)state;
  fleet f;
  weft_pinned p;
  weft_why why = { .text = "" };
  fleet_begin(&f);
  for (int value = 1; value <= 3; value++) {
    char version[16];
    (void)snprintf(version, sizeof version, "v%d", value);
    api_push_to(f.coordinator, &f.w, value, version);
    never_older(&f, value);
    api_await(&f.w, &f.w.commits, (unsigned)value); /* the member's own event */
    assert_string_equal(f.w.version, version);
    for (uint32_t rank = 0; rank < API_WORKERS; rank++) {
      api_ok(weft_pin(f.w.engine, rank, 0, &p, &why_));
      assert_int_equal(api_value(&p), value);
      assert_string_equal(p.version, version);
      weft_unpin(&p);
    }
  }
  /* Its coordinator has no memory of its own to read. */
  assert_err(weft_pin(f.coordinator, 0, 0, &p, &why), WEFT_E_UNSUPPORTED);
  assert_err(weft_engine_start(f.w.engine, 0, &why), WEFT_E_CONFLICT);
  assert_non_null(strstr(why.text, "replica 0 of fleet the fleet"));
  const weft_request resolve = { .size = sizeof resolve, .op = WEFT_OP_RESOLVE };
  assert_err(weft_engine_call(f.w.engine, &resolve, NULL, &why), WEFT_E_STATE);
  fleet_end(&f);
}

static void a_member_that_is_cut_off_serves_no_new_pin(void **state)
{
  (void)state;
  fleet f;
  weft_pinned kept;
  weft_pinned p;
  weft_why why = { .text = "" };
  fleet_begin(&f);
  api_push_to(f.coordinator, &f.w, 7, "seven");
  api_await(&f.w, &f.w.commits, 1);
  api_ok(weft_pin(f.w.engine, 1, 0, &kept, &why_));
  weft_engine_destroy(f.coordinator);
  for (uint32_t rank = 0; rank < API_WORKERS; rank++) {
    await_pin(&f, rank, WEFT_E_UNAVAIL, "cut off", &p);
    assert_err(weft_pin(f.w.engine, rank, kept.weights_sequence, &p, &why),
               WEFT_E_UNAVAIL);
  }
  assert_int_equal(api_value(&kept), 7); /* a reader that has begun goes on */
  weft_unpin(&kept);
  start_coordinator(&f); /* its next life: it knows what was committed, they have it */
  for (uint32_t rank = 0; rank < API_WORKERS; rank++) {
    await_pin(&f, rank, WEFT_OK, "", &p);
    assert_int_equal(api_value(&p), 7);
    assert_string_equal(p.version, "seven");
    weft_unpin(&p);
  }
  fleet_end(&f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_member_serves_what_its_coordinator_has_committed),
    cmocka_unit_test(a_member_that_is_cut_off_serves_no_new_pin),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
