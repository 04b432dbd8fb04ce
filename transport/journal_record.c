#include "journal_priv.h"
#include "weft/digest.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[8] = { 'w', 'e', 'f', 't', 'j', 'r', 'n', '1' };

static void put(uint8_t *out, uint64_t v, unsigned bytes)
{
  for (unsigned i = 0; i < bytes; i++) {
    out[i] = (uint8_t)(v >> (8 * i));
  }
}

static uint64_t get(const uint8_t *in, unsigned bytes)
{
  uint64_t v = 0;
  for (unsigned i = 0; i < bytes; i++) {
    v |= (uint64_t)in[i] << (8 * i);
  }
  return v;
}

static uint64_t checksum(const uint8_t *data, size_t len)
{
  return weft_digest_of(data, len).lo;
}

/* ---- the header of a segment */

void wefti_journal_header(const weft_journal_segment *segment,
                          uint8_t out[WEFTI_JOURNAL_HEADER])
{
  memcpy(out, magic, sizeof magic);
  put(out + 8, segment->number, 8);
  put(out + 16, segment->previous, 8);
  put(out + 24, segment->previous_good, 8);
  put(out + 32, checksum(out, 32), 8);
}

/* false: it is none. */
static bool header_read(const uint8_t *data, size_t len, weft_journal_segment *out)
{
  if (len < WEFTI_JOURNAL_HEADER || memcmp(data, magic, sizeof magic) != 0 ||
      get(data + 32, 8) != checksum(data, 32)) {
    return false;
  }
  *out = (weft_journal_segment){ .number = get(data + 8, 8),
                                 .previous = get(data + 16, 8),
                                 .previous_good = get(data + 24, 8),
                                 .good = WEFTI_JOURNAL_HEADER };
  return true;
}

/* ---- a record */

/* FLEET: the numbers of a record's last part, which only those of a fleet have.  Behind
 * them comes the fleet's name, a string like the four. */
enum { FIXED = 11 * 8 + 4, STRINGS = 4, FLEET = 3 * 8 };
/* Of the last four bytes of the fixed part. */
enum { FLAG_DECLARED = 1, FLAG_DRAFT = 2, FLAG_ALONE = 4 };

static void strings_of(const weft_journal_record *r, const char *out[STRINGS])
{
  out[0] = r->version == NULL ? "" : r->version;
  out[1] = r->operation == NULL ? "" : r->operation;
  out[2] = r->text == NULL ? "" : r->text;
  out[3] = r->sources == NULL ? "" : r->sources;
}

static size_t string_max(unsigned i)
{
  return i == STRINGS - 1 ? WEFT_JOURNAL_SOURCES_MAX : WEFT_JOURNAL_TEXT_MAX;
}

static void put_fixed(uint8_t *out, const weft_journal_record *r)
{
  const uint64_t fields[] = { r->boot_id,
                              r->epoch,
                              r->sequence,
                              r->weights_sequence,
                              r->digest_hi,
                              r->digest_lo,
                              r->at_ms,
                              r->elapsed_ms,
                              r->tensors,
                              r->bytes,
                              0 };
  static_assert(sizeof fields + 4 == FIXED, "the fixed part of a record");
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    put(out + 8 * i, fields[i], 8);
  }
  const unsigned flags = (r->declared ? FLAG_DECLARED : 0u) |
                         (r->draft ? FLAG_DRAFT : 0u) | (r->alone ? FLAG_ALONE : 0u);
  put(out + sizeof fields, flags, 4);
}

static bool of_fleet(const weft_journal_record *r)
{
  return r->fleet != NULL && r->fleet[0] != '\0';
}

static uint8_t *put_fleet(uint8_t *at, const weft_journal_record *r)
{
  const size_t len = strlen(r->fleet);
  put(at, r->fleet_boot, 8);
  put(at + 8, r->fleet_epoch, 8);
  put(at + 16, r->fleet_sequence, 8);
  put(at + FLEET, len, 4);
  memcpy(at + FLEET + 4, r->fleet, len);
  return at + FLEET + 4 + len;
}

weft_err wefti_journal_encode(const weft_journal_record *record, size_t synced,
                              uint8_t **out, size_t *len, weft_why *why)
{
  const char *strings[STRINGS];
  size_t lens[STRINGS];
  size_t payload = FIXED;
  strings_of(record, strings);
  for (unsigned i = 0; i < STRINGS; i++) {
    lens[i] = strlen(strings[i]);
    if (lens[i] > string_max(i)) {
      return weft_whyf(why, WEFT_E_LIMIT, "journal: a text of %zu bytes, at most %zu fit",
                       lens[i], string_max(i));
    }
    payload += 4 + lens[i];
  }
  if (of_fleet(record)) {
    const size_t name = strlen(record->fleet);
    if (name > WEFT_JOURNAL_FLEET_MAX) {
      return weft_whyf(why, WEFT_E_LIMIT,
                       "journal: a fleet's name of %zu bytes, at most %d fit", name,
                       WEFT_JOURNAL_FLEET_MAX);
    }
    payload += FLEET + 4 + name;
  }
  if ((unsigned)record->kind > WEFT_JOURNAL_VOTE) {
    return weft_whyf(why, WEFT_E_INVAL, "journal: no record has kind %u",
                     (unsigned)record->kind);
  }
  uint8_t *all = realloc(*out, *len + WEFTI_JOURNAL_FRAME + payload);
  if (all == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "journal: no memory for a record");
  }
  *out = all;
  uint8_t *frame = all + *len;
  uint8_t *body = frame + WEFTI_JOURNAL_FRAME;
  put_fixed(body, record);
  uint8_t *at = body + FIXED;
  for (unsigned i = 0; i < STRINGS; i++) {
    put(at, lens[i], 4);
    memcpy(at + 4, strings[i], lens[i]);
    at += 4 + lens[i];
  }
  if (of_fleet(record)) {
    (void)put_fleet(at, record);
  }
  put(frame, payload, 4);
  put(frame + 4, (uint64_t)record->kind, 4);
  put(frame + 8, synced, 8);
  put(frame + 16, checksum(body, payload), 8);
  put(frame + 24, checksum(frame, 24), 8);
  *len += WEFTI_JOURNAL_FRAME + payload;
  return WEFT_OK;
}

/* The length of the record at data, header and payload sound, 0 = none there. */
static size_t sound(const uint8_t *data, size_t left)
{
  if (left < WEFTI_JOURNAL_FRAME || get(data + 24, 8) != checksum(data, 24)) {
    return 0;
  }
  const size_t payload = (size_t)get(data, 4);
  if (payload < FIXED || payload > WEFTI_JOURNAL_PAYLOAD_MAX ||
      payload > left - WEFTI_JOURNAL_FRAME ||
      get(data + 16, 8) != checksum(data + WEFTI_JOURNAL_FRAME, payload)) {
    return 0;
  }
  return WEFTI_JOURNAL_FRAME + payload;
}

/* What is behind the strings: nothing, or what belongs to a fleet. */
static bool decode_fleet(const uint8_t *at, size_t left, char *name,
                         weft_journal_record *out)
{
  name[0] = '\0';
  out->fleet = name;
  if (left == 0) {
    return true;
  }
  if (left < FLEET + 4 || get(at + FLEET, 4) != left - FLEET - 4 || left == FLEET + 4 ||
      left - FLEET - 4 > WEFT_JOURNAL_FLEET_MAX) {
    return false;
  }
  const size_t len = left - FLEET - 4;
  if (memchr(at + FLEET + 4, 0, len) != NULL) {
    return false;
  }
  memcpy(name, at + FLEET + 4, len);
  name[len] = '\0';
  out->fleet_boot = get(at, 8);
  out->fleet_epoch = get(at + 8, 8);
  out->fleet_sequence = get(at + 16, 8);
  return true;
}

/* strings: [payload + STRINGS + 1] bytes of room for them, with their NULs. */
static bool decode(const uint8_t *data, size_t len, char *strings,
                   weft_journal_record *out)
{
  const uint8_t *body = data + WEFTI_JOURNAL_FRAME;
  const uint8_t *at = body + FIXED;
  size_t left = len - WEFTI_JOURNAL_FRAME - FIXED;
  const char *found[STRINGS];
  for (unsigned i = 0; i < STRINGS; i++) {
    if (left < 4 || get(at, 4) > left - 4 || get(at, 4) > string_max(i)) {
      return false;
    }
    const size_t n = (size_t)get(at, 4);
    if (memchr(at + 4, 0, n) != NULL) {
      return false;
    }
    memcpy(strings, at + 4, n);
    strings[n] = '\0';
    found[i] = strings;
    strings += n + 1;
    at += 4 + n;
    left -= 4 + n;
  }
  if (get(data + 4, 4) > WEFT_JOURNAL_VOTE) {
    return false;
  }
  const uint64_t flags = get(body + 88, 4);
  *out = (weft_journal_record){ .kind = (weft_journal_kind)get(data + 4, 4),
                                .declared = (flags & FLAG_DECLARED) != 0,
                                .draft = (flags & FLAG_DRAFT) != 0,
                                .alone = (flags & FLAG_ALONE) != 0,
                                .boot_id = get(body, 8),
                                .epoch = get(body + 8, 8),
                                .sequence = get(body + 16, 8),
                                .weights_sequence = get(body + 24, 8),
                                .digest_hi = get(body + 32, 8),
                                .digest_lo = get(body + 40, 8),
                                .at_ms = get(body + 48, 8),
                                .elapsed_ms = get(body + 56, 8),
                                .tensors = get(body + 64, 8),
                                .bytes = get(body + 72, 8),
                                .version = found[0],
                                .operation = found[1],
                                .text = found[2],
                                .sources = found[3] };
  return decode_fleet(at, left, strings, out);
}

/* Is there anything good behind the damage at bad that proves it to be no torn tail: a
 * commit, or a record that was written when bad was on the disk?  Returns its offset. */
static size_t proof_behind(const uint8_t *data, size_t len, size_t bad)
{
  for (size_t at = bad + 1; at < len; at++) {
    if (sound(data + at, len - at) > 0) {
      const uint64_t kind = get(data + at + 4, 4);
      if (kind == WEFT_JOURNAL_WEIGHTS || kind == WEFT_JOURNAL_LABEL ||
          kind == WEFT_JOURNAL_VOTE || get(data + at + 8, 8) > bad) {
        return at;
      }
    }
  }
  return 0;
}

/* Record by record up to the first that is not sound.  strings: room for one's. */
static weft_err read_records(const uint8_t *data, size_t len,
                             const weft_journal_reader *reader, char *strings,
                             weft_journal_segment *out, weft_why *why)
{
  size_t size;
  while (out->good < len && (size = sound(data + out->good, len - out->good)) > 0) {
    weft_journal_record record;
    if (!decode(data + out->good, size, strings, &record)) {
      return weft_whyf(why, WEFT_E_PROTO,
                       "%s: the record at offset %zu is of an unknown form; it was "
                       "written by another version, use that one or move the file away",
                       reader->label, out->good);
    }
    const weft_err err = reader->fn(reader->arg, &record);
    if (err != WEFT_OK) {
      return err;
    }
    out->good += size;
    out->records++;
  }
  return WEFT_OK;
}

/* Is what is not sound a torn tail, or damage to what was on the disk? */
static weft_err check_tail(const uint8_t *data, size_t len,
                           const weft_journal_reader *reader, size_t good, weft_why *why)
{
  const size_t proof = good < len ? proof_behind(data, len, good) : 0;
  if (proof == 0 && good >= reader->must) {
    return WEFT_OK;
  }
  return weft_whyf(
      why, WEFT_E_PROTO,
      "%s: the record at offset %zu is damaged, and it had been on the disk "
      "(%s at offset %zu); restore the file from a copy, or move it away and "
      "lose its history",
      reader->label, good, proof > 0 ? "a good one follows" : "the file ended",
      proof > 0 ? proof : reader->must);
}

weft_err weft_journal_read(const void *data, size_t len,
                           const weft_journal_reader *reader, weft_journal_segment *out,
                           weft_why *why)
{
  weft_journal_segment segment = { 0 };
  if (!header_read(data, len, &segment)) {
    const bool was_there =
        reader->must > 0 || (len > 0 && proof_behind(data, len, 0) > 0);
    return was_there
               ? weft_whyf(why, WEFT_E_PROTO,
                           "%s: the header at offset 0 is damaged; restore the file from "
                           "a copy, or move it away and lose its history",
                           reader->label)
               : weft_whyf(why, WEFT_E_TRUNCATED, "%s: there is no header",
                           reader->label);
  }
  char *strings = malloc(WEFTI_JOURNAL_PAYLOAD_MAX + STRINGS + 1);
  if (strings == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: no memory to read it", reader->label);
  }
  weft_err err = read_records(data, len, reader, strings, &segment, why);
  free(strings);
  if (err == WEFT_OK) {
    err = check_tail(data, len, reader, segment.good, why);
  }
  if (err == WEFT_OK) {
    *out = segment;
  }
  return err;
}

weft_journal_record *wefti_journal_copy(const weft_journal_record *record)
{
  const char *strings[STRINGS + 1];
  size_t lens[STRINGS + 1];
  size_t total = sizeof *record;
  strings_of(record, strings);
  strings[STRINGS] = record->fleet == NULL ? "" : record->fleet;
  for (unsigned i = 0; i <= STRINGS; i++) {
    lens[i] = strlen(strings[i]) + 1;
    total += lens[i];
  }
  weft_journal_record *copy = malloc(total);
  if (copy == NULL) {
    return NULL;
  }
  *copy = *record;
  char *at = (char *)(copy + 1);
  const char **to[STRINGS + 1] = { &copy->version, &copy->operation, &copy->text,
                                   &copy->sources, &copy->fleet };
  for (unsigned i = 0; i <= STRINGS; i++) {
    memcpy(at, strings[i], lens[i]);
    *to[i] = at;
    at += lens[i];
  }
  return copy;
}
