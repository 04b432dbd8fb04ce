/* Devices, faults and texts of the cudart double. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { SITES_MAX = 64, NAME_MAX_LEN = 48 };

static fake_world world = { .lock = PTHREAD_MUTEX_INITIALIZER,
                            .changed = PTHREAD_COND_INITIALIZER };
static struct site {
  char name[NAME_MAX_LEN];
  long calls;
} sites[SITES_MAX];
static _Thread_local int current;

__attribute__((constructor)) static void raise_files(void)
{
  struct rlimit r; /* each piece of device memory is a file */
  if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
    r.rlim_cur = r.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &r);
  }
}

fake_world *weft_fake_world(void)
{
  return &world;
}

void weft_fake_lock(void)
{
  (void)pthread_mutex_lock(&world.lock);
}

void weft_fake_unlock(void)
{
  (void)pthread_mutex_unlock(&world.lock);
}

long weft_fake_number(const char *name, long otherwise)
{
  const char *text = getenv(name);
  return text != NULL && *text != '\0' ? strtol(text, NULL, 10) : otherwise;
}

/* Counts the call; -1 = too many functions. */
static long count_call(const char *function)
{
  for (int i = 0; i < SITES_MAX; i++) {
    if (sites[i].name[0] == '\0') {
      (void)snprintf(sites[i].name, sizeof sites[i].name, "%s", function);
    }
    if (strcmp(sites[i].name, function) == 0) {
      return ++sites[i].calls;
    }
  }
  return -1;
}

int weft_fake_fault(const char *function)
{
  weft_fake_lock();
  int code = world.sticky;
  const long call = count_call(function);
  const char *at = getenv("WEFT_FAKE_FAIL");
  const size_t len = strlen(function);
  while (code == 0 && at != NULL && *at != '\0') {
    if (strncmp(at, function, len) == 0 && at[len] == ':') {
      char *end;
      const long n = strtol(at + len + 1, &end, 10);
      const long wanted = *end == ':' ? strtol(end + 1, NULL, 10) : 1;
      if (n == call) {
        code = (int)wanted;
        world.sticky = weft_fake_number("WEFT_FAKE_STICKY", 0) != 0 ? code : 0;
      }
    }
    at = strchr(at, ',');
    at = at != NULL ? at + 1 : NULL;
  }
  weft_fake_unlock();
  return code;
}

int fake_visible(int index)
{
  const int all = (int)weft_fake_number("WEFT_FAKE_GPUS", 2);
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  if (list == NULL) {
    return index >= 0 && index < all ? index : -1;
  }
  for (int i = 0; *list != '\0'; i++) {
    char *end;
    const long n = strtol(list, &end, 10);
    if (end == list || n < 0 || n >= all) {
      return -1;
    }
    if (i == index) {
      return (int)n;
    }
    list = *end == ',' ? end + 1 : end;
    if (*end != ',' && *end != '\0') {
      return -1;
    }
  }
  return -1;
}

int fake_device(void)
{
  return current;
}

static void uuid_of(int machine, uint8_t uuid[16])
{
  for (int i = 0; i < 16; i++) {
    uuid[i] = (uint8_t)(0xF0 + machine * 17 + i * 29);
  }
}

int weft_fake_current(uint8_t uuid[16])
{
  const int machine = fake_visible(current);
  uuid_of(machine, uuid);
  return machine;
}

FAKE_API int cudaGetDeviceCount(int *count)
{
  const int fault = weft_fake_fault("cudaGetDeviceCount");
  if (fault != 0 || weft_fake_number("WEFT_FAKE_NO_DRIVER", 0) != 0) {
    return fault != 0 ? fault : 35;
  }
  int n = 0;
  while (n < FAKE_GPUS_MAX && fake_visible(n) >= 0) {
    n++;
  }
  if (n == 0) {
    return 100;
  }
  *count = n;
  return 0;
}

FAKE_API int cudaSetDevice(int device)
{
  const int fault = weft_fake_fault("cudaSetDevice");
  if (fault != 0 || fake_visible(device) < 0) {
    return fault != 0 ? fault : 101;
  }
  current = device;
  return 0;
}

FAKE_API int cudaGetDevice(int *device)
{
  *device = current;
  return 0;
}

FAKE_API int cudaGetDeviceProperties(void *prop, int device)
{
  const int machine = fake_visible(device);
  if (machine < 0) {
    return 101;
  }
  (void)snprintf(prop, 256, "weft test double %d", machine);
  uuid_of(machine, (uint8_t *)prop + 256);
  return 0;
}

FAKE_API int cudaRuntimeGetVersion(int *version)
{
  *version = 13000;
  return weft_fake_fault("cudaRuntimeGetVersion");
}

FAKE_API int cudaDriverGetVersion(int *version)
{
  *version = weft_fake_number("WEFT_FAKE_NO_DRIVER", 0) != 0 ? 0 : 13000;
  return 0;
}

FAKE_API int cudaGetLastError(void)
{
  return world.sticky;
}

FAKE_API const char *cudaGetErrorString(int err)
{
  static const struct {
    int code;
    const char *text;
  } texts[] = { { 0, "no error" },
                { 1, "invalid argument" },
                { 2, "out of memory" },
                { 35, "CUDA driver version is insufficient for CUDA runtime version" },
                { 100, "no CUDA-capable device is detected" },
                { 101, "invalid device ordinal" },
                { 400, "invalid resource handle" },
                { 600, "device not ready" },
                { 700, "an illegal memory access was encountered" } };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    if (texts[i].code == err) {
      return texts[i].text;
    }
  }
  return "unknown error";
}
