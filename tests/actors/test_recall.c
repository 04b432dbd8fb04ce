#define _GNU_SOURCE
#include "weft_test.h"

#include "assembly.h"
#include "device.h"
#include "weft/digest.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* A worker's weights from its last life: the parent's end and the worker's end, with a
 * lifeline between them that the test carries messages over. */

enum {
  SLAB_BYTES = 4096,
  FILE_BYTES = SLAB_BYTES + WEFT_SLAB_MARK_BYTES,
  RANKS = 2,
  RANK = 1,
  OLD = 77,
  NEW = 78,
  OTHER = 50,
  SEQ = 9
};

typedef struct table_file {
  wefti_export_record r[3];
  int64_t shape[2];
  char names[16];
} table_file;

typedef struct world {
  weft_runtime *rt;
  wefti_imports *imports;
  wefti_device *device;
  wefti_taker *taker;
  weft_lifeline *line;
  int parent_end;
  uint8_t bytes[FILE_BYTES]; /* of the slab, and its mark */
  int slab;
  wefti_export_msg msg;
  table_file table;
  uint64_t digest[2];
  unsigned offers, refusals; /* that came to the worker */
  uint64_t released[16];     /* incarnations */
  size_t released_count;
  bool full; /* the lifeline takes nothing */
} world;

static void on_release(void *arg, uint32_t rank, uint64_t incarnation, uint64_t epoch)
{
  world *w = arg;
  (void)rank, (void)epoch;
  w->released[w->released_count++ % 16] = incarnation;
}

static weft_err on_send(void *arg, uint32_t rank, uint64_t incarnation,
                        const wefti_export_msg *msg, const int *fds, size_t nfds)
{
  world *w = arg;
  int copies[WEFTI_EXPORT_SLABS_MAX + 1];
  assert_int_equal(rank, RANK);
  assert_int_equal(incarnation, NEW);
  if (w->full && nfds > 0) {
    return WEFT_E_FULL;
  }
  for (size_t i = 0; i < nfds; i++) {
    copies[i] = dup(fds[i]);
    assert_true(copies[i] >= 0);
  }
  w->offers += nfds > 0;
  w->refusals += nfds == 0;
  wefti_taker_message(w->taker, msg, wefti_export_len(msg), copies, nfds);
  return WEFT_OK;
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

static void ignore(void *arg, const void *data, size_t len, int *fds, size_t nfds)
{
  (void)arg, (void)data, (void)len, (void)fds, (void)nfds;
}

static void fill_table(world *w)
{
  static const struct {
    uint64_t offset;
    const char *name;
  } rows[3] = { { 64, "a" }, { SLAB_BYTES - 8, "b" }, { 64, "c" } }; /* c is tied to a */
  weft_hasher *h = weft_hasher_create();
  assert_non_null(h);
  weft_hasher_reset(h);
  w->table.shape[0] = 2;
  for (size_t i = 0; i < 3; i++) {
    wefti_export_record *r = &w->table.r[i];
    const weft_digest d = weft_digest_of(w->bytes + rows[i].offset, 8);
    *r = (wefti_export_record){ .slab = 5,
                                .offset = rows[i].offset,
                                .bytes = 8,
                                .name_at = offsetof(table_file, names) + 2 * i,
                                .shape_at = offsetof(table_file, shape),
                                .name_len = 1,
                                .ndim = 1,
                                .dtype = "float32" };
    weft_digest_store(d, r->digest);
    w->table.names[2 * i] = rows[i].name[0];
    weft_hasher_add_tensor(h, rows[i].name, "float32", 1, w->table.shape, d);
  }
  const weft_digest all = weft_hasher_value(h);
  weft_hasher_destroy(h);
  w->digest[0] = all.hi;
  w->digest[1] = all.lo;
}

static void begin(world *w)
{
  memset(w, 0, sizeof *w);
  for (size_t i = 0; i < SLAB_BYTES; i++) {
    w->bytes[i] = (uint8_t)i;
  }
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  assert_ok(weft_runtime_create(&opts, &w->rt));
  const wefti_imports_ops ops = { .release = on_release, .send = on_send, .arg = w };
  assert_ok(wefti_imports_create(w->rt, RANKS, &ops, &w->imports));
  const wefti_device_opts device = { .size = sizeof device, .backend = "host" };
  assert_ok(wefti_device_create(&device, &w->device, NULL));
  assert_ok(wefti_taker_create(w->rt, w->device, &w->taker));
  int ends[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  w->parent_end = ends[0];
  assert_ok(weft_lifeline_open(weft_runtime_loop(w->rt, 0), ends[1], ignore, NULL, NULL,
                               &w->line));
  wefti_taker_set_line(w->taker, w->line, 0);
  w->slab = make_file(w->bytes, sizeof w->bytes, true);
  fill_table(w);
  w->msg = (wefti_export_msg){ .magic = WEFTI_EXPORT_MAGIC,
                               .version = WEFTI_EXPORT_VERSION,
                               .kind = WEFTI_EXPORT_INSTALL,
                               .slab_count = 1,
                               .epoch = 3,
                               .digest_hi = w->digest[0],
                               .digest_lo = w->digest[1],
                               .tensors = 3,
                               .bytes = 24,
                               .table_bytes = sizeof w->table };
  w->msg.slabs[0] = (wefti_export_slab){ .id = 5, .bytes = FILE_BYTES };
}

static void end(world *w)
{
  (void)close(w->slab);
  (void)close(w->parent_end);
  weft_lifeline_destroy(w->line);
  weft_runtime_destroy(w->rt); /* runs what was called: the sweeps */
  wefti_taker_destroy(w->taker);
  wefti_device_destroy(w->device);
  wefti_imports_destroy(w->imports);
}

static void installs(world *w, uint32_t rank, uint64_t incarnation)
{
  int fds[2] = { make_file(&w->table, sizeof w->table, false), dup(w->slab) };
  const wefti_heard heard = {
    .data = &w->msg, .len = wefti_export_len(&w->msg), .fds = fds, .nfds = 2
  };
  wefti_imports_message(w->imports, rank, incarnation, &heard);
}

/* What the worker has said reaches the parent. */
static void carry(world *w)
{
  wefti_export_msg msg;
  for (;;) {
    const ssize_t n = recv(w->parent_end, &msg, sizeof msg, MSG_DONTWAIT);
    if (n <= 0) {
      return;
    }
    const wefti_heard heard = { .data = &msg, .len = (size_t)n };
    wefti_imports_message(w->imports, RANK, NEW, &heard);
  }
}

static void old_life(world *w)
{
  installs(w, RANK, OLD);
  wefti_imports_visible(w->imports, SEQ, w->digest);
  wefti_imports_settle(w->imports, SEQ);
  wefti_imports_gone(w->imports, RANK, OLD);
}

static void wants(world *w, bool not_own)
{
  const wefti_keeper *k = w->device->keeper;
  assert_true(k->want(k->arg, SEQ, w->digest, not_own));
  carry(w);
}

static void told(world *w, uint64_t sequence)
{
  const wefti_keeper *k = w->device->keeper;
  k->had(k->arg, sequence, w->digest);
  carry(w);
}

static weft_err recall(world *w)
{
  weft_why why = { .err = WEFT_OK };
  const weft_err err = wefti_device_recall(w->device, w->digest, &why);
  if (err != WEFT_OK) {
    assert_true(strlen(why.text) > 0);
  }
  return err;
}

static const weft_snapshot *serve(world *w)
{
  const weft_snapshot *s;
  assert_ok(wefti_store_publish(w->device->store, WEFTI_RECALL_EPOCH, SEQ));
  assert_ok(weft_store_pin(w->device->store, SEQ, &s));
  assert_int_equal(s->tensor_count, 3);
  assert_string_equal(s->tensors[1].name, "b");
  assert_int_equal(s->tensors[1].shape[0], 2);
  assert_memory_equal(s->tensors[0].data, w->bytes + 64, 8);
  assert_memory_equal(s->tensors[1].data, w->bytes + SLAB_BYTES - 8, 8);
  assert_memory_equal(s->tensors[2].data, w->bytes + 64, 8);
  return s;
}

static uint64_t backed(const world *w)
{
  weft_memory_stats st;
  weft_memory_stats_get(w->device->memory, &st);
  return st.backed;
}

static void the_next_life_has_them_without_a_copy(void **state)
{
  (void)state;
  world w;
  begin(&w);
  old_life(&w);
  assert_int_equal(w.released_count, 0);
  wants(&w, false);
  assert_int_equal(w.offers, 1);
  assert_ok(recall(&w));
  const weft_snapshot *s = serve(&w);
  assert_int_equal(backed(&w), 0);
  told(&w, SEQ);
  assert_int_equal(w.released_count, 1); /* the worker holds them itself now */
  assert_int_equal(w.released[0], OLD);
  assert_memory_equal(s->tensors[0].data, w.bytes + 64, 8); /* still mapped */
  weft_store_unpin(w.device->store, s);
  end(&w);
}

static void what_the_new_life_tells_of_can_be_pinned(void **state)
{
  (void)state;
  world w;
  const weft_snapshot *s;
  void *holder;
  begin(&w);
  old_life(&w);
  assert_err(wefti_imports_pin(w.imports, RANK, SEQ, &s, &holder), WEFT_E_UNAVAIL);
  wants(&w, false);
  assert_ok(recall(&w));
  w.msg.epoch = WEFTI_RECALL_EPOCH;
  installs(&w, RANK, NEW);
  assert_err(wefti_imports_pin(w.imports, RANK, SEQ, &s, &holder), WEFT_E_UNAVAIL);
  told(&w, SEQ + 1); /* not what is visible */
  assert_err(wefti_imports_pin(w.imports, RANK, SEQ, &s, &holder), WEFT_E_UNAVAIL);
  told(&w, SEQ);
  assert_ok(wefti_imports_pin(w.imports, RANK, SEQ, &s, &holder));
  assert_int_equal(s->weights_sequence, SEQ);
  wefti_imports_unpin(holder);
  end(&w);
}

/* Its record was written and the others have it: the one that died must not come back
 * with what it had before. */
static void a_set_that_became_visible_after_the_death_is_kept_too(void **state)
{
  (void)state;
  world w;
  begin(&w);
  w.msg.digest_lo ^= 1;
  installs(&w, RANK, OLD);
  wefti_imports_visible(w.imports, SEQ - 1,
                        (uint64_t[2]){ w.digest[0], w.digest[1] ^ 1 });
  wefti_imports_settle(w.imports, SEQ - 1);
  w.msg.digest_lo ^= 1;
  w.msg.epoch = 4;
  installs(&w, RANK, OLD);
  wefti_imports_gone(w.imports, RANK, OLD);
  assert_int_equal(w.released_count, 0); /* nobody knows yet which it will be */
  wefti_imports_visible(w.imports, SEQ, w.digest);
  wefti_imports_settle(w.imports, SEQ);
  assert_int_equal(w.released_count, 1); /* now one does */
  wants(&w, false);
  assert_int_equal(w.offers, 1);
  assert_ok(recall(&w));
  weft_store_unpin(w.device->store, serve(&w));
  end(&w);
}

static void lives_that_ended_early_leave_no_heap(void **state)
{
  (void)state;
  world w;
  begin(&w);
  old_life(&w);
  for (uint64_t life = 100; life < 110; life++) { /* installed, never committed */
    w.msg.digest_hi++;
    installs(&w, RANK, life);
    wefti_imports_gone(w.imports, RANK, life);
  }
  assert_int_equal(w.released_count, 9); /* all but the newest, and what is visible */
  w.msg.digest_hi = w.digest[0];
  wants(&w, false);
  assert_int_equal(w.released_count, 10);
  assert_ok(recall(&w));
  end(&w);
}

static void where_nothing_is_visible_nothing_is_kept(void **state)
{
  (void)state;
  world w;
  begin(&w);
  installs(&w, RANK, OLD);
  wefti_imports_gone(w.imports, RANK, OLD);
  const wefti_keeper *k = w.device->keeper;
  (void)k->want(k->arg, 0, w.digest, false);
  carry(&w);
  assert_int_equal(w.released_count, 1);
  assert_int_equal(w.offers + w.refusals, 0);
  end(&w);
}

static void another_set_is_not_offered(void **state)
{
  (void)state;
  world w;
  begin(&w);
  old_life(&w);
  w.digest[1]++;
  wants(&w, false);
  assert_int_equal(w.offers, 0);
  assert_int_equal(w.refusals, 1);
  assert_err(recall(&w), WEFT_E_STATE);
  end(&w);
}

static void damage_is_found_and_a_replica_helps(void **state)
{
  (void)state;
  world w;
  begin(&w);
  installs(&w, 0, OTHER);
  old_life(&w);
  static const uint8_t hit = 1;
  int fds[2];
  assert_int_equal(pwrite(w.slab, &hit, 1, SLAB_BYTES - 3),
                   1); /* of both: one file here */
  wants(&w, false);
  assert_err(recall(&w), WEFT_E_FAILED);
  assert_int_equal(pwrite(w.slab, &w.bytes[SLAB_BYTES - 3], 1, SLAB_BYTES - 3), 1);
  wants(&w, true);
  assert_int_equal(w.offers, 2);
  assert_int_equal(w.released[0], OLD); /* nobody wants it any more */
  assert_int_equal(w.released_count, 1);

  /* The lender's next update: its bytes are held until they were copied. */
  w.msg.epoch = 9;
  w.msg.digest_hi++;
  installs(&w, 0, OTHER);
  w.msg.kind = WEFTI_EXPORT_DROP;
  w.msg.epoch = 3;
  w.msg.slab_count = 0;
  const wefti_heard drop = { .data = &w.msg,
                             .len = wefti_export_len(&w.msg),
                             .fds = fds };
  wefti_imports_message(w.imports, 0, OTHER, &drop);
  assert_int_equal(w.released_count, 1);
  assert_ok(recall(&w));
  assert_int_equal(w.device->kept == NULL ? 1 : 0, 0);
  weft_memory_stats kept;
  weft_memory_stats_get(w.device->kept, &kept);
  assert_int_equal(kept.slabs, 0); /* nothing of somebody who lives is held on to */
  assert_true(backed(&w) > 0);
  const weft_snapshot *s = serve(&w);
  assert_ptr_equal(s->tensors[0].data, s->tensors[2].data); /* tied there, tied here */
  told(&w, SEQ);
  wefti_imports_settle(w.imports, SEQ); /* the loop's sweep, which does not run here */
  assert_int_equal(w.released_count, 2);
  weft_store_unpin(w.device->store, s);
  end(&w);
}

static void a_borrower_that_dies_gives_back(void **state)
{
  (void)state;
  world w;
  begin(&w);
  installs(&w, 0, OTHER);
  wefti_imports_visible(w.imports, SEQ, w.digest);
  wants(&w, false); /* a new life without an old one */
  assert_int_equal(w.offers, 1);
  wefti_imports_gone(w.imports, RANK, NEW);
  wefti_imports_gone(w.imports, 0, OTHER);
  wefti_imports_visible(w.imports, SEQ + 1, w.digest);
  wefti_imports_settle(w.imports, SEQ + 1);
  assert_int_equal(w.released_count, 1);
  end(&w);
}

static void a_full_lifeline_is_a_refusal(void **state)
{
  (void)state;
  world w;
  begin(&w);
  old_life(&w);
  w.full = true;
  wants(&w, false);
  assert_int_equal(w.offers, 0);
  assert_int_equal(w.refusals, 1);
  assert_err(recall(&w), WEFT_E_STATE);
  end(&w);
}

static uint32_t mark_of(const world *w)
{
  uint32_t mark = 0;
  assert_int_equal(pread(w->slab, &mark, sizeof mark, SLAB_BYTES), sizeof mark);
  return mark;
}

/* An update in place was at it when its worker died. */
static void what_was_written_over_is_not_offered(void **state)
{
  (void)state;
  world w;
  begin(&w);
  old_life(&w);
  const uint32_t dirty = 1;
  assert_int_equal(pwrite(w.slab, &dirty, sizeof dirty, SLAB_BYTES), sizeof dirty);
  wants(&w, false);
  assert_int_equal(w.offers, 0);
  assert_int_equal(w.refusals, 1);
  assert_err(recall(&w), WEFT_E_STATE);
  end(&w);
}

/* In place the next life writes where the last one did, and marks what it marked. */
static void the_next_life_writes_in_place(void **state)
{
  (void)state;
  world w;
  begin(&w);
  w.device->inplace = true;
  old_life(&w);
  wants(&w, false);
  assert_ok(recall(&w));
  const weft_snapshot *s = serve(&w);
  const weft_tensor want = { .name = "b", .bytes = 8 };
  const wefti_cell *cell = wefti_inplace_cell(&want, s);
  assert_non_null(cell);
  const weft_extent *e = wefti_cell_extent(cell);
  weft_memory_mark(wefti_cell_memory(cell), e->slab, true);
  assert_int_equal(mark_of(&w), 1);
  memset(e->ptr, 7, 8);
  uint8_t there = 0;
  assert_int_equal(pread(w.slab, &there, 1, SLAB_BYTES - 8), 1);
  assert_int_equal(there, 7);
  wefti_inplace_clear(w.device);
  assert_int_equal(mark_of(&w), 0);
  weft_store_unpin(w.device->store, s);
  end(&w);
}

static void lie(world *w, unsigned which)
{
  wefti_export_record *r = &w->table.r[1];
  uint64_t *const numbers[] = { &r->offset,  &r->offset,   &r->bytes,      &r->slab,
                                &r->name_at, &r->shape_at, &w->msg.tensors };
  static const uint64_t values[] = { SLAB_BYTES - 7, UINT64_MAX, UINT64_MAX,    6,
                                     UINT64_MAX,     4,          UINT64_MAX / 2 };
  if (which < sizeof values / sizeof values[0]) {
    *numbers[which] = values[which];
  } else if (which == 7) {
    r->name_len = UINT32_MAX;
  } else if (which == 8) {
    r->ndim = WEFT_NDIM_MAX + 1;
  } else if (which == 9) {
    strcpy(r->dtype, "float33");
  } else if (which == 10) {
    strcpy(r->dtype, "float16"); /* of half as many bytes */
  } else if (which == 11) {
    r->digest[3] ^= 1;
  } else if (which == 12) {
    w->table.names[2] = 'z'; /* out of order */
  } else if (which == 13) {
    w->table.names[2] = 'a';
  } else if (which == 14) {
    w->msg.tensors = 2; /* good rows, another set */
  } else if (which == 15) {
    w->msg.slabs[0].bytes = FILE_BYTES + 1;
  } else if (which == 16) {
    w->table.shape[0] = -2;
  } else {
    w->msg.table_bytes = sizeof w->table + 1;
  }
}

/* Straight to the worker: a parent may be believed no more than its worker was. */
static void hostile_offers_are_refused(void **state)
{
  (void)state;
  for (unsigned i = 0; i < 18; i++) {
    for (unsigned borrowed = 0; borrowed < 2; borrowed++) {
      world w;
      begin(&w);
      w.msg.kind = WEFTI_EXPORT_OFFER;
      w.msg.flags = borrowed ? WEFTI_EXPORT_BORROWED : WEFTI_EXPORT_ALONE;
      lie(&w, i);
      int fds[2] = { make_file(&w.table, sizeof w.table, false), dup(w.slab) };
      wefti_taker_message(w.taker, &w.msg, wefti_export_len(&w.msg), fds, 2);
      if (recall(&w) == WEFT_OK) {
        fail_msg("lie %u was believed", i);
      }
      wefti_store_state st;
      wefti_store_state_get(w.device->store, &st);
      assert_int_equal(st.snapshots, 0);
      end(&w);
    }
  }
}

static void an_offer_without_its_slabs_is_none(void **state)
{
  (void)state;
  world w;
  begin(&w);
  w.msg.kind = WEFTI_EXPORT_OFFER;
  int fds[1] = { make_file(&w.table, sizeof w.table, false) };
  wefti_taker_message(w.taker, &w.msg, wefti_export_len(&w.msg), fds, 1);
  assert_err(recall(&w), WEFT_E_STATE);
  w.msg.kind = WEFTI_EXPORT_OFFER_SLABS; /* slabs first, and then the table */
  int slab[1] = { dup(w.slab) };
  wefti_taker_message(w.taker, &w.msg, wefti_export_len(&w.msg), slab, 1);
  w.msg.kind = WEFTI_EXPORT_OFFER;
  w.msg.slab_count = 0;
  fds[0] = make_file(&w.table, sizeof w.table, false);
  wefti_taker_message(w.taker, &w.msg, wefti_export_len(&w.msg), fds, 1);
  assert_ok(recall(&w));
  end(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_next_life_has_them_without_a_copy),
    cmocka_unit_test(what_the_new_life_tells_of_can_be_pinned),
    cmocka_unit_test(a_set_that_became_visible_after_the_death_is_kept_too),
    cmocka_unit_test(lives_that_ended_early_leave_no_heap),
    cmocka_unit_test(where_nothing_is_visible_nothing_is_kept),
    cmocka_unit_test(another_set_is_not_offered),
    cmocka_unit_test(damage_is_found_and_a_replica_helps),
    cmocka_unit_test(a_borrower_that_dies_gives_back),
    cmocka_unit_test(what_was_written_over_is_not_offered),
    cmocka_unit_test(the_next_life_writes_in_place),
    cmocka_unit_test(a_full_lifeline_is_a_refusal),
    cmocka_unit_test(hostile_offers_are_refused),
    cmocka_unit_test(an_offer_without_its_slabs_is_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
