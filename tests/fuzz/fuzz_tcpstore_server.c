/* Three clients say whatever they like.  The budget holds, what is charged is given back,
 * and a client that has been refused gets nothing more done.  Input: records of
 * {client, length, bytes}; client's high bit: it reads its output, next bit: it leaves.
 */
#include "tcpstore_peer.h"

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

enum { PEERS = 3 };

static void on_news(void *arg, wefti_peer *peer)
{
  (void)arg;
  CHECK(peer->err != WEFT_OK || peer->out.len > peer->out_at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  wefti_store store = { .map = { .keys_max = 32, .bytes_max = 1 << 20 },
                        .news = on_news };
  wefti_peer peers[PEERS];
  for (unsigned i = 0; i < PEERS; i++) {
    wefti_peer_init(&peers[i], &store, NULL);
  }
  while (size >= 2) {
    wefti_peer *p = &peers[data[0] % 64 % PEERS];
    const uint8_t what = data[0];
    const size_t n = data[1] < size - 2 ? data[1] : size - 2;
    const bool was_over = p->err != WEFT_OK;
    const size_t had = p->out.len;
    wefti_peer_feed(p, data + 2, n);
    CHECK(!was_over || p->out.len == had);
    CHECK(store.map.bytes <= store.map.bytes_max);
    CHECK(store.ready == NULL);
    CHECK(store.map.present <= store.map.entries && store.map.entries <= 32);
    if ((what & 0x80) != 0) {
      wefti_peer_sent(p, p->out.len - p->out_at);
    }
    if ((what & 0x40) != 0) {
      wefti_peer_fini(p);
      wefti_peer_init(p, &store, NULL);
    }
    data += 2 + n;
    size -= 2 + n;
  }
  for (unsigned i = 0; i < PEERS; i++) {
    wefti_peer_fini(&peers[i]);
  }
  wefti_map_fini(&store.map);
  CHECK(store.map.bytes == 0 && store.map.entries == 0 && store.map.present == 0);
  return 0;
}
