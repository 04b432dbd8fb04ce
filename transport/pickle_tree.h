/* pickle_tree.h -- the inert stack machine: pickle bytes in, a tree of plain nodes out.
 * It calls nothing and looks nothing up; what a tree means is its readers' business. */
#ifndef WEFT_TRANSPORT_PICKLE_TREE_H
#define WEFT_TRANSPORT_PICKLE_TREE_H

#include "weft/dtype.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum wefti_pkind {
  WEFTI_P_NONE,
  WEFTI_P_BOOL,
  WEFTI_P_INT,
  WEFTI_P_BYTES,
  WEFTI_P_TEXT, /* valid UTF-8 */
  WEFTI_P_TUPLE,
  WEFTI_P_LIST,
  WEFTI_P_DICT,   /* keys are texts, none twice; cells: key, value, key, ... */
  WEFTI_P_GLOBAL, /* on the allow-list */
  WEFTI_P_CALL,   /* a: global, b: tuple of arguments */
  WEFTI_P_NEW,    /* a: global, b: tuple of arguments */
  WEFTI_P_BUILD   /* a: NEW, b: state */
} wefti_pkind;

typedef enum wefti_pglobal {
  WEFTI_G_NOTHING,
  WEFTI_G_CTYPES_UNPICKLE,
  WEFTI_G_NCCL_ID,    /* class ncclUniqueId of any module */
  WEFTI_G_NCCL4PY_ID, /* nccl.core.utils.UniqueId */
  WEFTI_G_TENSOR,     /* torch.Tensor, torch.nn.parameter.Parameter */
  WEFTI_G_SIZE,
  WEFTI_G_STORAGE,
  WEFTI_G_REBUILD, /* rebuild_cuda_tensor, also SGLang's */
  WEFTI_G_DTYPE
} wefti_pglobal;

typedef uint32_t wefti_pref; /* index of a node */

typedef struct wefti_pnode {
  uint8_t kind;  /* wefti_pkind */
  uint8_t depth; /* 1 + the deepest child's when it was put in */
  uint8_t global;
  uint8_t dtype;  /* of a WEFTI_G_DTYPE */
  uint32_t count; /* cells of a tuple, list or dict */
  union {
    int64_t integer; /* also of a BOOL */
    struct {
      const uint8_t *at; /* borrows the pickle; of a GLOBAL its "module name" */
      size_t len;
    } bytes;
    struct {
      uint32_t head; /* cell, if count > 0 */
      uint32_t tail;
    } cells;
    struct {
      wefti_pref a;
      wefti_pref b;
    } pair;
  } u;
} wefti_pnode;

typedef struct wefti_pcell {
  wefti_pref node;
  uint32_t next;
} wefti_pcell;

/* Lists and dicts may hold themselves and a tuple may be shared by millions: walk a tree
 * by the shape that is expected, never over all of it. */
typedef struct wefti_ptree {
  wefti_pnode *nodes;
  wefti_pcell *cells;
  wefti_pref root;
} wefti_ptree;

typedef struct wefti_plimits {
  size_t bytes; /* of the pickle */
  size_t nodes;
  size_t cells;
  size_t stack; /* also bounds open marks and the items of one MARK */
  unsigned depth;
  size_t dict_keys; /* of one dict */
} wefti_plimits;

enum {
  WEFTI_PTEXT = 96 /* room for wefti_pdescribe */
};

/* Borrows pickle until free.  out is written only on WEFT_OK.  Errors: LIMIT, TRUNCATED,
 * TRAILING, PROTO, UNSUPPORTED (protocol), DENIED (global, call), NOMEM. */
weft_err wefti_pickle_parse(const void *pickle, size_t len, const wefti_plimits *limits,
                            wefti_ptree *out, weft_why *why) WEFT_MUST_USE;
void wefti_pickle_free(wefti_ptree *tree);

static inline const wefti_pnode *wefti_pnode_at(const wefti_ptree *tree, wefti_pref ref)
{
  return &tree->nodes[ref];
}

/* Node as kind, else NULL. */
static inline const wefti_pnode *wefti_pnode_as(const wefti_ptree *tree, wefti_pref ref,
                                                wefti_pkind kind)
{
  const wefti_pnode *n = &tree->nodes[ref];
  return n->kind == (uint8_t)kind ? n : NULL;
}

/* Copies the first n cells of a tuple that has exactly n. */
bool wefti_ptuple(const wefti_ptree *tree, wefti_pref ref, wefti_pref *out, uint32_t n);
/* "a call of torch.Size", "bytes of length 12", ...: escaped, for error texts. */
const char *wefti_pdescribe(const wefti_ptree *tree, wefti_pref ref,
                            char out[WEFTI_PTEXT]);

/* pickle_globals.c: which global is that; NOTHING when it is not on the list. */
wefti_pglobal wefti_pglobal_find(const uint8_t *module, size_t module_len,
                                 const uint8_t *name, size_t name_len, weft_dtype *dtype);
/* Printable ASCII stays, the rest becomes '?'; cut to cap - 1. */
const char *wefti_escape(const uint8_t *text, size_t len, char *out, size_t cap);
/* "INST" for 0x69; NULL when Python has no such opcode. */
const char *wefti_popcode_name(uint8_t op);
bool wefti_utf8(const uint8_t *p, size_t len);

/* base64.c: standard alphabet, padded, nothing else.  *out is malloc'd.  Errors: INVAL,
 * LIMIT (more than max bytes), NOMEM; no text of their own. */
weft_err wefti_base64(const char *text, size_t len, size_t max, uint8_t **out,
                      size_t *out_len) WEFT_MUST_USE;
/* The other way: out has room for (len + 2) / 3 * 4 characters and a NUL. */
void wefti_base64_write(const uint8_t *data, size_t len, char *out);

#endif /* WEFT_TRANSPORT_PICKLE_TREE_H */
