#include "weft_test.h"

#include "worker_priv.h"
#include "worker_world.h"

#include <stdio.h>

static world *begin(void)
{
  world *w = world_begin_with(1, NULL, false);
  const uint64_t none[2] = { 0, 0 };
  world_as(world_adopt(w, 0, none), w_state, W_STATE);
  return w;
}

static const weft_msg *start(world *w, uint64_t epoch)
{
  wefti_store_state st;
  wefti_store_state_get(w->device->store, &st);
  return world_ask(w, w_start, W_START, epoch, .base_sequence = st.weights_sequence,
                   .base_digest_hi = st.digest_hi, .base_digest_lo = st.digest_lo);
}

static const weft_msg *accept_(world *w, uint64_t epoch, weft_transfer_what what)
{
  return world_ask(w, w_accept, W_ACCEPT, epoch, .what = what, .timeout_ms = 5000);
}

static const weft_msg *go(world *w, uint64_t epoch, weft_transfer_what what)
{
  return world_ask(w, w_go, W_GO, epoch, .what = what, .timeout_ms = 5000);
}

static const weft_msg *finish(world *w, uint64_t epoch)
{
  return world_ask(w, w_finish, W_FINISH, epoch, .timeout_ms = 5000);
}

static const weft_msg *publish(world *w, uint64_t epoch, uint64_t sequence)
{
  return world_ask(w, w_publish, W_PUBLISH, epoch, .sequence = sequence);
}

static const weft_msg *abort_(world *w, uint64_t epoch)
{
  return world_ask(w, w_abort, W_ABORT, epoch, .reason = WEFT_STR("test"));
}

static const weft_w_state *beat(world *w)
{
  return world_as(world_ask(w, w_beat, W_BEAT, 0, .grant = 0), w_state, W_STATE);
}

static weft_worker_phase phase_of(const world *w)
{
  return ((const worker *)weft_sim_state(w->sim, w->worker))->phase;
}

static weft_err pin_err(world *w, uint64_t sequence)
{
  const weft_snapshot *s;
  const weft_err err = weft_store_pin(w->device->store, sequence, &s);
  if (err == WEFT_OK) {
    weft_store_unpin(w->device->store, s);
  }
  return err;
}

/* Brings the worker into phase with a session (or init) of epoch. */
static void reach(world *w, weft_worker_phase phase, uint64_t epoch)
{
  const bool holds = phase == WEFT_WORKER_ACCEPTING || phase == WEFT_WORKER_RECEIVING ||
                     phase == WEFT_WORKER_FINISHING || phase == WEFT_WORKER_ABORTING;
  if (phase == WEFT_WORKER_IDLE) {
    return;
  }
  world_as(start(w, epoch), w_ok, W_OK);
  w->hold = holds;
  if (phase == WEFT_WORKER_ACCEPTED || phase == WEFT_WORKER_RECEIVING) {
    w->hold = false;
    world_as(accept_(w, epoch, WEFT_TRANSFER_UPDATE), w_ok, W_OK);
    w->hold = holds;
  }
  if (phase == WEFT_WORKER_ACCEPTING) {
    assert_null(accept_(w, epoch, WEFT_TRANSFER_UPDATE));
  } else if (phase == WEFT_WORKER_RECEIVING) {
    assert_null(go(w, epoch, WEFT_TRANSFER_UPDATE));
  } else if (phase == WEFT_WORKER_FINISHING) {
    assert_null(finish(w, epoch));
  } else if (phase == WEFT_WORKER_INSTALLED) {
    world_as(finish(w, epoch), w_finished, W_FINISHED);
  } else if (phase == WEFT_WORKER_ABORTING) {
    assert_null(abort_(w, epoch));
  }
  assert_int_equal(phase_of(w), phase);
}

static void commit(world *w, uint64_t epoch, uint64_t sequence)
{
  reach(w, WEFT_WORKER_INSTALLED, epoch);
  world_as(publish(w, epoch, sequence), w_ok, W_OK);
}

/* ---- the table: what a frame of the open epoch is answered with in each phase */

typedef enum want { OK, STATE, STALE, LATER, FINISHED, UNAVAIL, ANSWER, CONFLICT } want;
enum { FRAMES = 10, PHASES = WEFT_WORKER_ABORTING + 1 };

static const char *const frame_names[FRAMES] = { "start",     "init",    "update",
                                                 "go init",   "go",      "finish",
                                                 "publish",   "weights", "reset",
                                                 "next start" };

static const weft_msg *put_frame(world *w, unsigned frame, uint64_t epoch)
{
  switch (frame) {
  case 0:
    return start(w, epoch);
  case 1:
    return accept_(w, epoch, WEFT_TRANSFER_INIT);
  case 2:
    return accept_(w, epoch, WEFT_TRANSFER_UPDATE);
  case 3:
    return go(w, epoch, WEFT_TRANSFER_INIT);
  case 4:
    return go(w, epoch, WEFT_TRANSFER_UPDATE);
  case 5:
    return finish(w, epoch);
  case 6:
    return publish(w, epoch, epoch);
  case 7:
    return world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_WEIGHTS);
  case 8:
    return world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_RESET);
  default:
    return start(w, epoch + 1);
  }
}

/* clang-format off */
static const want table[PHASES][FRAMES] = {
  /*             start  init   update go in  go     finish    publ   weights  reset    next */
  [WEFT_WORKER_IDLE] =
               { OK,    OK,    STATE, STATE, STATE, STATE,    STATE, ANSWER,  ANSWER,  OK },
  [WEFT_WORKER_OPEN] =
               { STATE, STATE, OK,    STATE, STATE, FINISHED, STATE, ANSWER,  CONFLICT, STATE },
  [WEFT_WORKER_ACCEPTING] =
               { STATE, STATE, STATE, STATE, STATE, STATE,    STATE, UNAVAIL, CONFLICT, STATE },
  [WEFT_WORKER_ACCEPTED] =
               { STATE, STATE, STATE, STATE, OK,    STATE,    STATE, ANSWER,  CONFLICT, STATE },
  [WEFT_WORKER_RECEIVING] =
               { STATE, STATE, STATE, STATE, STATE, STATE,    STATE, UNAVAIL, CONFLICT, STATE },
  [WEFT_WORKER_FINISHING] =
               { STATE, STATE, STATE, STATE, STATE, STATE,    STATE, UNAVAIL, CONFLICT, STATE },
  [WEFT_WORKER_INSTALLED] =
               { STATE, STATE, STATE, STATE, STATE, FINISHED, OK,    ANSWER,  CONFLICT, STATE },
  [WEFT_WORKER_ABORTING] =
               { STALE, STALE, STALE, STALE, STALE, STALE,    STATE, UNAVAIL, CONFLICT, LATER },
};
/* clang-format on */

static void check_want(const weft_msg *m, want expected)
{
  if (expected == LATER) {
    assert_null(m);
  } else if (expected == OK) {
    world_is(m, WEFT_MSG_W_OK);
  } else if (expected == FINISHED) {
    world_is(m, WEFT_MSG_W_FINISHED);
  } else if (expected == ANSWER) {
    world_is(m, WEFT_MSG_W_ANSWER);
  } else {
    world_refused(m, expected == STATE     ? WEFT_E_STATE
                     : expected == STALE   ? WEFT_E_STALE
                     : expected == UNAVAIL ? WEFT_E_UNAVAIL
                                           : WEFT_E_CONFLICT);
  }
}

static void every_frame_in_every_phase(void **state)
{
  (void)state;
  for (unsigned phase = 0; phase < PHASES; phase++) {
    for (unsigned frame = 0; frame < FRAMES; frame++) {
      world *w = begin();
      reach(w, (weft_worker_phase)phase, 3);
      print_message("%s in %s\n", frame_names[frame],
                    weft_worker_phase_name((weft_worker_phase)phase));
      check_want(put_frame(w, frame, 3), table[phase][frame]);
      world_end(w);
    }
  }
}

/* A heartbeat is answered in every phase, at once. */
static void a_heartbeat_never_waits(void **state)
{
  (void)state;
  for (unsigned phase = 0; phase < PHASES; phase++) {
    world *w = begin();
    reach(w, (weft_worker_phase)phase, 3);
    atomic_store(&w->device->received, 10);
    atomic_store(&w->device->expected, 20);
    const weft_w_state *s = beat(w);
    assert_int_equal(s->phase, phase);
    assert_int_equal(s->received, 10);
    assert_int_equal(s->expected, 20);
    assert_int_equal(s->pid, 4242);
    assert_int_equal(s->op, w->op);
    assert_int_equal(s->boot, WORLD_BOOT);
    assert_int_equal(s->incarnation, WORLD_INCARNATION);
    world_end(w);
  }
}

/* ---- abort */

static void abort_in_every_phase_leaves_nothing(void **state)
{
  (void)state;
  for (unsigned phase = 0; phase < PHASES; phase++) {
    world *w = begin();
    commit(w, 1, 1);
    reach(w, (weft_worker_phase)phase, 3);
    const uint64_t running = w->corr; /* of the job, where one is held */
    const bool held = w->hold;
    const weft_msg *m = abort_(w, 3);
    const uint64_t asked = w->corr;
    if (held) {
      assert_null(m); /* the device thread has not let go */
      assert_true(atomic_load(&w->device->cancel) || phase == WEFT_WORKER_ABORTING);
      w->done.err = WEFT_E_CANCELLED;
      w->hold = false;
      world_release(w);
      m = world_answer(w, asked);
      if (phase == WEFT_WORKER_ABORTING) {
        world_is(world_answer(w, running), WEFT_MSG_W_OK); /* both askers */
      } else {
        world_refused(world_answer(w, running), WEFT_E_CANCELLED);
      }
    }
    world_is(m, WEFT_MSG_W_OK);
    assert_int_equal(phase_of(w), WEFT_WORKER_IDLE);
    if (phase != WEFT_WORKER_IDLE) {
      assert_int_equal(w->jobs[w->job_count - 1], WEFT_DEVICE_ABANDON);
      assert_int_equal(w->last_run.epoch, 3);
    }
    w->done = (weft_device_done){ 0 };
    wefti_store_state st;
    wefti_store_state_get(w->device->store, &st);
    assert_int_equal(st.weights_sequence, 1);
    assert_int_equal(st.snapshots, 1);
    const size_t jobs = w->job_count;
    world_is(abort_(w, 3), WEFT_MSG_W_OK); /* repeated: no effect */
    assert_int_equal(w->job_count, jobs);
    world_refused(start(w, 3), WEFT_E_STALE);
    world_refused(publish(w, 3, 9), WEFT_E_STALE);
    commit(w, 4, 2);
    world_end(w);
  }
}

static void a_finish_that_ends_during_an_abort_is_dropped(void **state)
{
  (void)state;
  world *w = begin();
  reach(w, WEFT_WORKER_FINISHING, 3);
  const uint64_t finishing = w->corr;
  assert_null(abort_(w, 3));
  const uint64_t aborting = w->corr;
  world_release(w); /* installs: the cancel came too late; ABANDON is held now */
  world_refused(world_answer(w, finishing), WEFT_E_CANCELLED);
  assert_null(world_answer(w, aborting));
  world_release(w);
  world_is(world_answer(w, aborting), WEFT_MSG_W_OK);
  wefti_store_state st;
  wefti_store_state_get(w->device->store, &st);
  assert_int_equal(st.snapshots, 0);
  world_end(w);
}

static void an_abort_that_overtakes_its_start_wins(void **state)
{
  (void)state;
  world *w = begin();
  world_is(abort_(w, 3), WEFT_MSG_W_OK);
  assert_int_equal(w->job_count, 0);
  world_refused(start(w, 3), WEFT_E_STALE);
  world_refused(accept_(w, 2, WEFT_TRANSFER_INIT), WEFT_E_STALE);
  reach(w, WEFT_WORKER_OPEN, 5);
  world_is(abort_(w, 4), WEFT_MSG_W_OK); /* an older one leaves this session alone */
  assert_int_equal(phase_of(w), WEFT_WORKER_OPEN);
  world_is(abort_(w, 7), WEFT_MSG_W_OK); /* a newer one ends it */
  assert_int_equal(phase_of(w), WEFT_WORKER_IDLE);
  world_refused(start(w, 6), WEFT_E_STALE);
  world_refused(abort_(w, 0), WEFT_E_INVAL);
  world_end(w);
}

static void a_start_waits_for_the_abort_before_it(void **state)
{
  (void)state;
  world *w = begin();
  reach(w, WEFT_WORKER_ABORTING, 3);
  assert_null(start(w, 4));
  const uint64_t next = w->corr;
  w->hold = false;
  world_release(w);
  world_is(world_answer(w, next), WEFT_MSG_W_OK);
  assert_int_equal(phase_of(w), WEFT_WORKER_OPEN);
  world_end(w);
}

/* ---- identity */

static void frames_of_other_lives_are_stale(void **state)
{
  (void)state;
  world *w = world_begin_with(1, NULL, false);
  world_refused(world_ask(w, w_beat, W_BEAT, 0, .grant = 1, .grant_ms = 2000),
                WEFT_E_STALE); /* no engine yet */
  world_end(w);
  for (unsigned frame = 0; frame <= FRAMES; frame++) {
    for (unsigned wrong = 0; wrong < 2; wrong++) {
      w = begin();
      reach(w, WEFT_WORKER_OPEN, 3);
      w->boot += wrong == 0;
      w->incarnation += wrong == 1;
      const weft_msg *m = frame == FRAMES ? abort_(w, 3) : put_frame(w, frame, 3);
      world_refused(m, WEFT_E_STALE);
      assert_int_equal(((const weft_w_refused *)m)->boot, w->boot); /* the asker's */
      assert_int_equal(phase_of(w), WEFT_WORKER_OPEN);
      world_end(w);
    }
  }
}

static void adopt_checks_who_it_speaks_to(void **state)
{
  (void)state;
  world *w = world_begin_with(1, NULL, false);
  world_refused(world_ask(w, w_adopt, W_ADOPT, 0, .rank = 1, .world_size = 2),
                WEFT_E_INVAL);
  world_refused(world_ask(w, w_adopt, W_ADOPT, 0, .rank = 0, .world_size = 0),
                WEFT_E_INVAL);
  w->incarnation++;
  world_refused(world_ask(w, w_adopt, W_ADOPT, 0, .world_size = 1), WEFT_E_STALE);
  w->incarnation--;
  w->boot = 0;
  world_refused(world_ask(w, w_adopt, W_ADOPT, 0, .world_size = 1), WEFT_E_INVAL);
  world_end(w);
}

/* An adoption that arrives when its engine has died and been followed: nobody is there to
 * repeat what it is answered. */
static void a_dead_engines_adoption_changes_nothing(void **state)
{
  (void)state;
  world *w = begin();
  commit(w, 8, 8);
  const uint64_t alive = w->boot;
  for (unsigned i = 0; i < 3; i++) {
    w->boot = 500 + i % 2; /* two of them, the first one twice */
    const weft_w_state *s =
        world_as(world_ask(w, w_adopt, W_ADOPT, 0, .world_size = 2), w_state, W_STATE);
    assert_int_equal(s->again, 1);
    s = world_as(world_ask(w, w_adopt, W_ADOPT, 0, .world_size = 2, .echo_ns = 1),
                 w_state, W_STATE);
    assert_int_equal(s->again, 1);
    world_refused(world_ask(w, w_beat, W_BEAT, 0, .grant = 0), WEFT_E_STALE);
    w->boot = alive;
    assert_int_equal(beat(w)->again, 0);
    assert_ok(pin_err(w, 8));
  }
  /* What the first one was told is worth nothing after an adoption. */
  w->boot = 600;
  const uint64_t echo =
      world_as(world_ask(w, w_adopt, W_ADOPT, 0, .world_size = 2), w_state, W_STATE)
          ->stamp_ns;
  w->boot = 601;
  const uint64_t none[2] = { 0, 0 };
  assert_int_equal(world_as(world_adopt(w, 0, none), w_state, W_STATE)->again, 0);
  w->boot = 600;
  assert_int_equal(
      world_as(world_ask(w, w_adopt, W_ADOPT, 0, .world_size = 2, .echo_ns = echo),
               w_state, W_STATE)
          ->again,
      1);
  world_end(w);
}

static void a_new_boot_drops_everything(void **state)
{
  (void)state;
  for (unsigned phase = 0; phase < PHASES; phase++) {
    world *w = begin();
    const uint64_t none[2] = { 0, 0 };
    commit(w, 8, 8);
    reach(w, (weft_worker_phase)phase, 9);
    assert_ok(pin_err(w, 0));
    w->boot = 1000;
    world_as(world_adopt(w, 0, none), w_state, W_STATE);
    assert_err(pin_err(w, 0), WEFT_E_NOT_YET);
    assert_err(pin_err(w, 8), WEFT_E_NOT_YET);
    if (w->hold) {
      w->hold = false;
      world_release(w);
    }
    assert_int_equal(phase_of(w), WEFT_WORKER_IDLE);
    wefti_store_reap(w->device->store);
    assert_int_equal(beat(w)->snapshots, 0);
    commit(w, 1, 1); /* its epochs begin anew */
    assert_ok(pin_err(w, 1));
    w->boot = WORLD_BOOT; /* the old engine's frames still wander about */
    world_refused(world_adopt(w, 8, none), WEFT_E_STALE);
    world_refused(publish(w, 9, 9), WEFT_E_STALE);
    assert_ok(pin_err(w, 1));
    world_end(w);
  }
}

static void a_worker_behind_serves_nobody(void **state)
{
  (void)state;
  world *w = begin();
  const uint64_t other[2] = { 5, 5 };
  commit(w, 1, 1);
  world_as(world_adopt(w, 2, other), w_state, W_STATE); /* it missed a commit */
  assert_err(pin_err(w, 0), WEFT_E_UNAVAIL);
  world_as(start(w, 3), w_ok, W_OK); /* says its base is the worker's own... */
  assert_int_equal(w->last_run.strict, 0);
  world_is(abort_(w, 3), WEFT_MSG_W_OK);
  world_as(world_ask(w, w_start, W_START, 4, .base_sequence = 2, .base_digest_hi = 5,
                     .base_digest_lo = 5),
           w_ok, W_OK);
  assert_int_equal(w->last_run.strict, 1); /* ...or not: nothing may be shared */
  world_as(finish(w, 4), w_finished, W_FINISHED);
  world_as(publish(w, 4, 3), w_ok, W_OK);
  assert_ok(pin_err(w, 0));
  world_end(w);
}

/* ---- duplicates */

static void a_repeated_operation_is_done_once(void **state)
{
  (void)state;
  world *w = begin();
  reach(w, WEFT_WORKER_ACCEPTED, 3);
  w->hold = true;
  assert_null(go(w, 3, WEFT_TRANSFER_UPDATE));
  const uint64_t first = w->corr;
  w->op--;
  assert_null(go(w, 3, WEFT_TRANSFER_UPDATE)); /* the same op while it runs */
  const uint64_t second = w->corr;
  world_refused(world_answer(w, first), WEFT_E_CANCELLED);
  w->hold = false;
  w->done.bytes = 99;
  world_release(w);
  assert_int_equal(world_as(world_answer(w, second), w_ok, W_OK)->bytes, 99);
  const size_t jobs = w->job_count;
  w->op--;
  w->done.bytes = 0;
  const weft_w_ok *again =
      world_as(go(w, 3, WEFT_TRANSFER_UPDATE), w_ok, W_OK); /* after */
  assert_int_equal(again->bytes, 99);
  assert_int_equal(again->op, w->op);
  assert_int_equal(w->job_count, jobs);
  assert_int_equal(world_answers_to(w, first), 1);
  assert_int_equal(world_answers_to(w, second), 1);
  world_refused(go(w, 3, WEFT_TRANSFER_UPDATE), WEFT_E_STATE); /* another attempt */
  world_end(w);
}

static void a_repeated_publish_is_confirmed(void **state)
{
  (void)state;
  world *w = begin();
  commit(w, 3, 7);
  world_as(publish(w, 3, 7), w_ok, W_OK);
  world_as(publish(w, 3, 6), w_ok, W_OK);
  world_refused(publish(w, 3, 8), WEFT_E_STALE);
  world_refused(publish(w, 4, 8), WEFT_E_STATE);
  world_refused(finish(w, 3), WEFT_E_STALE);
  world_is(abort_(w, 3), WEFT_MSG_W_OK); /* too late to take anything back */
  assert_ok(pin_err(w, 7));
  assert_int_equal(beat(w)->weights_sequence, 7);
  world_end(w);
}

/* ---- failures */

static void a_failed_step_ends_the_session_here(void **state)
{
  (void)state;
  for (unsigned step = 0; step < 4; step++) {
    world *w = begin();
    if (step > 0) {
      reach(w, step == 2 ? WEFT_WORKER_ACCEPTED : WEFT_WORKER_OPEN, 3);
    }
    w->done.err = WEFT_E_INVAL;
    w->done.text = WEFT_STR("tensor 'x': no");
    const weft_msg *m = step == 0   ? start(w, 3)
                        : step == 1 ? accept_(w, 3, WEFT_TRANSFER_UPDATE)
                        : step == 2 ? go(w, 3, WEFT_TRANSFER_UPDATE)
                                    : finish(w, 3);
    world_refused(m, WEFT_E_INVAL);
    assert_string_equal(((const weft_w_refused *)m)->text.p, "tensor 'x': no");
    assert_int_equal(((const weft_w_refused *)m)->correctable, 0);
    assert_int_equal(phase_of(w), WEFT_WORKER_IDLE);
    w->done = (weft_device_done){ 0 };
    world_refused(finish(w, 3), WEFT_E_STALE);
    world_is(abort_(w, 3), WEFT_MSG_W_OK);
    commit(w, 4, 1);
    world_end(w);
  }
}

static void a_correctable_refusal_leaves_the_session_open(void **state)
{
  (void)state;
  world *w = begin();
  reach(w, WEFT_WORKER_OPEN, 3);
  w->done.err = WEFT_E_CONFLICT;
  w->done.correctable = 1;
  w->done.text = WEFT_STR("strict coverage");
  const weft_msg *m = finish(w, 3);
  world_refused(m, WEFT_E_CONFLICT);
  assert_int_equal(((const weft_w_refused *)m)->correctable, 1);
  assert_int_equal(phase_of(w), WEFT_WORKER_OPEN);
  w->done = (weft_device_done){ 0 };
  world_as(accept_(w, 3, WEFT_TRANSFER_UPDATE), w_ok, W_OK);
  world_as(go(w, 3, WEFT_TRANSFER_UPDATE), w_ok, W_OK);
  world_as(finish(w, 3), w_finished, W_FINISHED);
  world_end(w);
}

static void an_init_is_accept_and_go(void **state)
{
  (void)state;
  world *w = begin();
  world_as(accept_(w, 3, WEFT_TRANSFER_INIT), w_ok, W_OK);
  world_refused(go(w, 3, WEFT_TRANSFER_UPDATE), WEFT_E_STATE);
  world_as(go(w, 3, WEFT_TRANSFER_INIT), w_ok, W_OK);
  assert_int_equal(phase_of(w), WEFT_WORKER_IDLE);
  w->op--;
  world_as(go(w, 3, WEFT_TRANSFER_INIT), w_ok, W_OK); /* the same op once more */
  world_refused(go(w, 3, WEFT_TRANSFER_INIT), WEFT_E_STALE);
  world_is(abort_(w, 3), WEFT_MSG_W_OK);
  commit(w, 4, 1);
  world_as(accept_(w, 5, WEFT_TRANSFER_INIT), w_ok, W_OK);
  world_is(abort_(w, 5), WEFT_MSG_W_OK); /* a takeover in between */
  world_as(accept_(w, 6, WEFT_TRANSFER_INIT), w_ok, W_OK);
  world_end(w);
}

static void drafts_are_refused(void **state)
{
  (void)state;
  world *w = begin();
  world_refused(world_ask(w, w_start, W_START, 3, .draft = 1), WEFT_E_UNSUPPORTED);
  commit(w, 4, 1);
  world_end(w);
}

/* ---- questions */

static void questions_wait_for_questions_only(void **state)
{
  (void)state;
  world *w = begin();
  w->hold = true;
  assert_null(world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_WEIGHTS));
  const uint64_t first = w->corr;
  assert_null(world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_CHECKSUM));
  const uint64_t second = w->corr;
  assert_null(start(w, 3)); /* a session waits as well, it is not refused */
  const uint64_t third = w->corr;
  beat(w);
  w->hold = false;
  world_release(w);
  world_is(world_answer(w, first), WEFT_MSG_W_ANSWER);
  world_is(world_answer(w, second), WEFT_MSG_W_ANSWER);
  world_is(world_answer(w, third), WEFT_MSG_W_OK);
  world_refused(world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_STATUS),
                WEFT_E_UNSUPPORTED);
  world_end(w);
}

static void too_many_that_wait_are_refused(void **state)
{
  (void)state;
  world *w = begin();
  w->hold = true;
  assert_null(world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_WEIGHTS));
  for (unsigned i = 0; i < WORKER_WAITING_MAX; i++) {
    assert_null(world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_WEIGHTS));
  }
  world_refused(world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_WEIGHTS),
                WEFT_E_UNAVAIL);
  world_end(w); /* with all of them kept: nothing may leak */
}

static void a_kept_start_whose_epoch_was_aborted_is_stale(void **state)
{
  (void)state;
  world *w = begin();
  w->hold = true;
  assert_null(world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_WEIGHTS));
  assert_null(start(w, 3));
  const uint64_t kept = w->corr;
  world_is(abort_(w, 3), WEFT_MSG_W_OK);
  w->hold = false;
  world_release(w);
  world_refused(world_answer(w, kept), WEFT_E_STALE);
  world_end(w);
}

static void an_abort_cuts_a_question_short(void **state)
{
  (void)state;
  world *w = begin();
  reach(w, WEFT_WORKER_OPEN, 3);
  w->hold = true;
  assert_null(world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_CHECKSUM));
  const uint64_t question = w->corr;
  assert_null(abort_(w, 3));
  const uint64_t aborting = w->corr;
  assert_true(atomic_load(&w->device->cancel));
  w->done.err = WEFT_E_CANCELLED;
  world_release(w);
  world_refused(world_answer(w, question), WEFT_E_CANCELLED);
  assert_null(world_answer(w, aborting));
  w->done.err = WEFT_OK;
  world_release(w);
  world_is(world_answer(w, aborting), WEFT_MSG_W_OK);
  world_end(w);
}

/* ---- grants, readers, ends */

static uint64_t sim_clock(void *arg)
{
  return *(const uint64_t *)arg;
}

static void a_grant_is_two_seconds_from_the_echoed_stamp(void **state)
{
  (void)state;
  world *w = world_begin_with(1, NULL, true);
  const uint64_t none[2] = { 0, 0 };
  uint64_t now = 0;
  wefti_store_set_clock(w->device->store, sim_clock, &now);
  weft_sim_run(w->sim, 1000);
  world_as(world_adopt(w, 0, none), w_state, W_STATE);
  commit(w, 1, 1);
  const uint64_t stamp = beat(w)->stamp_ns;
  assert_true(stamp > 0);
  now = stamp;
  assert_err(pin_err(w, 0), WEFT_E_UNAVAIL);
  world_ask(w, w_beat, W_BEAT, 0, .grant = 1, .grant_ms = 2000,
            .echo_ns = stamp + 1000000000000U);
  assert_err(pin_err(w, 0), WEFT_E_UNAVAIL); /* no stamp of ours */
  world_ask(w, w_beat, W_BEAT, 0, .grant = 0, .echo_ns = stamp);
  assert_err(pin_err(w, 0), WEFT_E_UNAVAIL);
  world_ask(w, w_beat, W_BEAT, 0, .grant = 1, .grant_ms = 2000, .echo_ns = stamp);
  assert_ok(pin_err(w, 0));
  now = stamp + 1999999999U;
  assert_ok(pin_err(w, 1));
  now = stamp + 2000000000U;
  assert_err(pin_err(w, 0), WEFT_E_UNAVAIL);
  world_end(w);
}

static void left_snapshots_go_with_the_next_heartbeat(void **state)
{
  (void)state;
  world *w = begin();
  const weft_snapshot *held;
  commit(w, 1, 1);
  assert_ok(weft_store_pin(w->device->store, 0, &held));
  commit(w, 2, 2);
  assert_int_equal(beat(w)->readers, 1);
  assert_int_equal(w->jobs[w->job_count - 1],
                   WEFT_DEVICE_REAP); /* after an update, once */
  const size_t before = w->job_count;
  assert_int_equal(beat(w)->readers, 1);
  assert_int_equal(w->job_count, before);
  weft_store_unpin(w->device->store, held);
  beat(w);
  assert_int_equal(w->job_count, before + 1);
  assert_int_equal(w->jobs[w->job_count - 1], WEFT_DEVICE_REAP);
  world_end(w);
}

static void memory_is_tidied_after_an_abort_unless_something_waits(void **state)
{
  (void)state;
  world *w = begin();
  reach(w, WEFT_WORKER_OPEN, 3);
  world_is(abort_(w, 3), WEFT_MSG_W_OK);
  assert_int_equal(w->jobs[w->job_count - 1], WEFT_DEVICE_ABANDON);
  w->hold = true;
  beat(w);
  assert_int_equal(w->jobs[w->job_count - 1], WEFT_DEVICE_REAP);
  assert_false(atomic_load(&w->device->cancel));
  assert_null(start(w, 4)); /* waits, and ends the tidying early */
  const uint64_t starting = w->corr;
  assert_true(atomic_load(&w->device->cancel));
  w->hold = false;
  world_release(w);
  world_is(world_answer(w, starting), WEFT_MSG_W_OK);
  assert_false(atomic_load(&w->device->cancel));
  beat(w); /* what was left off is done later */
  assert_int_equal(w->jobs[w->job_count - 1], WEFT_DEVICE_REAP);
  const size_t jobs = w->job_count;
  beat(w);
  assert_int_equal(w->job_count, jobs);
  world_end(w);
}

static void without_its_device_thread_a_worker_ends(void **state)
{
  (void)state;
  world *w = begin();
  reach(w, WEFT_WORKER_RECEIVING, 3);
  weft_sim_kill(w->sim, w->device_actor);
  world_idle(w);
  assert_false(weft_sim_alive(w->sim, w->worker));
  assert_int_equal(w->worker_ended, 1 + WEFT_E_DOWN);
  world_end(w);
}

static void messages_for_others_do_not_end_it(void **state)
{
  (void)state;
  world *w = begin();
  for (unsigned type = 1; type < WEFT_MSG_COUNT; type++) {
    const weft_msg_desc *desc = weft_msg_desc_of(weft_messages(), (uint16_t)type);
    if (desc->to == WEFT_ROLE_WORKER) {
      continue;
    }
    weft_msg *m = calloc(1, desc->size);
    assert_non_null(m);
    m->type = (uint16_t)type;
    world_refused(world_put(w, m), WEFT_E_UNSUPPORTED);
    free(m);
  }
  commit(w, 1, 1);
  world_end(w);
}

/* Every allocation of a whole session fails once.  Whatever happens, each question has at
 * most one answer, and a session that follows works. */
static void no_allocation_failure_wedges_it(void **state)
{
  (void)state;
  for (uint64_t nth = 1; nth < 60; nth++) {
    world *w = begin();
    weft_sim_fail_alloc(w->sim, nth);
    const weft_msg *m = start(w, 3);
    if (m && m->type == WEFT_MSG_W_OK) {
      (void)accept_(w, 3, WEFT_TRANSFER_UPDATE);
      (void)go(w, 3, WEFT_TRANSFER_UPDATE);
      (void)finish(w, 3);
      (void)world_ask(w, w_query, W_QUERY, 0, .what = WEFT_QUERY_WEIGHTS);
    }
    weft_sim_fail_alloc(w->sim, 0);
    weft_sim_run(w->sim, weft_sim_now_ms(w->sim) + 1000); /* retries */
    world_is(abort_(w, 3), WEFT_MSG_W_OK);
    commit(w, 4, 1);
    world_end(w);
  }
}

/* ---- anything in any order */

/* What a confirmed abort promises, and what nothing may ever break. */
static void check_promises(world *w, uint64_t aborted)
{
  const worker *self = weft_sim_state(w->sim, w->worker);
  const bool session_job = w->is_held && !worker_job_is_question(w->last_run.job) &&
                           w->last_run.job != WEFT_DEVICE_ABANDON;
  if (aborted != 0 && session_job) {
    assert_true(w->last_run.epoch > aborted);
  }
  if (aborted != 0 && self->phase == WEFT_WORKER_INSTALLED) {
    assert_true(self->epoch > aborted);
  }
  wefti_store_state st;
  wefti_store_state_get(w->device->store, &st);
  const unsigned live = st.weights_sequence != 0;
  const bool may_have_one =
      self->phase == WEFT_WORKER_INSTALLED || self->phase == WEFT_WORKER_ABORTING;
  wefti_store_reap(w->device->store);
  wefti_store_state_get(w->device->store, &st);
  assert_true(st.snapshots <= live + (may_have_one ? 1 : 0));
  assert_true(self->epoch == 0 || self->epoch > self->ended ||
              self->phase == WEFT_WORKER_ABORTING);
  assert_int_equal(self->phase == WEFT_WORKER_IDLE, self->epoch == 0);
}

static void random_device(world *w)
{
  w->hold = weft_sim_random(w->sim) % 2;
  const bool fails = weft_sim_random(w->sim) % 8 == 0;
  w->done = (weft_device_done){ .err = fails ? WEFT_E_FAILED : WEFT_OK };
  w->done.correctable = weft_sim_random(w->sim) % 2;
  if (w->is_held && w->last_run.job == WEFT_DEVICE_ABANDON) {
    w->done = (weft_device_done){ 0 }; /* cannot fail */
  }
  if (w->is_held && weft_sim_random(w->sim) % 3 == 0) {
    world_release(w);
  }
}

/* What a well-behaved engine would send next, as a frame's number. */
static unsigned next_frame(world *w)
{
  const weft_worker_phase phase = phase_of(w);
  return phase == WEFT_WORKER_OPEN        ? (weft_sim_random(w->sim) % 2 ? 2 : 5)
         : phase == WEFT_WORKER_ACCEPTED  ? 4
         : phase == WEFT_WORKER_INSTALLED ? 6
                                          : 0;
}

static void no_order_of_frames_breaks_a_promise(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    world *w = world_begin_with(seed, NULL, false);
    const uint64_t none[2] = { 0, 0 };
    world_as(world_adopt(w, 0, none), w_state, W_STATE);
    uint64_t epoch = 3, aborted = 0, sequence = 0;
    for (unsigned step = 0; step < 400; step++) {
      uint64_t at = epoch - 2 + weft_sim_random(w->sim) % 4;
      unsigned frame = (unsigned)(weft_sim_random(w->sim) % (FRAMES + 3));
      const worker *self = weft_sim_state(w->sim, w->worker);
      if (weft_sim_random(w->sim) % 3 > 0) {
        frame = next_frame(w);
        at = self->epoch > 0 ? self->epoch : self->ended + 1;
        epoch = at > epoch ? at : epoch;
      }
      random_device(w);
      w->op -= weft_sim_random(w->sim) % 5 == 0; /* the same op again */
      if (frame == 6) {
        wefti_store_state st;
        const weft_msg *m = publish(w, at, sequence + 1);
        wefti_store_state_get(w->device->store, &st);
        assert_true(!m || m->type != WEFT_MSG_W_OK ||
                    st.weights_sequence == sequence + 1);
        sequence = st.weights_sequence;
      } else if (frame < FRAMES) {
        (void)put_frame(w, frame, at);
      } else {
        const weft_msg *m = abort_(w, at);
        aborted = m && m->type == WEFT_MSG_W_OK && at > aborted ? at : aborted;
      }
      check_promises(w, aborted);
      epoch += weft_sim_random(w->sim) % 6 == 0;
    }
    assert_true(sequence > 0); /* the walk does get to the end of sessions */
    world_end(w);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_frame_in_every_phase),
    cmocka_unit_test(a_heartbeat_never_waits),
    cmocka_unit_test(abort_in_every_phase_leaves_nothing),
    cmocka_unit_test(a_finish_that_ends_during_an_abort_is_dropped),
    cmocka_unit_test(an_abort_that_overtakes_its_start_wins),
    cmocka_unit_test(a_start_waits_for_the_abort_before_it),
    cmocka_unit_test(frames_of_other_lives_are_stale),
    cmocka_unit_test(adopt_checks_who_it_speaks_to),
    cmocka_unit_test(a_new_boot_drops_everything),
    cmocka_unit_test(a_dead_engines_adoption_changes_nothing),
    cmocka_unit_test(a_worker_behind_serves_nobody),
    cmocka_unit_test(a_repeated_operation_is_done_once),
    cmocka_unit_test(a_repeated_publish_is_confirmed),
    cmocka_unit_test(a_failed_step_ends_the_session_here),
    cmocka_unit_test(a_correctable_refusal_leaves_the_session_open),
    cmocka_unit_test(an_init_is_accept_and_go),
    cmocka_unit_test(drafts_are_refused),
    cmocka_unit_test(questions_wait_for_questions_only),
    cmocka_unit_test(too_many_that_wait_are_refused),
    cmocka_unit_test(a_kept_start_whose_epoch_was_aborted_is_stale),
    cmocka_unit_test(an_abort_cuts_a_question_short),
    cmocka_unit_test(a_grant_is_two_seconds_from_the_echoed_stamp),
    cmocka_unit_test(left_snapshots_go_with_the_next_heartbeat),
    cmocka_unit_test(memory_is_tidied_after_an_abort_unless_something_waits),
    cmocka_unit_test(without_its_device_thread_a_worker_ends),
    cmocka_unit_test(messages_for_others_do_not_end_it),
    cmocka_unit_test(no_allocation_failure_wedges_it),
    cmocka_unit_test(no_order_of_frames_breaks_a_promise),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
