/* What the kernel says of memory and of cgroups.  The first byte: how much room a path
 * may take. */
#include "memory_room.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  char path[256];
  uint64_t v;
  if (size == 0) {
    return 0;
  }
  const size_t cap = data[0] == 0 ? sizeof path : data[0];
  const size_t len = size - 1;
  char *text = malloc(len == 0 ? 1 : len); /* so that a byte too far is seen */
  if (text == NULL) {
    return 0;
  }
  memcpy(text, data + 1, len);
  (void)wefti_meminfo_room(text, len);
  (void)wefti_cgroup_number(text, len, &v);
  (void)wefti_cgroup_stat(text, len, "inactive_file");
  for (unsigned v1 = 0; v1 < 2; v1++) {
    if (wefti_cgroup_path(text, len, v1 != 0, path, cap) &&
        (memchr(path, 0, cap) == NULL || (path[0] != '/' && path[0] != '\0'))) {
      abort();
    }
  }
  free(text);
  return 0;
}
