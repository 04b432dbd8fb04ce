#include "json_split.h"

static bool is_space(char c)
{
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* First byte after the string that starts at i. */
static size_t skip_string(const char *text, size_t len, size_t i)
{
  for (i++; i < len && text[i] != '"'; i++) {
    if (text[i] == '\\') {
      i++;
    }
  }
  return i < len ? i + 1 : len;
}

bool wefti_json_split(const char *text, size_t len, size_t *pos, size_t *at, size_t *n)
{
  size_t i = *pos;
  while (i < len &&
         (is_space(text[i]) || text[i] == ',' || (*pos == 0 && text[i] == '['))) {
    i++;
  }
  if (i >= len || text[i] == ']') {
    return false;
  }
  const size_t start = i;
  size_t depth = 0;
  size_t last = i; /* last byte that is no space */
  while (i < len && (depth > 0 || (text[i] != ',' && text[i] != ']'))) {
    const char c = text[i];
    if (c == '"') {
      i = skip_string(text, len, i);
      last = i - 1;
      continue;
    }
    if (c == '[' || c == '{') {
      depth++;
    } else if ((c == ']' || c == '}') && depth > 0) {
      depth--;
    }
    last = is_space(c) ? last : i;
    i++;
  }
  *at = start;
  *n = last + 1 - start;
  *pos = i;
  return true;
}
