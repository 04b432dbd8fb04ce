/* What patches of tied tensors build on: the same in place as beside the live ones.  A
 * backend that brings one byte of each tensor, over the host one. */
#define _GNU_SOURCE /* mkdtemp */
#include "device_fixture.h"
#include "weft/digest.h"

enum { BYTES = 300000, FIRST = 5, SECOND = 7 };

typedef struct patcher {
  const weft_transfer_ops *real;
  void *state;
  bool patches; /* else what comes is whole */
  size_t at;
  uint8_t value;
} patcher;

static weft_err patch_accept(void *state, const char *text, size_t len,
                             const weft_transfer_who *who, weft_plan **plan,
                             weft_why *why)
{
  const patcher *p = state;
  const weft_err err = p->real->accept(p->state, text, len, who, plan, why);
  for (size_t i = 0; err == WEFT_OK && p->patches && i < (*plan)->count; i++) {
    ((weft_plan_tensor *)(uintptr_t) & (*plan)->tensors[i])->patched = true;
    (*plan)->patches = true;
  }
  return err;
}

/* NOLINTNEXTLINE(readability-function-size): the interface has eight parameters */
static weft_err patch_receive(void *state, weft_plan *plan, void *const *dst,
                              weft_digest *digests, const atomic_bool *cancel,
                              weft_progress_fn *progress, void *arg, weft_why *why)
{
  const patcher *p = state;
  if (!plan->patches) {
    return p->real->receive(p->state, plan, dst, digests, cancel, progress, arg, why);
  }
  if (plan->on_write) {
    plan->on_write(plan->on_write_arg);
  }
  for (size_t i = 0; i < plan->count; i++) {
    if (plan->base[i] != dst[i]) {
      memcpy(dst[i], plan->base[i], plan->tensors[i].bytes);
    }
    ((uint8_t *)dst[i])[p->at] = p->value;
    digests[i] = weft_digest_of(dst[i], plan->tensors[i].bytes);
  }
  return WEFT_OK;
}

static void patch_abandon(void *state, weft_plan *plan)
{
  const patcher *p = state;
  p->real->abandon(p->state, plan);
}

static void patch_close(void *state)
{
  patcher *p = state;
  p->real->close(p->state);
  free(p);
}

static const weft_transfer_ops patch_ops = { .name = "patcher",
                                             .accept = patch_accept,
                                             .receive = patch_receive,
                                             .abandon = patch_abandon,
                                             .close = patch_close };

static patcher *begin_tied(bool inplace, fixture **f)
{
  char path[] = "/tmp/weft-tied-XXXXXX";
  static const char text[] =
      "{\"names\":[\"a\",\"b\"],\"dtype_names\":[\"uint8\",\"uint8\"],"
      "\"shapes\":[[300000],[300000]],\"tied\":[[\"a\",\"b\"]]}";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
  assert_int_equal(close(fd), 0);
  const wefti_device_opts opts = { .size = sizeof opts,
                                   .backend = "host",
                                   .threads = 1,
                                   .inplace = inplace,
                                   .manifest = path };
  *f = begin_with(&opts);
  assert_int_equal(unlink(path), 0);
  wefti_device *device = (*f)->w->device;
  patcher *p = calloc(1, sizeof *p);
  assert_non_null(p);
  *p = (patcher){ .real = device->transfer, .state = device->backend };
  device->transfer = &patch_ops;
  device->backend = p;
  return p;
}

static void patch(fixture *f, patcher *p, const char *name, size_t at, uint8_t value)
{
  const spec one = { name, WEFT_DTYPE_UINT8, 1, { BYTES }, 0 };
  p->patches = true;
  p->at = at;
  p->value = value;
  update(f, &one, 1);
  p->patches = false;
}

static void live_is(fixture *f, const char *name, uint8_t first, uint8_t second)
{
  const weft_snapshot *s;
  assert_ok(weft_store_pin(f->w->device->store, 0, &s));
  const weft_tensor *t = weft_snapshot_find(s, name);
  assert_non_null(t);
  const uint8_t *data = t->data;
  assert_int_equal(data[0], 1);
  assert_int_equal(data[FIRST], first);
  assert_int_equal(data[SECOND], second);
  assert_true(
      weft_digest_equal(weft_digest_load(t->digest), weft_digest_of(t->data, t->bytes)));
  weft_store_unpin(f->w->device->store, s);
}

static void both_are(fixture *f, uint8_t first, uint8_t second)
{
  live_is(f, "a", first, second);
  live_is(f, "b", first, second);
}

static void patches_of_either_build_on_both(void **state)
{
  (void)state;
  static const spec whole = { "a", WEFT_DTYPE_UINT8, 1, { BYTES }, 1 };
  for (unsigned inplace = 0; inplace < 2; inplace++) {
    fixture *f;
    patcher *p = begin_tied(inplace != 0, &f);
    commit(f, &whole, 1);
    world_as(start(f), w_ok, W_OK); /* one after the other is what both are then */
    patch(f, p, "a", FIRST, 50);
    patch(f, p, "b", SECOND, 70);
    const weft_msg *m = finish(f, false);
    world_refused(m, WEFT_E_CONFLICT);
    assert_non_null(
        strstr(world_as(m, w_refused, W_REFUSED)->text.p, "'a' and 'b' are tied but"));
    patch(f, p, "a", FIRST, 50); /* … when each has been said again */
    world_as(finish(f, false), w_finished, W_FINISHED);
    publish(f);
    both_are(f, 50, 70);
    world_as(start(f), w_ok, W_OK); /* the same of both is no conflict */
    patch(f, p, "a", FIRST, 51);
    patch(f, p, "b", FIRST, 51);
    world_as(finish(f, false), w_finished, W_FINISHED);
    publish(f);
    both_are(f, 51, 70);
    world_as(start(f), w_ok, W_OK); /* one alone is both */
    patch(f, p, "b", SECOND, 71);
    patch(f, p, "b", FIRST, 52);
    world_as(finish(f, false), w_finished, W_FINISHED);
    publish(f);
    both_are(f, 52, 71);
    end(f);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(patches_of_either_build_on_both),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
