#define _GNU_SOURCE /* memfd, O_TMPFILE */
#include "weft_test.h"

#include "host_fixture.h"
#include "weft_fail.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const int64_t sizes[] = { 5, 0, 3 << 20, 70000, 1, (1 << 20) + 13, 4096 };
enum { COUNT = sizeof sizes / sizeof *sizes };
static const weft_transfer_who alone = { .epoch = 7, .world_size = 1 };

typedef struct folder {
  char *dir;
  char path[256];
  char info[1024];
} folder;

static int set_up(void **state)
{
  folder *f = calloc(1, sizeof *f);
  assert_non_null(f);
  f->dir = make_folder();
  (void)snprintf(f->path, sizeof f->path, "%s/m.safetensors", f->dir);
  write_file(f->path, sizes, COUNT);
  (void)snprintf(f->info, sizeof f->info,
                 "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}", f->path);
  *state = f;
  return 0;
}

static int tear_down(void **state)
{
  folder *f = *state;
  char command[512];
  (void)snprintf(command, sizeof command, "rm -rf %s", f->dir);
  assert_int_equal(system(command), 0);
  free(f->dir);
  free(f);
  return 0;
}

static weft_err accept_text(void *host, const char *info, const weft_transfer_who *who,
                            weft_plan **plan, weft_why *why)
{
  return weft_transfer_host()->accept(host, info, strlen(info), who, plan, why);
}

static weft_plan *accepted(void *host, const char *info)
{
  weft_plan *plan = NULL;
  weft_why why = { 0 };
  if (accept_text(host, info, &alone, &plan, &why) != WEFT_OK) {
    fail_msg("%s: %s", info, why.text);
  }
  return plan;
}

static void count_progress(void *arg, uint64_t bytes)
{
  uint64_t *last = arg;
  assert_true(bytes >= *last);
  *last = bytes;
}

static void receive_and_check(void *host, weft_plan *plan)
{
  buffers b = make_buffers(plan);
  uint64_t last = 0;
  weft_why why = { 0 };
  if (weft_transfer_host()->receive(host, plan, b.dst, b.digests, NULL, count_progress,
                                    &last, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_int_equal(last, plan->bytes);
  check_buffers(plan, &b);
  free_buffers(&b);
}

static void a_file_arrives_whole(void **state)
{
  const folder *f = *state;
  for (unsigned threads = 0; threads <= 4; threads++) {
    void *host = open_host(NULL, threads, 0);
    weft_plan *plan = accepted(host, f->info);
    assert_int_equal(plan->count, COUNT);
    assert_string_equal(plan->tensors[0].name, "t0");
    receive_and_check(host, plan);
    weft_transfer_host()->abandon(host, plan);
    weft_transfer_host()->close(host);
  }
}

static void lists_select_and_are_checked(void **state)
{
  const folder *f = *state;
  void *host = open_host(NULL, 1, 0);
  char info[2048];
  (void)snprintf(info, sizeof info,
                 "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"},"
                 "\"names\":[\"t4\",\"t0\"]}",
                 f->path);
  weft_plan *plan = accepted(host, info);
  assert_int_equal(plan->count, 2);
  assert_int_equal(plan->bytes, 6);
  receive_and_check(host, plan);
  weft_transfer_host()->abandon(host, plan);
  (void)snprintf(
      info, sizeof info,
      "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"},\"names\":[\"t3\"],"
      "\"dtype_names\":[\"uint8\"],\"shapes\":[[70000]]}",
      f->path);
  plan = accepted(host, info);
  receive_and_check(host, plan);
  weft_transfer_host()->abandon(host, plan);
  weft_transfer_host()->close(host);
}

static void each_worker_takes_its_entry_of_a_list(void **state)
{
  const folder *f = *state;
  void *host = open_host(NULL, 1, 0);
  const char nothing[] = "{\"names\":[],\"dtype_names\":[],\"shapes\":[]}";
  char info[2048];
  (void)snprintf(info, sizeof info, "[%s,%s,%s,%s]", nothing, nothing, nothing, f->info);
  const weft_transfer_who who = { .rank = 1, .world_size = 2, .dp_index = 1 };
  weft_plan *plan = NULL;
  assert_ok(accept_text(host, info, &who, &plan, NULL));
  assert_int_equal(plan->count, COUNT);
  weft_transfer_host()->abandon(host, plan);
  const weft_transfer_who first = { .rank = 0, .world_size = 2 };
  assert_ok(accept_text(host, info, &first, &plan, NULL));
  assert_int_equal(plan->count, 0);
  receive_and_check(host, plan);
  weft_transfer_host()->abandon(host, plan);
  const weft_transfer_who beyond = { .rank = 0, .world_size = 2, .dp_index = 2 };
  weft_why why = { 0 };
  assert_err(accept_text(host, info, &beyond, &plan, &why), WEFT_E_INVAL);
  assert_string_equal(why.text,
                      "Invalid update_info for host backend: a list of 4 entries "
                      "has none for worker 4");
  (void)snprintf(info, sizeof info, "[%s]", f->info);
  const weft_transfer_who only = { .rank = 0, .world_size = 1, .dp_index = 3 };
  assert_ok(accept_text(host, info, &only, &plan, NULL));
  weft_transfer_host()->abandon(host, plan);
  weft_transfer_host()->close(host);
}

#define SHM "\"source\":{\"kind\":\"shm\",\"name\":\"/weft-none\",\"offsets\":[0]}"
static const struct {
  const char *info;
  const char *says;
} refused[] = {
  { "", "the text ends inside a value" },
  { "5", "not an object" },
  { "[]", "a list of 0 entries has none for worker 0" },
  { "[5]", "not an object" },
  { "{}", "'source' is missing" },
  { "{\"names\":[]}", "missing key 'dtype_names'" },
  { "{\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1]]}",
    "'source' is missing" },
  { "{\"source\":5}", "'source' is not an object" },
  { "{\"source\":{\"kind\":\"nfs\"}}", "source kind 'nfs' is none of" },
  { "{\"source\":{}}", "source kind '(none)'" },
  { "{\"sauce\":{}}", "unknown key 'sauce'" },
  { "{\"source\":{\"kind\":\"safetensors\",\"path\":\"/a\",\"mode\":1}}",
    "unknown key 'mode' in source" },
  { "{\"source\":{\"kind\":\"safetensors\"}}", "'path' in source is missing" },
  { "{\"source\":{\"kind\":\"safetensors\",\"path\":\"a/b\"}}", "is not absolute" },
  { "{\"source\":{\"kind\":\"safetensors\",\"path\":\"/nope/x\"}}",
    "/nope/x: cannot be opened" },
  { "{\"source\":{\"kind\":\"safetensors\",\"path\":\"/dev/null\"}}",
    "not a regular file" },
  { "{\"source\":{\"kind\":\"safetensors\",\"path\":\"/tmp\"}}", "not a regular file" },
  { "{" SHM "}", "missing key 'names'" },
  { "{" SHM ",\"names\":5,\"dtype_names\":[],\"shapes\":[]}", "'names' is not a list" },
  { "{" SHM ",\"names\":[\"a\"],\"dtype_names\":[],\"shapes\":[[1]]}",
    "`dtype_names` should be of the same size as `names`: got 0 and 1" },
  { "{" SHM ",\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1],[2]]}",
    "`shapes` should be of the same size as `names`: got 2 and 1" },
  { "{" SHM ",\"names\":[\"a\"],\"dtype_names\":[\"int7\"],\"shapes\":[[1]]}",
    "unknown dtype 'int7' of 'a'" },
  { "{" SHM ",\"names\":[\"a\"],\"dtype_names\":[3],\"shapes\":[[1]]}",
    "unknown dtype '(not a string)' of 'a'" },
  { "{" SHM ",\"names\":[\"\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1]]}",
    "a name is empty" },
  { "{" SHM ",\"names\":[7],\"dtype_names\":[\"int8\"],\"shapes\":[[1]]}",
    "not a string" },
  { "{" SHM ",\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[-1]]}",
    "dimension 0 of 'a' is negative" },
  { "{" SHM ",\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1.5]]}",
    "dimension 0 of 'a' is not an integer" },
  { "{" SHM
    ",\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[99999999999999999999]]}",
    "dimension 0 of 'a' is not an integer" },
  { "{" SHM
    ",\"names\":[\"a\"],\"dtype_names\":[\"int64\"],\"shapes\":[[4611686018427387904]]}",
    "shape of 'a' is too large" },
  { "{" SHM ",\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[5]}",
    "shape of 'a' is not a list" },
  { "{" SHM
    ",\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1,1,1,1,1,1,1,1,1]]}",
    "'a' has 9 dimensions" },
  { "{" SHM ",\"names\":[\"a\",\"b\",\"a\"],\"dtype_names\":[\"int8\",\"int8\",\"int8\"],"
    "\"shapes\":[[1],[1],[1]]}",
    "'a' is named twice" },
  { "{" SHM ",\"names\":[\"a\",\"b\",\"c\",\"d\",\"e\"],"
    "\"dtype_names\":[\"int8\",\"int8\",\"int8\",\"int8\",\"int8\"],"
    "\"shapes\":[[2305843009213693951],[2305843009213693951],[2305843009213693951],["
    "2305843009213693951],[2305843009213693951]]}",
    "the tensors up to 'e' are too large" },
  { "{" SHM ",\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1]]}",
    "shm /weft-none: cannot be opened" },
  { "{\"source\":{\"kind\":\"shm\",\"name\":\"/../etc/"
    "passwd\",\"offsets\":[]},\"names\":[],"
    "\"dtype_names\":[],\"shapes\":[]}",
    "is not a segment's name" },
};

static void bad_update_info_is_refused_by_name(void **state)
{
  (void)state;
  void *host = open_host(NULL, 1, 0);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    weft_plan *plan = NULL;
    weft_why why = { 0 };
    const weft_err err = accept_text(host, refused[i].info, &alone, &plan, &why);
    if (err == WEFT_OK || strstr(why.text, refused[i].says) == NULL || why.err != err) {
      fail_msg("%s: %s: %s", refused[i].info, weft_err_name(err), why.text);
    }
    assert_null(plan);
  }
  weft_transfer_host()->close(host);
}

/* It is the caller who can do something about it, so not LIMIT, which is the machine's.
 */
static void a_file_of_absurd_claims_is_bad_input(void **state)
{
  (void)state;
  static const char claim[] = "\xff\xff\xff\xff\xff\xff\xff\xff{}";
  static const char deep[] = "\x0d\0\0\0\0\0\0\0{\"a\":[[[[[[[[";
  const struct {
    const char *bytes;
    size_t len;
  } files[] = { { claim, sizeof claim - 1 }, { deep, sizeof deep - 1 } };
  char *dir = make_folder();
  char path[64];
  char info[128];
  void *host = open_host(NULL, 1, 0);
  (void)snprintf(path, sizeof path, "%s/f", dir);
  (void)snprintf(info, sizeof info,
                 "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}", path);
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    weft_plan *plan = NULL;
    weft_why why = { 0 };
    const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, files[i].bytes, files[i].len), files[i].len);
    assert_int_equal(close(fd), 0);
    assert_err(accept_text(host, info, &alone, &plan, &why), WEFT_E_INVAL);
    assert_int_equal(why.err, WEFT_E_INVAL);
    assert_non_null(strstr(why.text, path));
    assert_null(plan);
    assert_err(accept_text(host, info, &alone, &plan, NULL), WEFT_E_INVAL);
  }
  weft_transfer_host()->close(host);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(dir), 0);
  free(dir);
}

static void lists_that_contradict_the_file_are_refused(void **state)
{
  const folder *f = *state;
  static const char *const rows[][2] = {
    { "\"names\":[\"x\"]", "has no tensor 'x'" },
    { "\"names\":[\"t0\",\"t0\"]", "'t0' is named twice" },
    { "\"names\":[1]", "not a string" },
    { "\"names\":{}", "'names' is not a list" },
    { "\"shapes\":[]", "missing key 'names'" },
    { "\"names\":[\"t0\"],\"dtype_names\":[\"uint8\"]", "missing key 'shapes'" },
    { "\"names\":[\"t0\"],\"dtype_names\":[\"int8\"],\"shapes\":[[5]]",
      "'t0' is uint8, update_info says int8" },
    { "\"names\":[\"t0\"],\"dtype_names\":[\"uint8\"],\"shapes\":[[6]]",
      "'t0' has another shape" },
    { "\"names\":[\"t0\"],\"dtype_names\":[\"uint8\"],\"shapes\":[[5,1]]",
      "'t0' has another shape" },
    { "\"names\":[\"y\"],\"dtype_names\":[\"uint8\"],\"shapes\":[[5]]",
      "has no tensor 'y'" },
  };
  void *host = open_host(NULL, 1, 0);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char info[2048];
    (void)snprintf(info, sizeof info,
                   "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"},%s}", f->path,
                   rows[i][0]);
    weft_plan *plan = NULL;
    weft_why why = { 0 };
    if (accept_text(host, info, &alone, &plan, &why) == WEFT_OK ||
        strstr(why.text, rows[i][1]) == NULL) {
      fail_msg("%s: %s", info, why.text);
    }
  }
  weft_transfer_host()->close(host);
}

static void init_info_must_be_empty(void **state)
{
  (void)state;
  void *host = open_host(NULL, 1, 0);
  const weft_transfer_ops *ops = weft_transfer_host();
  weft_why why = { 0 };
  assert_ok(ops->init(host, "{}", 2, &alone, NULL, &why));
  assert_err(ops->init(host, "[]", 2, &alone, NULL, &why), WEFT_E_INVAL);
  assert_err(ops->init(host, "{\"packed\":true}", 15, &alone, NULL, &why), WEFT_E_INVAL);
  assert_string_equal(why.text,
                      "Invalid init_info for host backend: unknown key 'packed'");
  assert_err(ops->init(host, "{", 1, &alone, NULL, &why), WEFT_E_TRUNCATED);
  ops->close(host);
  ops->close(NULL);
}

static void receive_fails(void *host, weft_plan *plan, const atomic_bool *cancel,
                          weft_err want, const char *says)
{
  buffers b = make_buffers(plan);
  weft_why why = { 0 };
  assert_err(weft_transfer_host()->receive(host, plan, b.dst, b.digests, cancel, NULL,
                                           NULL, &why),
             want);
  if (strstr(why.text, says) == NULL) {
    fail_msg("%s", why.text);
  }
  free_buffers(&b);
  weft_transfer_host()->abandon(host, plan);
}

static void a_file_that_shrinks_or_changes_is_an_error(void **state)
{
  const folder *f = *state;
  for (unsigned threads = 1; threads <= 2; threads++) {
    write_file(f->path, sizes, COUNT);
    void *host = open_host(NULL, threads, 0);
    weft_plan *plan = accepted(host, f->info);
    struct stat sb;
    assert_int_equal(stat(f->path, &sb), 0);
    assert_int_equal(truncate(f->path, sb.st_size - 100), 0);
    receive_fails(host, plan, NULL, WEFT_E_TRUNCATED,
                  "ended after 3996 of 4096 bytes of 't6'");
    write_file(f->path, sizes, COUNT);
    plan = accepted(host, f->info);
    const struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
    assert_int_equal(utimensat(AT_FDCWD, f->path, times, 0), 0);
    receive_fails(host, plan, NULL, WEFT_E_CONFLICT, "was changed while it was read");
    weft_transfer_host()->close(host);
  }
}

static void cancel_is_seen(void **state)
{
  const folder *f = *state;
  for (unsigned threads = 1; threads <= 2; threads++) {
    void *host = open_host(NULL, threads, 0);
    const atomic_bool cancel = true;
    receive_fails(host, accepted(host, f->info), &cancel, WEFT_E_CANCELLED, "cancelled");
    weft_transfer_host()->close(host);
  }
}

static void only_files_below_the_root(void **state)
{
  const folder *f = *state;
  char root[256];
  char inside[300];
  char path[400];
  char info[1024];
  (void)snprintf(root, sizeof root, "%s/root", f->dir);
  (void)snprintf(inside, sizeof inside, "%s/model", root);
  assert_int_equal(mkdir(root, 0700), 0);
  assert_int_equal(mkdir(inside, 0700), 0);
  void *host = open_host(root, 1, 0);
  const struct {
    const char *name;
    const char *link; /* NULL = a file is written there */
    weft_err err;
  } rows[] = {
    { "root/model/plain", NULL, WEFT_OK },
    { "root/link-inside", "model/plain", WEFT_OK }, /* as in a model cache */
    { "root/link-outside", "../m.safetensors", WEFT_E_DENIED },
    { "link-to-root", "root", WEFT_E_DENIED }, /* resolves to the root itself */
    { "rootless", NULL, WEFT_E_DENIED },       /* shares the root's first letters */
    { "m.safetensors", NULL, WEFT_E_DENIED },
    { "root/../m.safetensors", NULL, WEFT_E_DENIED },
    { "root/nothing", "missing", WEFT_E_NOTFOUND },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    (void)snprintf(path, sizeof path, "%s/%s", f->dir, rows[i].name);
    if (rows[i].link != NULL) {
      assert_int_equal(symlink(rows[i].link, path), 0);
    } else {
      write_file(path, sizes, 1);
    }
    (void)snprintf(info, sizeof info,
                   "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}", path);
    weft_plan *plan = NULL;
    weft_why why = { 0 };
    const weft_err err = accept_text(host, info, &alone, &plan, &why);
    if (err != rows[i].err) {
      fail_msg("%s: %s: %s", rows[i].name, weft_err_name(err), why.text);
    }
    weft_transfer_host()->abandon(host, plan);
  }
  weft_transfer_host()->close(host);
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .weights_root = "/no/such/root" };
  assert_err(weft_transfer_host()->open(&opts, &host, NULL), WEFT_E_NOTFOUND);
}

static void a_fifo_does_not_hold_us(void **state)
{
  const folder *f = *state;
  char path[300];
  char info[512];
  (void)snprintf(path, sizeof path, "%s/fifo", f->dir);
  assert_int_equal(mkfifo(path, 0600), 0);
  (void)snprintf(info, sizeof info,
                 "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}", path);
  void *host = open_host(NULL, 1, 0);
  weft_plan *plan = NULL;
  assert_err(accept_text(host, info, &alone, &plan, NULL), WEFT_E_INVAL);
  weft_transfer_host()->close(host);
}

static void a_segment_arrives(void **state)
{
  (void)state;
  char name[64];
  (void)snprintf(name, sizeof name, "/weft-test-%ld", (long)getpid());
  const int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
  assert_true(fd >= 0);
  enum { SIZE = 3000 };
  uint8_t bytes[SIZE];
  for (size_t i = 0; i < 1000; i++) {
    bytes[i] = pattern(0, i);
    bytes[1999 + i] = pattern(1, i);
  }
  assert_int_equal(write(fd, bytes, SIZE), SIZE);
  char info[512];
  const char lists[] = "\"names\":[\"t1\",\"t0\",\"t2\"],\"dtype_names\":[\"bfloat16\","
                       "\"uint8\",\"float32\"],\"shapes\":[[5,100],[1000],[0,4]]";
  (void)snprintf(
      info, sizeof info,
      "{\"source\":{\"kind\":\"shm\",\"name\":\"%s\",\"offsets\":[1999,0,3000]},%s}",
      name, lists);
  void *host = open_host(NULL, 2, 0);
  weft_plan *plan = accepted(host, info);
  receive_and_check(host, plan);
  weft_transfer_host()->abandon(host, plan);
  plan = accepted(host, info);
  assert_int_equal(ftruncate(fd, 2500), 0); /* would be SIGBUS under a mapping */
  receive_fails(host, plan, NULL, WEFT_E_TRUNCATED,
                "ended after 501 of 1000 bytes of 't1'");
  weft_why why = { 0 };
  assert_err(accept_text(host, info, &alone, &plan, &why), WEFT_E_TRUNCATED);
  assert_non_null(
      strstr(why.text, "'t1' needs 1000 bytes at 1999, the segment has 2500"));
  static const char *const offsets[][2] = {
    { "[0,0]", "`offsets` should be of the same size as `names`: got 2 and 3" },
    { "[-1,0,0]", "offset of 't1' is not a size" },
    { "[9223372036854775807,0,0]", "'t1' needs 1000 bytes at 9223372036854775807" },
    { "5", "'offsets' in source is not a list" },
  };
  for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
    (void)snprintf(info, sizeof info,
                   "{\"source\":{\"kind\":\"shm\",\"name\":\"%s\",\"offsets\":%s},%s}",
                   name, offsets[i][0], lists);
    if (accept_text(host, info, &alone, &plan, &why) == WEFT_OK ||
        strstr(why.text, offsets[i][1]) == NULL) {
      fail_msg("%s: %s", info, why.text);
    }
  }
  assert_int_equal(shm_unlink(name), 0);
  assert_int_equal(close(fd), 0);
  weft_transfer_host()->close(host);
}

static void a_tensor_beyond_4_gib_of_a_sparse_file(void **state)
{
  const folder *f = *state;
  const int64_t hole[] = { INT64_C(4500000000) };
  const int64_t tail[] = { 1000 };
  const weft_st_spec specs[] = { { "t0", WEFT_DTYPE_UINT8, 1, hole },
                                 { "t1", WEFT_DTYPE_UINT8, 1, tail } };
  const int fd = open(f->path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  weft_st_writer *w = NULL;
  assert_ok(weft_st_writer_create(fd, specs, 2, &w, NULL));
  weft_st_writer_destroy(w);
  uint8_t bytes[1000];
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] = pattern(1, i);
  }
  const off_t at = lseek(fd, hole[0], SEEK_CUR);
  assert_int_equal(pwrite(fd, bytes, sizeof bytes, at), sizeof bytes);
  assert_int_equal(close(fd), 0);
  char info[512];
  (void)snprintf(
      info, sizeof info,
      "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"},\"names\":[\"t1\"]}",
      f->path);
  void *host = open_host(NULL, 1, 0);
  weft_plan *plan = accepted(host, f->info);
  assert_int_equal(plan->bytes, UINT64_C(4500001000));
  weft_transfer_host()->abandon(host, plan);
  plan = accepted(host, info);
  receive_and_check(host, plan);
  weft_transfer_host()->abandon(host, plan);
  weft_transfer_host()->close(host);
}

static void ten_thousand_tensors(void **state)
{
  const folder *f = *state;
  enum { N = 10000 };
  int64_t *many = calloc(N, sizeof *many);
  assert_non_null(many);
  for (int i = 0; i < N; i++) {
    many[i] = i % 50;
  }
  write_file(f->path, many, N);
  for (unsigned threads = 1; threads <= 2; threads++) {
    void *host = open_host(NULL, threads, 0);
    weft_plan *plan = accepted(host, f->info);
    assert_int_equal(plan->count, N);
    receive_and_check(host, plan);
    weft_transfer_host()->abandon(host, plan);
    weft_transfer_host()->close(host);
  }
  free(many);
}

static void each_failed_allocation_is_an_error(void **state)
{
  const folder *f = *state;
  const weft_transfer_ops *ops = weft_transfer_host();
  const char *const allow[] = { "a", "b:1" };
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .tcp_allow = allow,
                                    .tcp_allow_count = 2 };
  buffers b = { NULL, NULL, 0 };
  {
    void *host = open_host(NULL, 1, 0);
    weft_plan *plan = accepted(host, f->info);
    b = make_buffers(plan);
    ops->abandon(host, plan);
    ops->close(host);
  }
  FOR_EACH_FAILURE
  {
    void *host = NULL;
    weft_plan *plan = NULL;
    weft_err err = ops->open(&opts, &host, NULL);
    if (err == WEFT_OK) {
      err = accept_text(host, f->info, &alone, &plan, NULL);
    }
    if (err == WEFT_OK) {
      err = ops->receive(host, plan, b.dst, b.digests, NULL, NULL, NULL, NULL);
    }
    assert_int_equal(err, fail_hit ? WEFT_E_NOMEM : WEFT_OK);
    ops->abandon(host, plan);
    ops->close(host);
    END_UNLESS_FAILED
  }
  free_buffers(&b);
}

#define FIXTURE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
int main(void)
{
  const struct CMUnitTest tests[] = {
    FIXTURE(a_file_arrives_whole),
    FIXTURE(lists_select_and_are_checked),
    FIXTURE(each_worker_takes_its_entry_of_a_list),
    cmocka_unit_test(bad_update_info_is_refused_by_name),
    cmocka_unit_test(a_file_of_absurd_claims_is_bad_input),
    FIXTURE(lists_that_contradict_the_file_are_refused),
    cmocka_unit_test(init_info_must_be_empty),
    FIXTURE(a_file_that_shrinks_or_changes_is_an_error),
    FIXTURE(cancel_is_seen),
    FIXTURE(only_files_below_the_root),
    FIXTURE(a_fifo_does_not_hold_us),
    cmocka_unit_test(a_segment_arrives),
    FIXTURE(a_tensor_beyond_4_gib_of_a_sparse_file),
    FIXTURE(ten_thousand_tensors),
    FIXTURE(each_failed_allocation_is_an_error),
  };
  return cmocka_run_group_tests_name("transport.transfer_host", tests, NULL, NULL);
}
