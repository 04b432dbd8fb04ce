#include "acceptor_priv.h"

#include <stdio.h>
#include <string.h>

enum {
  VALUE_MAX = 64,
  INPUT_MAX = 100,
  TIMEOUT_MAX_S = 86400,
  LIMIT_DEFAULT = 100,
  LIMIT_MAX = 10000
};

void wefti_problem_say(wefti_problem *bad, int status, const char *type,
                       const char *message)
{
  bad->status = status;
  bad->type = type;
  bad->param[0] = '\0';
  (void)snprintf(bad->message, sizeof bad->message, "%s", message);
}

void wefti_invalid(wefti_problem *bad, const char *kind, const char *where,
                   const char *field, const char *says, const char *input)
{
  const char quote = strchr(says, '\'') == NULL ? '\'' : '"';
  bad->status = 400;
  bad->type = "Bad Request";
  (void)snprintf(bad->param, sizeof bad->param, "%s.%s", where, field);
  (void)snprintf(bad->message, sizeof bad->message,
                 "1 validation error:\n"
                 "  {'type': '%s', 'loc': ('%s', '%s'), 'msg': %c%s%c%s%s}",
                 kind, where, field, quote, says, quote,
                 input[0] == '\0' ? "" : ", 'input': ", input);
}

/* text as a Python literal, at most INPUT_MAX bytes of it. */
static void literal(const char *text, char *out, size_t cap)
{
  size_t n = 0;
  out[n++] = '\'';
  for (size_t i = 0; text[i] != '\0' && i < INPUT_MAX && n + 8 < cap; i++) {
    const unsigned char c = (unsigned char)text[i];
    if (c < 0x20 || c >= 0x7f) {
      n += (size_t)snprintf(out + n, cap - n, "\\x%02x", c);
      continue;
    }
    if (c == '\'' || c == '\\') {
      out[n++] = '\\';
    }
    out[n++] = (char)c;
  }
  out[n++] = '\'';
  out[n] = '\0';
}

static void bad_value(wefti_problem *bad, const char *kind, const char *field,
                      const char *says, const char *value)
{
  char input[VALUE_MAX * 4 + 16];
  literal(value, input, sizeof input);
  wefti_invalid(bad, kind, "query", field, says, input);
}

typedef struct reader {
  const char *query;
  wefti_problem *bad;
} reader;

/* The value of key, "" when it is too long or broken (no caller accepts that).  false:
 * not there. */
static bool value_of(const reader *rd, const char *key, char *out)
{
  const weft_err err = weft_http_query(rd->query, key, out, VALUE_MAX);
  if (err == WEFT_E_NOTFOUND) {
    return false;
  }
  if (err != WEFT_OK) {
    out[0] = '\0';
  }
  return true;
}

static bool equal_folded(const char *a, const char *lower)
{
  for (; *a != '\0' && *lower != '\0'; a++, lower++) {
    const int c = *a >= 'A' && *a <= 'Z' ? *a - 'A' + 'a' : *a;
    if (c != *lower) {
      return false;
    }
  }
  return *a == *lower;
}

/* *out stays when key is absent. */
static bool read_bool(const reader *rd, const char *key, bool *out)
{
  static const char *const yes[] = { "true", "1", "yes", "on", "t", "y" };
  static const char *const no[] = { "false", "0", "no", "off", "f", "n" };
  char value[VALUE_MAX];
  if (!value_of(rd, key, value)) {
    return true;
  }
  for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
    if (equal_folded(value, yes[i]) || equal_folded(value, no[i])) {
      *out = equal_folded(value, yes[i]);
      return true;
    }
  }
  bad_value(rd->bad, "bool_parsing", key,
            "Input should be a valid boolean, unable to interpret input", value);
  return false;
}

/* Digits with at most one point, in thousandths, the rest rounded up; so no locale and no
 * "inf".  Saturates. */
static bool parse_milli(const char *text, uint64_t *out)
{
  const uint64_t most = UINT64_C(1) << 50;
  uint64_t milli = 0;
  unsigned places = 0;
  bool point = false, digit = false, more = false;
  for (const char *p = text; *p != '\0'; p++) {
    if (*p == '.' && !point) {
      point = true;
      continue;
    }
    if (*p < '0' || *p > '9') {
      return false;
    }
    digit = true;
    if (places == 3) {
      more = more || *p != '0';
      continue;
    }
    places += point;
    milli = milli > most ? milli : milli * 10 + (uint64_t)(*p - '0');
  }
  for (; places < 3; places++) {
    milli = milli > most ? milli : milli * 10;
  }
  *out = milli + more;
  return digit;
}

static bool read_timeout(const reader *rd, uint32_t *out)
{
  static const char key[] = "timeout_s";
  char value[VALUE_MAX];
  if (!value_of(rd, key, value)) {
    return true;
  }
  uint64_t ms;
  const bool minus = value[0] == '-';
  if (!parse_milli(value + minus, &ms)) {
    bad_value(rd->bad, "float_parsing", key,
              "Input should be a valid number, unable to parse string as a number",
              value);
    return false;
  }
  if (minus || ms == 0) {
    bad_value(rd->bad, "greater_than", key, "Input should be greater than 0", value);
    return false;
  }
  if (ms > TIMEOUT_MAX_S * UINT64_C(1000)) {
    bad_value(rd->bad, "less_than_equal", key,
              "Input should be less than or equal to 86400", value);
    return false;
  }
  *out = (uint32_t)ms;
  return true;
}

static bool read_mode(const reader *rd, wefti_query *out)
{
  static const char *const modes[] = { "abort", "wait", "keep" };
  char value[VALUE_MAX];
  bool wait = false;
  if (!read_bool(rd, "clear_cache", &out->clear_cache) ||
      !read_bool(rd, "wait_for_inflight_requests", &wait)) {
    return false;
  }
  out->mode = wait ? "wait" : "abort";
  if (!value_of(rd, "mode", value)) {
    return true;
  }
  for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
    if (strcmp(value, modes[i]) == 0) {
      out->mode = wait ? "wait" : modes[i];
      return true;
    }
  }
  bad_value(rd->bad, "literal_error", "mode", "Input should be 'abort', 'wait' or 'keep'",
            value);
  return false;
}

static bool read_number(const reader *rd, const char *key, uint64_t *out)
{
  char value[VALUE_MAX];
  if (!value_of(rd, key, value)) {
    return true;
  }
  uint64_t n = 0;
  bool ok = value[0] != '\0';
  for (const char *p = value; ok && *p != '\0'; p++) {
    ok = *p >= '0' && *p <= '9' && n <= (INT64_MAX - 9) / 10;
    n = ok ? n * 10 + (uint64_t)(*p - '0') : n;
  }
  if (!ok) {
    bad_value(rd->bad, "int_parsing", key,
              "Input should be a valid integer, unable to parse string as an integer",
              value);
    return false;
  }
  *out = n;
  return true;
}

static bool read_limit(const reader *rd, uint32_t *out)
{
  uint64_t n = LIMIT_DEFAULT;
  if (!read_number(rd, "limit", &n)) {
    return false;
  }
  if (n < 1 || n > LIMIT_MAX) {
    char value[VALUE_MAX];
    (void)value_of(rd, "limit", value);
    bad_value(rd->bad, n < 1 ? "greater_than_equal" : "less_than_equal", "limit",
              n < 1 ? "Input should be greater than or equal to 1"
                    : "Input should be less than or equal to 10000",
              value);
    return false;
  }
  *out = (uint32_t)n;
  return true;
}

bool wefti_query_read(uint32_t route, const char *query, wefti_query *out,
                      wefti_problem *bad)
{
  const reader rd = { query, bad };
  *out = (wefti_query){ .mode = "abort",
                        .clear_cache = true,
                        .include_dp = true,
                        .after = INT64_MAX,
                        .limit = LIMIT_DEFAULT };
  const wefti_route_fact *fact = wefti_route_fact_of(route);
  if (fact == NULL || query[0] == '\0') {
    return true;
  }
  if (fact->mutates && !read_timeout(&rd, &out->timeout_ms)) {
    return false;
  }
  bool unused = false; /* there is no running request to reset */
  switch (route) {
  case WEFTI_ROUTE_PAUSE:
    return read_mode(&rd, out);
  case WEFTI_ROUTE_WORLD_SIZE:
    return read_bool(&rd, "include_dp", &out->include_dp);
  case WEFTI_ROUTE_RESET_PREFIX:
    return read_bool(&rd, "reset_running_requests", &unused) &&
           read_bool(&rd, "reset_external", &unused);
  case WEFTI_ROUTE_EVENTS:
    return read_number(&rd, "after", &out->after);
  case WEFTI_ROUTE_VERSIONS:
    return read_limit(&rd, &out->limit);
  default:
    return true;
  }
}
