/* fake_nccl.h -- inside libfakenccl: a test double with NCCL's symbols and ABI.
 *
 * The process that calls ncclGetUniqueId runs a hub; every rank has one TCP connection to
 * it.  Each collective begins with a header (operation, sequence, bytes, type, root); the
 * hub moves bytes only when all ranks sent the same one, and tells all of them when not.
 *
 * Environment (read at every call):
 *   WEFT_FAKE_NCCL_VERSION=22809    what ncclGetVersion says and ranks compare
 *   WEFT_FAKE_NCCL_HANG=F:N         collective N of function F never completes
 *   WEFT_FAKE_NCCL_KILL=F:N         SIGKILL in the middle of it
 *   WEFT_FAKE_NCCL_ABORT_HANG=1     ncclCommAbort does not return; /path: while it exists
 *   WEFT_FAKE_NCCL_LAUNCH_US=N      how long a non-blocking call is "in progress" [200]
 *   WEFT_FAKE_NCCL_CONNECT_MS=N     how long the root is tried [60000]
 *   WEFT_FAKE_NCCL_MULTI_RANK=1     two ranks on one GPU are fine
 * F is broadcast or all_reduce.  WEFT_FAKE_FAIL of fake_cuda.h works for ncclXxx too. */
#ifndef WEFT_FAKE_NCCL_H
#define WEFT_FAKE_NCCL_H

#include "fake_cuda.h"

#include <netinet/in.h>

enum {
  NCCL_OK = 0,
  NCCL_CUDA = 1,
  NCCL_SYSTEM = 2,
  NCCL_INTERNAL = 3,
  NCCL_ARGUMENT = 4,
  NCCL_USAGE = 5,
  NCCL_REMOTE = 6,
  NCCL_IN_PROGRESS = 7
};
enum {
  FAKE_RANKS_MAX = 64,
  FAKE_TEXT = 248,
  FAKE_BLOCK = 1 << 18,
  FAKE_REDUCE_MAX = 1 << 20,
  FAKE_MAGIC = 0x77666e63
};
enum fake_kind { FAKE_BROADCAST = 1, FAKE_ALL_REDUCE = 2, FAKE_BYE = 3 };

typedef struct fake_id { /* ncclUniqueId */
  uint64_t magic;
  struct sockaddr_in at;
  char rest[128 - 8 - sizeof(struct sockaddr_in)];
} fake_id;

typedef struct fake_hello {
  uint32_t magic, version, ranks, rank;
  uint8_t uuid[16];
} fake_hello;

typedef struct fake_head {
  uint32_t kind, sequence;
  uint64_t bytes;
  uint32_t type, root;
} fake_head;

typedef struct fake_verdict { /* hub to rank; code 0 = go on */
  uint32_t code;
  char text[FAKE_TEXT];
} fake_verdict;

enum { FAKE_COMM_MAGIC = 0x636f6d6d };
typedef struct fake_comm {
  int magic;
  int fd, rank, ranks, device;
  bool blocking;
  uint8_t uuid[16];
  struct sockaddr_in root;
  pthread_t joiner;
  bool joining; /* the thread is to be joined */
  atomic_bool aborted;
  pthread_mutex_t lock; /* for what follows */
  pthread_cond_t changed;
  int state;  /* NCCL_OK, NCCL_IN_PROGRESS or an error */
  int queued; /* operations not ended, launches included */
  uint32_t sequence;
  uint32_t
      ended; /* collectives run in the order of their calls, whatever their streams */
  char text[FAKE_TEXT];
} fake_comm;

int fake_say(int code, const char *text); /* for ncclGetLastError(NULL); gives code */
void fake_set_state(fake_comm *c, int state, const char *text);
int fake_state_of(fake_comm *c);
void fake_nap_us(long us);

/* Whole pieces over a socket.  stop (may be NULL) is looked at every few milliseconds. */
bool fake_send(int fd, const void *data, size_t n, const atomic_bool *stop);
bool fake_recv(int fd, void *data, size_t n, const atomic_bool *stop);

/* Starts a hub; its address.  -1 = cannot. */
int fake_hub_start(struct sockaddr_in *at);
int fake_nccl_version(void);

#endif /* WEFT_FAKE_NCCL_H */
