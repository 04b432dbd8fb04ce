/* weft/device_table.h -- which GPU libraries a worker uses, where they are, and whether
 * they are usable here.  Not here: their functions (private to transport) and transfers
 * (weft/transfer.h).  Nothing is linked against: libcudart and libnccl are opened by path
 * when a backend that needs them starts. */
#ifndef WEFT_DEVICE_TABLE_H
#define WEFT_DEVICE_TABLE_H

#include "weft/base.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>

WEFT_BEGIN_DECLS

typedef struct weft_device_opts {
  size_t size;        /* sizeof(weft_device_opts) */
  const char *cudart; /* path of libcudart; NULL = the system's, by its usual names */
  /* Path of libnccl, which must be of the very version that the trainer uses.  NULL =
   * VLLM_NCCL_SO_PATH, else the system's libnccl.so.2. */
  const char *nccl;
  int device; /* as CUDA counts them in this process */
} weft_device_opts;

enum { WEFT_DEVICE_TEXT = 128, WEFT_GPU_UUID_TEXT = 37 };
typedef struct weft_device_info {
  char cudart[WEFT_DEVICE_TEXT]; /* e.g. "13.0 (libcudart.so.13), driver 13.0" */
  char nccl[WEFT_DEVICE_TEXT];   /* e.g. "2.28.9 (libnccl.so.2)"; "" = not asked for */
  char name[WEFT_DEVICE_TEXT];   /* the card's */
  char uuid[WEFT_GPU_UUID_TEXT]; /* lower case, without "GPU-"; "" = not known */
  int count;                     /* devices that this process sees */
  char
      settings[WEFT_DEVICE_TEXT]; /* NCCL_* of the environment that choose paths, or "" */
} weft_device_info;

/* Opens the libraries, looks at the device and lets go of them.  May take long (a GPU
 * library has 200 MB); not for a loop.  Errors: NOTFOUND (library), UNSUPPORTED (symbols
 * missing), UNAVAIL (no driver, no GPU, no such device). */
WEFT_API weft_err weft_device_probe(const weft_device_opts *opts, bool nccl,
                                    weft_device_info *out, weft_why *why) WEFT_MUST_USE;

/* Which device a worker takes that was told none: the only one there is, else that of
 * its rank.  Errors: UNAVAIL. */
WEFT_API weft_err weft_device_choose(int count, unsigned rank, int *out, weft_why *why)
    WEFT_MUST_USE;

/* NCCL reads NCCL_COMM_BLOCKING over what a program asks for, and a blocking communicator
 * cannot be given up.  Removes it from the environment; before there are threads. */
WEFT_API void weft_device_clear_env(void);

WEFT_END_DECLS

#endif /* WEFT_DEVICE_TABLE_H */
