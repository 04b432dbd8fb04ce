#include "weft_test.h"

#include "host_fixture.h"
#include "weft/host_sender.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

static const int64_t sizes[] = { 5, 0, 3 << 20, 70000, 1, (1 << 20) + 13 };
enum { COUNT = sizeof sizes / sizeof *sizes, WORKERS = 3 };
static const char token[] = "a-token-of-some-length";

typedef struct trainer {
  char *dir;
  char path[256];
  int fd;
  weft_safetensors *st;
  weft_host_sender *sender;
  pthread_t thread;
  weft_err err;
  weft_why why;
  atomic_bool cancel;
} trainer;

static void *trainer_main(void *arg)
{
  trainer *t = arg;
  t->err = weft_host_sender_run(t->sender, &t->cancel, NULL, NULL, &t->why);
  return NULL;
}

static trainer *start_opts(const int64_t *bytes, size_t count,
                           const weft_host_sender_opts *opts)
{
  trainer *t = calloc(1, sizeof *t);
  assert_non_null(t);
  t->dir = make_folder();
  (void)snprintf(t->path, sizeof t->path, "%s/m", t->dir);
  write_file(t->path, bytes, count);
  t->fd = open(t->path, O_RDONLY | O_CLOEXEC);
  assert_ok(weft_safetensors_read(t->fd, t->path, &t->st, NULL));
  assert_ok(weft_host_sender_create(opts, t->fd, t->st, &t->sender, NULL));
  assert_int_equal(pthread_create(&t->thread, NULL, trainer_main, t), 0);
  return t;
}

static trainer *start_trainer(const int64_t *bytes, size_t count, unsigned workers,
                              uint64_t epoch, uint64_t no_progress_ms)
{
  const weft_host_sender_opts opts = { .size = sizeof opts,
                                       .token = token,
                                       .workers = workers,
                                       .epoch = epoch,
                                       .no_progress_ms = no_progress_ms };
  return start_opts(bytes, count, &opts);
}

static void join_trainer(trainer *t, weft_err want, const char *says)
{
  assert_int_equal(pthread_join(t->thread, NULL), 0);
  if (t->err != want || strstr(t->why.text, says) == NULL) {
    fail_msg("%s: %s", weft_err_name(t->err), t->why.text);
  }
  weft_host_sender_destroy(t->sender);
  weft_safetensors_free(t->st);
  assert_int_equal(close(t->fd), 0);
  assert_int_equal(unlink(t->path), 0);
  assert_int_equal(rmdir(t->dir), 0);
  free(t->dir);
  free(t);
}

static char *info_for(const char *address, const char *with_token, const int64_t *bytes,
                      size_t count)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_object(&w, "source");
  weft_jw_str(&w, "kind", "tcp");
  weft_jw_str(&w, "address", address);
  weft_jw_str(&w, "token", with_token);
  weft_jw_end(&w);
  for (int list = 0; list < 3; list++) {
    weft_jw_array(&w, list == 0 ? "names" : list == 1 ? "dtype_names" : "shapes");
    for (size_t i = 0; i < count; i++) {
      char name[32];
      (void)snprintf(name, sizeof name, "t%zu", i);
      if (list == 2) {
        weft_jw_array(&w, NULL);
        weft_jw_i64(&w, NULL, bytes[i]);
        weft_jw_end(&w);
      } else {
        weft_jw_str(&w, NULL, list == 0 ? name : "uint8");
      }
    }
    weft_jw_end(&w);
  }
  weft_jw_end(&w);
  char *text = NULL;
  assert_ok(weft_jw_take(&w, &text, NULL));
  return text;
}

typedef struct worker {
  char *info;
  weft_transfer_who who;
  uint64_t no_progress_ms;
  const atomic_bool *cancel;
  weft_err err;
  weft_why why;
  bool right;
} worker;

static void *worker_main(void *arg)
{
  worker *k = arg;
  const weft_transfer_ops *ops = weft_transfer_host();
  void *host = open_host(NULL, 1, k->no_progress_ms);
  weft_plan *plan = NULL;
  assert_ok(ops->accept(host, k->info, strlen(k->info), &k->who, &plan, &k->why));
  buffers b = make_buffers(plan);
  k->err = ops->receive(host, plan, b.dst, b.digests, k->cancel, NULL, NULL, &k->why);
  k->right = k->err == WEFT_OK;
  for (size_t i = 0; k->right && i < plan->count; i++) {
    for (uint64_t at = 0; at < plan->tensors[i].bytes; at++) {
      k->right = k->right && ((uint8_t *)b.dst[i])[at] == pattern(i, at);
    }
    k->right =
        k->right &&
        weft_digest_equal(b.digests[i], weft_digest_of(b.dst[i], plan->tensors[i].bytes));
  }
  free_buffers(&b);
  ops->abandon(host, plan);
  ops->close(host);
  free(k->info);
  return NULL;
}

static void all_workers_get_all_bytes(void **state)
{
  (void)state;
  trainer *t = start_trainer(sizes, COUNT, WORKERS, 9, 0);
  worker k[WORKERS] = { 0 };
  pthread_t threads[WORKERS];
  for (unsigned r = 0; r < WORKERS; r++) {
    k[r].info = info_for(weft_host_sender_address(t->sender), token, sizes, COUNT);
    k[r].who = (weft_transfer_who){ .epoch = 9, .rank = r, .world_size = WORKERS };
    assert_int_equal(pthread_create(&threads[r], NULL, worker_main, &k[r]), 0);
  }
  for (unsigned r = 0; r < WORKERS; r++) {
    assert_int_equal(pthread_join(threads[r], NULL), 0);
    if (k[r].err != WEFT_OK) {
      fail_msg("worker %u: %s", r, k[r].why.text);
    }
    assert_true(k[r].right);
  }
  join_trainer(t, WEFT_OK, "");
}

static void every_rank_of_every_replica_is_served_once(void **state)
{
  (void)state;
  enum { RANKS = 2, REPLICAS = 2 };
  const weft_host_sender_opts opts = {
    .size = sizeof opts, .token = token, .workers = RANKS * REPLICAS, .ranks = RANKS
  };
  trainer *t = start_opts(sizes, COUNT, &opts);
  worker k = { .info = info_for(weft_host_sender_address(t->sender), token, sizes, COUNT),
               .who = { .world_size = RANKS, .dp_index = REPLICAS } };
  (void)worker_main(&k);
  assert_err(k.err, WEFT_E_DENIED);
  assert_non_null(strstr(k.why.text, "dp_index"));
  for (unsigned i = 0; i < RANKS * REPLICAS; i++) {
    k = (worker){
      .info = info_for(weft_host_sender_address(t->sender), token, sizes, COUNT),
      .who = { .rank = i % RANKS, .world_size = RANKS, .dp_index = i / RANKS }
    };
    (void)worker_main(&k);
    if (k.err != WEFT_OK) {
      fail_msg("worker %u: %s", i, k.why.text);
    }
    assert_true(k.right);
  }
  join_trainer(t, WEFT_OK, "");
}

/* The same bytes, from where they lie. */
static void memory_is_served_as_a_file_is(void **state)
{
  (void)state;
  for (size_t count = 0; count <= COUNT; count += COUNT) {
    weft_host_piece pieces[COUNT] = { { NULL, 0 } };
    for (size_t i = 0; i < count; i++) {
      uint8_t *bytes = sizes[i] > 0 ? malloc((size_t)sizes[i]) : NULL;
      for (int64_t at = 0; at < sizes[i]; at++) {
        bytes[at] = pattern(i, (uint64_t)at);
      }
      pieces[i] = (weft_host_piece){ .data = bytes, .bytes = (uint64_t)sizes[i] };
    }
    trainer t = { .fd = -1 };
    const weft_host_sender_opts opts = { .size = sizeof opts,
                                         .token = token,
                                         .workers = 1 };
    assert_ok(weft_host_sender_create_memory(&opts, pieces, count, &t.sender, NULL));
    assert_int_equal(pthread_create(&t.thread, NULL, trainer_main, &t), 0);
    worker k = { .info = info_for(weft_host_sender_address(t.sender),
                                  "another-token-of-it", sizes, count),
                 .who = { .world_size = 1 } };
    (void)worker_main(&k);
    assert_err(k.err, WEFT_E_DENIED); /* and no byte of it */
    k = (worker){ .info =
                      info_for(weft_host_sender_address(t.sender), token, sizes, count),
                  .who = { .world_size = 1 } };
    (void)worker_main(&k);
    assert_ok(k.err);
    assert_true(k.right);
    assert_int_equal(pthread_join(t.thread, NULL), 0);
    assert_ok(t.err);
    weft_host_sender_destroy(t.sender);
    for (size_t i = 0; i < count; i++) {
      free((void *)(uintptr_t)pieces[i].data);
    }
  }
  const weft_host_piece many[2] = { { NULL, UINT64_MAX }, { NULL, 1 } };
  const weft_host_sender_opts opts = { .size = sizeof opts,
                                       .token = token,
                                       .workers = 1 };
  weft_host_sender *s = NULL;
  assert_err(weft_host_sender_create_memory(&opts, many, 2, &s, NULL), WEFT_E_OVERFLOW);
}

static void a_set_without_bytes_is_served(void **state)
{
  (void)state;
  const int64_t none[] = { 0 };
  for (size_t count = 0; count < 2; count++) {
    trainer *t = start_trainer(none, count, 1, 0, 0);
    worker k = { .info =
                     info_for(weft_host_sender_address(t->sender), token, none, count),
                 .who = { .world_size = 1 } };
    (void)worker_main(&k);
    if (k.err != WEFT_OK) {
      fail_msg("%s", k.why.text);
    }
    join_trainer(t, WEFT_OK, "");
  }
}

static void strangers_are_turned_away(void **state)
{
  (void)state;
  trainer *t = start_trainer(sizes, COUNT, 1, 9, 0);
  static const int64_t other[] = { 4 };
  const struct {
    const char *with;
    const int64_t *bytes;
    size_t count;
    weft_transfer_who who;
    const char *says;
  } rows[] = {
    { "a-token-of-some-lengti",
      sizes,
      COUNT,
      { .epoch = 9, .world_size = 1 },
      "refused: wrong token" },
    { "short", sizes, COUNT, { .epoch = 9, .world_size = 1 }, "refused: wrong token" },
    { token, sizes, COUNT, { .epoch = 8, .world_size = 1 }, "refused: wrong epoch" },
    { token, other, 1, { .epoch = 9, .world_size = 1 }, "refused: other tensors" },
    { token,
      sizes,
      COUNT,
      { .epoch = 9, .rank = 1, .world_size = 1 },
      "refused: wrong rank" },
    { token,
      sizes,
      COUNT,
      { .epoch = 9, .world_size = 2 },
      "refused: wrong rank or world size" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    worker k = { .info = info_for(weft_host_sender_address(t->sender), rows[i].with,
                                  rows[i].bytes, rows[i].count),
                 .who = rows[i].who };
    (void)worker_main(&k);
    assert_err(k.err, WEFT_E_DENIED);
    if (strstr(k.why.text, rows[i].says) == NULL) {
      fail_msg("%s", k.why.text);
    }
  }
  worker k = { .info = info_for(weft_host_sender_address(t->sender), token, sizes, COUNT),
               .who = { .epoch = 9, .world_size = 1 } };
  (void)worker_main(&k);
  assert_true(k.right);
  join_trainer(t, WEFT_OK, "");
}

/* A trainer that answers with these bytes and closes (or waits for the other's end). */
typedef struct liar {
  int listener;
  const char *answer;
  size_t len;
  bool closes;
} liar;

static void *liar_main(void *arg)
{
  const liar *l = arg;
  const int fd = accept(l->listener, NULL, NULL);
  char c = 0;
  while (c != '\n' && recv(fd, &c, 1, 0) == 1) {
  }
  assert_int_equal(send(fd, l->answer, l->len, MSG_NOSIGNAL), l->len);
  while (!l->closes && recv(fd, &c, 1, 0) == 1) {
  }
  (void)close(fd);
  return NULL;
}

static int listen_somewhere(char *address, size_t cap)
{
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in in = { .sin_family = AF_INET,
                            .sin_addr = { htonl(INADDR_LOOPBACK) } };
  socklen_t len = sizeof in;
  assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(listen(fd, 4), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &len), 0);
  (void)snprintf(address, cap, "127.0.0.1:%u", ntohs(in.sin_port));
  return fd;
}

static void lying_trainers_are_errors(void **state)
{
  (void)state;
  char endless[5000];
  memset(endless, 'x', sizeof endless);
  const struct {
    const char *answer;
    size_t len;
    bool closes;
    uint64_t no_progress_ms;
    weft_err err;
    const char *says;
  } rows[] = {
    { "", 0, true, 0, WEFT_E_DOWN, "closed during the handshake" },
    { "HTTP/1.1 200 OK\r\n", 17, true, 0, WEFT_E_PROTO,
      "does not speak weft's handshake" },
    { "{\"weft\":2,\"ok\":true}\n", 21, true, 0, WEFT_E_PROTO, "does not speak" },
    { "{\"weft\":1,\"ok\":false,\"error\":\"no\"}\n", 35, true, 0, WEFT_E_DENIED,
      "refused: no" },
    { endless, sizeof endless, false, 0, WEFT_E_PROTO, "endless line" },
    { "{\"weft\":1,\"ok\":true}\nabc", 24, true, 0, WEFT_E_TRUNCATED,
      "closed when 3 of 5 bytes of 't0' had arrived" },
    { "{\"weft\":1,\"ok\":true}\nabc", 24, false, 100, WEFT_E_TIMEOUT,
      "nothing moved for 100 ms while 3 of 5 bytes of 't0' had arrived" },
    { "", 0, false, 100, WEFT_E_TIMEOUT, "while shaking hands" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char address[64];
    liar l = { listen_somewhere(address, sizeof address), rows[i].answer, rows[i].len,
               rows[i].closes };
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, liar_main, &l), 0);
    worker k = { .info = info_for(address, token, sizes, COUNT),
                 .who = { .world_size = 1 },
                 .no_progress_ms = rows[i].no_progress_ms };
    (void)worker_main(&k);
    /* Unread bytes at close may also show as a reset. */
    if (k.err != rows[i].err || strstr(k.why.text, rows[i].says) == NULL) {
      fail_msg("row %zu: %s: %s", i, weft_err_name(k.err), k.why.text);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(close(l.listener), 0);
  }
}

static void cancel_ends_a_wait(void **state)
{
  (void)state;
  char address[64];
  const int listener = listen_somewhere(address, sizeof address); /* never answers */
  const atomic_bool cancel = true;
  worker k = { .info = info_for(address, token, sizes, COUNT),
               .who = { .world_size = 1 },
               .cancel = &cancel };
  (void)worker_main(&k);
  assert_err(k.err, WEFT_E_CANCELLED);
  assert_int_equal(close(listener), 0);
  trainer *t = start_trainer(sizes, COUNT, 1, 0, 0);
  atomic_store(&t->cancel, true);
  join_trainer(t, WEFT_E_CANCELLED, "cancelled");
}

static void nobody_listens(void **state)
{
  (void)state;
  char address[64];
  assert_int_equal(close(listen_somewhere(address, sizeof address)), 0);
  worker k = { .info = info_for(address, token, sizes, COUNT),
               .who = { .world_size = 1 } };
  (void)worker_main(&k);
  assert_err(k.err, WEFT_E_DOWN);
}

static void the_trainer_says_who_is_missing(void **state)
{
  (void)state;
  trainer *t = start_trainer(sizes, COUNT, 2, 0, 200);
  worker k = { .info = info_for(weft_host_sender_address(t->sender), token, sizes, COUNT),
               .who = { .world_size = 2 } };
  (void)worker_main(&k);
  assert_true(k.right);
  join_trainer(t, WEFT_E_TIMEOUT, "worker 1 never came");
}

static void a_file_that_shrinks_is_the_trainers_error(void **state)
{
  (void)state;
  const int64_t large[] = { 64 << 20 };
  trainer *t = start_trainer(large, 1, 1, 0, 0);
  assert_int_equal(truncate(t->path, 1 << 20), 0);
  worker k = { .info = info_for(weft_host_sender_address(t->sender), token, large, 1),
               .who = { .world_size = 1 },
               .no_progress_ms = 200 };
  (void)worker_main(&k);
  assert_true(k.err == WEFT_E_TIMEOUT || k.err == WEFT_E_TRUNCATED ||
              k.err == WEFT_E_DOWN);
  join_trainer(t, WEFT_E_TRUNCATED, "the file ended after");
}

static void addresses_are_checked_before_anything_moves(void **state)
{
  (void)state;
  const char *const allow[] = { "trainer.example", "10.1.2.3:7777" };
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .tcp_allow = allow,
                                    .tcp_allow_count = 2 };
  const weft_transfer_ops *ops = weft_transfer_host();
  void *host = NULL;
  assert_ok(ops->open(&opts, &host, NULL));
  static const struct {
    const char *address, *with;
    weft_err err;
  } rows[] = {
    { "127.0.0.1:5", "t", WEFT_OK },
    { "127.9.9.9:5", "t", WEFT_OK },
    { "[::1]:5", "t", WEFT_OK },
    { "localhost:5", "t", WEFT_OK },
    { "trainer.example:1", "t", WEFT_OK },
    { "10.1.2.3:7777", "t", WEFT_OK },
    { "10.1.2.3:7778", "t", WEFT_E_DENIED },
    { "128.0.0.1:5", "t", WEFT_E_DENIED },
    { "[::2]:5", "t", WEFT_E_DENIED },
    { "localhost.evil.example:5", "t", WEFT_E_DENIED },
    { "127.0.0.1.evil.example:5", "t", WEFT_E_DENIED },
    { "127.0.0.1", "t", WEFT_E_INVAL },
    { ":5", "t", WEFT_E_INVAL },
    { "127.0.0.1:", "t", WEFT_E_INVAL },
    { "127.0.0.1:65536", "t", WEFT_E_INVAL },
    { "127.0.0.1:5x", "t", WEFT_E_INVAL },
    { "::1:5", "t", WEFT_E_INVAL },
    { "127.0.0.1:5", "", WEFT_E_INVAL },
    { NULL, "t", WEFT_E_INVAL },
    { "127.0.0.1:5", NULL, WEFT_E_INVAL },
  };
  const weft_transfer_who who = { .world_size = 1 };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *info = info_for(rows[i].address, rows[i].with, sizes, COUNT);
    weft_plan *plan = NULL;
    weft_why why = { 0 };
    const weft_err err = ops->accept(host, info, strlen(info), &who, &plan, &why);
    if (err != rows[i].err) {
      fail_msg("%s: %s: %s", rows[i].address, weft_err_name(err), why.text);
    }
    ops->abandon(host, plan);
    free(info);
  }
  ops->close(host);
}

static void the_sender_checks_its_options(void **state)
{
  (void)state;
  weft_safetensors st = { 0 };
  weft_host_sender *s = NULL;
  weft_host_sender_opts o = { .size = sizeof o, .token = "too short", .workers = 1 };
  assert_err(weft_host_sender_create(&o, -1, &st, &s, NULL), WEFT_E_INVAL);
  o.token = token;
  o.workers = 0;
  assert_err(weft_host_sender_create(&o, -1, &st, &s, NULL), WEFT_E_INVAL);
  o.workers = 1;
  o.host = "localhost"; /* not numeric */
  assert_err(weft_host_sender_create(&o, -1, &st, &s, NULL), WEFT_E_INVAL);
  o.host = "::1";
  const weft_err err = weft_host_sender_create(&o, -1, &st, &s, NULL);
  if (err == WEFT_OK) { /* a machine may have no IPv6 */
    assert_int_equal(strncmp(weft_host_sender_address(s), "[::1]:", 6), 0);
    weft_host_sender_destroy(s);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(all_workers_get_all_bytes),
    cmocka_unit_test(every_rank_of_every_replica_is_served_once),
    cmocka_unit_test(memory_is_served_as_a_file_is),
    cmocka_unit_test(a_set_without_bytes_is_served),
    cmocka_unit_test(strangers_are_turned_away),
    cmocka_unit_test(lying_trainers_are_errors),
    cmocka_unit_test(cancel_ends_a_wait),
    cmocka_unit_test(nobody_listens),
    cmocka_unit_test(the_trainer_says_who_is_missing),
    cmocka_unit_test(a_file_that_shrinks_is_the_trainers_error),
    cmocka_unit_test(addresses_are_checked_before_anything_moves),
    cmocka_unit_test(the_sender_checks_its_options),
  };
  return cmocka_run_group_tests_name("transport.host_tcp", tests, NULL, NULL);
}
