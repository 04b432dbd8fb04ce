#include "memory_room.h"

#include "weft/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 8192, PATH_ROOM = 1024, FILE_ROOM = 2 * PATH_ROOM, KIB = 1024 };

/* ---- texts */

/* Behind prefix in the first line that begins with it; NULL = no such line. */
static const char *line_of(const char *text, size_t len, const char *prefix)
{
  const size_t n = strlen(prefix);
  const char *end = text + len;
  while (text < end) {
    const size_t left = (size_t)(end - text);
    if (left >= n && memcmp(text, prefix, n) == 0) {
      return text + n;
    }
    const char *next = memchr(text, '\n', left);
    text = next == NULL ? end : next + 1;
  }
  return NULL;
}

/* Digits, then something else; NULL = no number, or one that does not fit. */
static const char *number(const char *at, const char *end, uint64_t *out)
{
  const char *digits = at;
  uint64_t v = 0;
  for (; at < end && *at >= '0' && *at <= '9'; at++) {
    if (weft_size_mul(v, 10, &v) != WEFT_OK ||
        weft_size_add(v, (uint64_t)(*at - '0'), &v) != WEFT_OK) {
      return NULL;
    }
  }
  *out = v;
  return at > digits && at < end ? at : NULL;
}

/* A row of a meminfo, which is in kB. */
static bool row(const char *text, size_t len, const char *name, uint64_t *bytes)
{
  const char *end = text + len;
  const char *at = line_of(text, len, name);
  while (at != NULL && at < end && *at == ' ') {
    at++;
  }
  uint64_t v;
  return at != NULL && number(at, end, &v) != NULL &&
         weft_size_mul(v, KIB, bytes) == WEFT_OK;
}

uint64_t wefti_meminfo_room(const char *text, size_t len)
{
  uint64_t available;
  uint64_t swap;
  if (!row(text, len, "MemAvailable:", &available)) {
    return UINT64_MAX;
  }
  if (!row(text, len, "SwapFree:", &swap)) {
    swap = 0;
  }
  return weft_size_add(available, swap, &available) == WEFT_OK ? available : UINT64_MAX;
}

bool wefti_cgroup_number(const char *text, size_t len, uint64_t *out)
{
  static const char max[] = "max\n";
  uint64_t v;
  if (len == sizeof max - 1 && memcmp(text, max, len) == 0) {
    *out = UINT64_MAX;
    return true;
  }
  const char *at = number(text, text + len, &v);
  if (at == NULL || *at != '\n' || at + 1 != text + len) {
    return false;
  }
  *out = v;
  return true;
}

uint64_t wefti_cgroup_stat(const char *text, size_t len, const char *name)
{
  char prefix[64];
  uint64_t v;
  (void)snprintf(prefix, sizeof prefix, "%s ", name);
  const char *at = line_of(text, len, prefix);
  at = at == NULL ? NULL : number(at, text + len, &v);
  return at != NULL && *at == '\n' ? v : 0;
}

/* Is word one of the names of list[len], which commas part? */
static bool has_word(const char *list, size_t len, const char *word)
{
  const size_t n = strlen(word);
  const char *end = list + len;
  while (list < end) {
    const char *comma = memchr(list, ',', (size_t)(end - list));
    const char *to = comma == NULL ? end : comma;
    if ((size_t)(to - list) == n && memcmp(list, word, n) == 0) {
      return true;
    }
    list = comma == NULL ? end : comma + 1;
  }
  return false;
}

bool wefti_cgroup_path(const char *text, size_t len, bool v1, char *out, size_t cap)
{
  const char *end = text + len;
  const char *next;
  for (; text < end && (next = memchr(text, '\n', (size_t)(end - text))) != NULL;
       text = next + 1) {
    const char *names = memchr(text, ':', (size_t)(next - text));
    names = names == NULL ? next : names + 1;
    const char *path = memchr(names, ':', (size_t)(next - names));
    if (path == NULL) {
      continue;
    }
    const size_t names_len = (size_t)(path - names);
    path++;
    if (v1 ? !has_word(names, names_len, "memory") : names_len != 0) {
      continue;
    }
    const size_t n = (size_t)(next - path);
    if (n == 0 || path[0] != '/' || n >= cap || memchr(path, 0, n) != NULL) {
      return false;
    }
    memcpy(out, path, n);
    out[n == 1 ? 0 : n] = '\0';
    return true;
  }
  return false;
}

/* ---- files */

static bool read_text(const char *file, char text[TEXT_MAX], size_t *len)
{
  const int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  ssize_t n;
  *len = 0;
  do {
    n = read(fd, text + *len, TEXT_MAX - *len);
    *len += n > 0 ? (size_t)n : 0;
  } while (n > 0 || (n < 0 && errno == EINTR));
  (void)close(fd);
  return n == 0 || *len == TEXT_MAX;
}

/* One way to limit memory, and its files. */
typedef struct hierarchy {
  bool v1;
  const char *mount, *limit, *used, *cache;
} hierarchy;

/* false: too long. */
static bool file_in(char file[FILE_ROOM], const char *dir, const char *name)
{
  const int n = snprintf(file, FILE_ROOM, "%s/%s", dir, name);
  return n >= 0 && n < FILE_ROOM;
}

static bool number_in(const char *dir, const char *name, uint64_t *out)
{
  char file[FILE_ROOM];
  char text[TEXT_MAX];
  size_t len;
  return file_in(file, dir, name) && read_text(file, text, &len) &&
         wefti_cgroup_number(text, len, out);
}

/* What one group's limit leaves: pages of files that nobody has used for long go before
 * it is reached.  UINT64_MAX = it has none. */
static uint64_t room_in(const char *dir, const hierarchy *h)
{
  char file[FILE_ROOM];
  char text[TEXT_MAX];
  size_t len;
  uint64_t limit;
  uint64_t used;
  if (!number_in(dir, h->limit, &limit) || limit == UINT64_MAX ||
      !number_in(dir, h->used, &used)) {
    return UINT64_MAX;
  }
  const uint64_t cache = file_in(file, dir, "memory.stat") && read_text(file, text, &len)
                             ? wefti_cgroup_stat(text, len, h->cache)
                             : 0;
  used = used > cache ? used - cache : 0;
  return limit > used ? limit - used : 0;
}

/* A path that leads out of what is mounted here: only the mount itself can be seen. */
static bool leads_out(const char *path)
{
  const char *at = strstr(path, "/..");
  return at != NULL && (at[3] == '/' || at[3] == '\0');
}

/* The least that a limit leaves, from this process's group up to the mount, and the
 * directory of that one.  In a container the path may be one of the host's, which is not
 * there: then the mount is the container's group. */
static uint64_t room_under(const char *root, const hierarchy *h, char where[FILE_ROOM])
{
  char text[TEXT_MAX];
  char path[PATH_ROOM];
  char dir[FILE_ROOM];
  size_t len;
  uint64_t least = UINT64_MAX;
  if (!file_in(dir, root, "proc/self/cgroup") || !read_text(dir, text, &len) ||
      !wefti_cgroup_path(text, len, h->v1, path, sizeof path)) {
    return UINT64_MAX;
  }
  if (leads_out(path)) {
    path[0] = '\0';
  }
  for (;;) {
    const int n = snprintf(dir, sizeof dir, "%s%s%s", root, h->mount, path);
    const uint64_t room = n >= 0 && n < FILE_ROOM ? room_in(dir, h) : UINT64_MAX;
    if (room < least) {
      least = room;
      memcpy(where, dir, FILE_ROOM);
    }
    char *last = strrchr(path, '/');
    if (last == NULL) {
      return least;
    }
    *last = '\0';
  }
}

static uint64_t machine_room(const char *root)
{
  char file[FILE_ROOM];
  char text[TEXT_MAX];
  size_t len;
  return file_in(file, root, "proc/meminfo") && read_text(file, text, &len)
             ? wefti_meminfo_room(text, len)
             : UINT64_MAX;
}

weft_err wefti_memory_room(const char *root, uint64_t bytes, weft_why *why)
{
  static const hierarchy all[] = {
    { false, "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file" },
    { true, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
      "total_inactive_file" },
  };
  const uint64_t left = machine_room(root);
  if (bytes > left) {
    return weft_whyf(why, WEFT_E_NOMEM,
                     "host memory: %" PRIu64
                     " bytes more are wanted and this machine has %" PRIu64,
                     bytes, left);
  }
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    char where[FILE_ROOM] = "";
    const uint64_t room = room_under(root, &all[i], where);
    if (bytes > room) {
      return weft_whyf(why, WEFT_E_NOMEM,
                       "host memory: %" PRIu64
                       " bytes more are wanted and the memory limit of the cgroup %.200s "
                       "leaves %" PRIu64,
                       bytes, where, room);
    }
  }
  return WEFT_OK;
}
