/* fake_cuda.h -- what libfakecudart and libfakenccl share.  Test doubles: device memory
 * is host memory behind addresses that nobody can touch, streams are threads.  No GPU, no
 * speed, nothing that a product may use.
 *
 * Environment (read at every call, so a test may change it):
 *   WEFT_FAKE_GPUS=N             GPUs of this machine, 1 to 16 [2]
 *   CUDA_VISIBLE_DEVICES=LIST    indices among them, as with CUDA [all]
 *   WEFT_FAKE_NO_DRIVER=1        cudaGetDeviceCount says 35
 *   WEFT_FAKE_STREAM_DELAY_US=N  before each operation of a stream [50]
 *   WEFT_FAKE_GPU_BYTES=N        device memory of this process [unlimited]
 *   WEFT_FAKE_FAIL=F:N:C,...     call N (from 1) of function F gives code C
 *   WEFT_FAKE_STICKY=1           ... and every call after it the same */
#ifndef WEFT_FAKE_CUDA_H
#define WEFT_FAKE_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FAKE_API __attribute__((visibility("default")))
enum { FAKE_POISON = 0xDB, FAKE_FREED = 0xDE, FAKE_GPUS_MAX = 16, FAKE_HANDLE = 64 };

typedef struct fake_handle { /* cudaIpcMemHandle_t, cudaIpcEventHandle_t; by value */
  char bytes[FAKE_HANDLE];
} fake_handle;

typedef struct fake_block {
  struct fake_block *next;
  char *dev;  /* what the program sees: no access */
  char *view; /* the bytes */
  size_t bytes, mapped;
  int fd;
  int device;
  unsigned opens; /* imported: how often; 0 = ours */
  uint64_t inode;
} fake_block;

typedef struct fake_event_state { /* in a memfd when it is for other processes */
  _Atomic uint64_t recorded, completed;
} fake_event_state;

typedef struct fake_event {
  unsigned refs;
  fake_event_state *state;
  int fd; /* -1 = of this process only */
  bool imported;
} fake_event;

typedef void fake_op_fn(void *arg);
typedef struct fake_stream fake_stream;

typedef struct fake_world {
  pthread_mutex_t lock;
  pthread_cond_t changed; /* anything */
  fake_block *blocks;
  fake_stream *streams;
  size_t used; /* bytes of device memory, ours */
  int sticky;
} fake_world;

/* Locked by whoever calls what says "locked". */
FAKE_API fake_world *weft_fake_world(void);
FAKE_API void weft_fake_lock(void);
FAKE_API void weft_fake_unlock(void);
/* 0, or the code that this call must give. */
FAKE_API int weft_fake_fault(const char *function);
FAKE_API long weft_fake_number(const char *name, long otherwise);
/* What a program may not: the bytes behind device memory [n], or NULL. */
FAKE_API void *weft_fake_view(const void *ptr, size_t n);
/* Runs fn(arg) on stream's thread, behind what is queued there. */
FAKE_API int weft_fake_enqueue(void *stream, fake_op_fn *fn, void *arg);
/* Of the calling thread's device: the number among the machine's GPUs, 16 bytes. */
FAKE_API int weft_fake_current(uint8_t uuid[16]);

fake_block *fake_find(const void *ptr, size_t n); /* locked */
int fake_visible(int index);                      /* machine's number, or -1 */
int fake_device(void);                            /* the thread's, as visible */
void fake_drain(void); /* until every stream of the thread's device is empty */
void fake_event_done(fake_event *e, uint64_t generation);
void fake_event_drop(fake_event *e); /* locked */

#endif /* WEFT_FAKE_CUDA_H */
