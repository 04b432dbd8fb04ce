#include "acceptor_priv.h"

#include <stdio.h>
#include <string.h>

enum { INPUT_MAX = 100 };

/* What all the readers below need. */
typedef struct reader {
  const uint8_t *text;
  const weft_json_scan *scan; /* NULL: there is no body */
  wefti_problem *bad;
} reader;

static weft_json_span root_of(const reader *rd)
{
  return rd->scan == NULL ? (weft_json_span){ 0 } : weft_json_scan_root(rd->scan);
}

static weft_json_span member_of(const reader *rd, const char *key)
{
  return rd->scan == NULL ? (weft_json_span){ 0 } : weft_json_scan_member(rd->scan, key);
}

static bool absent(weft_json_span span)
{
  return span.kind == WEFT_JSON_NONE || span.kind == WEFT_JSON_NULL;
}

/* The value as Python would show it, as far as that is short: numbers and strings as far
 * as they are not too long (a JSON string is a Python literal), of the rest only what is
 * empty. */
static void show(const reader *rd, weft_json_span span, char *out, size_t cap)
{
  out[0] = '\0';
  switch (span.kind) {
  case WEFT_JSON_NONE:
  case WEFT_JSON_NULL:
    (void)snprintf(out, cap, "None");
    return;
  case WEFT_JSON_BOOL:
    (void)snprintf(out, cap, "%s", rd->text[span.at] == 't' ? "True" : "False");
    return;
  case WEFT_JSON_NUMBER:
  case WEFT_JSON_STRING:
    if (span.len <= INPUT_MAX) {
      (void)snprintf(out, cap, "%.*s", (int)span.len, (const char *)rd->text + span.at);
    }
    return;
  case WEFT_JSON_ARRAY:
  case WEFT_JSON_OBJECT:
    if (span.len == 2) {
      (void)snprintf(out, cap, "%.2s", (const char *)rd->text + span.at);
    }
    return;
  }
}

static weft_err invalid(const reader *rd, const char *kind, const char *field,
                        const char *says, weft_json_span about)
{
  char input[INPUT_MAX + 1];
  show(rd, about, input, sizeof input);
  wefti_invalid(rd->bad, kind, "body", field, says, input);
  return WEFT_E_INVAL;
}

static weft_err missing(const reader *rd, const char *field)
{
  return invalid(rd, "missing", field, "Field required", root_of(rd));
}

/* A body may be absent or null where no member is required, but not another kind. */
static weft_err object_or_nothing(const reader *rd, const char *field)
{
  const weft_json_span root = root_of(rd);
  return absent(root) || root.kind == WEFT_JSON_OBJECT ? WEFT_OK : missing(rd, field);
}

/* A string or null or nothing. */
static weft_err read_text(const reader *rd, const char *key, size_t max, wefti_text *out)
{
  const weft_json_span span = member_of(rd, key);
  *out = (wefti_text){ 0 };
  if (absent(span)) {
    return WEFT_OK;
  }
  if (span.kind != WEFT_JSON_STRING) {
    return invalid(rd, "string_type", key, "Input should be a valid string", span);
  }
  char says[64];
  (void)snprintf(says, sizeof says, "String should have at most %zu bytes", max);
  if (span.len > max * 6 + 2) { /* \uXXXX is the longest spelling of a byte */
    return invalid(rd, "string_too_long", key, says, span);
  }
  weft_json *tree;
  const weft_err err = weft_json_parse(rd->text + span.at, span.len, NULL, &tree, NULL);
  if (err != WEFT_OK) { /* it has been scanned: only memory can be missing */
    return err == WEFT_E_NOMEM
               ? err
               : invalid(rd, "string_type", key, "Input should be a valid string", span);
  }
  const char *s = weft_json_str(tree);
  const size_t len = strlen(s);
  if (len <= max) {
    out->given = true;
    out->len = (uint32_t)len;
    memcpy(out->text, s, len + 1);
  }
  weft_json_free(tree);
  return len <= max ? WEFT_OK : invalid(rd, "string_too_long", key, says, span);
}

bool wefti_walk_on(wefti_walk *walk, const uint8_t *text, size_t len)
{
  wefti_walk w = *walk;
  for (size_t i = 0; i < len; i++) {
    const uint8_t c = text[i];
    if (w.quoted) {
      w.quoted = w.escaped || c != '"';
      w.escaped = !w.escaped && c == '\\';
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      continue;
    }
    const bool closes = c == ']' || c == '}';
    if (w.depth == 1 && w.value_next && !closes && c != w.first) {
      return false;
    }
    if (w.depth == 0) {
      w.in_array = c == '[';
    }
    w.value_next = w.depth == 0 ? w.in_array
                                : w.depth == 1 && (c == ':' || (w.in_array && c == ','));
    w.depth += c == '[' || c == '{';
    w.depth -= closes;
    w.quoted = c == '"';
  }
  *walk = w;
  return true;
}

void wefti_walk_problem(uint32_t route, wefti_problem *bad)
{
  if (route == WEFTI_ROUTE_CHECKER) {
    wefti_invalid(bad, "string_type", "body", "baseline",
                  "Input should be a valid string", "");
  } else {
    wefti_invalid(bad, "dict_type", "body", "update_info",
                  "Input should be a valid dictionary", "");
  }
}

static weft_err read_info(const reader *rd, const char *key, bool list_too,
                          wefti_fields *out)
{
  const weft_json_span span = member_of(rd, key);
  if (absent(span)) {
    return missing(rd, key);
  }
  const bool list = list_too && span.kind == WEFT_JSON_ARRAY;
  if (span.kind != WEFT_JSON_OBJECT && !list) {
    return invalid(rd, "dict_type", key, "Input should be a valid dictionary", span);
  }
  out->info = span;
  out->each = list ? '{' : 0;
  return WEFT_OK;
}

static weft_err read_finish(const reader *rd, wefti_fields *out)
{
  weft_err err = object_or_nothing(rd, "weight_version");
  if (err == WEFT_OK) {
    err = read_text(rd, "weight_version", WEFTI_VERSION_MAX, &out->version);
  }
  if (err == WEFT_OK) {
    err = read_text(rd, "expected_version", WEFTI_VERSION_MAX, &out->expected);
  }
  const weft_json_span strict = member_of(rd, "strict");
  if (err != WEFT_OK || absent(strict)) {
    return err;
  }
  if (strict.kind != WEFT_JSON_BOOL) {
    return invalid(rd, "bool_type", "strict", "Input should be a valid boolean", strict);
  }
  out->strict = rd->text[strict.at] == 't';
  return WEFT_OK;
}

static weft_err read_label(const reader *rd, wefti_fields *out)
{
  weft_err err = read_text(rd, "new_version", WEFTI_VERSION_MAX, &out->version);
  if (err == WEFT_OK && !out->version.given) {
    return missing(rd, "new_version");
  }
  if (err == WEFT_OK) {
    err = read_text(rd, "expected_version", WEFTI_VERSION_MAX, &out->expected);
  }
  return err;
}

static weft_err read_action(const reader *rd, weft_check_action *out)
{
  static const struct {
    const char *name;
    weft_check_action action;
  } actions[] = {
    { "checksum", WEFT_CHECK_CHECKSUM },
    { "reset", WEFT_CHECK_RESET },
    { "compare", WEFT_CHECK_COMPARE },
  };
  const weft_json_span span = member_of(rd, "action");
  if (span.kind == WEFT_JSON_NONE) {
    return missing(rd, "action");
  }
  wefti_text name = { 0 };
  if (span.kind == WEFT_JSON_STRING && span.len <= INPUT_MAX) {
    const weft_err err = read_text(rd, "action", INPUT_MAX, &name);
    if (err != WEFT_OK) {
      return err;
    }
  }
  for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
    if (strcmp(name.text, actions[i].name) == 0) {
      *out = actions[i].action;
      return WEFT_OK;
    }
  }
  return invalid(rd, "literal_error", "action",
                 "Input should be 'checksum', 'reset' or 'compare'", span);
}

static weft_err read_check(const reader *rd, wefti_fields *out)
{
  const weft_err err = read_action(rd, &out->action);
  if (err != WEFT_OK) {
    return err;
  }
  const weft_json_span baseline = member_of(rd, "baseline");
  if (absent(baseline)) {
    if (out->action != WEFT_CHECK_COMPARE) {
      return WEFT_OK;
    }
    wefti_problem_say(rd->bad, 400, "Bad Request",
                      "action='compare' requires a 'baseline' object");
    return WEFT_E_INVAL;
  }
  if (baseline.kind != WEFT_JSON_OBJECT) {
    return invalid(rd, "dict_type", "baseline", "Input should be a valid dictionary",
                   baseline);
  }
  if (out->action == WEFT_CHECK_COMPARE) {
    out->info = baseline;
    out->each = '"';
  }
  return WEFT_OK;
}

static weft_err read_resolve(const reader *rd, wefti_fields *out)
{
  const weft_json_span commit = member_of(rd, "commit");
  if (commit.kind == WEFT_JSON_NONE) {
    return missing(rd, "commit");
  }
  if (commit.kind != WEFT_JSON_BOOL) {
    return invalid(rd, "bool_type", "commit", "Input should be a valid boolean", commit);
  }
  out->commit = rd->text[commit.at] == 't';
  return WEFT_OK;
}

static weft_err read_abort_requests(const reader *rd)
{
  if (root_of(rd).kind != WEFT_JSON_OBJECT) {
    wefti_problem_say(rd->bad, 400, "Bad Request",
                      rd->scan == NULL ? "Invalid JSON format"
                                       : "Request body must be a JSON object");
    return WEFT_E_INVAL;
  }
  const weft_json_span ids = member_of(rd, "request_ids");
  if (!absent(ids) && ids.kind != WEFT_JSON_ARRAY) {
    return invalid(rd, "list_type", "request_ids", "Input should be a valid list", ids);
  }
  return WEFT_OK;
}

static weft_err not_json(uint32_t route, const weft_json_scan *scan, wefti_problem *bad)
{
  if (route == WEFTI_ROUTE_ABORT_REQUESTS) {
    wefti_problem_say(bad, 400, "Bad Request", "Invalid JSON format");
    return WEFT_E_INVAL;
  }
  const size_t at = weft_json_scan_error_at(scan);
  bad->status = 400;
  bad->type = "Bad Request";
  (void)snprintf(bad->param, sizeof bad->param, "body.%zu", at);
  (void)snprintf(bad->message, sizeof bad->message,
                 "1 validation error:\n"
                 "  {'type': 'json_invalid', 'loc': ('body', %zu), 'msg': 'JSON decode "
                 "error', 'input': {}, 'ctx': {'error': \"%s\"}}",
                 at, weft_json_scan_reason(scan));
  return WEFT_E_INVAL;
}

weft_err wefti_body_read(uint32_t route, const wefti_body *body, wefti_fields *out,
                         wefti_problem *bad)
{
  const reader rd = { body->text, body->len == 0 ? NULL : body->scan, bad };
  memset(out, 0, sizeof *out);
  if (rd.scan != NULL && body->scanned != WEFT_OK) {
    return body->scanned == WEFT_E_NOMEM ? WEFT_E_NOMEM : not_json(route, rd.scan, bad);
  }
  weft_err err;
  switch (route) {
  case WEFTI_ROUTE_INIT:
    return read_info(&rd, "init_info", false, out);
  case WEFTI_ROUTE_UPDATE:
    return read_info(&rd, "update_info", true, out);
  case WEFTI_ROUTE_FINISH:
    return read_finish(&rd, out);
  case WEFTI_ROUTE_LABEL:
    return read_label(&rd, out);
  case WEFTI_ROUTE_CHECKER:
    return read_check(&rd, out);
  case WEFTI_ROUTE_ABORT:
    err = object_or_nothing(&rd, "reason");
    return err != WEFT_OK ? err
                          : read_text(&rd, "reason", WEFTI_REASON_MAX, &out->version);
  case WEFTI_ROUTE_ABORT_REQUESTS:
    return read_abort_requests(&rd);
  case WEFTI_ROUTE_RESOLVE:
    return read_resolve(&rd, out);
  default:
    return WEFT_OK;
  }
}
