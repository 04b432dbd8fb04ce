/* cuda_table.h -- libcudart by dlopen: the functions that weft calls, with our own
 * declarations of their types (checked against NVIDIA's in device_abi.c where those are
 * installed).  Not for other folders; no CUDA header is needed to include it. */
#ifndef WEFT_TRANSPORT_CUDA_TABLE_H
#define WEFT_TRANSPORT_CUDA_TABLE_H

#include "weft/device_table.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct wefti_cuda_stream *wefti_stream; /* cudaStream_t */
typedef struct wefti_cuda_event *wefti_event;   /* cudaEvent_t */
typedef struct wefti_ipc_handle {               /* passed by value */
  char bytes[64];
} wefti_ipc_handle;

enum { /* cudaError_t */
       WEFTI_CUDA_OK = 0,
       WEFTI_CUDA_INVALID_VALUE = 1,
       WEFTI_CUDA_NOMEM = 2,
       WEFTI_CUDA_OLD_DRIVER = 35,
       WEFTI_CUDA_NO_DEVICE = 100,
       WEFTI_CUDA_BAD_HANDLE = 400,
       WEFTI_CUDA_NOT_READY = 600
};
enum { /* cudaMemcpyKind */
       WEFTI_TO_DEVICE = 1,
       WEFTI_TO_HOST = 2,
       WEFTI_ON_DEVICE = 3
};
enum {
  WEFTI_STREAM_NONBLOCKING = 1,
  WEFTI_EVENT_NO_TIMING = 2,
  WEFTI_IPC_LAZY_PEER = 1,
  WEFTI_CUDA_PROP_BYTES = 16384, /* room: cudaDeviceProp is about 1 KiB and grows */
  WEFTI_CUDA_PROP_UUID = 256     /* where the uuid is, behind char name[256], since 10 */
};

/* need: 1 = the library is refused without it */
/* clang-format off */
/*  need, name behind "cuda",     arguments */
#define WEFTI_CUDA_TABLE(X)                                                              \
  X(1, GetDeviceCount,         (int *count))                                             \
  X(1, SetDevice,              (int device))                                             \
  X(0, GetDeviceProperties,    (void *prop, int device))                                 \
  X(0, GetDeviceProperties_v2, (void *prop, int device))                                 \
  X(0, MemGetInfo,             (size_t *left, size_t *all))                              \
  X(1, Malloc,                 (void **ptr, size_t bytes))                               \
  X(1, Free,                   (void *ptr))                                              \
  X(1, HostAlloc,              (void **ptr, size_t bytes, unsigned flags))               \
  X(1, FreeHost,               (void *ptr))                                              \
  X(1, MemcpyAsync,            (void *to, const void *from, size_t n, int kind, wefti_stream s)) \
  X(0, Memcpy2DAsync,          (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, wefti_stream s)) \
  X(1, MemsetAsync,            (void *ptr, int value, size_t n, wefti_stream s))         \
  X(1, StreamCreateWithFlags,  (wefti_stream *s, unsigned flags))                        \
  X(1, StreamDestroy,          (wefti_stream s))                                         \
  X(1, StreamQuery,            (wefti_stream s))                                         \
  X(1, StreamSynchronize,      (wefti_stream s))                                         \
  X(1, StreamWaitEvent,        (wefti_stream s, wefti_event e, unsigned flags))          \
  X(1, EventCreateWithFlags,   (wefti_event *e, unsigned flags))                         \
  X(1, EventRecord,            (wefti_event e, wefti_stream s))                          \
  X(1, EventQuery,             (wefti_event e))                                          \
  X(1, EventDestroy,           (wefti_event e))                                          \
  X(0, IpcGetMemHandle,        (wefti_ipc_handle *handle, void *ptr))                    \
  X(0, IpcOpenMemHandle,       (void **ptr, wefti_ipc_handle handle, unsigned flags))    \
  X(0, IpcCloseMemHandle,      (void *ptr))                                              \
  X(0, IpcOpenEventHandle,     (wefti_event *e, wefti_ipc_handle handle))                \
  X(1, RuntimeGetVersion,      (int *version))                                           \
  X(0, DriverGetVersion,       (int *version))                                           \
  X(0, GetLastError,           (void))
/* clang-format on */

typedef struct wefti_cuda {
#define WEFTI_X(need, name, args) int(*name) args;
  WEFTI_CUDA_TABLE(WEFTI_X)
#undef WEFTI_X
  const char *(*GetErrorString)(int err); /* NULL = the library has none */
  void *library;
  char path[WEFT_DEVICE_TEXT]; /* as opened */
  int version;                 /* 13000 = 13.0 */
  int driver;                  /* the same; 0 = no driver or not known */
} wefti_cuda;

/* Any thread.  *out is whole on WEFT_OK; wefti_cuda_close it.  path NULL = usual names.
 */
weft_err wefti_cuda_open(const char *path, wefti_cuda *out, weft_why *why) WEFT_MUST_USE;
void wefti_cuda_close(wefti_cuda *cuda); /* of a zeroed one: no-op */
/* Is there a GPU?  Errors: UNAVAIL with what to do. */
weft_err wefti_cuda_count(const wefti_cuda *cuda, int *count, weft_why *why)
    WEFT_MUST_USE;
/* Makes device the calling thread's.  Errors: UNAVAIL. */
weft_err wefti_cuda_use(const wefti_cuda *cuda, int device, weft_why *why) WEFT_MUST_USE;
/* "" where the library cannot say. */
void wefti_cuda_identity(const wefti_cuda *cuda, int device, char name[WEFT_DEVICE_TEXT],
                         char uuid[WEFT_GPU_UUID_TEXT]);
/* Fills why with what, the number and CUDA's text; gives NOMEM or FAILED. */
weft_err wefti_cuda_fail(const wefti_cuda *cuda, int code, weft_why *why,
                         const char *what);
static inline weft_err wefti_cuda_check(const wefti_cuda *cuda, int code, weft_why *why,
                                        const char *what)
{
  return code == WEFTI_CUDA_OK ? WEFT_OK : wefti_cuda_fail(cuda, code, why, what);
}

/* ---- for both tables: opens path, or the first of names[] (NULL-terminated) */
weft_err wefti_library_open(const char *path, const char *const *names, const char *what,
                            void **library, char opened[WEFT_DEVICE_TEXT], weft_why *why)
    WEFT_MUST_USE;
/* Where one symbol goes. */
typedef struct wefti_symbol {
  const char *name;
  size_t at; /* offset of the function pointer in the table */
  bool need;
} wefti_symbol;
weft_err wefti_library_resolve(void *library, const wefti_symbol *symbols, size_t count,
                               void *table, const char *path, weft_why *why)
    WEFT_MUST_USE;

#endif /* WEFT_TRANSPORT_CUDA_TABLE_H */
