/* Votes of a fleet's engine in the journal: which is open, over restarts and segments. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "weft/journal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];
static uint64_t boot;

static int setup(void **state)
{
  (void)state;
  (void)snprintf(dir, sizeof dir, "/tmp/weft-votes-XXXXXX");
  boot = 0;
  return mkdtemp(dir) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
  (void)state;
  DIR *d = opendir(dir);
  const struct dirent *e;
  while ((e = readdir(d)) != NULL) {
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    (void)unlink(path);
  }
  (void)closedir(d);
  return rmdir(dir);
}

static weft_journal *opened(size_t segment_bytes)
{
  weft_journal *j = NULL;
  weft_why why = { .text = "" };
  const weft_journal_opts opts = { .size = sizeof opts,
                                   .dir = dir,
                                   .fallback_id = "replica",
                                   .boot_id = ++boot,
                                   .now_ms = 1000,
                                   .segment_bytes = segment_bytes,
                                   .keep_records = 4 };
  if (weft_journal_open(&opts, &j, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  return j;
}

static void put(weft_journal *j, weft_journal_record r)
{
  weft_why why = { .text = "" };
  if (weft_journal_write(j, &r, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
}

static weft_journal_record begun(uint64_t epoch)
{
  return (weft_journal_record){ .kind = WEFT_JOURNAL_BEGUN, .epoch = epoch, .at_ms = 5 };
}

static weft_journal_record of_fleet(weft_journal_kind kind, uint64_t epoch,
                                    uint64_t sequence)
{
  return (weft_journal_record){ .kind = kind,
                                .epoch = epoch,
                                .sequence = sequence,
                                .weights_sequence = sequence,
                                .digest_hi = 3,
                                .digest_lo = 4,
                                .declared = true,
                                .version = "step",
                                .fleet = "fleet-a",
                                .fleet_boot = 77,
                                .fleet_epoch = 10 + epoch,
                                .fleet_sequence = sequence == 0 ? 0 : 100 + sequence };
}

/* How many records of the kind were read, the last in *out. */
static unsigned find(const weft_journal *j, weft_journal_kind kind,
                     weft_journal_record *out)
{
  size_t count;
  const weft_journal_record *const *all = weft_journal_history(j, &count);
  unsigned found = 0;
  for (size_t i = 0; i < count; i++) {
    if (all[i]->kind == kind) {
      found++;
      *out = *all[i];
    }
  }
  return found;
}

static void a_vote_is_read_as_it_was_written(void **state)
{
  (void)state;
  weft_journal *j = opened(0);
  put(j, begun(1));
  put(j, of_fleet(WEFT_JOURNAL_VOTE, 1, 0));
  weft_journal_close(j);
  j = opened(0);
  weft_journal_record r = { 0 };
  assert_int_equal(find(j, WEFT_JOURNAL_VOTE, &r), 1);
  assert_string_equal(r.fleet, "fleet-a");
  assert_int_equal(r.fleet_boot, 77);
  assert_int_equal(r.fleet_epoch, 11);
  assert_string_equal(r.version, "step");
  assert_true(r.declared);
  assert_int_equal(r.digest_lo, 4);
  assert_int_equal(r.boot_id, 1);
  /* How it ended is not for a restart to say. */
  assert_int_equal(find(j, WEFT_JOURNAL_ABORTED, &r), 0);
  weft_journal_close(j);
}

static void commits_keep_whose_session_they_end(void **state)
{
  (void)state;
  weft_journal *j = opened(0);
  put(j, of_fleet(WEFT_JOURNAL_VOTE, 1, 0));
  put(j, of_fleet(WEFT_JOURNAL_WEIGHTS, 1, 1));
  put(j, (weft_journal_record){ .kind = WEFT_JOURNAL_LABEL,
                                .sequence = 2,
                                .weights_sequence = 1,
                                .version = "label" });
  weft_journal_close(j);
  j = opened(0);
  weft_journal_record r = { 0 };
  assert_int_equal(find(j, WEFT_JOURNAL_WEIGHTS, &r), 1);
  assert_int_equal(r.fleet_sequence, 101);
  assert_int_equal(r.fleet_epoch, 11);
  assert_int_equal(find(j, WEFT_JOURNAL_LABEL, &r), 1);
  assert_string_equal(r.fleet, "");
  assert_int_equal(r.fleet_boot, 0);
  weft_journal_close(j);
}

static void an_open_vote_outlives_its_segment(void **state)
{
  (void)state;
  weft_journal_record r = { 0 };
  weft_journal *j = opened(1); /* every record begins a segment */
  put(j, of_fleet(WEFT_JOURNAL_VOTE, 1, 0));
  for (uint64_t i = 1; i <= 30; i++) {
    put(j, (weft_journal_record){
               .kind = WEFT_JOURNAL_LABEL, .sequence = i, .version = "label" });
  }
  weft_journal_close(j);
  for (unsigned i = 0; i < 3; i++) {
    j = opened(1);
    assert_int_equal(find(j, WEFT_JOURNAL_VOTE, &r), 1);
    assert_int_equal(r.fleet_epoch, 11);
    weft_journal_close(j);
  }
  j = opened(1);
  put(j, of_fleet(WEFT_JOURNAL_ABORTED, 0, 0)); /* of another epoch: not its end */
  put(j, (weft_journal_record){ .kind = WEFT_JOURNAL_ABORTED,
                                .fleet = "fleet-a",
                                .fleet_boot = 77,
                                .fleet_epoch = 11 });
  for (uint64_t i = 31; i <= 60; i++) {
    put(j, (weft_journal_record){
               .kind = WEFT_JOURNAL_LABEL, .sequence = i, .version = "label" });
  }
  weft_journal_close(j);
  j = opened(1);
  assert_int_equal(find(j, WEFT_JOURNAL_VOTE, &r), 0);
  weft_journal_close(j);
}

static void a_fleets_name_has_its_limit(void **state)
{
  (void)state;
  weft_journal *j = opened(0);
  char name[WEFT_JOURNAL_FLEET_MAX + 2];
  memset(name, 'f', sizeof name);
  name[sizeof name - 1] = '\0';
  weft_journal_record r = of_fleet(WEFT_JOURNAL_VOTE, 1, 0);
  r.fleet = name;
  assert_err(weft_journal_write(j, &r, NULL), WEFT_E_LIMIT);
  name[WEFT_JOURNAL_FLEET_MAX] = '\0';
  put(j, r);
  weft_journal_close(j);
  j = opened(0);
  assert_int_equal(find(j, WEFT_JOURNAL_VOTE, &r), 1);
  assert_string_equal(r.fleet, name);
  weft_journal_close(j);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    CASE(a_vote_is_read_as_it_was_written),
    CASE(commits_keep_whose_session_they_end),
    CASE(an_open_vote_outlives_its_segment),
    CASE(a_fleets_name_has_its_limit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
