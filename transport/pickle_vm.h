/* pickle_vm.h -- the state of the inert stack machine, shared by its two files. */
#ifndef WEFT_TRANSPORT_PICKLE_VM_H
#define WEFT_TRANSPORT_PICKLE_VM_H

#include "pickle_tree.h"

/* Array that grows by doubling up to a limit. */
typedef struct wefti_pgrow {
  void *items;
  size_t count;
  size_t room;
} wefti_pgrow;

typedef struct wefti_pvm {
  const uint8_t *from;
  const uint8_t *at;
  const uint8_t *end;
  const wefti_plimits *limits;
  wefti_pgrow nodes; /* wefti_pnode */
  wefti_pgrow cells; /* wefti_pcell */
  wefti_pgrow stack; /* wefti_pref */
  wefti_pgrow marks; /* uint32_t: stack count at the MARK */
  wefti_pgrow memo;  /* wefti_pref */
  const uint8_t *op_at;
  bool stopped;
  weft_why *why;
} wefti_pvm;

/* pickle_build.c: what opcodes do once their arguments are read.  Each fills why. */
weft_err wefti_pvm_grow(wefti_pvm *m, wefti_pgrow *g, size_t item, size_t limit,
                        const char *what);
weft_err wefti_pvm_bad(wefti_pvm *m, const char *what);
weft_err wefti_pvm_push_node(wefti_pvm *m, wefti_pnode n);
weft_err wefti_pvm_push_int(wefti_pvm *m, wefti_pkind kind, int64_t v);
weft_err wefti_pvm_make_tuple(wefti_pvm *m, size_t n); /* n are there */
weft_err wefti_pvm_tuple(wefti_pvm *m, size_t n);
weft_err wefti_pvm_append(wefti_pvm *m, size_t n);
weft_err wefti_pvm_set_items(wefti_pvm *m, size_t n);
weft_err wefti_pvm_global(wefti_pvm *m, const uint8_t *module, size_t module_len,
                          const uint8_t *name, size_t name_len);
weft_err wefti_pvm_stack_global(wefti_pvm *m);
weft_err wefti_pvm_call(wefti_pvm *m, wefti_pkind kind); /* REDUCE, NEWOBJ */
weft_err wefti_pvm_build(wefti_pvm *m);
weft_err wefti_pvm_put(wefti_pvm *m, uint64_t slot);
weft_err wefti_pvm_get(wefti_pvm *m, uint64_t slot);
/* Values above the last MARK. */
size_t wefti_pvm_above(const wefti_pvm *m);
wefti_pref *wefti_pvm_stack(const wefti_pvm *m);

#endif /* WEFT_TRANSPORT_PICKLE_VM_H */
