/* First byte: the route; second: how the body is cut when it is scanned; the rest: the
 * body. Whatever comes, the verdict is the same however it was cut, a refusal has its
 * status and a message, and what is accepted lies inside the body and is what the route
 * may carry. */
#include "acceptor_priv.h"
#include "weft/json.h"

#include <stdint.h>
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

static weft_err read_cut(uint32_t route, const uint8_t *text, size_t len, size_t piece,
                         wefti_fields *out, wefti_problem *bad)
{
  weft_json_scan *scan;
  CHECK(weft_json_scan_create(NULL, &scan) == WEFT_OK);
  weft_err scanned = WEFT_OK;
  for (size_t at = 0; at < len && scanned == WEFT_OK; at += piece) {
    scanned = weft_json_scan_feed(scan, text + at, len - at < piece ? len - at : piece);
  }
  if (scanned == WEFT_OK) {
    scanned = weft_json_scan_end(scan);
  }
  const wefti_body body = { text, len, scan, scanned };
  const weft_err err = wefti_body_read(route, &body, out, bad);
  weft_json_scan_destroy(scan);
  return err;
}

static void check_text(const wefti_text *text)
{
  CHECK(text->len <= WEFTI_VERSION_MAX && text->text[text->len] == '\0');
  CHECK(strlen(text->text) == text->len && (text->given || text->len == 0));
}

/* The walk over a list's elements or a baseline's values, in pieces, sees what a reader
 * of trees sees.  In brackets, because that reader minds duplicate keys only at the top,
 * as the scanner of the body did. */
static void check_info(uint32_t route, const uint8_t *text, const wefti_fields *fields,
                       size_t piece)
{
  const weft_json_span info = fields->info;
  char *wrapped = malloc(info.len + 2);
  CHECK(wrapped != NULL);
  wrapped[0] = '[';
  memcpy(wrapped + 1, text + info.at, info.len);
  wrapped[info.len + 1] = ']';
  weft_json *root;
  CHECK(weft_json_parse(wrapped, info.len + 2, NULL, &root, NULL) == WEFT_OK);
  free(wrapped);
  const weft_json *tree = weft_json_first(root);
  CHECK(weft_json_count(root) == 1 && weft_json_kind_of(tree) == info.kind);
  const bool list = info.kind == WEFT_JSON_ARRAY;
  CHECK(list ? route == WEFTI_ROUTE_UPDATE : info.kind == WEFT_JSON_OBJECT);
  CHECK(fields->each == (list ? '{' : route == WEFTI_ROUTE_CHECKER ? '"' : 0));
  bool want = true;
  for (const weft_json *v = weft_json_first(tree); v != NULL; v = weft_json_next(v)) {
    want = want && weft_json_kind_of(v) == (list ? WEFT_JSON_OBJECT : WEFT_JSON_STRING);
  }
  weft_json_free(root);
  wefti_walk walk = { .first = list ? '{' : '"' };
  bool got = true;
  for (size_t at = 0; at < info.len && got; at += piece) {
    got = wefti_walk_on(&walk, text + info.at + at,
                        info.len - at < piece ? info.len - at : piece);
  }
  CHECK(got == want);
}

static void check_refused(const wefti_problem *bad)
{
  CHECK(bad->status == 400 && bad->message[0] != '\0' && bad->type != NULL);
  CHECK(strlen(bad->message) < sizeof bad->message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size < 2) {
    return 0;
  }
  const uint32_t route = data[0] % WEFTI_ROUTE_COUNT;
  const uint8_t *text = data + 2;
  const size_t len = size - 2;
  wefti_fields a, b;
  wefti_problem bad_a = { 0 }, bad_b = { 0 };
  const weft_err err = read_cut(route, text, len, len == 0 ? 1 : len, &a, &bad_a);
  CHECK(read_cut(route, text, len, 1 + data[1] % 16, &b, &bad_b) == err);
  CHECK(err == WEFT_OK || err == WEFT_E_INVAL);
  if (err != WEFT_OK) {
    check_refused(&bad_a);
    CHECK(strcmp(bad_a.message, bad_b.message) == 0 &&
          strcmp(bad_a.param, bad_b.param) == 0);
    return 0;
  }
  check_text(&a.version);
  check_text(&a.expected);
  CHECK(a.info.at == b.info.at && a.info.len == b.info.len && a.info.kind == b.info.kind);
  if (a.info.kind != WEFT_JSON_NONE) {
    CHECK(a.info.at < len && a.info.len <= len - a.info.at);
    check_info(route, text, &a, 1 + data[1] % 16);
  }
  if (route == WEFTI_ROUTE_INIT || route == WEFTI_ROUTE_UPDATE) {
    CHECK(a.info.kind != WEFT_JSON_NONE);
  }
  return 0;
}
