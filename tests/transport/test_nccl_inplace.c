/* The nccl backend over tensors that are of use as they are: when it says that it writes,
 * and what it has written until then.  On the doubles; nothing here ran on a GPU. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "nccl_world.h"

enum { OLD = 0x5A };

/* Tensors full of OLD, and what on_write saw. */
typedef struct over {
  world *w;
  weft_plan *plan;
  gpu_buffers b;
  char *info;
  unsigned told;
} over;

static bool untouched(const over *o)
{
  for (size_t i = 0; i < o->plan->count; i++) {
    const uint64_t n = o->plan->tensors[i].bytes;
    uint8_t *got = malloc(n + 1);
    assert_non_null(got);
    assert_ok(weft_memory_read(o->w->memory, got, o->b.dst[i], n, NULL));
    uint64_t at = 0;
    while (at < n && got[at] == OLD) {
      at++;
    }
    free(got);
    if (at < n) {
      return false;
    }
  }
  return true;
}

static void on_write(void *arg)
{
  over *o = arg;
  assert_int_equal(o->told++, 0);
  assert_true(untouched(o));
}

static void prepare(over *o, world *w, const uint64_t *sizes, size_t count,
                    const char *more)
{
  *o = (over){ .w = w, .info = update_of(sizes, count, more) };
  o->plan = accept_text(w, o->info);
  o->b = gpu_buffers_make(w->memory, o->plan);
  assert_non_null(o->b.dst);
  for (size_t i = 0; i < count; i++) {
    if (o->b.dst[i] == NULL) {
      continue; /* no bytes */
    }
    uint8_t *old = malloc(sizes[i] + 1);
    assert_non_null(old);
    memset(old, OLD, sizes[i] + 1);
    assert_ok(weft_memory_write(w->memory, o->b.dst[i], old, sizes[i], NULL));
    free(old);
  }
  o->plan->on_write = on_write;
  o->plan->on_write_arg = o;
}

static weft_err receive(over *o, weft_why *why)
{
  return weft_transfer_nccl()->receive(o->w->backend, o->plan, o->b.dst, o->b.digests,
                                       NULL, NULL, NULL, why);
}

static void done(over *o)
{
  weft_transfer_nccl()->abandon(o->w->backend, o->plan);
  gpu_buffers_free(&o->b);
  free(o->info);
}

static void comes(world *w, const uint64_t *sizes, size_t count, uint64_t packed,
                  unsigned seed, const char *more)
{
  over o;
  weft_why why = { 0 };
  prepare(&o, w, sizes, count, more);
  send_these(w, sizes, count, packed, seed);
  trainer_start(&w->t);
  if (receive(&o, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_int_equal(trainer_join_thread(&w->t), 0);
  assert_int_equal(o.told, o.plan->bytes > 0);
  gpu_settle(weft_transfer_nccl(), w->backend);
  gpu_buffers_check(&o.b, o.plan, seed);
  done(&o);
}

static const uint64_t mixed[] = { 0, 5, 0, 9 << 20, 4096, 1, 70000, 3, (4 << 20) + 1, 0 };
enum { MIXED = sizeof mixed / sizeof *mixed };

static void it_is_told_once_before_the_first_byte(void **state)
{
  world *w = *state;
  static const uint64_t none[] = { 0, 0 };
  meet(w, "");
  comes(w, mixed, MIXED, UINT64_MAX, 1, "");
  comes(w, mixed + 3, MIXED - 3, UINT64_MAX, 2, "");
  comes(w, none, 2, UINT64_MAX, 3, "");
  comes(w, NULL, 0, UINT64_MAX, 4, "");
}

static void packed_too(void **state)
{
  world *w = *state;
  static const uint64_t edges[] = { 60, 40, 1, 99, 1, 250, 0, 100, 0, 3 };
  static const uint64_t large_first[] = { 5000, 3, 60, 40 };
  setenv("WEFT_FAKE_STREAM_DELAY_US", "2000", 1);
  meet(w, ",\"packed\":true,\"packed_buffer_size_bytes\":100,\"packed_num_buffers\":3");
  comes(w, edges, sizeof edges / sizeof *edges, 100, 1, "");
  comes(w, large_first, 4, 100, 2, "");
  comes(w, mixed, MIXED, 100, 3, "");
  comes(w, mixed, MIXED, 1 << 30, 4, ",\"packed_buffer_size_bytes\":1073741824");
  unsetenv("WEFT_FAKE_STREAM_DELAY_US");
}

/* more: of init_info. */
static void nobody_sends(world *w, const char *more, unsigned told)
{
  over o;
  weft_why why = { 0 };
  meet(w, more);
  prepare(&o, w, mixed, MIXED, "");
  assert_err(receive(&o, &why), WEFT_E_TIMEOUT);
  assert_int_equal(o.told, told);
  assert_true(untouched(&o));
  done(&o);
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
}

static void who_does_not_come_has_written_nothing(void **state)
{
  world *w = *state;
  weft_transfer_nccl()->close(w->backend);
  w->backend = open_nccl(200);
  nobody_sends(w, "", 0);
  nobody_sends(w, ",\"packed\":true,\"packed_buffer_size_bytes\":100", 0);
  nobody_sends(w, ",\"packed\":true", 0);
}

static void who_goes_before_the_first_byte_neither(void **state)
{
  world *w = *state;
  static const struct {
    size_t sends;
    unsigned told;
  } stops[] = { { 1, 0 }, { 2, 1 }, { 4, 1 } }; /* the first has no bytes */
  for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
    over o;
    weft_why why = { 0 };
    meet(w, "");
    prepare(&o, w, mixed, MIXED, "");
    send_these(w, mixed, MIXED, UINT64_MAX, 1);
    w->t.stop_after = stops[i].sends;
    trainer_start(&w->t);
    assert_int_not_equal(receive(&o, &why), WEFT_OK);
    (void)trainer_join_thread(&w->t);
    assert_int_equal(o.told, stops[i].told);
    assert_int_equal(untouched(&o), stops[i].told == 0);
    done(&o);
    trainer_close(&w->t);
    trainer_open(&w->t, 2);
  }
}

/* Then nobody knows when the first byte comes: it is told before. */
static void without_room_for_the_first_it_is_told_before(void **state)
{
  world *w = *state;
  over o;
  weft_why why = { 0 };
  meet(w, "");
  prepare(&o, w, mixed + 1, MIXED - 1, "");
  setenv("WEFT_FAKE_GPU_BYTES", "1", 1);
  const atomic_bool cancel = true;
  assert_err(weft_transfer_nccl()->receive(w->backend, o.plan, o.b.dst, o.b.digests,
                                           &cancel, NULL, NULL, &why),
             WEFT_E_CANCELLED);
  unsetenv("WEFT_FAKE_GPU_BYTES");
  assert_int_equal(o.told, 1);
  assert_true(untouched(&o));
  done(&o);
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
    WITH(it_is_told_once_before_the_first_byte),
    WITH(packed_too),
    WITH(who_does_not_come_has_written_nothing),
    WITH(who_goes_before_the_first_byte_neither),
    WITH(without_room_for_the_first_it_is_told_before),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
