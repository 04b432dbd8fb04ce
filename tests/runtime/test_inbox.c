#include "weft_test.h"

#include "inbox.h"

#include <pthread.h>
#include <string.h>

enum { PUSHERS = 2, MESSAGES = 64, ROUNDS = 2000 };

typedef struct pusher {
  wefti_inbox *box;
  pthread_barrier_t *begin;
  weft_msg messages[MESSAGES];
  unsigned sent;        /* taken by the inbox */
  const weft_msg *tail; /* behind the one that was not; must be nothing */
} pusher;

static void nobody(void *arg)
{
  (void)arg;
}

static void *push_until_closed(void *arg)
{
  pusher *p = arg;
  (void)pthread_barrier_wait(p->begin);
  while (p->sent < MESSAGES) {
    weft_msg *m = &p->messages[p->sent];
    if (!wefti_inbox_push(p->box, m, m)) {
      p->tail = m->next;
      break;
    }
    p->sent++;
  }
  return NULL;
}

/* What a closed inbox did not take is the pusher's alone: not chained to what others have
 * pushed, which its owner has by now. */
static void what_was_not_taken_leads_nowhere(void **state)
{
  (void)state;
  static pusher pushers[PUSHERS];
  pthread_barrier_t begin;
  assert_int_equal(pthread_barrier_init(&begin, NULL, PUSHERS + 1), 0);
  for (int round = 0; round < ROUNDS; round++) {
    wefti_inbox box;
    pthread_t threads[PUSHERS];
    unsigned taken = 0;
    unsigned sent = 0;
    wefti_inbox_init(&box);
    box.wake = nobody;
    memset(pushers, 0, sizeof pushers);
    for (int i = 0; i < PUSHERS; i++) {
      pushers[i].box = &box;
      pushers[i].begin = &begin;
      assert_int_equal(pthread_create(&threads[i], NULL, push_until_closed, &pushers[i]),
                       0);
    }
    (void)pthread_barrier_wait(&begin);
    while (!wefti_inbox_waiting(&box)) {
    }
    for (const weft_msg *m = wefti_inbox_close(&box); m != NULL; m = m->next) {
      taken++;
    }
    for (int i = 0; i < PUSHERS; i++) {
      assert_int_equal(pthread_join(threads[i], NULL), 0);
      assert_null(pushers[i].tail);
      sent += pushers[i].sent;
    }
    assert_int_equal(taken, sent); /* each once, none lost */
  }
  (void)pthread_barrier_destroy(&begin);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_was_not_taken_leads_nowhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
