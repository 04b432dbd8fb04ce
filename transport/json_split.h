/* json_split.h -- the element texts of a JSON array that has been checked already.  Not a
 * validator (weft/json.h). */
#ifndef WEFT_TRANSPORT_JSON_SPLIT_H
#define WEFT_TRANSPORT_JSON_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

/* text[len]: a valid array.  *pos starts at 0.  true = the next element is text[*at],
 * *n bytes.  On text that is no valid array it ends early, never outside of text. */
bool wefti_json_split(const char *text, size_t len, size_t *pos, size_t *at, size_t *n);

#endif /* WEFT_TRANSPORT_JSON_SPLIT_H */
