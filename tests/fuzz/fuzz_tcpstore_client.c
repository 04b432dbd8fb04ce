/* A server says whatever it likes, while questions are asked and given up.  Each question
 * has one answer at most, and a value lies inside what was said.  Input: records of
 * {action, length, bytes}. */
#include "tcpstore_talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                      \
  do {                                                                                   \
    if (!(cond)) {                                                                       \
      (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                   \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

enum { VALUE_MAX = 4096 };

static bool act(wefti_talk *t, uint8_t action)
{
  static const char *const keys[] = { "/a", "/b", "/c" };
  if (t->ask != WEFTI_ASK_NONE) {
    return action % 4 == 0   ? wefti_talk_cancel(t)
           : action % 4 == 1 ? wefti_talk_poll(t)
                             : true;
  }
  switch (action % 8) {
  case 0:
    return wefti_talk_get(t, keys, 1);
  case 1:
    return wefti_talk_get(t, keys, 3);
  case 2:
    return wefti_talk_set(t, "/s", "value", 5);
  case 3:
    return wefti_talk_add(t, "init/", 1);
  case 4:
    return wefti_talk_remove(t, "/r");
  case 5:
    return wefti_talk_cancel(t);
  default:
    return true;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  wefti_talk t;
  wefti_talk_init(&t, VALUE_MAX);
  CHECK(wefti_talk_hello(&t, 0x61626364, size % 2 == 0));
  weft_err err = WEFT_OK;
  while (size >= 2 && (err == WEFT_OK || err == WEFT_E_AGAIN)) {
    const size_t n = data[1] < size - 2 ? data[1] : size - 2;
    if (t.ask != WEFTI_ASK_HELLO) {
      CHECK(act(&t, data[0]));
    }
    wefti_sb_drop(&t.out, t.out.len);
    if (wefti_talk_flushed(&t)) {
      CHECK(t.ask == WEFTI_ASK_NONE);
    }
    CHECK(wefti_talk_feed(&t, data + 2, n));
    do {
      wefti_talk_news news;
      weft_tcpstore_answer answer;
      weft_why why = { 0 };
      const bool was_asked = t.ask != WEFTI_ASK_NONE;
      err = wefti_talk_next(&t, &news, &answer, &why);
      CHECK(err != WEFT_OK || was_asked);
      CHECK(err == WEFT_OK || err == WEFT_E_AGAIN || why.text[0] != '\0');
      CHECK(err != WEFT_OK || news == WEFTI_TALK_POLL || t.ask == WEFTI_ASK_NONE);
      if (err == WEFT_OK && answer.value != NULL) {
        CHECK(answer.len <= VALUE_MAX && answer.value >= t.in.data);
        CHECK((size_t)(answer.value - t.in.data) + answer.len <= t.in.len);
      }
    } while (err == WEFT_OK);
    data += 2 + n;
    size -= 2 + n;
  }
  wefti_talk_fini(&t);
  return 0;
}
