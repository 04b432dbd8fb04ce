#include "weft_test.h"

#include "weft/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void put_socket(const char *dir, const char *name)
{
  struct sockaddr_un sa = { .sun_family = AF_UNIX };
  (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%.80s/%.20s", dir, name);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (const struct sockaddr *)&sa, sizeof sa), 0);
  (void)close(fd);
}

static void it_is_private_and_goes_away(void **state)
{
  (void)state;
  weft_rundir *d;
  weft_why why;
  char path[300];
  struct stat st;
  assert_ok(weft_rundir_open(NULL, &d, &why));
  (void)snprintf(path, sizeof path, "%s", weft_rundir_path(d));
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0700);
  put_socket(path, "worker-0");
  weft_rundir_close(d);
  assert_int_equal(stat(path, &st), -1);
}

static void a_named_one_is_locked(void **state)
{
  (void)state;
  char base[] = "/tmp/weft-rundir-XXXXXX";
  char path[100];
  weft_rundir *a;
  weft_rundir *b;
  weft_why why = { 0 };
  assert_non_null(mkdtemp(base));
  (void)snprintf(path, sizeof path, "%s/run", base);
  assert_ok(weft_rundir_open(path, &a, &why));
  assert_err(weft_rundir_open(path, &b, &why), WEFT_E_EXISTS);
  assert_non_null(strstr(why.text, "living engine"));
  weft_rundir_close(a);
  assert_ok(weft_rundir_open(path, &a, &why));
  weft_rundir_close(a);
  assert_int_equal(rmdir(base), 0);
}

/* A process that opens a run directory and is gone before it closes it. */
static void leave_one_behind(char path[300], const char *file)
{
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    weft_rundir *d;
    char at[400];
    if (weft_rundir_open(NULL, &d, NULL) != WEFT_OK) {
      _exit(1);
    }
    (void)snprintf(path, 300, "%s", weft_rundir_path(d));
    put_socket(path, "events");
    (void)snprintf(at, sizeof at, "%s/%s", path, file == NULL ? "lock" : file);
    const int fd = open(at, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    _exit(fd >= 0 && write(ends[1], path, 300) == 300 ? 0 : 1);
  }
  int status = 1;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
  assert_int_equal(read(ends[0], path, 300), 300);
  (void)close(ends[0]);
  (void)close(ends[1]);
}

static void what_the_dead_left_is_removed(void **state)
{
  (void)state;
  char base[] = "/tmp/weft-rundir-XXXXXX";
  char dead[300] = "";
  char full[300] = "";
  char starting[200];
  char at[400];
  weft_rundir *a;
  weft_rundir *b;
  struct stat st;
  assert_non_null(mkdtemp(base));
  assert_int_equal(setenv("XDG_RUNTIME_DIR", base, 1), 0);
  assert_ok(weft_rundir_open(NULL, &a, NULL));
  put_socket(weft_rundir_path(a), "events");
  leave_one_behind(full, "somebody-elses");
  leave_one_behind(dead, NULL);
  /* one whose owner has not come to write its pid */
  (void)snprintf(starting, sizeof starting, "%s/weft-1-00000000deadbeef", base);
  (void)snprintf(at, sizeof at, "%s/lock", starting);
  assert_int_equal(mkdir(starting, 0700), 0);
  const int fd = open(at, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  (void)close(fd);

  assert_ok(weft_rundir_open(NULL, &b, NULL));
  assert_int_equal(stat(dead, &st), -1);
  assert_int_equal(stat(starting, &st), 0);
  (void)snprintf(at, sizeof at, "%s/somebody-elses", full);
  assert_int_equal(stat(at, &st), 0);
  (void)snprintf(at, sizeof at, "%s/events", weft_rundir_path(a));
  assert_int_equal(stat(at, &st), 0); /* of the living */
  weft_rundir_close(b);
  weft_rundir_close(a);

  assert_int_equal(unsetenv("XDG_RUNTIME_DIR"), 0);
  (void)snprintf(at, sizeof at, "%s/somebody-elses", full);
  assert_int_equal(unlink(at), 0);
  assert_int_equal(rmdir(full), 0);
  (void)snprintf(at, sizeof at, "%s/lock", starting);
  assert_int_equal(unlink(at), 0);
  assert_int_equal(rmdir(starting), 0);
  assert_int_equal(rmdir(base), 0);
}

static void only_what_is_ours_is_removed(void **state)
{
  (void)state;
  char base[] = "/tmp/weft-rundir-XXXXXX";
  char file[100];
  char sock[100];
  weft_rundir *d;
  weft_why why = { 0 };
  struct stat st;
  assert_non_null(mkdtemp(base)); /* not made by us: stays */
  (void)snprintf(file, sizeof file, "%s/notes", base);
  (void)snprintf(sock, sizeof sock, "%s/stale", base);
  (void)close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  put_socket(base, "stale"); /* of an engine that was killed */
  assert_ok(weft_rundir_open(base, &d, &why));
  assert_int_equal(stat(sock, &st), -1);
  weft_rundir_close(d);
  assert_int_equal(stat(file, &st), 0);
  assert_int_equal(unlink(file), 0);
  assert_int_equal(rmdir(base), 0);
}

static void bad_ones_are_refused(void **state)
{
  (void)state;
  char base[] = "/tmp/weft-rundir-XXXXXX";
  char path[100];
  weft_rundir *d;
  weft_why why = { 0 };
  assert_non_null(mkdtemp(base));
  assert_int_equal(chmod(base, 0755), 0);
  assert_err(weft_rundir_open(base, &d, &why), WEFT_E_DENIED);
  assert_non_null(strstr(why.text, "0755"));
  (void)snprintf(path, sizeof path, "%s/link", base);
  assert_int_equal(symlink("/tmp", path), 0);
  assert_err(weft_rundir_open(path, &d, &why), WEFT_E_SYS);
  assert_err(weft_rundir_open("relative", &d, &why), WEFT_E_INVAL);
  assert_err(weft_rundir_open("/nonexistent/a/b", &d, &why), WEFT_E_SYS);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(base), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(it_is_private_and_goes_away),
    cmocka_unit_test(a_named_one_is_locked),
    cmocka_unit_test(what_the_dead_left_is_removed),
    cmocka_unit_test(only_what_is_ours_is_removed),
    cmocka_unit_test(bad_ones_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
