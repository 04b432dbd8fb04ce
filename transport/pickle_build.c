#include "pickle_vm.h"
#include "weft/checked.h"

#include <stdlib.h>
#include <string.h>

enum { GLOBAL_MAX = 256 }; /* bytes of a module or a name */

weft_err wefti_pvm_grow(wefti_pvm *m, wefti_pgrow *g, size_t item, size_t limit,
                        const char *what)
{
  if (g->count >= limit) {
    return weft_whyf(m->why, WEFT_E_LIMIT, "pickle: more than %zu %s", limit, what);
  }
  if (g->count < g->room) {
    return WEFT_OK;
  }
  size_t room = g->room == 0 ? 64 : g->room;
  size_t bytes;
  if (g->room != 0 && weft_size_mul(room, 2, &room) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  if (weft_size_mul(room, item, &bytes) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  void *items = realloc(g->items, bytes);
  if (items == NULL) {
    return weft_whyf(m->why, WEFT_E_NOMEM, "pickle: out of memory");
  }
  g->items = items;
  g->room = room;
  return WEFT_OK;
}

static wefti_pnode *node(const wefti_pvm *m, wefti_pref ref)
{
  return (wefti_pnode *)m->nodes.items + ref;
}

wefti_pref *wefti_pvm_stack(const wefti_pvm *m)
{
  return m->stack.items;
}

/* What stands below is out of reach until the MARK is used. */
static size_t floor_of(const wefti_pvm *m)
{
  return m->marks.count == 0 ? 0 : ((uint32_t *)m->marks.items)[m->marks.count - 1];
}

size_t wefti_pvm_above(const wefti_pvm *m)
{
  return m->stack.count - floor_of(m);
}

weft_err wefti_pvm_bad(wefti_pvm *m, const char *what)
{
  const char *name = wefti_popcode_name(*m->op_at);
  return weft_whyf(m->why, WEFT_E_PROTO, "pickle: %s at byte %zu: %s",
                   name == NULL ? "opcode" : name, (size_t)(m->op_at - m->from), what);
}

static weft_err need(wefti_pvm *m, size_t n)
{
  return wefti_pvm_above(m) < n ? wefti_pvm_bad(m, "too little on the stack") : WEFT_OK;
}

static weft_err push(wefti_pvm *m, wefti_pref ref)
{
  const weft_err err = wefti_pvm_grow(m, &m->stack, sizeof(wefti_pref), m->limits->stack,
                                      "values on the stack");
  if (err == WEFT_OK) {
    wefti_pvm_stack(m)[m->stack.count++] = ref;
  }
  return err;
}

static wefti_pref pop(wefti_pvm *m)
{
  return wefti_pvm_stack(m)[--m->stack.count];
}

weft_err wefti_pvm_push_node(wefti_pvm *m, wefti_pnode n)
{
  const weft_err err =
      wefti_pvm_grow(m, &m->nodes, sizeof n, m->limits->nodes, "values in all");
  if (err != WEFT_OK) {
    return err;
  }
  *node(m, (wefti_pref)m->nodes.count) = n;
  return push(m, (wefti_pref)m->nodes.count++);
}

weft_err wefti_pvm_push_int(wefti_pvm *m, wefti_pkind kind, int64_t v)
{
  return wefti_pvm_push_node(m, (wefti_pnode){ .kind = (uint8_t)kind, .u.integer = v });
}

/* ---- containers */

static weft_err link_cell(wefti_pvm *m, wefti_pref into, wefti_pref child)
{
  const weft_err err =
      wefti_pvm_grow(m, &m->cells, sizeof(wefti_pcell), m->limits->cells, "items in all");
  if (err != WEFT_OK) {
    return err;
  }
  wefti_pnode *c = node(m, into);
  const unsigned depth = node(m, child)->depth + 1u;
  if (depth > m->limits->depth) {
    return weft_whyf(m->why, WEFT_E_LIMIT, "pickle: nested deeper than %u",
                     m->limits->depth);
  }
  wefti_pcell *cells = m->cells.items;
  const uint32_t at = (uint32_t)m->cells.count++;
  cells[at] = (wefti_pcell){ .node = child };
  if (c->count == 0) {
    c->u.cells.head = at;
  } else {
    cells[c->u.cells.tail].next = at;
  }
  c->u.cells.tail = at;
  c->count++;
  c->depth = (uint8_t)(depth > c->depth ? depth : c->depth);
  return WEFT_OK;
}

/* A tuple of the n values on top. */
weft_err wefti_pvm_make_tuple(wefti_pvm *m, size_t n)
{
  weft_err err = wefti_pvm_push_node(m, (wefti_pnode){ .kind = WEFTI_P_TUPLE });
  if (err != WEFT_OK) {
    return err;
  }
  const wefti_pref tuple = pop(m);
  const size_t base = m->stack.count - n;
  for (size_t i = 0; i < n && err == WEFT_OK; i++) {
    err = link_cell(m, tuple, wefti_pvm_stack(m)[base + i]);
  }
  m->stack.count = base;
  return err == WEFT_OK ? push(m, tuple) : err;
}

weft_err wefti_pvm_tuple(wefti_pvm *m, size_t n)
{
  const weft_err err = need(m, n);
  return err == WEFT_OK ? wefti_pvm_make_tuple(m, n) : err;
}

weft_err wefti_pvm_append(wefti_pvm *m, size_t n)
{
  weft_err err = need(m, n + 1);
  if (err != WEFT_OK) {
    return err;
  }
  const size_t base = m->stack.count - n;
  const wefti_pref list = wefti_pvm_stack(m)[base - 1];
  if (node(m, list)->kind != WEFTI_P_LIST) {
    return wefti_pvm_bad(m, "not onto a list");
  }
  for (size_t i = 0; i < n && err == WEFT_OK; i++) {
    err = link_cell(m, list, wefti_pvm_stack(m)[base + i]);
  }
  m->stack.count = base;
  return err;
}

static bool has_key(const wefti_pvm *m, const wefti_pnode *dict, const wefti_pnode *key)
{
  const wefti_pcell *cells = m->cells.items;
  uint32_t at = dict->u.cells.head;
  for (uint32_t i = 0; i < dict->count; i += 2) {
    const wefti_pnode *k = node(m, cells[at].node);
    if (k->u.bytes.len == key->u.bytes.len &&
        memcmp(k->u.bytes.at, key->u.bytes.at, key->u.bytes.len) == 0) {
      return true;
    }
    at = cells[cells[at].next].next;
  }
  return false;
}

static weft_err set_item(wefti_pvm *m, wefti_pref dict, wefti_pref key, wefti_pref value)
{
  if (node(m, key)->kind != WEFTI_P_TEXT) {
    return wefti_pvm_bad(m, "the key of a dict is not a str");
  }
  if (has_key(m, node(m, dict), node(m, key))) {
    return wefti_pvm_bad(m, "a key twice in one dict");
  }
  if (node(m, dict)->count / 2 >= m->limits->dict_keys) {
    return weft_whyf(m->why, WEFT_E_LIMIT, "pickle: more than %zu keys in one dict",
                     m->limits->dict_keys);
  }
  const weft_err err = link_cell(m, dict, key);
  return err == WEFT_OK ? link_cell(m, dict, value) : err;
}

weft_err wefti_pvm_set_items(wefti_pvm *m, size_t n)
{
  weft_err err = need(m, n + 1);
  if (err != WEFT_OK) {
    return err;
  }
  const size_t base = m->stack.count - n;
  const wefti_pref dict = wefti_pvm_stack(m)[base - 1];
  if (node(m, dict)->kind != WEFTI_P_DICT) {
    return wefti_pvm_bad(m, "not into a dict");
  }
  if (n % 2 != 0) {
    return wefti_pvm_bad(m, "a key without value");
  }
  for (size_t i = 0; i < n && err == WEFT_OK; i += 2) {
    err =
        set_item(m, dict, wefti_pvm_stack(m)[base + i], wefti_pvm_stack(m)[base + i + 1]);
  }
  m->stack.count = base;
  return err;
}

/* ---- globals and what is done with them */

weft_err wefti_pvm_global(wefti_pvm *m, const uint8_t *module, size_t module_len,
                          const uint8_t *name, size_t name_len)
{
  weft_dtype dtype = WEFT_DTYPE_NONE;
  const wefti_pglobal g =
      module_len > GLOBAL_MAX || name_len > GLOBAL_MAX
          ? WEFTI_G_NOTHING
          : wefti_pglobal_find(module, module_len, name, name_len, &dtype);
  if (g == WEFTI_G_NOTHING) {
    char a[96];
    char b[96];
    return weft_whyf(m->why, WEFT_E_DENIED,
                     "pickle: global %s.%s is not accepted (nothing of it was run)",
                     wefti_escape(module, module_len, a, sizeof a),
                     wefti_escape(name, name_len, b, sizeof b));
  }
  return wefti_pvm_push_node(m,
                             (wefti_pnode){ .kind = WEFTI_P_GLOBAL,
                                            .global = (uint8_t)g,
                                            .dtype = (uint8_t)dtype,
                                            .u.bytes = { .at = name, .len = name_len } });
}

weft_err wefti_pvm_stack_global(wefti_pvm *m)
{
  const weft_err err = need(m, 2);
  if (err != WEFT_OK) {
    return err;
  }
  const wefti_pnode name = *node(m, pop(m));
  const wefti_pnode module = *node(m, pop(m));
  if (name.kind != WEFTI_P_TEXT || module.kind != WEFTI_P_TEXT) {
    return wefti_pvm_bad(m, "module and name are not both str");
  }
  return wefti_pvm_global(m, module.u.bytes.at, module.u.bytes.len, name.u.bytes.at,
                          name.u.bytes.len);
}

static weft_err denied(wefti_pvm *m, wefti_pref what)
{
  char text[WEFTI_PTEXT];
  const wefti_ptree tree = { .nodes = m->nodes.items, .cells = m->cells.items };
  return weft_whyf(m->why, WEFT_E_DENIED, "pickle: %s of %s is not accepted",
                   wefti_popcode_name(*m->op_at), wefti_pdescribe(&tree, what, text));
}

static weft_err push_pair(wefti_pvm *m, wefti_pkind kind, wefti_pref a, wefti_pref b)
{
  const unsigned da = node(m, a)->depth;
  const unsigned db = node(m, b)->depth;
  const unsigned depth = (da > db ? da : db) + 1u;
  if (depth > m->limits->depth) {
    return weft_whyf(m->why, WEFT_E_LIMIT, "pickle: nested deeper than %u",
                     m->limits->depth);
  }
  return wefti_pvm_push_node(m, (wefti_pnode){ .kind = (uint8_t)kind,
                                               .depth = (uint8_t)depth,
                                               .u.pair = { .a = a, .b = b } });
}

/* REDUCE, NEWOBJ: a global and its arguments. */
weft_err wefti_pvm_call(wefti_pvm *m, wefti_pkind kind)
{
  const weft_err err = need(m, 2);
  if (err != WEFT_OK) {
    return err;
  }
  const wefti_pref args = pop(m);
  const wefti_pref callee = pop(m);
  const wefti_pnode *c = node(m, callee);
  const wefti_pnode *a = node(m, args);
  const bool right = c->kind == WEFTI_P_GLOBAL &&
                     (kind == WEFTI_P_NEW ? c->global == WEFTI_G_NCCL4PY_ID
                                          : c->global == WEFTI_G_CTYPES_UNPICKLE ||
                                                c->global == WEFTI_G_SIZE);
  if (!right) {
    return denied(m, callee);
  }
  if (a->kind != WEFTI_P_TUPLE) {
    return wefti_pvm_bad(m, "arguments are not a tuple");
  }
  if (c->global == WEFTI_G_CTYPES_UNPICKLE) { /* of one class only */
    const wefti_pcell *cells = m->cells.items;
    const wefti_pref cls = a->count == 0 ? args : cells[a->u.cells.head].node;
    if (node(m, cls)->kind != WEFTI_P_GLOBAL || node(m, cls)->global != WEFTI_G_NCCL_ID) {
      return denied(m, cls);
    }
  }
  return push_pair(m, kind, callee, args);
}

weft_err wefti_pvm_build(wefti_pvm *m)
{
  const weft_err err = need(m, 2);
  if (err != WEFT_OK) {
    return err;
  }
  const wefti_pref state = pop(m);
  const wefti_pref base = pop(m);
  return node(m, base)->kind != WEFTI_P_NEW ? denied(m, base)
                                            : push_pair(m, WEFTI_P_BUILD, base, state);
}

/* ---- memo */

/* Picklers number their memo without gaps. */
weft_err wefti_pvm_put(wefti_pvm *m, uint64_t slot)
{
  weft_err err = need(m, 1);
  if (err == WEFT_OK && slot != m->memo.count) {
    err = wefti_pvm_bad(m, "memo slot out of order");
  }
  if (err == WEFT_OK) {
    err = wefti_pvm_grow(m, &m->memo, sizeof(wefti_pref), m->limits->nodes, "memo slots");
  }
  if (err == WEFT_OK) {
    ((wefti_pref *)m->memo.items)[m->memo.count++] =
        wefti_pvm_stack(m)[m->stack.count - 1];
  }
  return err;
}

weft_err wefti_pvm_get(wefti_pvm *m, uint64_t slot)
{
  return slot < m->memo.count ? push(m, ((wefti_pref *)m->memo.items)[slot])
                              : wefti_pvm_bad(m, "empty memo slot");
}
