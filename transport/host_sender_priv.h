/* host_sender_priv.h -- private to the two files of the sending end of the tcp source:
 * its state.  host_sender_open.c makes and unmakes it, host_sender.c serves. */
#ifndef WEFT_TRANSPORT_HOST_SENDER_PRIV_H
#define WEFT_TRANSPORT_HOST_SENDER_PRIV_H

#include "host_priv.h"
#include "weft/host_sender.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum wefti_peer_state {
  PEER_HELLO,   /* its line is being read */
  PEER_SENDING, /* answer, then weights */
  PEER_CONFIRM, /* all is sent, its last line is being read */
  PEER_REFUSED  /* the refusal is being sent, then it is closed */
} wefti_peer_state;

typedef struct wefti_peer {
  int fd; /* -1 = free slot */
  wefti_peer_state state;
  unsigned rank;
  uint64_t since_ms;
  uint64_t sent; /* bytes of weights */
  uint64_t read; /* ... taken from the file or the pieces */
  size_t piece;  /* the next bytes are of */
  uint64_t piece_at;
  size_t line_len;
  char line[WEFT_HOST_LINE_MAX];
  uint8_t *block; /* [WEFTI_HOST_BLOCK] */
  size_t block_at, block_len;
} wefti_peer;

struct weft_host_sender {
  int listener;
  int file; /* -1: pieces */
  uint64_t data_at, bytes;
  uint64_t tensors;
  const weft_host_piece *pieces; /* [tensors] borrowed */
  char *token;
  uint64_t epoch, no_progress_ms, moved_ms, sum;
  unsigned workers, done;
  unsigned ranks;       /* of each replica; workers unless there are several */
  bool *served;         /* [workers] a rank has come */
  wefti_peer *peers;    /* [peer_cap] */
  struct pollfd *polls; /* [peer_cap + 1] */
  size_t peer_cap;
  char address[128];
};

void wefti_sender_drop(wefti_peer *p); /* closes; the slot is free */

#endif /* WEFT_TRANSPORT_HOST_SENDER_PRIV_H */
