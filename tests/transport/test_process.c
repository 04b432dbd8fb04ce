#define _GNU_SOURCE
#include "weft_test.h"

#include "descriptors.h"
#include "on_loop.h"
#include "weft/process.h"
#include "weft/runtime.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef WEFT_TEST_CHILD
#error "the path of the child program"
#endif

typedef struct seat {
  weft_runtime *rt;
  weft_process *process;
  weft_err spawned;
  const char *argv[5];
  char text[256]; /* newest message */
  int fds[WEFT_LIFELINE_FDS_MAX];
  size_t nfds;
  int status;
  unsigned messages_at_exit;
  bool destroy_in_exit;
  counter messages, exits;
  const void *out; /* to send */
  size_t out_len, out_nfds;
  const int *out_fds;
  weft_err sent;
} seat;

static void on_message(void *arg, const void *data, size_t len, int *fds, size_t nfds)
{
  seat *s = arg;
  const size_t n = len < sizeof s->text - 1 ? len : sizeof s->text - 1;
  memcpy(s->text, data, n);
  s->text[n] = '\0';
  for (size_t i = 0; i < nfds; i++) {
    s->fds[i] = fds[i];
  }
  s->nfds = nfds;
  counter_up(&s->messages);
}

static void on_exit_(void *arg, int status)
{
  seat *s = arg;
  s->status = status;
  s->messages_at_exit = s->messages.n;
  if (s->destroy_in_exit) {
    weft_process_destroy(s->process);
    s->process = NULL;
  }
  counter_up(&s->exits);
}

static void do_spawn(void *arg)
{
  seat *s = arg;
  weft_why why = { 0 };
  char *argv[6] = { 0 };
  for (int i = 0; i < 5 && s->argv[i] != NULL; i++) {
    argv[i + 1] = strdup(s->argv[i]);
  }
  argv[0] = strdup("child");
  const weft_process_opts o = { .size = sizeof o,
                                .path = WEFT_TEST_CHILD,
                                .argv = argv,
                                .on_message = on_message,
                                .on_exit = on_exit_,
                                .arg = s };
  s->spawned = weft_process_spawn(weft_runtime_loop(s->rt, 0), &o, &s->process, &why);
  for (int i = 0; i < 6; i++) {
    free(argv[i]);
  }
}

static void do_send(void *arg)
{
  seat *s = arg;
  s->sent = weft_process_send(s->process, s->out, s->out_len, s->out_fds, s->out_nfds);
}

static void do_destroy(void *arg)
{
  seat *s = arg;
  weft_process_destroy(s->process);
  s->process = NULL;
}

static void do_kill(void *arg)
{
  weft_process_signal(((seat *)arg)->process, SIGKILL);
}

static void seat_open(seat *s, const char *a, const char *b)
{
  *s = (seat){ .argv = { a, b }, .messages = COUNTER_INIT, .exits = COUNTER_INIT };
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  assert_ok(weft_runtime_create(&o, &s->rt));
  assert_ok(weft_runtime_start_all(s->rt));
  on_loop(weft_runtime_loop(s->rt, 0), do_spawn, s);
  assert_ok(s->spawned);
}

static void seat_close(seat *s)
{
  on_loop(weft_runtime_loop(s->rt, 0), do_destroy, s);
  weft_runtime_stop(s->rt, 100);
  weft_runtime_join(s->rt);
  weft_runtime_destroy(s->rt);
}

static void seat_send(seat *s, const void *data, size_t len, const int *fds, size_t nfds)
{
  s->out = data;
  s->out_len = len;
  s->out_fds = fds;
  s->out_nfds = nfds;
  on_loop(weft_runtime_loop(s->rt, 0), do_send, s);
}

static void exit_code_is_reported(void **state)
{
  (void)state;
  seat s;
  seat_open(&s, "exit", "42");
  assert_true(counter_wait(&s.exits, 1));
  assert_true(WIFEXITED(s.status));
  assert_int_equal(WEXITSTATUS(s.status), 42);
  seat_close(&s);
}

static void killing_is_reported_as_a_signal(void **state)
{
  (void)state;
  seat s;
  seat_open(&s, "hang", NULL);
  on_loop(weft_runtime_loop(s.rt, 0), do_kill, &s);
  assert_true(counter_wait(&s.exits, 1));
  assert_true(WIFSIGNALED(s.status));
  assert_int_equal(WTERMSIG(s.status), SIGKILL);
  seat_close(&s);
}

static void last_words_come_before_the_exit(void **state)
{
  (void)state;
  seat s;
  seat_open(&s, "lifeline", NULL);
  assert_true(counter_wait(&s.messages, 1));
  seat_send(&s, "one", 3, NULL, 0);
  seat_send(&s, "die!", 4, NULL, 0);
  assert_ok(s.sent);
  assert_true(counter_wait(&s.exits, 1));
  assert_int_equal(s.messages_at_exit, 2);
  assert_string_equal(s.text, "one");
  seat_close(&s);
}

static void only_the_lifeline_is_inherited(void **state)
{
  (void)state;
  seat s;
  const int leak = open("/dev/null", O_RDONLY); /* without close-on-exec, on purpose */
  assert_true(leak >= 0);
  seat_open(&s, "lifeline", NULL);
  assert_true(counter_wait(&s.messages, 1));
  assert_string_equal(s.text, "up 1");
  seat_close(&s);
  (void)close(leak);
}

static void signals_are_reset(void **state)
{
  (void)state;
  seat s;
  sigset_t set;
  sigset_t old;
  struct sigaction ign = { .sa_handler = SIG_IGN };
  struct sigaction was;
  (void)sigemptyset(&set);
  (void)sigaddset(&set, SIGUSR2);
  assert_int_equal(pthread_sigmask(SIG_BLOCK, &set, &old), 0);
  assert_int_equal(sigaction(SIGUSR1, &ign, &was), 0);
  seat_open(&s, "lifeline", NULL);
  seat_send(&s, "mask", 4, NULL, 0);
  assert_true(counter_wait(&s.messages, 2));
  assert_string_equal(s.text, "0 1");
  seat_close(&s);
  assert_int_equal(sigaction(SIGUSR1, &was, NULL), 0);
  assert_int_equal(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
}

static void many_descriptors_travel_both_ways(void **state)
{
  (void)state;
  seat s;
  int fds[WEFT_LIFELINE_FDS_MAX];
  const int fd = memfd_create("slab", MFD_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, "weights", 7), 7);
  for (size_t i = 0; i < WEFT_LIFELINE_FDS_MAX; i++) {
    fds[i] = fd;
  }
  seat_open(&s, "lifeline", NULL);
  seat_send(&s, "slabs", 5, fds, WEFT_LIFELINE_FDS_MAX);
  assert_ok(s.sent);
  assert_true(counter_wait(&s.messages, 2));
  assert_string_equal(s.text, "slabs");
  assert_int_equal(s.nfds, WEFT_LIFELINE_FDS_MAX);
  for (size_t i = 0; i < s.nfds; i++) {
    char got[8] = "";
    assert_int_equal(pread(s.fds[i], got, 7, 0), 7);
    assert_string_equal(got, "weights");
    assert_true((fcntl(s.fds[i], F_GETFD) & FD_CLOEXEC) != 0);
    (void)close(s.fds[i]);
  }
  (void)close(fd);
  seat_close(&s);
}

static void sizes_are_bounded(void **state)
{
  (void)state;
  seat s;
  static const char big[WEFT_LIFELINE_MAX + 1] = "x";
  seat_open(&s, "lifeline", NULL);
  assert_true(counter_wait(&s.messages, 1));
  seat_send(&s, big, WEFT_LIFELINE_MAX, NULL, 0);
  assert_ok(s.sent);
  assert_true(counter_wait(&s.messages, 2));
  seat_send(&s, big, WEFT_LIFELINE_MAX + 1, NULL, 0);
  assert_err(s.sent, WEFT_E_INVAL);
  seat_send(&s, big, 0, NULL, 0);
  assert_err(s.sent, WEFT_E_INVAL);
  seat_close(&s);
}

static void a_stopped_child_makes_sending_full_not_blocking(void **state)
{
  (void)state;
  seat s;
  static const char big[WEFT_LIFELINE_MAX] = "x";
  seat_open(&s, "hang", NULL); /* never reads */
  s.sent = WEFT_OK;
  for (int i = 0; i < 100000 && s.sent == WEFT_OK; i++) {
    seat_send(&s, big, sizeof big, NULL, 0);
  }
  assert_err(s.sent, WEFT_E_FULL);
  seat_close(&s);
}

static void sending_to_the_dead_is_closed(void **state)
{
  (void)state;
  seat s;
  seat_open(&s, "exit", "0");
  assert_true(counter_wait(&s.exits, 1));
  seat_send(&s, "x", 1, NULL, 0);
  assert_err(s.sent, WEFT_E_CLOSED);
  seat_close(&s);
}

static void destroy_inside_on_exit_is_allowed(void **state)
{
  (void)state;
  seat s;
  seat_open(&s, "lifeline", NULL);
  s.destroy_in_exit = true;
  seat_send(&s, "die!", 4, NULL, 0);
  assert_true(counter_wait(&s.exits, 1));
  assert_null(s.process);
  seat_close(&s);
}

static void destroy_kills_and_leaves_no_zombie(void **state)
{
  (void)state;
  seat s;
  seat_open(&s, "hang", NULL);
  const int pid = weft_process_pid(s.process);
  on_loop(weft_runtime_loop(s.rt, 0), do_destroy, &s);
  assert_int_equal(kill(pid, 0), -1); /* not even a zombie */
  seat_close(&s);
}

static void a_missing_program_is_named(void **state)
{
  (void)state;
  weft_runtime *rt;
  weft_process *p = NULL;
  weft_why why = { 0 };
  char name[] = "nothing";
  char *argv[] = { name, NULL };
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  assert_ok(weft_runtime_create(&o, &rt));
  const weft_process_opts po = {
    .size = sizeof po, .path = "/nonexistent/nothing", .argv = argv, .on_exit = on_exit_
  };
  assert_err(weft_process_spawn(weft_runtime_loop(rt, 0), &po, &p, &why),
             WEFT_E_NOTFOUND);
  assert_non_null(strstr(why.text, "/nonexistent/nothing"));
  weft_runtime_destroy(rt);
}

static void spawning_leaks_no_descriptor(void **state)
{
  (void)state;
  const size_t before = descriptors();
  for (int i = 0; i < 10; i++) {
    exit_code_is_reported(NULL);
    destroy_inside_on_exit_is_allowed(NULL);
  }
  assert_int_equal(descriptors(), before);
}

static void a_lifeline_wants_a_seqpacket_socket(void **state)
{
  (void)state;
  weft_runtime *rt;
  weft_lifeline *line = NULL;
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  assert_ok(weft_runtime_create(&o, &rt));
  weft_loop *loop = weft_runtime_loop(rt, 0);
  assert_err(weft_lifeline_open(loop, STDIN_FILENO, on_message, NULL, NULL, &line),
             WEFT_E_INVAL);
  assert_err(weft_lifeline_open(loop, -1, on_message, NULL, NULL, &line),
             WEFT_E_NOTFOUND);
  weft_runtime_destroy(rt);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(exit_code_is_reported),
    cmocka_unit_test(killing_is_reported_as_a_signal),
    cmocka_unit_test(last_words_come_before_the_exit),
    cmocka_unit_test(only_the_lifeline_is_inherited),
    cmocka_unit_test(signals_are_reset),
    cmocka_unit_test(many_descriptors_travel_both_ways),
    cmocka_unit_test(sizes_are_bounded),
    cmocka_unit_test(a_stopped_child_makes_sending_full_not_blocking),
    cmocka_unit_test(sending_to_the_dead_is_closed),
    cmocka_unit_test(destroy_inside_on_exit_is_allowed),
    cmocka_unit_test(destroy_kills_and_leaves_no_zombie),
    cmocka_unit_test(a_missing_program_is_named),
    cmocka_unit_test(spawning_leaks_no_descriptor),
    cmocka_unit_test(a_lifeline_wants_a_seqpacket_socket),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
