/* sp_frames.h -- one direction of an SP connection, between nng's two ways to write it
 * down: over ipc a frame has a byte of type before its length, over tcp it has none.  The
 * greeting before the first frame is the same.  Checks nothing: that is nng's. */
#ifndef WEFT_TRANSPORT_SP_FRAMES_H
#define WEFT_TRANSPORT_SP_FRAMES_H

#include <stddef.h>
#include <stdint.h>

typedef enum wefti_sp_change {
  WEFTI_SP_SAME,
  WEFTI_SP_TO_IPC,
  WEFTI_SP_TO_TCP
} wefti_sp_change;

typedef struct wefti_sp_frames {
  wefti_sp_change change;
  uint8_t greeting; /* bytes of it still to come */
  uint8_t head;     /* bytes of a frame's head that have come, as ipc has it */
  uint64_t len;     /* of a head not yet complete */
  uint64_t body;    /* bytes still to come */
} wefti_sp_frames;

/* What in[n] becomes; out has room for WEFTI_SP_ROOM(n).  Returns its length. */
size_t wefti_sp_translate(wefti_sp_frames *f, const uint8_t *in, size_t n, uint8_t *out);
#define WEFTI_SP_ROOM(n) ((n) + (n) / 8 + 1)

#endif /* WEFT_TRANSPORT_SP_FRAMES_H */
