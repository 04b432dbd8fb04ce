/* pickle_ipc.h -- how the two readers of CUDA IPC handles share their work. */
#ifndef WEFT_TRANSPORT_PICKLE_IPC_H
#define WEFT_TRANSPORT_PICKLE_IPC_H

#include "pickle_tree.h"
#include "weft/pickle.h"

typedef struct wefti_ipc_reader {
  const wefti_ptree *tree;
  const char *uuid;
  size_t param;   /* for error texts */
  size_t entries; /* looked at so far, with repetitions */
  weft_why *why;
} wefti_ipc_reader;

/* PROTO: "IPC handle of parameter 3: field what, found ...". */
weft_err wefti_ipc_bad(wefti_ipc_reader *r, const char *field, const char *what,
                       wefti_pref found);
/* pickle_ipc_args.c: the 15 arguments of rebuild_cuda_tensor, alone or behind the
 * function; validated. */
weft_err wefti_ipc_args(wefti_ipc_reader *r, wefti_pref ref, weft_ipc_tensor *t);

#endif /* WEFT_TRANSPORT_PICKLE_IPC_H */
