#include "pickle_vm.h"

#include <stdlib.h>
#include <string.h>

/* ---- arguments of opcodes */

static weft_err take(wefti_pvm *m, size_t n, const uint8_t **out)
{
  if (n > (size_t)(m->end - m->at)) {
    return weft_whyf(m->why, WEFT_E_TRUNCATED,
                     "pickle: ends inside the opcode at byte %zu",
                     (size_t)(m->op_at - m->from));
  }
  *out = m->at;
  m->at += n;
  return WEFT_OK;
}

static weft_err take_uint(wefti_pvm *m, size_t n, uint64_t *out)
{
  const uint8_t *p = NULL;
  const weft_err err = take(m, n, &p);
  if (err == WEFT_OK) {
    *out = 0;
    for (size_t i = 0; i < n; i++) {
      *out |= (uint64_t)p[i] << (8 * i);
    }
  }
  return err;
}

/* A length of n bytes, then so many bytes. */
static weft_err push_sized(wefti_pvm *m, wefti_pkind kind, size_t n)
{
  uint64_t len = 0;
  const uint8_t *p = NULL;
  weft_err err = take_uint(m, n, &len);
  if (err == WEFT_OK) {
    err = take(m, (size_t)len, &p);
  }
  if (err != WEFT_OK) {
    return err;
  }
  if (kind == WEFTI_P_TEXT && !wefti_utf8(p, (size_t)len)) {
    return wefti_pvm_bad(m, "text is not UTF-8");
  }
  return wefti_pvm_push_node(
      m,
      (wefti_pnode){ .kind = (uint8_t)kind, .u.bytes = { .at = p, .len = (size_t)len } });
}

static weft_err push_long1(wefti_pvm *m)
{
  uint64_t n = 0;
  uint64_t v = 0;
  weft_err err = take_uint(m, 1, &n);
  if (err == WEFT_OK && n > 8) {
    return wefti_pvm_bad(m, "an integer of more than 8 bytes");
  }
  if (err == WEFT_OK) {
    err = take_uint(m, (size_t)n, &v);
  }
  if (err != WEFT_OK) {
    return err;
  }
  if (n > 0 && n < 8 && (v >> (8 * n - 1)) != 0) {
    v |= UINT64_MAX << (8 * n); /* negative */
  }
  return wefti_pvm_push_int(m, WEFTI_P_INT, (int64_t)v);
}

static weft_err take_line(wefti_pvm *m, const uint8_t **line, size_t *len)
{
  const uint8_t *nl = memchr(m->at, '\n', (size_t)(m->end - m->at));
  if (nl == NULL) {
    return take(m, (size_t)(m->end - m->at) + 1, line);
  }
  *line = m->at;
  *len = (size_t)(nl - m->at);
  m->at = nl + 1;
  return WEFT_OK;
}

static weft_err op_global(wefti_pvm *m)
{
  const uint8_t *module = NULL;
  const uint8_t *name = NULL;
  size_t module_len = 0;
  size_t name_len = 0;
  weft_err err = take_line(m, &module, &module_len);
  if (err == WEFT_OK) {
    err = take_line(m, &name, &name_len);
  }
  return err == WEFT_OK ? wefti_pvm_global(m, module, module_len, name, name_len) : err;
}

/* Values above the last MARK, which goes. */
static weft_err take_mark(wefti_pvm *m, size_t *n)
{
  if (m->marks.count == 0) {
    return wefti_pvm_bad(m, "no MARK");
  }
  *n = wefti_pvm_above(m);
  m->marks.count--;
  return WEFT_OK;
}

/* ---- memo */

static weft_err put_arg(wefti_pvm *m, size_t n)
{
  uint64_t slot = 0;
  const weft_err err = take_uint(m, n, &slot);
  return err == WEFT_OK ? wefti_pvm_put(m, slot) : err;
}

static weft_err get_arg(wefti_pvm *m, size_t n)
{
  uint64_t slot = 0;
  const weft_err err = take_uint(m, n, &slot);
  return err == WEFT_OK ? wefti_pvm_get(m, slot) : err;
}

/* ---- the machine */

static weft_err op_int(wefti_pvm *m, size_t n)
{
  uint64_t v = 0;
  const weft_err err = take_uint(m, n, &v);
  if (err != WEFT_OK) {
    return err;
  }
  return wefti_pvm_push_int(m, WEFTI_P_INT,
                            n == 4 ? (int64_t)(int32_t)(uint32_t)v : (int64_t)v);
}

static weft_err op_mark(wefti_pvm *m)
{
  const weft_err err =
      wefti_pvm_grow(m, &m->marks, sizeof(uint32_t), m->limits->depth, "open marks");
  if (err == WEFT_OK) {
    ((uint32_t *)m->marks.items)[m->marks.count++] = (uint32_t)m->stack.count;
  }
  return err;
}

static weft_err op_frame(wefti_pvm *m)
{
  uint64_t len = 0;
  const weft_err err = take_uint(m, 8, &len);
  if (err == WEFT_OK && len > (size_t)(m->end - m->at)) {
    return weft_whyf(m->why, WEFT_E_TRUNCATED, "pickle: ends inside a frame");
  }
  return err;
}

static weft_err op_stop(wefti_pvm *m)
{
  if (m->at != m->end) {
    return weft_whyf(m->why, WEFT_E_TRAILING, "pickle: %zu bytes behind STOP",
                     (size_t)(m->end - m->at));
  }
  if (m->marks.count != 0 || m->stack.count != 1) {
    return wefti_pvm_bad(m, "not exactly one value is left");
  }
  m->stopped = true;
  return WEFT_OK;
}

static weft_err op_marked(wefti_pvm *m, uint8_t op)
{
  size_t n = 0;
  const weft_err err = take_mark(m, &n);
  if (err != WEFT_OK) {
    return err;
  }
  return op == 't'   ? wefti_pvm_make_tuple(m, n)
         : op == 'e' ? wefti_pvm_append(m, n)
                     : wefti_pvm_set_items(m, n);
}

static weft_err refused(wefti_pvm *m, uint8_t op)
{
  const char *name = wefti_popcode_name(op);
  return weft_whyf(m->why, WEFT_E_PROTO,
                   "pickle: opcode %s (0x%02x) at byte %zu is not accepted",
                   name == NULL ? "unknown" : name, op, (size_t)(m->op_at - m->from));
}

static weft_err push_empty(wefti_pvm *m, wefti_pkind kind)
{
  return wefti_pvm_push_node(m, (wefti_pnode){ .kind = (uint8_t)kind });
}

static weft_err step_structure(wefti_pvm *m, uint8_t op)
{
  switch (op) {
  case 0x95:
    return op_frame(m);
  case '(':
    return op_mark(m);
  case 't':
  case 'e':
  case 'u':
    return op_marked(m, op);
  case 'a':
    return wefti_pvm_append(m, 1);
  case 's':
    return wefti_pvm_set_items(m, 2);
  case 0x93:
    return wefti_pvm_stack_global(m);
  case 'c':
    return op_global(m);
  case 'R':
    return wefti_pvm_call(m, WEFTI_P_CALL);
  case 0x81:
    return wefti_pvm_call(m, WEFTI_P_NEW);
  case 'b':
    return wefti_pvm_build(m);
  case 0x94:
    return wefti_pvm_put(m, m->memo.count);
  case 'q':
    return put_arg(m, 1);
  case 'r':
    return put_arg(m, 4);
  case 'h':
    return get_arg(m, 1);
  case 'j':
    return get_arg(m, 4);
  case '.':
    return op_stop(m);
  default:
    return refused(m, op);
  }
}

static weft_err step(wefti_pvm *m, uint8_t op)
{
  switch (op) {
  case 0x8c:
    return push_sized(m, WEFTI_P_TEXT, 1);
  case 'X':
    return push_sized(m, WEFTI_P_TEXT, 4);
  case 'C':
    return push_sized(m, WEFTI_P_BYTES, 1);
  case 'B':
    return push_sized(m, WEFTI_P_BYTES, 4);
  case 'K':
    return op_int(m, 1);
  case 'M':
    return op_int(m, 2);
  case 'J':
    return op_int(m, 4);
  case 0x8a:
    return push_long1(m);
  case 'N':
    return push_empty(m, WEFTI_P_NONE);
  case 0x88:
    return wefti_pvm_push_int(m, WEFTI_P_BOOL, 1);
  case 0x89:
    return wefti_pvm_push_int(m, WEFTI_P_BOOL, 0);
  case ')':
    return push_empty(m, WEFTI_P_TUPLE);
  case ']':
    return push_empty(m, WEFTI_P_LIST);
  case '}':
    return push_empty(m, WEFTI_P_DICT);
  case 0x85:
  case 0x86:
  case 0x87:
    return wefti_pvm_tuple(m, op - 0x84u);
  default:
    return step_structure(m, op);
  }
}

static weft_err head(wefti_pvm *m)
{
  const size_t len = (size_t)(m->end - m->from);
  if (len > m->limits->bytes) {
    return weft_whyf(m->why, WEFT_E_LIMIT, "pickle: %zu bytes, at most %zu are taken",
                     len, m->limits->bytes);
  }
  if (len < 2) {
    return weft_whyf(m->why, WEFT_E_TRUNCATED, "pickle: %zu bytes", len);
  }
  const uint8_t proto = m->from[0] == 0x80 ? m->from[1] : 0;
  if (proto == 2) {
    return weft_whyf(m->why, WEFT_E_UNSUPPORTED,
                     "pickle: protocol 2 is not accepted (it spells bytes as a call of "
                     "_codecs.encode): pickle with protocol 3, 4 or 5");
  }
  if (proto < 3 || proto > 5) {
    return m->from[0] == 0x80
               ? weft_whyf(m->why, WEFT_E_UNSUPPORTED,
                           "pickle: protocol %u is not accepted: use 3, 4 or 5", proto)
               : weft_whyf(m->why, WEFT_E_UNSUPPORTED,
                           "pickle: does not start with a protocol (0x%02x): not a "
                           "pickle, or one of protocol 0 or 1",
                           m->from[0]);
  }
  m->at = m->from + 2;
  return WEFT_OK;
}

weft_err wefti_pickle_parse(const void *pickle, size_t len, const wefti_plimits *limits,
                            wefti_ptree *out, weft_why *why)
{
  static const uint8_t nothing[1] = { 0 };
  const uint8_t *from = len == 0 ? nothing : pickle;
  wefti_pvm m = {
    .from = from, .end = from + len, .limits = limits, .op_at = from, .why = why
  };
  weft_err err = head(&m);
  while (err == WEFT_OK && !m.stopped) {
    const uint8_t *op = NULL;
    m.op_at = m.at;
    err = take(&m, 1, &op);
    if (err == WEFT_OK) {
      err = step(&m, *op);
    }
  }
  if (err == WEFT_OK) {
    *out = (wefti_ptree){ .nodes = m.nodes.items,
                          .cells = m.cells.items,
                          .root = wefti_pvm_stack(&m)[0] };
  } else {
    free(m.nodes.items);
    free(m.cells.items);
  }
  free(m.stack.items);
  free(m.marks.items);
  free(m.memo.items);
  return err;
}

void wefti_pickle_free(wefti_ptree *tree)
{
  if (tree != NULL) {
    free(tree->nodes);
    free(tree->cells);
    *tree = (wefti_ptree){ 0 };
  }
}
