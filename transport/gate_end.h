/* gate_end.h -- one end of a gate's pair: reads, writes without waiting and keeps what
 * was not taken.  Not when to do so, nor what becomes of the pair (gate_pairs.c). */
#ifndef WEFT_TRANSPORT_GATE_END_H
#define WEFT_TRANSPORT_GATE_END_H

#include "gate_pairs.h"
#include "sp_frames.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wefti_end {
  wefti_pair *pair;
  wefti_end *other;
  int fd;
  uint32_t watched;
  bool ended;             /* nothing more to read */
  bool deaf;              /* cannot be written to any more */
  wefti_sp_frames frames; /* what is read from here */
  uint8_t *rest;          /* [at, len) is still to be written */
  size_t at, len;
};

/* With no events the end leaves the set, or a hang-up would be told again and again.
 * false: the kernel has no memory. */
bool wefti_end_watch(const wefti_relay *r, wefti_end *e, uint32_t events);
void wefti_end_close(const wefti_relay *r, wefti_end *e);
/* Nothing may be left to be written.  false = no memory for what e does not take now. */
bool wefti_end_give(wefti_end *e, const uint8_t *data, size_t len);
void wefti_end_flush(wefti_end *e);
/* What was read from an end into r's scratch[n] goes to the other one.  false as give. */
bool wefti_end_pass_on(const wefti_relay *r, wefti_end *from, size_t n);
/* One read, so that everybody has a turn, and what it gave to the other end.  false =
 * no memory. */
bool wefti_end_pump(const wefti_relay *r, wefti_end *from);

#endif /* WEFT_TRANSPORT_GATE_END_H */
