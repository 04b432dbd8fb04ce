/* descriptors.h -- how many descriptors this process has open, for tests that look for
 * those that are not given back. */
#ifndef WEFT_TESTS_DESCRIPTORS_H
#define WEFT_TESTS_DESCRIPTORS_H

#include "weft_test.h"

#include <dirent.h>
#include <poll.h>

enum { DESCRIPTORS_PATIENCE_MS = 20000 };

static inline unsigned descriptors(void)
{
  unsigned n = 0;
  DIR *d = opendir("/proc/self/fd");
  assert_non_null(d);
  while (readdir(d) != NULL) {
    n++;
  }
  (void)closedir(d);
  return n;
}

/* What closes does so on other threads; sleeping only sets how often this looks. */
static inline void assert_descriptors_come_down_to(unsigned want)
{
  unsigned n = descriptors();
  for (int i = 0; i < DESCRIPTORS_PATIENCE_MS / 20 && n > want; i++) {
    (void)poll(NULL, 0, 20);
    n = descriptors();
  }
  if (n > want) {
    fail_msg("%u descriptors, %u before", n, want);
  }
}

#endif /* WEFT_TESTS_DESCRIPTORS_H */
