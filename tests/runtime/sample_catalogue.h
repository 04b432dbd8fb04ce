/* sample_catalogue.h -- a small catalogue for tests of the mechanism.  Not the product's
 * (actors/include/weft/messages.def). */
#ifndef WEFT_TESTS_SAMPLE_CATALOGUE_H
#define WEFT_TESTS_SAMPLE_CATALOGUE_H

#include "weft/msg.h"

#include <stddef.h>

enum { SAMPLE_PING = 1, SAMPLE_PONG = 2, SAMPLE_MIX = 3, SAMPLE_GAP = 4, SAMPLE_GO = 5 };

typedef struct sample_ping {
  weft_msg h;
  uint32_t n;
} sample_ping;

typedef struct sample_mix {
  weft_msg h;
  uint32_t small;
  uint64_t large;
  weft_str text;
  weft_buf *body;
  weft_str tail;
} sample_mix;

static const weft_field sample_ping_fields[] = {
  { "n", WEFT_FIELD_u32, offsetof(sample_ping, n) },
};

static const weft_field sample_mix_fields[] = {
  { "small", WEFT_FIELD_u32, offsetof(sample_mix, small) },
  { "large", WEFT_FIELD_u64, offsetof(sample_mix, large) },
  { "text", WEFT_FIELD_str, offsetof(sample_mix, text) },
  { "body", WEFT_FIELD_buf, offsetof(sample_mix, body) },
  { "tail", WEFT_FIELD_str, offsetof(sample_mix, tail) },
};

static const weft_msg_desc sample_descs[] = {
  [SAMPLE_PING] = { .name = "ping",
                    .size = sizeof(sample_ping),
                    .fields = sample_ping_fields,
                    .field_count = 1,
                    .reply = SAMPLE_PONG },
  [SAMPLE_PONG] = { .name = "pong",
                    .size = sizeof(sample_ping),
                    .fields = sample_ping_fields,
                    .field_count = 1 },
  [SAMPLE_MIX] = { .name = "mix",
                   .size = sizeof(sample_mix),
                   .fields = sample_mix_fields,
                   .field_count = 5 },
  [SAMPLE_GO] = { .name = "go", .size = sizeof(weft_msg) },
};

static const weft_catalogue sample_catalogue = {
  sample_descs, sizeof sample_descs / sizeof sample_descs[0]
};

#endif /* WEFT_TESTS_SAMPLE_CATALOGUE_H */
