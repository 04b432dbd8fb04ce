/* The cudart double, through the table that weft uses. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "cuda_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 1 << 20 };

static int set_up(void **state)
{
  wefti_cuda *c = calloc(1, sizeof *c);
  weft_why why = { 0 };
  assert_non_null(c);
  if (wefti_cuda_open(WEFT_FAKE_CUDART, c, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  *state = c;
  return 0;
}

static int tear_down(void **state)
{
  wefti_cuda_close(*state);
  free(*state);
  unsetenv("WEFT_FAKE_FAIL");
  unsetenv("WEFT_FAKE_NO_DRIVER");
  unsetenv("WEFT_FAKE_STREAM_DELAY_US");
  unsetenv("WEFT_FAKE_GPU_BYTES");
  unsetenv("CUDA_VISIBLE_DEVICES");
  return 0;
}

static void bytes_go_there_and_back(void **state)
{
  wefti_cuda *c = *state;
  char *in = malloc(N), *out = malloc(N);
  void *a, *b;
  wefti_stream s;
  assert_non_null(in);
  assert_non_null(out);
  for (int i = 0; i < N; i++) {
    in[i] = (char)(i * 7);
  }
  assert_int_equal(c->Malloc(&a, N), 0);
  assert_int_equal(c->Malloc(&b, N), 0);
  assert_int_equal(c->StreamCreateWithFlags(&s, WEFTI_STREAM_NONBLOCKING), 0);
  assert_int_equal(c->MemcpyAsync(a, in, N, WEFTI_TO_DEVICE, s), 0);
  assert_int_equal(c->MemcpyAsync(b, a, N, WEFTI_ON_DEVICE, s), 0);
  assert_int_equal(c->MemcpyAsync(out, b, N, WEFTI_TO_HOST, s), 0);
  assert_int_equal(c->StreamSynchronize(s), 0);
  assert_memory_equal(in, out, N);
  assert_int_equal(c->MemsetAsync(b, 7, 3, s), 0);
  assert_int_equal(c->MemcpyAsync(out, b, 4, WEFTI_TO_HOST, s), 0);
  assert_int_equal(c->StreamSynchronize(s), 0);
  assert_memory_equal(out, "\7\7\7\25", 4);
  /* Over the end, and host where device is meant. */
  assert_int_equal(c->MemcpyAsync(b, a, N + 1, WEFTI_ON_DEVICE, s), 1);
  assert_int_equal(c->MemcpyAsync(b, in, N, WEFTI_ON_DEVICE, s), 1);
  assert_int_equal(c->StreamDestroy(s), 0);
  assert_int_equal(c->Free(a), 0);
  assert_int_equal(c->Free(b), 0);
  assert_int_equal(c->Free(b), 1);
  free(in);
  free(out);
}

static void a_missing_wait_shows(void **state)
{
  wefti_cuda *c = *state;
  char out[64];
  void *a;
  wefti_stream s;
  wefti_event e;
  setenv("WEFT_FAKE_STREAM_DELAY_US", "100000", 1);
  assert_int_equal(c->Malloc(&a, sizeof out), 0);
  assert_int_equal(c->StreamCreateWithFlags(&s, 0), 0);
  assert_int_equal(c->EventCreateWithFlags(&e, WEFTI_EVENT_NO_TIMING), 0);
  assert_int_equal(c->EventQuery(e), 0); /* never recorded */
  memset(out, 0, sizeof out);
  assert_int_equal(c->MemsetAsync(a, 9, sizeof out, s), 0);
  assert_int_equal(c->MemcpyAsync(out, a, sizeof out, WEFTI_TO_HOST, s), 0);
  assert_int_equal(c->EventRecord(e, s), 0);
  assert_int_equal(c->EventQuery(e), WEFTI_CUDA_NOT_READY);
  assert_int_equal(c->StreamQuery(s), WEFTI_CUDA_NOT_READY);
  assert_int_equal(c->StreamSynchronize(s), 0);
  assert_int_equal(out[63], 9);
  assert_int_equal(c->EventQuery(e), 0);
  assert_int_equal(c->EventDestroy(e), 0);
  assert_int_equal(c->StreamDestroy(s), 0);
  assert_int_equal(c->Free(a), 0);
}

static void a_stream_waits_for_another(void **state)
{
  wefti_cuda *c = *state;
  char out[16] = { 0 };
  void *a;
  wefti_stream first, second;
  wefti_event e;
  setenv("WEFT_FAKE_STREAM_DELAY_US", "20000", 1);
  assert_int_equal(c->Malloc(&a, sizeof out), 0);
  assert_int_equal(c->StreamCreateWithFlags(&first, 0), 0);
  assert_int_equal(c->StreamCreateWithFlags(&second, 0), 0);
  assert_int_equal(c->EventCreateWithFlags(&e, WEFTI_EVENT_NO_TIMING), 0);
  assert_int_equal(c->MemsetAsync(a, 1, sizeof out, first), 0);
  assert_int_equal(c->MemsetAsync(a, 2, sizeof out, first), 0);
  assert_int_equal(c->EventRecord(e, first), 0);
  assert_int_equal(c->StreamWaitEvent(second, e, 0), 0);
  assert_int_equal(c->MemcpyAsync(out, a, sizeof out, WEFTI_TO_HOST, second), 0);
  assert_int_equal(c->StreamSynchronize(second), 0);
  assert_int_equal(out[15], 2);
  assert_int_equal(c->EventDestroy(e), 0);
  assert_int_equal(c->StreamDestroy(first), 0);
  assert_int_equal(c->StreamDestroy(second), 0);
  assert_int_equal(c->Free(a), 0);
}

static int in_child(int (*fn)(void *), void *arg)
{
  const pid_t pid = fork();
  int status = -1;
  if (pid == 0) {
    _exit(fn(arg));
  }
  assert_true(pid > 0);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return status;
}

static void the_host_cannot_touch_device_memory(void **state)
{
  wefti_cuda *c = *state;
  void *a;
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(c->Malloc(&a, 4096), 0);
  /* The kernel looks for us, without a signal. */
  assert_int_equal(write(ends[1], a, 1), -1);
  assert_int_equal(errno, EFAULT);
  assert_int_equal(write(ends[1], (char *)a + 4095, 1), -1);
  assert_int_equal(c->Free(a), 0);
  assert_int_equal(close(ends[0]), 0);
  assert_int_equal(close(ends[1]), 0);
}

typedef struct shared {
  wefti_cuda *c;
  wefti_ipc_handle handle;
  int expect, to[2], from[2];
} shared;

static int import(void *arg)
{
  shared *s = arg;
  void *p, *again;
  char byte, ok;
  if (s->c->IpcOpenMemHandle(&p, s->handle, WEFTI_IPC_LAZY_PEER) != 0 ||
      s->c->IpcOpenMemHandle(&again, s->handle, WEFTI_IPC_LAZY_PEER) != 0 || p != again ||
      s->c->IpcCloseMemHandle(again) != 0) {
    return 1;
  }
  wefti_stream stream;
  if (s->c->StreamCreateWithFlags(&stream, 0) != 0 ||
      s->c->MemcpyAsync(&byte, (char *)p + 4095, 1, WEFTI_TO_HOST, stream) != 0 ||
      s->c->StreamSynchronize(stream) != 0 || byte != s->expect) {
    return 2;
  }
  if (s->c->MemsetAsync(p, 77, 1, stream) != 0 || s->c->StreamSynchronize(stream) != 0 ||
      s->c->IpcCloseMemHandle(p) != 0 || s->c->IpcCloseMemHandle(p) == 0) {
    return 3;
  }
  ok = 1;
  return write(s->to[1], &ok, 1) == 1 ? 0 : 4;
}

static int import_gone(void *arg)
{
  shared *s = arg;
  void *p;
  return s->c->IpcOpenMemHandle(&p, s->handle, 0) == WEFTI_CUDA_BAD_HANDLE ? 0 : 1;
}

static void handles_map_in_other_processes(void **state)
{
  shared s = { .c = *state, .expect = 5 };
  void *a, *own;
  char byte = 0;
  wefti_stream stream;
  assert_int_equal(pipe(s.to), 0);
  assert_int_equal(s.c->Malloc(&a, 4096), 0);
  assert_int_equal(s.c->IpcGetMemHandle(&s.handle, a), 0);
  assert_int_equal(s.c->IpcOpenMemHandle(&own, s.handle, 0), WEFTI_CUDA_BAD_HANDLE);
  assert_int_equal(s.c->StreamCreateWithFlags(&stream, 0), 0);
  assert_int_equal(s.c->MemsetAsync(a, 5, 4096, stream), 0);
  assert_int_equal(s.c->StreamSynchronize(stream), 0);
  assert_int_equal(s.c->StreamDestroy(stream), 0); /* a fork has no threads of ours */
  assert_int_equal(in_child(import, &s), 0);
  assert_int_equal(read(s.to[0], &byte, 1), 1);
  assert_int_equal(s.c->StreamCreateWithFlags(&stream, 0), 0);
  assert_int_equal(s.c->MemcpyAsync(&byte, a, 1, WEFTI_TO_HOST, stream), 0);
  assert_int_equal(s.c->StreamSynchronize(stream), 0);
  assert_int_equal(byte, 77);
  assert_int_equal(s.c->StreamDestroy(stream), 0);
  assert_int_equal(s.c->Free(a), 0);
  assert_int_equal(in_child(import_gone, &s), 0);
  assert_int_equal(close(s.to[0]), 0);
  assert_int_equal(close(s.to[1]), 0);
}

static void failures_come_when_asked_for(void **state)
{
  wefti_cuda *c = *state;
  weft_why why = { 0 };
  void *a;
  int count = 0;
  setenv("WEFT_FAKE_GPU_BYTES", "1000", 1);
  assert_int_equal(c->Malloc(&a, 1001), WEFTI_CUDA_NOMEM);
  assert_int_equal(c->Malloc(&a, 1000), 0);
  assert_int_equal(c->Free(a), 0);
  setenv("WEFT_FAKE_FAIL", "cudaHostAlloc:2:719", 1);
  assert_int_equal(c->HostAlloc(&a, 8, 0), 0);
  assert_int_equal(c->FreeHost(a), 0);
  assert_int_equal(c->HostAlloc(&a, 8, 0), 719);
  setenv("WEFT_FAKE_NO_DRIVER", "1", 1);
  assert_err(wefti_cuda_count(c, &count, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "no NVIDIA driver"));
  unsetenv("WEFT_FAKE_NO_DRIVER");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  assert_err(wefti_cuda_count(c, &count, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "no GPU"));
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  char name[WEFT_DEVICE_TEXT], one[WEFT_GPU_UUID_TEXT], two[WEFT_GPU_UUID_TEXT];
  assert_ok(wefti_cuda_count(c, &count, &why));
  assert_int_equal(count, 1);
  wefti_cuda_identity(c, 0, name, one);
  unsetenv("CUDA_VISIBLE_DEVICES");
  wefti_cuda_identity(c, 1, name, two);
  assert_string_equal(one, two);
  assert_int_equal(strlen(one), 36);
  wefti_cuda_identity(c, 0, name, two);
  assert_string_not_equal(one, two);
  assert_err(wefti_cuda_use(c, 2, &why), WEFT_E_UNAVAIL);
  assert_ok(wefti_cuda_use(c, 0, &why));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(bytes_go_there_and_back, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_missing_wait_shows, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_stream_waits_for_another, set_up, tear_down),
    cmocka_unit_test_setup_teardown(the_host_cannot_touch_device_memory, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(handles_map_in_other_processes, set_up, tear_down),
    cmocka_unit_test_setup_teardown(failures_come_when_asked_for, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
