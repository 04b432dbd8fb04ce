#define _GNU_SOURCE
#include "weft_test.h"

#include "exports.h"
#include "weft/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What a parent makes of what a worker sends; the test plays the worker. */

enum { SLAB_BYTES = 4096, FILE_BYTES = SLAB_BYTES + WEFT_SLAB_MARK_BYTES, LIFE = 77 };

typedef struct table_file {
  wefti_export_record r[2];
  int64_t shape[2];
  char names[16];
} table_file;

typedef struct world {
  weft_runtime *rt;
  wefti_imports *imports;
  uint64_t released[16]; /* epochs */
  size_t released_count;
  int slab;
  wefti_export_msg msg;
  table_file table;
} world;

static void on_release(void *arg, uint32_t rank, uint64_t incarnation, uint64_t epoch)
{
  world *w = arg;
  assert_int_equal(rank, 1);
  assert_int_equal(incarnation, LIFE);
  w->released[w->released_count++ % 16] = epoch;
}

static int make_file(const void *data, size_t len, bool sealed)
{
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, data, len), (ssize_t)len);
  if (sealed) {
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  }
  return fd;
}

static void begin(world *w)
{
  uint8_t bytes[FILE_BYTES] = { 0 };
  memset(w, 0, sizeof *w);
  for (size_t i = 0; i < SLAB_BYTES; i++) {
    bytes[i] = (uint8_t)i;
  }
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  assert_ok(weft_runtime_create(&opts, &w->rt));
  const wefti_imports_ops ops = { .release = on_release, .arg = w };
  assert_ok(wefti_imports_create(w->rt, 2, &ops, &w->imports));
  w->slab = make_file(bytes, sizeof bytes, true);
  w->table.r[0] = (wefti_export_record){ .slab = 5,
                                         .offset = 64,
                                         .bytes = 8,
                                         .name_at = offsetof(table_file, names),
                                         .shape_at = offsetof(table_file, shape),
                                         .name_len = 1,
                                         .ndim = 1,
                                         .dtype = "float32" };
  w->table.r[1] = w->table.r[0];
  w->table.r[1].offset = SLAB_BYTES - 8;
  w->table.r[1].name_at += 2;
  w->table.shape[0] = 2;
  memcpy(w->table.names, "a\0b", 4);
  w->msg = (wefti_export_msg){ .magic = WEFTI_EXPORT_MAGIC,
                               .version = WEFTI_EXPORT_VERSION,
                               .kind = WEFTI_EXPORT_INSTALL,
                               .slab_count = 1,
                               .epoch = 3,
                               .tensors = 2,
                               .bytes = 16,
                               .table_bytes = sizeof w->table };
  w->msg.slabs[0] = (wefti_export_slab){ .id = 5, .bytes = FILE_BYTES };
}

static void end(world *w)
{
  (void)close(w->slab);
  weft_runtime_destroy(w->rt); /* runs what was called: the sweeps */
  wefti_imports_destroy(w->imports);
}

static void hear(world *w, size_t nfds)
{
  int fds[2] = { -1, -1 };
  if (nfds > 0) {
    fds[0] = make_file(&w->table, sizeof w->table, false);
  }
  if (nfds > 1) {
    fds[1] = dup(w->slab);
  }
  const wefti_heard heard = {
    .data = &w->msg, .len = wefti_export_len(&w->msg), .fds = fds, .nfds = nfds
  };
  wefti_imports_message(w->imports, 1, LIFE, &heard);
}

/* What was heard last is. */
static void visible(world *w, uint64_t weights_sequence)
{
  const uint64_t digest[2] = { w->msg.digest_hi, w->msg.digest_lo };
  wefti_imports_visible(w->imports, weights_sequence, digest);
}

static bool can_pin(world *w, uint64_t weights_sequence)
{
  const weft_snapshot *s;
  void *holder;
  if (wefti_imports_pin(w->imports, 1, weights_sequence, &s, &holder) != WEFT_OK) {
    return false;
  }
  wefti_imports_unpin(holder);
  return true;
}

static void what_is_visible_can_be_read(void **state)
{
  (void)state;
  world w;
  const weft_snapshot *s;
  void *holder;
  begin(&w);
  hear(&w, 2);
  assert_false(can_pin(&w, 9)); /* installed, not visible */
  visible(&w, 9);
  wefti_imports_settle(w.imports, 9);
  assert_ok(wefti_imports_pin(w.imports, 1, 9, &s, &holder));
  assert_int_equal(s->tensor_count, 2);
  assert_string_equal(s->tensors[1].name, "b");
  assert_string_equal(s->tensors[1].dtype, "float32");
  assert_int_equal(s->tensors[0].shape[0], 2);
  assert_int_equal(((const uint8_t *)s->tensors[0].data)[1], 65);
  assert_int_equal(((const uint8_t *)s->tensors[1].data)[7], 255);
  wefti_imports_unpin(holder);
  assert_false(can_pin(&w, 8));
  end(&w);
}

static void an_old_one_goes_with_its_reader_and_is_released(void **state)
{
  (void)state;
  world w;
  const weft_snapshot *s;
  void *holder;
  begin(&w);
  hear(&w, 2);
  visible(&w, 1);
  wefti_imports_settle(w.imports, 1);
  assert_ok(wefti_imports_pin(w.imports, 1, 1, &s, &holder));
  w.msg.epoch = 4;
  hear(&w, 2);
  visible(&w, 2);
  assert_true(can_pin(&w, 1)); /* until readers are sent to the new one */
  assert_true(can_pin(&w, 2));
  wefti_imports_settle(w.imports, 2);
  assert_true(can_pin(&w, 1)); /* as long as the first reader is there */
  assert_int_equal(w.released_count, 0);
  assert_int_equal(((const uint8_t *)s->tensors[0].data)[0], 64); /* still mapped */
  wefti_imports_unpin(holder);
  assert_err(wefti_imports_pin(w.imports, 1, 1, &s, &holder), WEFT_E_GONE);
  wefti_imports_settle(w.imports, 2); /* the loop's sweep, which does not run here */
  assert_int_equal(w.released_count, 1);
  assert_int_equal(w.released[0], 3);
  end(&w);
}

/* A session in place has its readers wait outside. */
static void held_ones_are_not_pinned_and_readers_are_counted(void **state)
{
  (void)state;
  world w;
  begin(&w);
  const weft_snapshot *s;
  void *holder;
  char who[96];
  hear(&w, 2);
  visible(&w, 7);
  assert_ok(wefti_imports_pin(w.imports, 1, 7, &s, &holder));
  wefti_imports_hold(w.imports, true);
  assert_false(can_pin(&w, 7));
  assert_int_equal(wefti_imports_readers(w.imports, who, sizeof who), 1);
  assert_string_equal(who, "rank 1 sequence 7 by 1");
  wefti_imports_unpin(holder);
  assert_int_equal(wefti_imports_readers(w.imports, who, sizeof who), 0);
  wefti_imports_hold(w.imports, false);
  assert_true(can_pin(&w, 7));
  end(&w);
}

/* Nobody but the slab need say it: its writer may be dead. */
static void marked_ones_are_not_pinned(void **state)
{
  (void)state;
  world w;
  begin(&w);
  hear(&w, 2);
  visible(&w, 7);
  assert_true(can_pin(&w, 7));
  for (uint32_t dirty = 2; dirty-- > 0;) {
    assert_int_equal(pwrite(w.slab, &dirty, sizeof dirty, SLAB_BYTES), sizeof dirty);
    assert_int_equal(can_pin(&w, 7), dirty == 0);
  }
  end(&w);
}

static void dropped_and_gone_ones_are_let_go(void **state)
{
  (void)state;
  world w;
  begin(&w);
  hear(&w, 2);
  w.msg.kind = WEFTI_EXPORT_DROP;
  w.msg.slab_count = 0;
  hear(&w, 0);
  visible(&w, 1);
  assert_false(can_pin(&w, 1));
  w.msg.kind = WEFTI_EXPORT_INSTALL;
  w.msg.slab_count = 1;
  hear(&w, 2);
  visible(&w, 2);
  assert_true(can_pin(&w, 2));
  wefti_imports_gone(w.imports, 1, LIFE);
  assert_false(can_pin(&w, 2));
  end(&w);
}

static void nobody_joins_a_reader_of_what_is_gone(void **state)
{
  (void)state;
  world w;
  const weft_snapshot *s;
  void *holder;
  void *second;
  begin(&w);
  hear(&w, 2);
  visible(&w, 1);
  assert_ok(wefti_imports_pin(w.imports, 1, 1, &s, &holder));
  wefti_imports_gone(w.imports, 1, LIFE);
  assert_err(wefti_imports_pin(w.imports, 1, 1, &s, &second), WEFT_E_UNAVAIL);
  assert_int_equal(((const uint8_t *)s->tensors[0].data)[0], 64); /* still mapped */
  wefti_imports_unpin(holder);
  end(&w);
}

/* A worker keeps a snapshot for each that is not released. */
static void what_cannot_become_visible_any_more_is_released(void **state)
{
  (void)state;
  world w;
  begin(&w);
  hear(&w, 2);
  visible(&w, 1);
  wefti_imports_gone(w.imports, 1, LIFE);
  assert_int_equal(w.released_count, 0); /* kept for the next life, read by nobody */
  assert_false(can_pin(&w, 1));
  w.msg.epoch = 4;
  hear(&w, 2); /* the next life is given what is visible */
  wefti_imports_settle(w.imports, 1);
  assert_int_equal(w.released_count, 0);
  w.msg.epoch = 5;
  hear(&w, 2);
  visible(&w, 2);
  wefti_imports_settle(w.imports, 2);
  assert_int_equal(w.released_count, 2);
  assert_true(can_pin(&w, 2));
  end(&w);
}

static void a_label_makes_nothing_else_visible(void **state)
{
  (void)state;
  world w;
  const weft_snapshot *s;
  void *holder;
  begin(&w);
  hear(&w, 2);
  visible(&w, 1);
  w.msg.epoch = 4;
  w.msg.digest_lo = 99;
  hear(&w, 2); /* installed, not committed */
  w.msg.digest_lo = 0;
  visible(&w, 1); /* only the label has changed */
  assert_ok(wefti_imports_pin(w.imports, 1, 1, &s, &holder));
  assert_int_equal(s->digest_lo, 0);
  wefti_imports_unpin(holder);

  wefti_imports_gone(w.imports, 1, LIFE); /* the next life has it still to get */
  w.msg.epoch = 5;
  hear(&w, 2);
  visible(&w, 1);
  assert_false(can_pin(&w, 1));
  visible(&w, 2);
  assert_true(can_pin(&w, 2));
  end(&w);
}

static void other_bytes_than_those_of_the_commit_are_not_pinned(void **state)
{
  (void)state;
  world w;
  const weft_snapshot *s;
  void *holder;
  begin(&w);
  w.msg.digest_lo = 7;
  hear(&w, 2);
  wefti_heard heard = { .data = &w.msg, .len = wefti_export_len(&w.msg), .nfds = 2 };
  int fds[2] = { make_file(&w.table, sizeof w.table, false), dup(w.slab) };
  heard.fds = fds;
  w.msg.digest_lo = 8; /* rank 0: what was committed; rank 1's did not come through */
  wefti_imports_message(w.imports, 0, LIFE, &heard);
  visible(&w, 1);
  assert_false(can_pin(&w, 1));
  assert_ok(wefti_imports_pin(w.imports, 0, 1, &s, &holder));
  assert_int_equal(s->digest_lo, 8);
  wefti_imports_unpin(holder);
  end(&w);
}

static void shards_have_digests_of_their_own(void **state)
{
  (void)state;
  world w;
  begin(&w);
  hear(&w, 2);
  w.msg.digest_hi = 5; /* of all of them together */
  visible(&w, 1);
  assert_true(can_pin(&w, 1));
  end(&w);
}

static void slabs_may_come_in_a_message_before(void **state)
{
  (void)state;
  world w;
  begin(&w);
  w.msg.kind = WEFTI_EXPORT_SLABS;
  int fd = dup(w.slab);
  const wefti_heard heard = {
    .data = &w.msg, .len = wefti_export_len(&w.msg), .fds = &fd, .nfds = 1
  };
  wefti_imports_message(w.imports, 1, LIFE, &heard);
  w.msg.kind = WEFTI_EXPORT_INSTALL;
  w.msg.slab_count = 0;
  hear(&w, 1);
  visible(&w, 1);
  assert_true(can_pin(&w, 1));
  end(&w);
}

/* Each is one lie; whatever was told can then not be pinned, and is released. */
static void lies_are_refused(void **state)
{
  (void)state;
  for (unsigned lie = 0; lie < 16; lie++) {
    world w;
    size_t nfds = 2;
    begin(&w);
    wefti_export_record *r = &w.table.r[1];
    switch (lie) {
    case 0:
      r->offset = SLAB_BYTES - 7;
      break;
    case 1:
      r->offset = UINT64_MAX;
      break;
    case 2:
      r->bytes = UINT64_MAX;
      break;
    case 3:
      r->slab = 6;
      break;
    case 4:
      r->name_at = sizeof w.table;
      break;
    case 5:
      r->name_len = UINT32_MAX;
      break;
    case 6:
      r->shape_at = sizeof w.table - 4;
      break;
    case 7:
      r->ndim = WEFT_NDIM_MAX + 1;
      break;
    case 8:
      memset(r->dtype, 'x', sizeof r->dtype);
      break;
    case 9:
      strcpy(r->dtype, "float33");
      break;
    case 10:
      w.msg.tensors = UINT64_MAX / 2;
      break;
    case 11:
      w.msg.table_bytes = sizeof w.table + 1;
      break;
    case 12:
      w.msg.table_bytes = UINT64_MAX;
      break;
    case 13:
      w.msg.slabs[0].bytes = FILE_BYTES + 1;
      break;
    case 14:
      nfds = 1;
      break;
    case 15:
      w.msg.version++;
      break;
    default:
      break;
    }
    hear(&w, nfds);
    visible(&w, 1);
    if (can_pin(&w, 1)) {
      fail_msg("lie %u was believed", lie);
    }
    wefti_imports_settle(w.imports, 1); /* the loop's sweep, which does not run here */
    assert_int_equal(w.released_count, lie == 15 ? 0 : 1);
    end(&w);
  }
}

static void a_file_that_could_shrink_is_refused(void **state)
{
  (void)state;
  world w;
  begin(&w);
  (void)close(w.slab);
  static const uint8_t zeros[FILE_BYTES];
  w.slab = make_file(zeros, sizeof zeros, false);
  hear(&w, 2);
  visible(&w, 1);
  assert_false(can_pin(&w, 1));
  end(&w);
}

static void every_prefix_of_a_message_is_refused(void **state)
{
  (void)state;
  world w;
  wefti_export_msg out;
  begin(&w);
  const size_t len = wefti_export_len(&w.msg);
  for (size_t n = 0; n < len; n++) {
    assert_false(wefti_export_read(&w.msg, n, &out));
  }
  assert_true(wefti_export_read(&w.msg, len, &out));
  w.msg.slab_count = WEFTI_EXPORT_SLABS_MAX + 1;
  assert_false(wefti_export_read(&w.msg, len, &out));
  end(&w);
}

static unsigned maps_of(const char *name)
{
  char line[512];
  unsigned count = 0;
  FILE *f = fopen("/proc/self/maps", "re");
  assert_non_null(f);
  while (fgets(line, sizeof line, f)) {
    count += strstr(line, name) != NULL;
  }
  (void)fclose(f);
  return count;
}

/* Its pages go back while the loop is at something else. */
static void a_large_slab_is_unmapped_elsewhere(void **state)
{
  (void)state;
  enum { LARGE = 8 << 20, LOOKS = 5000 };
  world w;
  begin(&w);
  (void)close(w.slab);
  w.slab = memfd_create("large", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(ftruncate(w.slab, LARGE), 0);
  assert_int_equal(fcntl(w.slab, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  w.msg.slabs[0].bytes = LARGE;
  for (unsigned i = 0; i < 3; i++) {
    hear(&w, 2);
    assert_int_equal(maps_of("memfd:large"), 1);
    w.msg.kind = WEFTI_EXPORT_DROP;
    w.msg.slab_count = 0;
    hear(&w, 0);
    w.msg.kind = WEFTI_EXPORT_INSTALL;
    w.msg.slab_count = 1;
    for (unsigned k = 0; k < LOOKS && maps_of("memfd:large") > 0; k++) {
      (void)usleep(1000);
    }
    assert_int_equal(maps_of("memfd:large"), 0);
  }
  hear(&w, 2);
  end(&w);
  assert_int_equal(maps_of("memfd:large"), 0); /* the end waits for it */
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_is_visible_can_be_read),
    cmocka_unit_test(an_old_one_goes_with_its_reader_and_is_released),
    cmocka_unit_test(held_ones_are_not_pinned_and_readers_are_counted),
    cmocka_unit_test(marked_ones_are_not_pinned),
    cmocka_unit_test(dropped_and_gone_ones_are_let_go),
    cmocka_unit_test(nobody_joins_a_reader_of_what_is_gone),
    cmocka_unit_test(what_cannot_become_visible_any_more_is_released),
    cmocka_unit_test(a_label_makes_nothing_else_visible),
    cmocka_unit_test(other_bytes_than_those_of_the_commit_are_not_pinned),
    cmocka_unit_test(shards_have_digests_of_their_own),
    cmocka_unit_test(slabs_may_come_in_a_message_before),
    cmocka_unit_test(lies_are_refused),
    cmocka_unit_test(a_file_that_could_shrink_is_refused),
    cmocka_unit_test(every_prefix_of_a_message_is_refused),
    cmocka_unit_test(a_large_slab_is_unmapped_elsewhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
