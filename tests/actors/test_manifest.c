/* The manifest's reader and writer: what is taken, what each mistake is answered with. */
#define _GNU_SOURCE /* mkdtemp */
#include "weft_test.h"

#include "manifest.h"
#include "weft/safetensors.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char good[] =
    "{\"names\":[\"b\",\"a\",\"s\",\"c\"],"
    "\"dtype_names\":[\"bfloat16\",\"float32\",\"int64\",\"bfloat16\"],"
    "\"shapes\":[[4,2],[3],[],[4,2]],\"tied\":[[\"c\",\"b\"]]}";

static void check_good(const wefti_manifest *m)
{
  assert_int_equal(m->count, 4);
  assert_int_equal(m->tied_count, 2);
  assert_int_equal(m->bytes, 16 + 12 + 8 + 16);
  assert_string_equal(m->tensors[0].name, "a");
  assert_string_equal(m->tensors[0].dtype, "float32");
  assert_int_equal(m->tensors[0].ndim, 1);
  assert_int_equal(m->tensors[0].shape[0], 3);
  assert_int_equal(m->tied[0], WEFTI_UNTIED);
  assert_string_equal(m->tensors[1].name, "b");
  assert_int_equal(m->tensors[1].ndim, 2);
  assert_int_equal(m->tensors[1].shape[1], 2);
  assert_int_equal(m->tensors[1].bytes, 16);
  assert_int_equal(m->tied[1], m->tied[2]);
  assert_true(m->tied[1] == 1 || m->tied[1] == 2);
  assert_string_equal(m->tensors[3].name, "s");
  assert_int_equal(m->tensors[3].ndim, 0);
  assert_int_equal(wefti_manifest_find(m, "s"), 3);
  assert_int_equal(wefti_manifest_find(m, "bb"), SIZE_MAX);
}

static void lists_become_a_table_by_name(void **state)
{
  (void)state;
  wefti_manifest *m = NULL;
  assert_ok(wefti_manifest_parse(good, strlen(good), "m.json", &m, NULL));
  check_good(m);
  wefti_manifest_free(m);
  static const char other[] = "{\"names\":[],\"dtypes\":[],\"shapes\":[]}";
  assert_ok(wefti_manifest_parse(other, strlen(other), "m.json", &m, NULL));
  assert_int_equal(m->count, 0);
  assert_int_equal(wefti_manifest_find(m, "a"), SIZE_MAX);
  wefti_manifest_free(m);
  wefti_manifest_free(NULL);
}

static void every_prefix_is_refused(void **state)
{
  (void)state;
  for (size_t len = 0; len < strlen(good); len++) {
    wefti_manifest *m = NULL;
    weft_why why = { 0 };
    char *exact = malloc(len > 0 ? len : 1); /* so that a read beyond it is seen */
    assert_non_null(exact);
    memcpy(exact, good, len);
    assert_err(wefti_manifest_parse(exact, len, "m.json", &m, &why), WEFT_E_INVAL);
    assert_null(m);
    assert_int_equal(strncmp(why.text, "m.json: ", 8), 0);
    free(exact);
  }
}

typedef struct mistake {
  const char *text, *said;
} mistake;

#define ONE(dtype, shape)                                                                \
  "{\"names\":[\"a\"],\"dtype_names\":[" dtype "],\"shapes\":[" shape "]}"
#define BIG "[1152921504606846976]"
#define BIG4 BIG "," BIG "," BIG "," BIG
#define TWO(tied)                                                                        \
  "{\"names\":[\"a\",\"b\",\"c\"],\"dtype_names\":[\"int8\",\"int8\",\"uint8\"],"        \
  "\"shapes\":[[2],[2],[2]],\"tied\":" tied "}"

static const mistake mistakes[] = {
  { "[]", "not an object" },
  { "{}", "missing key 'names'" },
  { "{\"names\":[]}", "missing key 'dtype_names'" },
  { "{\"names\":[],\"dtypes\":[]}", "missing key 'shapes'" },
  { "{\"names\":[],\"dtypes\":[],\"dtype_names\":[],\"shapes\":[]}", "both" },
  { "{\"names\":{},\"dtypes\":[],\"shapes\":[]}", "'names' is not a list" },
  { "{\"names\":[],\"dtypes\":[],\"shapes\":[],\"tide\":[]}", "unknown key 'tide'" },
  { "{\"names\":[],\"names\":[],\"dtypes\":[],\"shapes\":[]}", "occurs twice" },
  { "{\"names\":[\"a\"],\"dtypes\":[],\"shapes\":[[]]}", "'dtypes' has 0 entries" },
  { "{\"names\":[],\"dtype_names\":[],\"shapes\":[[]]}", "'shapes' has 1 entries" },
  { "{\"names\":[\"\"],\"dtype_names\":[\"int8\"],\"shapes\":[[]]}", "name 0 is empty" },
  { "{\"names\":[7],\"dtype_names\":[\"int8\"],\"shapes\":[[]]}", "name 0 is empty" },
  { "{\"names\":[\"a\",\"a\"],\"dtype_names\":[\"int8\",\"int8\"],\"shapes\":[[],[]]}",
    "'a' is named twice" },
  { ONE("\"int9\"", "[]"), "unknown dtype 'int9' of 'a'" },
  { ONE("8", "[]"), "unknown dtype '(not a string)' of 'a'" },
  { ONE("\"int8\"", "2"), "shape of 'a' is not a list" },
  { ONE("\"int8\"", "[2,-1]"), "dimension 1 of 'a' is negative" },
  { ONE("\"int8\"", "[1.5]"), "dimension 0 of 'a' is not an integer" },
  { ONE("\"int8\"", "[99999999999999999999]"), "dimension 0 of 'a'" },
  { ONE("\"int8\"", "[4294967296,4294967296]"), "shape of 'a' is too large" },
  { ONE("\"int8\"", "[1,1,1,1,1,1,1,1,1]"), "'a' has 9 dimensions" },
  { "{\"names\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"],"
    "\"dtypes\":[\"int8\",\"int8\",\"int8\",\"int8\",\"int8\",\"int8\",\"int8\",\"int8\"]"
    ","
    "\"shapes\":[" BIG4 "," BIG4 "]}",
    "the tensors up to 'h' are too large" },
  { TWO("{}"), "'tied' is not a list" },
  { TWO("[\"a\"]"), "each entry of 'tied'" },
  { TWO("[[\"a\"]]"), "at least two names" },
  { TWO("[[\"a\",3]]"), "not a string" },
  { TWO("[[\"a\",\"x\"]]"), "tied 'x' is not one of the names" },
  { TWO("[[\"a\",\"a\"]]"), "'a' is tied twice" },
  { TWO("[[\"a\",\"b\"],[\"b\",\"a\"]]"), "'b' is tied twice" },
  { TWO("[[\"a\",\"c\"]]"), "'a' and 'c' are tied but have not the same" },
  { ONE("\"int8\"", "[]") "x", "m.json: " },
};

static void each_mistake_is_named(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
    wefti_manifest *m = NULL;
    weft_why why = { 0 };
    assert_err(wefti_manifest_parse(mistakes[i].text, strlen(mistakes[i].text), "m.json",
                                    &m, &why),
               WEFT_E_INVAL);
    if (!strstr(why.text, mistakes[i].said)) {
      fail_msg("%s: said \"%s\"", mistakes[i].text, why.text);
    }
  }
}

/* ---- files */

typedef struct place {
  char dir[64], path[96];
} place;

static place open_place(void)
{
  place p;
  strcpy(p.dir, "/tmp/weft-manifest-XXXXXX");
  assert_non_null(mkdtemp(p.dir));
  (void)snprintf(p.path, sizeof p.path, "%s/m", p.dir);
  return p;
}

static void close_place(const place *p)
{
  (void)unlink(p->path);
  assert_int_equal(rmdir(p->dir), 0);
}

static void put(const place *p, const void *data, size_t len)
{
  const int fd = open(p->path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, data, len), (ssize_t)len);
  assert_int_equal(close(fd), 0);
}

static void what_is_saved_is_read_back(void **state)
{
  (void)state;
  const place p = open_place();
  wefti_manifest *m = NULL, *again = NULL;
  assert_ok(wefti_manifest_parse(good, strlen(good), "m.json", &m, NULL));
  put(&p, "old", 3);
  assert_ok(wefti_manifest_save(m, p.path, NULL));
  struct stat st;
  assert_int_equal(stat(p.path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  assert_ok(wefti_manifest_load(p.path, &again, NULL));
  check_good(again);
  wefti_manifest_free(again);
  weft_why why = { 0 };
  assert_err(wefti_manifest_save(m, "/nowhere/m", &why), WEFT_E_SYS);
  assert_non_null(strstr(why.text, "/nowhere/m"));
  wefti_manifest_free(m);
  close_place(&p);
}

static void a_safetensors_file_is_a_manifest(void **state)
{
  (void)state;
  const place p = open_place();
  const int64_t shape[2] = { 4, 2 };
  const weft_st_spec specs[2] = { { "z", WEFT_DTYPE_BFLOAT16, 2, shape },
                                  { "y", WEFT_DTYPE_FLOAT32, 0, NULL } };
  const int fd = open(p.path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  weft_st_writer *w;
  assert_ok(weft_st_writer_create(fd, specs, 2, &w, NULL));
  assert_ok(weft_st_writer_put(w, "twenty bytes of data", 20, NULL));
  assert_ok(weft_st_writer_end(w, NULL));
  weft_st_writer_destroy(w);
  wefti_manifest *m = NULL;
  assert_ok(wefti_manifest_load(p.path, &m, NULL));
  assert_int_equal(m->count, 2);
  assert_int_equal(m->tied_count, 0);
  assert_string_equal(m->tensors[0].name, "y");
  assert_string_equal(m->tensors[1].dtype, "bfloat16");
  assert_int_equal(m->tensors[1].shape[0], 4);
  wefti_manifest_free(m);
  m = NULL;
  weft_why why = { 0 };
  struct stat st;
  assert_int_equal(fstat(fd, &st), 0);
  for (off_t len = st.st_size - 1; len >= 0; len--) { /* every prefix */
    assert_int_equal(ftruncate(fd, len), 0);
    assert_err(wefti_manifest_load(p.path, &m, &why), WEFT_E_INVAL);
    assert_int_equal(why.err, WEFT_E_INVAL);
    assert_non_null(strstr(why.text, p.path));
  }
  assert_null(m);
  assert_int_equal(close(fd), 0);
  close_place(&p);
}

static void what_is_no_file_is_refused(void **state)
{
  (void)state;
  const place p = open_place();
  wefti_manifest *m = NULL;
  weft_why why = { 0 };
  assert_err(wefti_manifest_load(p.path, &m, &why), WEFT_E_INVAL);
  assert_non_null(strstr(why.text, "cannot be opened"));
  assert_err(wefti_manifest_load(p.dir, &m, &why), WEFT_E_INVAL);
  assert_non_null(strstr(why.text, "not a file"));
  assert_int_equal(mkfifo(p.path, 0600), 0);
  assert_err(wefti_manifest_load(p.path, &m, &why), WEFT_E_INVAL);
  assert_int_equal(unlink(p.path), 0);
  put(&p, "", 0);
  assert_err(wefti_manifest_load(p.path, &m, &why), WEFT_E_INVAL);
  assert_int_equal(strncmp(why.text, "manifest: ", 10), 0);
  assert_null(m);
  close_place(&p);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(lists_become_a_table_by_name),
    cmocka_unit_test(every_prefix_is_refused),
    cmocka_unit_test(each_mistake_is_named),
    cmocka_unit_test(what_is_saved_is_read_back),
    cmocka_unit_test(a_safetensors_file_is_a_manifest),
    cmocka_unit_test(what_is_no_file_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
