/* Whatever a segment's bytes say: what is read lies inside them and in its limits, and
 * what counts as good reads the same when the rest is cut off. */
#include "weft/journal.h"

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

static weft_err on_record(void *arg, const weft_journal_record *r)
{
  size_t *count = arg;
  CHECK((unsigned)r->kind <= WEFT_JOURNAL_VOTE);
  CHECK(strlen(r->fleet) <= WEFT_JOURNAL_FLEET_MAX);
  CHECK(strlen(r->version) <= WEFT_JOURNAL_TEXT_MAX);
  CHECK(strlen(r->operation) <= WEFT_JOURNAL_TEXT_MAX);
  CHECK(strlen(r->text) <= WEFT_JOURNAL_TEXT_MAX);
  CHECK(strlen(r->sources) <= WEFT_JOURNAL_SOURCES_MAX);
  ++*count;
  return WEFT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  weft_journal_segment segment;
  weft_journal_segment again;
  weft_why why = { .text = "" };
  size_t count = 0;
  size_t count_again = 0;
  const weft_journal_reader reader = { "input", 0, on_record, &count };
  const weft_err err = weft_journal_read(data, size, &reader, &segment, &why);
  if (err != WEFT_OK) {
    CHECK(strncmp(why.text, "input: ", 7) == 0);
    return 0;
  }
  CHECK(segment.good <= size && segment.records == count);
  const weft_journal_reader strict = { "input", segment.good, on_record, &count_again };
  CHECK(weft_journal_read(data, segment.good, &strict, &again, &why) == WEFT_OK);
  CHECK(again.good == segment.good && count_again == count);
  return 0;
}
