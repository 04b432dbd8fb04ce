/* Events and answers of a publisher that may say anything: nothing but memory in use,
 * every numbered event above the last, and every item with its text. */
#include "sub_feed.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Input: pieces of (u8 what, u8 length, bytes); what: 0 event, 1 status, 2 events. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  wefti_feed f;
  wefti_feed_init(&f);
  while (size >= 2) {
    const unsigned what = data[0] % 4;
    size_t len = data[1];
    data += 2;
    size -= 2;
    len = len > size ? size : len;
    if (what == 0) {
      (void)!wefti_feed_event(&f, data, len);
    } else if (what == 3) {
      wefti_feed_check(&f, len % 2 == 0);
    } else {
      (void)!wefti_feed_answer(&f, what == 1 ? WEFTI_ASK_STATUS : WEFTI_ASK_EVENTS, data,
                               len);
    }
    char text[WEFTI_ASK_MAX];
    if (wefti_feed_ask(&f, text) >= sizeof text) {
      abort();
    }
    weft_sub_event v;
    while (wefti_feed_pop(&f, &v)) {
      if (v.json == NULL) {
        abort();
      }
      weft_buf_unref(v.json);
    }
    data += len;
    size -= len;
  }
  wefti_feed_fini(&f);
  return 0;
}
