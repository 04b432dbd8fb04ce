/* What this machine and the limits of its cgroups leave, on folders in their place. */
#include "weft_test.h"

#include "memory_room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIB UINT64_C(1024)
#define V2 "/sys/fs/cgroup"
#define V1 "/sys/fs/cgroup/memory"

/* ---- texts */

static void rooms_of_meminfo(void **state)
{
  (void)state;
  static const struct {
    const char *text;
    uint64_t room;
  } all[] = {
    { "MemTotal: 9 kB\nMemFree: 5 kB\nMemAvailable:       7 kB\nSwapFree: 2 kB\n", 9216 },
    { "MemTotal: 9 kB\nMemAvailable: 7 kB\n", 7168 },
    { "MemTotal: 9 kB\nMemAvailable: 0 kB\nSwapFree: 0 kB\n", 0 },
    { "MemTotal: 9 kB\nMemFree: 5 kB\n", UINT64_MAX }, /* before Linux 3.14 */
    { "MemTotal: 9 kB\nMemAvailable: 7", UINT64_MAX }, /* cut off: 7 or 7000? */
    { "MemTotal: 9 kB\nMemAvailable: x kB\n", UINT64_MAX },
    { "MemTotal: 9 kB\nMemAvailable: 99999999999999999999 kB\n", UINT64_MAX },
    { "MemTotal: 9 kB\nNoMemAvailable: 7 kB\n", UINT64_MAX },
    { "", UINT64_MAX },
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    assert_int_equal(wefti_meminfo_room(all[i].text, strlen(all[i].text)), all[i].room);
  }
}

static void numbers_are_whole_lines(void **state)
{
  (void)state;
  static const struct {
    const char *text;
    bool good;
    uint64_t value;
  } all[] = {
    { "0\n", true, 0 },
    { "4096\n", true, 4096 },
    { "18446744073709551615\n", true, UINT64_MAX },
    { "18446744073709551616\n", false, 0 },
    { "max\n", true, UINT64_MAX },
    { "max", false, 0 },
    { "maxi\n", false, 0 },
    { "4096", false, 0 }, /* cut off */
    { "4096\n\n", false, 0 },
    { "-1\n", false, 0 },
    { " 1\n", false, 0 },
    { "1 \n", false, 0 },
    { "\n", false, 0 },
    { "", false, 0 },
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    uint64_t v = 7;
    assert_int_equal(wefti_cgroup_number(all[i].text, strlen(all[i].text), &v),
                     all[i].good);
    assert_int_equal(v, all[i].good ? all[i].value : 7);
  }
}

static void rows_of_a_stat(void **state)
{
  (void)state;
  static const char text[] = "inactive_file_x 1\ntotal_inactive_file 2\ninactive_file 3\n"
                             "inactive_file 4\nodd 5x\nnone \ncut 6";
  static const struct {
    const char *name;
    uint64_t value;
  } all[] = { { "inactive_file", 3 }, { "total_inactive_file", 2 },
              { "inactive", 0 },      { "odd", 0 },
              { "none", 0 },          { "cut", 0 } };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    assert_int_equal(wefti_cgroup_stat(text, strlen(text), all[i].name), all[i].value);
  }
}

static void paths_of_a_process(void **state)
{
  (void)state;
  static const struct {
    const char *text;
    bool v1;
    const char *path; /* NULL = none */
  } all[] = {
    { "0::/a/b\n", false, "/a/b" },
    { "0::/\n", false, "" },
    { "4:memory:/x\n0::/y\n", false, "/y" },
    { "4:memory:/x\n0::/y\n", true, "/x" },
    { "5:cpu,memory,io:/x:y\n", true, "/x:y" },
    { "5:cpu,memory2,amemory:/x\n", true, NULL },
    { "9:name=memory:/x\n", true, NULL },
    { "no colons\n1:one\n0::/z\n", false, "/z" },
    { "0::/a", false, NULL }, /* cut off */
    { "0::\n", false, NULL },
    { "0::a\n", false, NULL },
    { "0::/1234567\n", false, "/1234567" },
    { "0::/12345678\n", false, NULL }, /* too long for out */
    { "", false, NULL },
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    char out[9];
    const bool good =
        wefti_cgroup_path(all[i].text, strlen(all[i].text), all[i].v1, out, sizeof out);
    assert_int_equal(good, all[i].path != NULL);
    if (good) {
      assert_string_equal(out, all[i].path);
    }
  }
}

/* ---- folders */

typedef struct tree {
  char root[64];
} tree;

static void put(const tree *t, const char *file, const char *text)
{
  char path[256];
  (void)snprintf(path, sizeof path, "%s%s", t->root, file);
  for (char *at = path + strlen(t->root) + 1; (at = strchr(at, '/')) != NULL; at++) {
    *at = '\0';
    (void)mkdir(path, 0700);
    *at = '/';
  }
  FILE *f = fopen(path, "we");
  assert_non_null(f);
  assert_true(fputs(text, f) >= 0);
  assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
  tree *t = calloc(1, sizeof *t);
  assert_non_null(t);
  (void)snprintf(t->root, sizeof t->root, "/tmp/weft-room-XXXXXX");
  assert_non_null(mkdtemp(t->root));
  put(t, "/proc/meminfo", "MemTotal: 900 kB\nMemAvailable: 500 kB\nSwapFree: 100 kB\n");
  *state = t;
  return 0;
}

static int teardown(void **state)
{
  tree *t = *state;
  char command[128];
  (void)snprintf(command, sizeof command, "rm -r %s", t->root);
  assert_int_equal(system(command), 0); /* NOLINT: our own folder's name */
  free(t);
  return 0;
}

/* Exactly room is left, and a byte more is refused in words that hold text. */
static void leaves(const tree *t, uint64_t room, const char *text)
{
  weft_why why = { 0 };
  assert_ok(wefti_memory_room(t->root, room, &why));
  assert_err(wefti_memory_room(t->root, room + 1, &why), WEFT_E_NOMEM);
  if (strstr(why.text, text) == NULL) {
    fail_msg("no '%s' in: %s", text, why.text);
  }
}

static void without_cgroups_the_machine_counts(void **state)
{
  const tree *t = *state;
  leaves(t, 600 * KIB, "this machine has 614400");
  put(t, "/proc/self/cgroup", "0::/a\n"); /* a group without files */
  leaves(t, 600 * KIB, "this machine has");
}

static void the_least_of_all_levels_counts(void **state)
{
  const tree *t = *state;
  put(t, "/proc/self/cgroup", "0::/a/b\n");
  put(t, V2 "/a/b/memory.max", "max\n");
  put(t, V2 "/a/b/memory.current", "1000\n");
  leaves(t, 600 * KIB, "this machine has");
  put(t, V2 "/a/memory.max", "9000\n");
  put(t, V2 "/a/memory.current", "8000\n");
  leaves(t, 1000, "/sys/fs/cgroup/a leaves 1000");
  put(t, V2 "/a/memory.stat", "anon 5\ninactive_file 600\n");
  leaves(t, 1600, "/sys/fs/cgroup/a leaves 1600");
  put(t, V2 "/a/b/memory.max", "1234\n");
  leaves(t, 234, "/sys/fs/cgroup/a/b leaves 234");
  put(t, V2 "/a/b/memory.current", "2000\n"); /* the limit was lowered */
  leaves(t, 0, "/sys/fs/cgroup/a/b leaves 0");
  put(t, V2 "/a/b/memory.stat", "inactive_file 9999\n"); /* more than it has in use */
  leaves(t, 1234, "/sys/fs/cgroup/a/b leaves 1234");
}

static void in_a_container_the_mount_is_the_group(void **state)
{
  const tree *t = *state;
  put(t, V2 "/memory.max", "5000\n");
  put(t, V2 "/memory.current", "3000\n");
  static const char *const paths[] = { "0::/\n", "0::/../other\n", "0::/..\n",
                                       "0::/of/the/host\n" };
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    put(t, "/proc/self/cgroup", paths[i]);
    leaves(t, 2000, "/sys/fs/cgroup leaves 2000");
  }
}

static void version_one_counts_too(void **state)
{
  const tree *t = *state;
  put(t, "/proc/self/cgroup", "4:memory:/a\n1:cpu:/other\n0::/\n");
  put(t, V1 "/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
  put(t, V1 "/memory.usage_in_bytes", "5000\n");
  put(t, V1 "/a/memory.limit_in_bytes", "7000\n");
  put(t, V1 "/a/memory.usage_in_bytes", "5000\n");
  put(t, V1 "/a/memory.stat", "inactive_file 1\ntotal_inactive_file 50\n");
  leaves(t, 2050, "/sys/fs/cgroup/memory/a leaves 2050");
}

static void what_is_no_number_is_no_limit(void **state)
{
  const tree *t = *state;
  put(t, "/proc/self/cgroup", "0::/a\n");
  put(t, V2 "/a/memory.max", "lots\n");
  put(t, V2 "/a/memory.current", "5000\n");
  leaves(t, 600 * KIB, "this machine has");
  put(t, V2 "/a/memory.max", "6000\n");
  put(t, V2 "/a/memory.current", "\n");
  leaves(t, 600 * KIB, "this machine has");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(rooms_of_meminfo),
    cmocka_unit_test(numbers_are_whole_lines),
    cmocka_unit_test(rows_of_a_stat),
    cmocka_unit_test(paths_of_a_process),
    cmocka_unit_test_setup_teardown(without_cgroups_the_machine_counts, setup, teardown),
    cmocka_unit_test_setup_teardown(the_least_of_all_levels_counts, setup, teardown),
    cmocka_unit_test_setup_teardown(in_a_container_the_mount_is_the_group, setup,
                                    teardown),
    cmocka_unit_test_setup_teardown(version_one_counts_too, setup, teardown),
    cmocka_unit_test_setup_teardown(what_is_no_number_is_no_limit, setup, teardown),
  };
  return cmocka_run_group_tests_name("transport.memory_room", tests, NULL, NULL);
}
