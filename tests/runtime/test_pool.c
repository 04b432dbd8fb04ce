#include "weft_test.h"

#include "pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void sizes_have_their_class(void **state)
{
  (void)state;
  assert_int_equal(wefti_pool_class(1), 0);
  assert_int_equal(wefti_pool_class(64), 0);
  assert_int_equal(wefti_pool_class(65), 1);
  assert_int_equal(wefti_pool_class(128), 1);
  assert_int_equal(wefti_pool_class(129), 2);
  assert_int_equal(wefti_pool_class(1024), 4);
}

static void memory_is_large_enough_and_used_again(void **state)
{
  (void)state;
  wefti_pool pool;
  wefti_pool_init(&pool, 3);
  pool.bypass = false;
  weft_msg *got[500];
  for (size_t i = 0; i < 500; i++) {
    const size_t size = 48 + i * 2;
    got[i] = wefti_pool_get(&pool, size);
    assert_non_null(got[i]);
    assert_true(wefti_msg_room(got[i]) >= size);
    assert_int_equal(got[i]->home & WEFTI_HOME_POOL_MASK, size > 1024 ? 0 : 4);
    const uint32_t home = got[i]->home;
    memset(got[i], 0xab, size);
    got[i]->home = home;
  }
  for (size_t i = 0; i < 500; i++) {
    if ((got[i]->home & WEFTI_HOME_POOL_MASK) == 0) {
      free(got[i]);
    } else {
      wefti_pool_put(&pool, got[i]);
    }
  }
  assert_ptr_equal(wefti_pool_get(&pool, 64), got[8]); /* the last one of its class */
  weft_msg *big = wefti_pool_get(&pool, 1025);
  assert_non_null(big);
  assert_int_equal(big->home & WEFTI_HOME_POOL_MASK, 0);
  free(big);
  wefti_pool_fini(&pool);
}

static void *give_back(void *arg)
{
  weft_msg **msgs = arg; /* [0] the pool's, then a NULL-ended list */
  wefti_pool *pool = (wefti_pool *)(void *)msgs[0];
  for (size_t i = 1; msgs[i] != NULL; i += 2) {
    msgs[i]->next = msgs[i + 1];
    wefti_pool_return(pool, msgs[i], msgs[i + 1]);
  }
  return NULL;
}

static void what_others_return_comes_back(void **state)
{
  (void)state;
  enum { N = 1000 };
  wefti_pool pool;
  wefti_pool_init(&pool, 0);
  pool.bypass = false;
  weft_msg *list[2][N + 2] = { { NULL } };
  for (int t = 0; t < 2; t++) {
    list[t][0] = (weft_msg *)(void *)&pool;
    for (int i = 1; i <= N; i++) {
      list[t][i] = wefti_pool_get(&pool, 64);
      assert_non_null(list[t][i]);
    }
  }
  while (pool.free[0] != NULL) {
    (void)wefti_pool_get(&pool, 64);
  }
  const wefti_pool_block *newest = pool.blocks;
  pthread_t threads[2];
  for (int t = 0; t < 2; t++) {
    assert_int_equal(pthread_create(&threads[t], NULL, give_back, list[t]), 0);
  }
  for (int t = 0; t < 2; t++) {
    assert_int_equal(pthread_join(threads[t], NULL), 0);
  }
  for (int i = 0; i < 2 * N; i++) {
    assert_non_null(wefti_pool_get(&pool, 64));
  }
  assert_ptr_equal(pool.blocks, newest); /* no new memory was needed */
  assert_null(pool.free[0]);             /* nor is there any more */
  wefti_pool_fini(&pool);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(sizes_have_their_class),
    cmocka_unit_test(memory_is_large_enough_and_used_again),
    cmocka_unit_test(what_others_return_comes_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
