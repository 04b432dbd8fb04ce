#include "host_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>

#define INVALID "Invalid update_info for host backend: "

static weft_err read_offsets(wefti_host_plan *plan, const weft_json *offsets,
                             weft_why *why)
{
  if (weft_json_kind_of(offsets) != WEFT_JSON_ARRAY) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'offsets' in source is %s",
                     offsets == NULL ? "missing" : "not a list");
  }
  if (weft_json_count(offsets) != plan->pub.count) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "`offsets` should be of the same size as `names`: got %zu and %zu",
                     weft_json_count(offsets), plan->pub.count);
  }
  const uint64_t size = (uint64_t)plan->seen.st_size;
  size_t i = 0;
  for (const weft_json *v = weft_json_first(offsets); v != NULL; v = weft_json_next(v)) {
    const weft_plan_tensor *t = &plan->tensors[i];
    int64_t at;
    if (!weft_json_i64(v, &at) || at < 0) {
      return weft_whyf(why, WEFT_E_INVAL, INVALID "offset of '%s' is not a size",
                       t->name);
    }
    if ((uint64_t)at > size || t->bytes > size - (uint64_t)at) {
      return weft_whyf(why, WEFT_E_TRUNCATED,
                       "shm %s: '%s' needs %" PRIu64 " bytes at %" PRId64
                       ", the segment has %" PRIu64,
                       plan->label, t->name, t->bytes, at, size);
    }
    plan->at[i++] = (uint64_t)at;
  }
  return WEFT_OK;
}

weft_err wefti_host_shm_accept(wefti_host_plan *plan, const weft_json *source,
                               weft_why *why)
{
  const char *name = weft_json_str(weft_json_get(source, "name"));
  if (name == NULL || name[0] != '/' || name[1] == '\0' ||
      strchr(name + 1, '/') != NULL || strlen(name) > NAME_MAX ||
      strcmp(name, "/..") == 0 || strcmp(name, "/.") == 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID
                     "'name' in source is not a segment's name such as \"/step-7\"");
  }
  plan->label = name;
  plan->fd = shm_open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0); /* no wait at a fifo */
  if (plan->fd < 0) {
    return weft_whyf(why, errno == EACCES ? WEFT_E_DENIED : WEFT_E_NOTFOUND,
                     "shm %s: cannot be opened (errno %d)", name, errno);
  }
  if (fstat(plan->fd, &plan->seen) != 0 || !S_ISREG(plan->seen.st_mode) ||
      plan->seen.st_size < 0) {
    return weft_whyf(why, WEFT_E_INVAL, "shm %s: not a memory segment", name);
  }
  plan->kind = WEFTI_SOURCE_SHM;
  return read_offsets(plan, weft_json_get(source, "offsets"), why);
}
