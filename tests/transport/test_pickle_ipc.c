#include "weft_test.h"

#include "vector_file.h"
#include "weft/pickle.h"
#include "weft_fail.h"

#define UUID "8e1b2f60-1111-2222-3333-444455556666"

typedef struct want {
  const char *name;
  const char *uuid;
  bool packed;
  size_t count;
  size_t at; /* the tensor that is looked at */
  weft_dtype dtype;
  unsigned ndim;
  int64_t shape[4];
  uint64_t storage_bytes;
  uint64_t storage_at;
  unsigned slot;
  uint8_t handle_1; /* second byte of the handle */
} want;

/* What Python's own unpickler says of these files, apart from the last two columns' use.
 */
static const want wants[] = {
  { "ipc1.pkl",
    "uuid-x",
    false,
    1,
    0,
    WEFT_DTYPE_BFLOAT16,
    2,
    { 1024, 4096 },
    8388608,
    512,
    7,
    1 },
  { "ipcparam.pkl",
    "a",
    false,
    1,
    0,
    WEFT_DTYPE_FLOAT8_E4M3FN,
    1,
    { 3 },
    8388608,
    512,
    7,
    1 },
  { "ipc300.pkl",
    UUID,
    false,
    300,
    0,
    WEFT_DTYPE_BFLOAT16,
    2,
    { 10, 1 },
    8388608,
    0,
    7,
    1 },
  { "ipc300.pkl",
    UUID,
    false,
    300,
    299,
    WEFT_DTYPE_BFLOAT16,
    2,
    { 10, 300 },
    8388608,
    153088,
    7,
    1 },
  { "ipc_500.pkl",
    UUID,
    false,
    500,
    499,
    WEFT_DTYPE_BFLOAT16,
    2,
    { 500, 300 },
    8388608,
    510976,
    499,
    1 },
  { "ipc_legacy64.pkl",
    UUID,
    false,
    1,
    0,
    WEFT_DTYPE_FLOAT32,
    2,
    { 2, 2 },
    8388608,
    512,
    7,
    0 },
  { "ipc_newargs_list.pkl",
    UUID,
    false,
    2,
    0,
    WEFT_DTYPE_FLOAT16,
    3,
    { 4, 5, 6 },
    8388608,
    512,
    7,
    1 },
  { "ipc_newargs_list.pkl",
    "GPU-" UUID,
    false,
    2,
    1,
    WEFT_DTYPE_FLOAT8_E4M3FN,
    4,
    { 4, 5, 6, 7 },
    8388608,
    512,
    7,
    1 },
  { "ipc_packed_dict.pkl",
    UUID,
    true,
    1,
    0,
    WEFT_DTYPE_UINT8,
    1,
    { 1073741824 },
    1073741824,
    512,
    7,
    1 },
  { "ipc_packed_dict.pkl",
    "0C0C0C0C-AAAA-bbbb-cccc-ddddeeeeffff",
    true,
    1,
    0,
    WEFT_DTYPE_UINT8,
    1,
    { 5368709120 },
    5368709120,
    8589934592,
    9999,
    1 },
  { "ipc_param_proto5.pkl",
    NULL,
    false,
    1,
    0,
    WEFT_DTYPE_FLOAT32,
    2,
    { 2, 2 },
    8388608,
    512,
    7,
    1 },
  { "ipc_sglang_uuid_dev.pkl",
    UUID,
    false,
    1,
    0,
    WEFT_DTYPE_FLOAT32,
    2,
    { 2, 2 },
    8388608,
    512,
    7,
    1 },
  { "ipc_v3.pkl",
    UUID,
    false,
    1,
    0,
    WEFT_DTYPE_FLOAT32,
    2,
    { 2, 2 },
    8388608,
    512,
    7,
    0 },
};

static void handles_of_all_forms_are_read(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++) {
    const want *w = &wants[i];
    vector v = read_vector(w->name);
    weft_ipc_handles h = { 0 };
    weft_why why = { 0 };
    if (weft_ipc_handles_read(v.data, v.len, w->uuid, &h, &why) != WEFT_OK) {
      fail_msg("%s: %s", w->name, why.text);
    }
    assert_int_equal(h.packed, w->packed);
    assert_int_equal(h.count, w->count);
    const weft_ipc_tensor *t = &h.tensors[w->at];
    uint64_t bytes = weft_dtype_bits(w->dtype) / 8;
    assert_int_equal(t->dtype, w->dtype);
    assert_int_equal(t->ndim, w->ndim);
    for (unsigned d = 0; d < w->ndim; d++) {
      assert_int_equal(t->shape[d], w->shape[d]);
      bytes *= (uint64_t)w->shape[d];
    }
    assert_true(t->contiguous);
    assert_int_equal(t->bytes, bytes);
    assert_int_equal(t->at, 0);
    assert_int_equal(t->storage_bytes, w->storage_bytes);
    assert_int_equal(t->storage_at, w->storage_at);
    assert_true(t->has_handle);
    assert_int_equal(t->handle[1], w->handle_1);
    assert_string_equal(t->counter, "/torch_4242_123456789_0");
    assert_int_equal(t->counter_slot, w->slot);
    assert_true(t->event_sync && t->has_event);
    assert_int_equal(t->event[63], 63);
    weft_ipc_handles_free(&h);
    free(v.data);
  }
}

static void an_empty_storage_has_no_handle(void **state)
{
  (void)state;
  vector v = read_vector("ipc_none_handle.pkl");
  weft_ipc_handles h = { 0 };
  assert_ok(weft_ipc_handles_read(v.data, v.len, UUID, &h, NULL));
  const weft_ipc_tensor *t = &h.tensors[0];
  assert_false(t->has_handle || t->has_event || t->event_sync);
  assert_string_equal(t->counter, "");
  assert_int_equal(t->bytes, 0);
  assert_int_equal(t->shape[0], 0);
  weft_ipc_handles_free(&h);
  free(v.data);
}

static void expandable_segments_are_refused_with_advice(void **state)
{
  (void)state;
  vector v = read_vector("ipc_expandable.pkl");
  weft_ipc_handles h = { 0 };
  weft_why why = { 0 };
  assert_err(weft_ipc_handles_read(v.data, v.len, UUID, &h, &why), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(why.text, "expandable_segments:False"));
  assert_null(h.tensors);
  free(v.data);
}

static void another_gpus_handles_are_named(void **state)
{
  (void)state;
  vector v = read_vector("ipc_packed_dict.pkl");
  weft_ipc_handles h = { 0 };
  weft_why why = { 0 };
  assert_err(weft_ipc_handles_read(v.data, v.len, "GPU-77", &h, &why), WEFT_E_NOTFOUND);
  assert_non_null(strstr(why.text, "GPU-77"));
  assert_non_null(strstr(why.text, UUID ", 0c0c0c0c-aaaa"));
  assert_err(weft_ipc_handles_read(v.data, v.len, NULL, &h, &why), WEFT_E_NOTFOUND);
  assert_non_null(strstr(why.text, "2 GPUs"));
  free(v.data);
}

/* ---- one argument after the other, wrong */

typedef struct pk {
  uint8_t at[4096];
  size_t len;
} pk;

static void add(pk *p, const char *bytes, size_t n)
{
  memcpy(p->at + p->len, bytes, n);
  p->len += n;
}
#define ADD(p, s) add((p), (s), sizeof(s) - 1)
#define GLOBAL(m, n) "c" m "\n" n "\n"

#define H64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct {
  const char *text;
  size_t len;
} good_args[15] = {
#define A(s)                                                                             \
  {                                                                                      \
    (s), sizeof(s) - 1                                                                   \
  }
  A(GLOBAL("torch", "Tensor")),
  A(GLOBAL("torch", "Size") "K\2K\3\x86\x85R"),
  A("K\3K\1\x86"),
  A("K\1"),
  A(GLOBAL("torch.storage", "UntypedStorage")),
  A(GLOBAL("torch", "float32")),
  A("K\0"),
  A("C\x42\1c" H64),
  A("K\x1c"), /* 28 = (1 + 6) * 4 */
  A("M\0\2"),
  A("\x88"),
  A("C\x0c/torch_1_2_3"),
  A("M\x0f\x27"), /* 9999 */
  A("C\x40" H64),
  A("\x88"),
};

/* A list of one dict with args, of which number which is instead. */
static weft_err read_with(unsigned which, const char *instead, size_t len,
                          weft_ipc_tensor *out, weft_why *why)
{
  static pk p;
  p.len = 0;
  ADD(&p, "\x80\x04](}X\1\0\0\0u(");
  for (unsigned i = 0; i < 15; i++) {
    if (i == which) {
      add(&p, instead, len);
    } else {
      add(&p, good_args[i].text, good_args[i].len);
    }
  }
  ADD(&p, "tse.");
  weft_ipc_handles h = { 0 };
  const weft_err err = weft_ipc_handles_read(p.at, p.len, "u", &h, why);
  if (err == WEFT_OK && out != NULL) {
    *out = h.tensors[0];
  }
  weft_ipc_handles_free(&h);
  return err;
}

static void the_last_byte_of_a_storage_may_be_used(void **state)
{
  (void)state;
  weft_ipc_tensor t;
  weft_why why = { 0 };
  if (read_with(99, "", 0, &t, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_int_equal(t.at, 4);
  assert_int_equal(t.bytes, 24);
  assert_int_equal(t.storage_at, 512);
  assert_int_equal(t.counter_slot, 9999);
  assert_memory_equal(t.handle, H64, 64);
  assert_true(t.contiguous);
}

typedef struct bad_arg {
  unsigned which;
  const char *text;
  size_t len;
  weft_err err;
  const char *says;
} bad_arg;
#define BAD(i, s, e, t)                                                                  \
  {                                                                                      \
    (i), (s), sizeof(s) - 1, (e), (t)                                                    \
  }

static const bad_arg bad_args[] = {
  BAD(0, GLOBAL("torch", "Size"), WEFT_E_PROTO, "tensor_cls"),
  BAD(0, "N", WEFT_E_PROTO, "tensor_cls"),
  BAD(0, GLOBAL("os", "system"), WEFT_E_DENIED, "os.system"),
  BAD(1, "N", WEFT_E_PROTO, "tensor_size"),
  BAD(1, GLOBAL("torch", "Size") ")R", WEFT_E_PROTO, "tensor_size"),
  BAD(1, GLOBAL("torch", "Size") "K\2\x85R", WEFT_E_PROTO, "tensor_size"),
  BAD(1, GLOBAL("torch", "Size") "K\2K\3\x86K\1\x86R", WEFT_E_PROTO, "tensor_size"),
  BAD(1, GLOBAL("torch", "Size") "K\2\x8a\1\xff\x86\x85R", WEFT_E_PROTO, "integer -1"),
  BAD(1, GLOBAL("torch", "Size") "K\2\x88\x86\x85R", WEFT_E_PROTO, "found True"),
  BAD(1, GLOBAL("torch", "Size") "K\2K\3K\1\x87\x85R", WEFT_E_PROTO, "tensor_stride"),
  BAD(1, GLOBAL("torch", "Size") "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t\x85R", WEFT_E_PROTO,
      "a tuple of 9"),
  BAD(1, GLOBAL("torch", "Size") "K\3K\3\x86\x85R", WEFT_E_PROTO, "does not fit"),
  BAD(1,
      GLOBAL("torch", "Size") "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"
                              "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x86\x85R",
      WEFT_E_PROTO, "does not fit"),
  BAD(2, "K\1", WEFT_E_PROTO, "tensor_stride"),
  BAD(2, "K\3\x8a\1\xff\x86", WEFT_E_PROTO, "tensor_stride"),
  BAD(2, "K\4K\1\x86", WEFT_E_PROTO, "does not fit"),
  BAD(2, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\1\x86", WEFT_E_PROTO, "does not fit"),
  BAD(3, "K\2", WEFT_E_PROTO, "does not fit"),
  BAD(3, "\x8a\1\xff", WEFT_E_PROTO, "tensor_offset"),
  BAD(3, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", WEFT_E_PROTO, "does not fit"),
  BAD(4, GLOBAL("torch", "Tensor"), WEFT_E_PROTO, "storage_cls"),
  BAD(5, GLOBAL("torch", "Tensor"), WEFT_E_PROTO, "dtype"),
  BAD(5, GLOBAL("torch", "float33"), WEFT_E_DENIED, "torch.float33"),
  BAD(5, GLOBAL("torch", "float64"), WEFT_E_PROTO, "does not fit"),
  BAD(6, "N", WEFT_E_PROTO, "storage_device"),
  BAD(6, "\x8a\1\xff", WEFT_E_PROTO, "storage_device"),
  BAD(7, "N", WEFT_E_PROTO, "no handle"),
  BAD(7, "K\1", WEFT_E_PROTO, "storage_handle"),
  BAD(7, "C\0", WEFT_E_UNSUPPORTED, "0 bytes"),
  BAD(7, "C\1\1", WEFT_E_UNSUPPORTED, "1 bytes"),
  BAD(7, "C\x42\4c" H64, WEFT_E_UNSUPPORTED, "version 4"),
  BAD(7, "C\x42\0c" H64, WEFT_E_UNSUPPORTED, "version 0"),
  BAD(7, "C\x42\3x" H64, WEFT_E_PROTO, "type 0x78"),
  BAD(7, "C\x43\3c" H64 "x", WEFT_E_PROTO, "67 bytes"),
  BAD(7, "C\x42\3e" H64, WEFT_E_UNSUPPORTED, "expandable"),
  BAD(8, "K\x1b", WEFT_E_PROTO, "27 bytes"),
  BAD(8, "\x8a\1\xff", WEFT_E_PROTO, "storage_size_bytes"),
  BAD(9, "\x8a\1\xff", WEFT_E_PROTO, "storage_offset_bytes"),
  BAD(9, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", WEFT_E_PROTO, "does not fit"),
  BAD(10, "N", WEFT_E_PROTO, "requires_grad"),
  BAD(11, "C\x0b/torch_1_2_", WEFT_E_PROTO, "ref_counter_handle"),
  BAD(11, "C\x0c/torch_1_2_x", WEFT_E_PROTO, "ref_counter_handle"),
  BAD(11, "C\x0dx/torch_1_2_3", WEFT_E_PROTO, "ref_counter_handle"),
  BAD(11, "C\x0d/torch_1_2_3\n", WEFT_E_PROTO, "ref_counter_handle"),
  BAD(11, "C\x0e/torch_1_2_3\0a", WEFT_E_PROTO, "ref_counter_handle"),
  BAD(11, "C\x13/torch_1/../2_3_4.x", WEFT_E_PROTO, "ref_counter_handle"),
  BAD(11, "C\x30/torch_1_2_3456789012345678901234567890123456789", WEFT_E_PROTO,
      "ref_counter_handle"),
  BAD(11, "X\x0c\0\0\0/torch_1_2_3", WEFT_E_PROTO, "ref_counter_handle"),
  BAD(12, "M\x10\x27", WEFT_E_PROTO, "ref_counter_offset"),
  BAD(12, "N", WEFT_E_PROTO, "ref_counter_offset"),
  BAD(13, "N", WEFT_E_PROTO, "event_handle"),
  BAD(13, "C\1x", WEFT_E_PROTO, "event_handle"),
  BAD(14, "K\1", WEFT_E_PROTO, "event_sync_required"),
  BAD(14, "NN", WEFT_E_PROTO, "arguments"),
  BAD(14, "", WEFT_E_PROTO, "arguments"),
};

static void every_argument_is_checked(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof bad_args / sizeof bad_args[0]; i++) {
    const bad_arg *b = &bad_args[i];
    weft_why why = { 0 };
    const weft_err err = read_with(b->which, b->text, b->len, NULL, &why);
    if (err != b->err || strstr(why.text, b->says) == NULL) {
      fail_msg("row %zu: %s: %s (want %s, '%s')", i, weft_err_name(err), why.text,
               weft_err_name(b->err), b->says);
    }
  }
}

static void views_with_gaps_are_told(void **state)
{
  (void)state;
  weft_ipc_tensor t;
  weft_why why = { 0 };
  assert_ok(read_with(2, "K\1K\2\x86", 5, &t, &why)); /* transposed */
  assert_false(t.contiguous);
  assert_ok(read_with(2, "K\0K\1\x86", 5, &t, &why)); /* one row, twice */
  assert_false(t.contiguous);
  assert_int_equal(t.bytes, 24);
  assert_ok(read_with(1, "K\1K\3\x86", 5, &t, &why)); /* a bare tuple for the shape */
  assert_true(t.contiguous);
  assert_int_equal(t.bytes, 12);
}

#define ROOT(s, e, t)                                                                    \
  {                                                                                      \
    0, "\x80\x04" s, sizeof("\x80\x04" s) - 1, (e), (t)                                  \
  }
static const bad_arg bad_roots[] = {
  ROOT("N.", WEFT_E_PROTO, "found None"),
  ROOT("]Na.", WEFT_E_PROTO, "entry"),
  ROOT("]}a.", WEFT_E_NOTFOUND, "sent 0"),
  ROOT("}.", WEFT_E_NOTFOUND, "sent 0"),
  ROOT("}X\1\0\0\0uNs.", WEFT_E_PROTO, "arguments"),
  ROOT("}X\1\0\0\0u)s.", WEFT_E_PROTO, "arguments"),
  ROOT("}X\0\0\0\0Ns.", WEFT_E_PROTO, "key"),
  ROOT("}X\1\0\0\0uNN\x86s.", WEFT_E_PROTO, "function"),
  ROOT("}X\1\0\0\0u" GLOBAL("torch", "Tensor") "N\x86s.", WEFT_E_PROTO, "function"),
  ROOT("]\x94h\0a.", WEFT_E_PROTO, "entry"), /* holds itself */
  ROOT("}\x94X\1\0\0\0uh\0s.", WEFT_E_PROTO, "arguments"),
};

static void other_shapes_are_refused(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof bad_roots / sizeof bad_roots[0]; i++) {
    const bad_arg *b = &bad_roots[i];
    weft_ipc_handles h = { 0 };
    weft_why why = { 0 };
    const weft_err err = weft_ipc_handles_read(b->text, b->len, "u", &h, &why);
    if (err != b->err || strstr(why.text, b->says) == NULL) {
      fail_msg("row %zu: %s: %s (want %s, '%s')", i, weft_err_name(err), why.text,
               weft_err_name(b->err), b->says);
    }
  }
  weft_ipc_handles h = { 0 };
  assert_ok(weft_ipc_handles_read("\x80\x04].", 4, "u", &h, NULL)); /* no parameters */
  assert_int_equal(h.count, 0);
  weft_ipc_handles_free(&h);
  weft_ipc_handles_free(NULL);
}

/* A dict of 64 GPUs, shared by very many parameters: two bytes each. */
static void shared_dicts_do_not_multiply_the_work(void **state)
{
  (void)state;
  enum { TIMES = 27000 };
  pk p = { .len = 0 };
  ADD(&p, "\x80\x04](}\x94(");
  for (int n = 0; n < 40; n++) {
    const char key = (char)('0' + n);
    ADD(&p, "X\1\0\0\0");
    add(&p, &key, 1);
    if (n == 0) {
      ADD(&p, "(");
      for (unsigned i = 0; i < 15; i++) {
        add(&p, good_args[i].text, good_args[i].len);
      }
      ADD(&p, "t\x94");
    } else {
      ADD(&p, "h\1");
    }
  }
  ADD(&p, "u");
  uint8_t *bomb = malloc(p.len + 2 * TIMES + 2);
  assert_non_null(bomb);
  memcpy(bomb, p.at, p.len);
  size_t len = p.len;
  for (size_t i = 0; i < TIMES; i++) {
    bomb[len++] = 'h';
    bomb[len++] = '\0';
  }
  bomb[len] = 'e';
  bomb[len + 1] = '.';
  weft_ipc_handles h = { 0 };
  weft_why why = { 0 };
  assert_err(weft_ipc_handles_read(bomb, len + 2, "0", &h, &why), WEFT_E_LIMIT);
  assert_non_null(strstr(why.text, "entries"));
  len = p.len + 200;
  bomb[len] = 'e';
  bomb[len + 1] = '.';
  assert_ok(weft_ipc_handles_read(bomb, len + 2, "0", &h, &why));
  assert_int_equal(h.count, 101);
  weft_ipc_handles_free(&h);
  free(bomb);
}

static void try_ipc(const uint8_t *data, size_t len)
{
  weft_ipc_handles h = { 0 };
  weft_why why = { 0 };
  const weft_err err = weft_ipc_handles_read(data, len, NULL, &h, &why);
  assert_true(err == WEFT_OK || (why.text[0] != '\0' && h.tensors == NULL));
  weft_ipc_handles_free(&h);
}

static void no_damage_to_a_handle_crashes(void **state)
{
  (void)state;
  static const char *const names[] = {
    "ipc1.pkl",
    "ipc_expandable.pkl",
    "ipc_legacy64.pkl",
    "ipc_newargs_list.pkl",
    "ipc_none_handle.pkl",
    "ipc_packed_dict.pkl",
    "ipc_param_proto5.pkl",
    "ipcparam.pkl",
    "ipc_sglang_uuid_dev.pkl",
    "ipc_v3.pkl",
  };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    vector v = read_vector(names[i]);
    each_damage(&v, 1, try_ipc);
    free(v.data);
  }
  static const char *const large[] = { "ipc300.pkl", "ipc_500.pkl" };
  for (size_t i = 0; i < 2; i++) {
    vector v = read_vector(large[i]);
    each_damage(&v, 1499, try_ipc); /* a prime: all opcodes get their turn */
    vector head = { v.data, 1200 };
    each_damage(&head, 1, try_ipc);
    free(v.data);
  }
}

static void base64_is_the_same_reader(void **state)
{
  (void)state;
  weft_ipc_handles h = { 0 };
  weft_why why = { 0 };
  assert_ok(weft_ipc_handles_from_base64("gARdLg==", 8, NULL, &h, &why));
  assert_int_equal(h.count, 0);
  weft_ipc_handles_free(&h);
  assert_err(weft_ipc_handles_from_base64("gARdLg=", 7, NULL, &h, &why), WEFT_E_INVAL);
  assert_non_null(strstr(why.text, "ipc_handles_pickled is not valid standard base64"));
  assert_err(weft_ipc_handles_from_base64("gAROLg==", 8, NULL, &h, &why), WEFT_E_PROTO);
}

static void memory_may_end_anywhere(void **state)
{
  (void)state;
  vector v = read_vector("ipc300.pkl");
  FOR_EACH_FAILURE
  {
    weft_ipc_handles h = { 0 };
    const weft_err err = weft_ipc_handles_read(v.data, v.len, UUID, &h, NULL);
    weft_ipc_handles_free(&h);
    END_UNLESS_FAILED
    assert_err(err, WEFT_E_NOMEM);
  }
  free(v.data);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(handles_of_all_forms_are_read),
    cmocka_unit_test(an_empty_storage_has_no_handle),
    cmocka_unit_test(expandable_segments_are_refused_with_advice),
    cmocka_unit_test(another_gpus_handles_are_named),
    cmocka_unit_test(the_last_byte_of_a_storage_may_be_used),
    cmocka_unit_test(every_argument_is_checked),
    cmocka_unit_test(views_with_gaps_are_told),
    cmocka_unit_test(other_shapes_are_refused),
    cmocka_unit_test(shared_dicts_do_not_multiply_the_work),
    cmocka_unit_test(no_damage_to_a_handle_crashes),
    cmocka_unit_test(base64_is_the_same_reader),
    cmocka_unit_test(memory_may_end_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
