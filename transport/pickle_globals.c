#include "pickle_tree.h"

#include <stdio.h>
#include <string.h>

typedef struct row {
  const char *module; /* NULL: any */
  const char *name;
  wefti_pglobal global;
} row;

static const row rows[] = {
  { "_ctypes", "_unpickle", WEFTI_G_CTYPES_UNPICKLE },
  { NULL, "ncclUniqueId", WEFTI_G_NCCL_ID },
  { "nccl.core.utils", "UniqueId", WEFTI_G_NCCL4PY_ID },
  { "torch", "Tensor", WEFTI_G_TENSOR },
  { "torch.nn.parameter", "Parameter", WEFTI_G_TENSOR },
  { "torch", "Size", WEFTI_G_SIZE },
  { "torch.storage", "TypedStorage", WEFTI_G_STORAGE },
  { "torch.storage", "UntypedStorage", WEFTI_G_STORAGE },
  { "torch.multiprocessing.reductions", "rebuild_cuda_tensor", WEFTI_G_REBUILD },
  { "sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified", WEFTI_G_REBUILD },
};

static bool is(const uint8_t *text, size_t len, const char *want)
{
  return strlen(want) == len && memcmp(text, want, len) == 0;
}

wefti_pglobal wefti_pglobal_find(const uint8_t *module, size_t module_len,
                                 const uint8_t *name, size_t name_len, weft_dtype *dtype)
{
  *dtype = WEFT_DTYPE_NONE;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const row *r = &rows[i];
    if ((r->module == NULL || is(module, module_len, r->module)) &&
        is(name, name_len, r->name)) {
      return r->global;
    }
  }
  char text[32];
  if (!is(module, module_len, "torch") || name_len >= sizeof text ||
      memchr(name, '\0', name_len) != NULL) {
    return WEFTI_G_NOTHING;
  }
  memcpy(text, name, name_len);
  text[name_len] = '\0';
  *dtype = weft_dtype_parse(text);
  return *dtype == WEFT_DTYPE_NONE ? WEFTI_G_NOTHING : WEFTI_G_DTYPE;
}

const char *wefti_escape(const uint8_t *text, size_t len, char *out, size_t cap)
{
  size_t n = 0;
  for (; n < len && n + 1 < cap; n++) {
    const bool plain = text[n] >= 0x20 && text[n] < 0x7f;
    out[n] = (char)(plain ? text[n] : (uint8_t)'?');
  }
  out[n] = '\0';
  return out;
}

const char *wefti_popcode_name(uint8_t op)
{
  static const char *const names[256] = {
    ['('] = "MARK",          ['.'] = "STOP",
    ['0'] = "POP",           ['1'] = "POP_MARK",
    ['2'] = "DUP",           ['F'] = "FLOAT",
    ['I'] = "INT",           ['J'] = "BININT",
    ['K'] = "BININT1",       ['L'] = "LONG",
    ['M'] = "BININT2",       ['N'] = "NONE",
    ['P'] = "PERSID",        ['Q'] = "BINPERSID",
    ['R'] = "REDUCE",        ['S'] = "STRING",
    ['T'] = "BINSTRING",     ['U'] = "SHORT_BINSTRING",
    ['V'] = "UNICODE",       ['X'] = "BINUNICODE",
    ['B'] = "BINBYTES",      ['C'] = "SHORT_BINBYTES",
    [']'] = "EMPTY_LIST",    ['a'] = "APPEND",
    ['b'] = "BUILD",         ['c'] = "GLOBAL",
    ['d'] = "DICT",          ['e'] = "APPENDS",
    ['g'] = "GET",           ['h'] = "BINGET",
    ['i'] = "INST",          ['j'] = "LONG_BINGET",
    ['l'] = "LIST",          ['o'] = "OBJ",
    ['p'] = "PUT",           ['q'] = "BINPUT",
    ['r'] = "LONG_BINPUT",   ['s'] = "SETITEM",
    ['t'] = "TUPLE",         ['u'] = "SETITEMS",
    ['}'] = "EMPTY_DICT",    [')'] = "EMPTY_TUPLE",
    ['G'] = "BINFLOAT",      [0x80] = "PROTO",
    [0x81] = "NEWOBJ",       [0x82] = "EXT1",
    [0x83] = "EXT2",         [0x84] = "EXT4",
    [0x85] = "TUPLE1",       [0x86] = "TUPLE2",
    [0x87] = "TUPLE3",       [0x88] = "NEWTRUE",
    [0x89] = "NEWFALSE",     [0x8a] = "LONG1",
    [0x8b] = "LONG4",        [0x8c] = "SHORT_BINUNICODE",
    [0x8d] = "BINUNICODE8",  [0x8e] = "BINBYTES8",
    [0x8f] = "EMPTY_SET",    [0x90] = "ADDITEMS",
    [0x91] = "FROZENSET",    [0x92] = "NEWOBJ_EX",
    [0x93] = "STACK_GLOBAL", [0x94] = "MEMOIZE",
    [0x95] = "FRAME",        [0x96] = "BYTEARRAY8",
    [0x97] = "NEXT_BUFFER",  [0x98] = "READONLY_BUFFER",
  };
  return names[op];
}

/* Bytes of the sequence at p, 0 when it is none: shortest form, no surrogates, up to
 * U+10FFFF.  Source: RFC 3629 section 4. */
static size_t sequence(const uint8_t *p, size_t left)
{
  const uint8_t c = p[0];
  if (c < 0x80) {
    return 1;
  }
  const size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
  if (c < 0xc2 || c > 0xf4 || left < n) {
    return 0;
  }
  for (size_t i = 1; i < n; i++) {
    if ((p[i] & 0xc0) != 0x80) {
      return 0;
    }
  }
  const bool low = (c == 0xe0 && p[1] < 0xa0) || (c == 0xf0 && p[1] < 0x90);
  const bool high = (c == 0xed && p[1] >= 0xa0) || (c == 0xf4 && p[1] >= 0x90);
  return low || high ? 0 : n;
}

bool wefti_utf8(const uint8_t *p, size_t len)
{
  for (size_t i = 0; i < len;) {
    const size_t n = sequence(p + i, len - i);
    if (n == 0) {
      return false;
    }
    i += n;
  }
  return true;
}

bool wefti_ptuple(const wefti_ptree *tree, wefti_pref ref, wefti_pref *out, uint32_t n)
{
  const wefti_pnode *t = wefti_pnode_as(tree, ref, WEFTI_P_TUPLE);
  if (t == NULL || t->count != n) {
    return false;
  }
  uint32_t at = t->u.cells.head;
  for (uint32_t i = 0; i < n; i++) {
    out[i] = tree->cells[at].node;
    at = tree->cells[at].next;
  }
  return true;
}

static const char *global_text(const wefti_ptree *tree, wefti_pref ref, char *out,
                               size_t cap)
{
  const wefti_pnode *g = wefti_pnode_at(tree, ref);
  return wefti_escape(g->u.bytes.at, g->u.bytes.len, out, cap);
}

const char *wefti_pdescribe(const wefti_ptree *tree, wefti_pref ref,
                            char out[WEFTI_PTEXT])
{
  const wefti_pnode *n = wefti_pnode_at(tree, ref);
  char name[72];
  switch ((wefti_pkind)n->kind) {
  case WEFTI_P_NONE:
    return "None";
  case WEFTI_P_BOOL:
    return n->u.integer != 0 ? "True" : "False";
  case WEFTI_P_INT:
    (void)snprintf(out, WEFTI_PTEXT, "the integer %lld", (long long)n->u.integer);
    return out;
  case WEFTI_P_BYTES:
    (void)snprintf(out, WEFTI_PTEXT, "bytes of length %zu", n->u.bytes.len);
    return out;
  case WEFTI_P_TEXT:
    (void)snprintf(out, WEFTI_PTEXT, "the text '%s'",
                   wefti_escape(n->u.bytes.at, n->u.bytes.len, name, sizeof name));
    return out;
  case WEFTI_P_TUPLE:
  case WEFTI_P_LIST:
    (void)snprintf(out, WEFTI_PTEXT, "a %s of %u",
                   n->kind == WEFTI_P_TUPLE ? "tuple" : "list", n->count);
    return out;
  case WEFTI_P_DICT:
    (void)snprintf(out, WEFTI_PTEXT, "a dict of %u", n->count / 2);
    return out;
  case WEFTI_P_GLOBAL:
    (void)snprintf(out, WEFTI_PTEXT, "the global %s",
                   wefti_escape(n->u.bytes.at, n->u.bytes.len, name, sizeof name));
    return out;
  case WEFTI_P_CALL:
    (void)snprintf(out, WEFTI_PTEXT, "a call of %s",
                   global_text(tree, n->u.pair.a, name, sizeof name));
    return out;
  case WEFTI_P_NEW:
    (void)snprintf(out, WEFTI_PTEXT, "a new %s",
                   global_text(tree, n->u.pair.a, name, sizeof name));
    return out;
  case WEFTI_P_BUILD:
    return "an object with state";
  }
  return "nothing known";
}
