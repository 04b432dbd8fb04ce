#include "weft/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *weft_strerror(weft_err err)
{
  switch (err) {
#define WEFT_X(sym, val, text)                                                           \
  case WEFT_E_##sym:                                                                     \
    return text;
    WEFT_ERR_TABLE(WEFT_X)
#undef WEFT_X
  }
  return "unknown error";
}

const char *weft_err_name(weft_err err)
{
  switch (err) {
#define WEFT_X(sym, val, text)                                                           \
  case WEFT_E_##sym:                                                                     \
    return #sym;
    WEFT_ERR_TABLE(WEFT_X)
#undef WEFT_X
  }
  return "UNKNOWN";
}

/* Cuts text at the last whole UTF-8 character that fits. */
static void cut_utf8(char *text, size_t len)
{
  while (len > 0 && ((unsigned char)text[len - 1] & 0xc0u) == 0x80u) {
    len--;
  }
  if (len > 0 && ((unsigned char)text[len - 1] & 0x80u) != 0) {
    len--;
  }
  text[len] = '\0';
}

weft_err(weft_whyf)(weft_why *why, weft_err err, const char *fmt, ...)
{
  if (why != NULL) {
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(why->text, sizeof why->text, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof why->text) {
      cut_utf8(why->text, strlen(why->text));
    }
    why->err = err;
  }
  return err;
}

void weft_assert_failed(const char *what, const char *file, int line)
{
  (void)fprintf(stderr, "weft: bug: %s does not hold, %s:%d\n", what, file, line);
  abort();
}
