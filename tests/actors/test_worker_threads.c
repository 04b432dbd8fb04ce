/* Worker and device thread on loops of their own, the host backend, and readers: what the
 * simulation cannot show.  Run it under the thread sanitizer. */
#define _GNU_SOURCE /* mkdtemp */
#include "weft_test.h"

#include "device.h"
#include "weft/messages.h"
#include "weft/runtime.h"
#include "weft/safetensors.h"
#include "worker.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000, BOOT = 3, INCARNATION = 4, PATH_LEN = 128 };

typedef struct fixture {
  weft_runtime *rt;
  wefti_device *device;
  weft_actor_id worker, device_actor;
  atomic_uint_fast64_t op;
  int silent; /* a listening socket that nobody serves */
  unsigned port;
  char dir[PATH_LEN];
} fixture;

static weft_msg *call(fixture *f, const weft_msg *tmpl)
{
  weft_msg *answer = NULL;
  weft_msg *m = weft_msg_dup(weft_messages(), tmpl);
  if (!m || weft_call(f->rt, f->worker, m, PATIENCE_MS, &answer) != WEFT_OK) {
    return NULL;
  }
  return answer;
}

#define ASK(f, lower, upper, epoch_, ...)                                                \
  call((f), &(weft_##lower){ .h.type = WEFT_MSG_##upper,                                 \
                             .boot = BOOT,                                               \
                             .incarnation = INCARNATION,                                 \
                             .epoch = (epoch_),                                          \
                             .op = atomic_fetch_add(&(f)->op, 1) + 1,                    \
                             __VA_ARGS__ }                                               \
                 .h)

/* Drops the answer after checking what it is. */
static void expect(weft_msg *answer, uint16_t type, weft_err err)
{
  assert_non_null(answer);
  const weft_w_refused *r = (const weft_w_refused *)answer;
  if (answer->type != type) {
    fail_msg("got %s %s", weft_msg_desc_of(weft_messages(), answer->type)->name,
             answer->type == WEFT_MSG_W_REFUSED ? r->text.p : "");
  }
  if (type == WEFT_MSG_W_REFUSED) {
    assert_err((weft_err)r->err, err);
  }
  weft_msg_drop(weft_messages(), answer);
}

static fixture *begin(void)
{
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  strcpy(f->dir, "/tmp/weft-threads-XXXXXX");
  assert_non_null(mkdtemp(f->dir));
  const wefti_device_opts device = { .size = sizeof device, .threads = 2 };
  assert_ok(wefti_device_create(&device, &f->device, NULL));
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = 3,
                                   .catalogue = weft_messages() };
  assert_ok(weft_runtime_create(&opts, &f->rt));
  assert_ok(weft_runtime_spawn(f->rt, 2, &wefti_device_class, f->device, NULL,
                               &f->device_actor));
  const wefti_worker_args args = { .device = f->device,
                                   .device_actor = f->device_actor,
                                   .incarnation = INCARNATION };
  assert_ok(weft_runtime_spawn(f->rt, 1, &wefti_worker_class, &args, NULL, &f->worker));
  assert_ok(weft_runtime_start_all(f->rt));
  expect(ASK(f, w_adopt, W_ADOPT, 0, .world_size = 1), WEFT_MSG_W_STATE, WEFT_OK);

  struct sockaddr_in at = { .sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  socklen_t len = sizeof at;
  f->silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(f->silent >= 0);
  assert_int_equal(bind(f->silent, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(f->silent, 8), 0);
  assert_int_equal(getsockname(f->silent, (struct sockaddr *)&at, &len), 0);
  f->port = ntohs(at.sin_port);
  return f;
}

static void stop(fixture *f)
{
  weft_runtime_stop(f->rt, PATIENCE_MS);
  weft_runtime_join(f->rt);
}

static void destroy(fixture *f)
{
  weft_runtime_destroy(f->rt);
  wefti_device_destroy(f->device);
  assert_int_equal(close(f->silent), 0);
  assert_int_equal(rmdir(f->dir), 0);
  free(f);
}

static void end(fixture *f)
{
  stop(f);
  destroy(f);
}

static void accept_text(fixture *f, uint64_t epoch, const char *text)
{
  weft_buf *info = weft_buf_create(text, strlen(text));
  assert_non_null(info);
  expect(ASK(f, w_accept, W_ACCEPT, epoch, .what = WEFT_TRANSFER_UPDATE, .info = info),
         WEFT_MSG_W_OK, WEFT_OK);
  weft_buf_unref(info);
}

/* Into a transfer whose other end never says a word. */
static void accept_silent(fixture *f, uint64_t epoch)
{
  char text[256];
  (void)snprintf(text, sizeof text,
                 "{\"source\":{\"kind\":\"tcp\",\"address\":\"127.0.0.1:%u\","
                 "\"token\":\"0123456789abcdef\"},\"names\":[\"x\"],"
                 "\"dtype_names\":[\"uint8\"],\"shapes\":[[4]]}",
                 f->port);
  expect(ASK(f, w_start, W_START, epoch, .draft = 0), WEFT_MSG_W_OK, WEFT_OK);
  accept_text(f, epoch, text);
}

typedef struct going {
  fixture *f;
  uint64_t epoch;
  weft_msg *answer;
} going;

static void *go_on(void *arg)
{
  going *g = arg;
  g->answer = ASK(g->f, w_go, W_GO, g->epoch, .what = WEFT_TRANSFER_UPDATE);
  return NULL;
}

static uint32_t phase_of(fixture *f)
{
  weft_msg *m = ASK(f, w_beat, W_BEAT, 0, .grant = 0);
  assert_non_null(m);
  assert_int_equal(m->type, WEFT_MSG_W_STATE);
  const uint32_t phase = ((const weft_w_state *)m)->phase;
  weft_msg_drop(weft_messages(), m);
  return phase;
}

static void go_and_wait_until_it_hangs(fixture *f, going *g, pthread_t *thread)
{
  *g = (going){ .f = f, .epoch = 1 };
  accept_silent(f, 1);
  assert_int_equal(pthread_create(thread, NULL, go_on, g), 0);
  while (phase_of(f) != WEFT_WORKER_RECEIVING) {
  }
}

static void an_abort_ends_a_transfer_that_hangs(void **state)
{
  (void)state;
  fixture *f = begin();
  going g;
  pthread_t thread;
  go_and_wait_until_it_hangs(f, &g, &thread);
  expect(ASK(f, w_abort, W_ABORT, 1, .reason = WEFT_STR("test")), WEFT_MSG_W_OK, WEFT_OK);
  assert_int_equal(pthread_join(thread, NULL), 0);
  expect(g.answer, WEFT_MSG_W_REFUSED, WEFT_E_CANCELLED);
  assert_int_equal(phase_of(f), WEFT_WORKER_IDLE);
  weft_memory_stats st;
  weft_memory_stats_get(f->device->memory, &st);
  assert_int_equal(st.extents, 0);
  end(f);
}

static void the_deadline_ends_a_transfer_that_hangs(void **state)
{
  (void)state;
  fixture *f = begin();
  accept_silent(f, 1);
  expect(ASK(f, w_go, W_GO, 1, .what = WEFT_TRANSFER_UPDATE, .timeout_ms = 100),
         WEFT_MSG_W_REFUSED, WEFT_E_TIMEOUT);
  assert_int_equal(phase_of(f), WEFT_WORKER_IDLE);
  accept_silent(f, 2); /* and the next session is not cancelled by it */
  expect(ASK(f, w_abort, W_ABORT, 2, .reason = WEFT_STR("test")), WEFT_MSG_W_OK, WEFT_OK);
  end(f);
}

static void a_stop_does_not_wait_for_a_transfer_that_hangs(void **state)
{
  (void)state;
  fixture *f = begin();
  going g;
  pthread_t thread;
  go_and_wait_until_it_hangs(f, &g, &thread);
  stop(f); /* hangs here if the device thread is not told */
  assert_int_equal(pthread_join(thread, NULL), 0);
  if (g.answer) {
    weft_msg_drop(weft_messages(), g.answer);
  }
  destroy(f);
}

/* ---- readers beside whole updates */

typedef struct reader {
  weft_store *store;
  atomic_bool *stop;
  const char *wrong;
} reader;

static void *read_on(void *arg)
{
  reader *r = arg;
  uint64_t last = 0;
  while (!atomic_load(r->stop) && !r->wrong) {
    const weft_snapshot *s;
    if (weft_store_pin(r->store, 0, &s) != WEFT_OK) {
      r->wrong = "no snapshot";
      break;
    }
    const uint8_t want = (uint8_t)s->weights_sequence;
    for (size_t t = 0; t < s->tensor_count; t++) {
      const uint8_t *data = s->tensors[t].data;
      for (uint64_t i = 0; i < s->tensors[t].bytes; i++) {
        if (data[i] != want) {
          r->wrong = "mixed bytes";
        }
      }
    }
    if (s->weights_sequence < last) {
      r->wrong = "an older snapshot";
    }
    last = s->weights_sequence;
    weft_store_unpin(r->store, s);
  }
  return NULL;
}

static void write_file(const char *path, uint8_t fill)
{
  const int64_t shape[1] = { 3000 };
  const weft_st_spec specs[2] = { { "a", WEFT_DTYPE_UINT8, 1, shape },
                                  { "b", WEFT_DTYPE_UINT8, 1, shape } };
  uint8_t data[6000];
  weft_st_writer *writer;
  memset(data, fill, sizeof data);
  const int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_ok(weft_st_writer_create(fd, specs, 2, &writer, NULL));
  assert_ok(weft_st_writer_put(writer, data, sizeof data, NULL));
  assert_ok(weft_st_writer_end(writer, NULL));
  weft_st_writer_destroy(writer);
  assert_int_equal(close(fd), 0);
}

static void commit(fixture *f, uint64_t n)
{
  char path[PATH_LEN], text[2 * PATH_LEN];
  wefti_store_state st;
  wefti_store_state_get(f->device->store, &st);
  (void)snprintf(path, sizeof path, "%.100s/f", f->dir);
  (void)snprintf(text, sizeof text,
                 "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}", path);
  write_file(path, (uint8_t)n);
  expect(ASK(f, w_start, W_START, n, .base_sequence = st.weights_sequence,
             .base_digest_hi = st.digest_hi, .base_digest_lo = st.digest_lo),
         WEFT_MSG_W_OK, WEFT_OK);
  accept_text(f, n, text);
  expect(ASK(f, w_go, W_GO, n, .what = WEFT_TRANSFER_UPDATE), WEFT_MSG_W_OK, WEFT_OK);
  expect(ASK(f, w_finish, W_FINISH, n, .strict = 1), WEFT_MSG_W_FINISHED, WEFT_OK);
  expect(ASK(f, w_publish, W_PUBLISH, n, .sequence = n), WEFT_MSG_W_OK, WEFT_OK);
  expect(ASK(f, w_beat, W_BEAT, 0, .grant = 0), WEFT_MSG_W_STATE, WEFT_OK);
  assert_int_equal(unlink(path), 0);
}

static void readers_see_whole_sets_during_updates(void **state)
{
  (void)state;
  fixture *f = begin();
  atomic_bool enough = false;
  reader r = { .store = wefti_device_store(f->device), .stop = &enough };
  pthread_t thread;
  commit(f, 1);
  assert_int_equal(pthread_create(&thread, NULL, read_on, &r), 0);
  for (uint64_t n = 2; n <= 60; n++) {
    commit(f, n);
  }
  atomic_store(&enough, true);
  assert_int_equal(pthread_join(thread, NULL), 0);
  if (r.wrong) {
    fail_msg("a reader saw %s", r.wrong);
  }
  end(f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_abort_ends_a_transfer_that_hangs),
    cmocka_unit_test(the_deadline_ends_a_transfer_that_hangs),
    cmocka_unit_test(a_stop_does_not_wait_for_a_transfer_that_hangs),
    cmocka_unit_test(readers_see_whole_sets_during_updates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
