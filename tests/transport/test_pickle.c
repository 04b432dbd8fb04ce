#include "weft_test.h"

#include "vector_file.h"
#include "weft/pickle.h"
#include "weft_fail.h"

#define TEXT(s) (s), (sizeof(s) - 1)
#define P4 "\x80\x04"

static void ids_of_all_forms_are_read(void **state)
{
  (void)state;
  static const char *const names[] = { "uid_p3.pkl", "uid_p4.pkl", "uid_p5.pkl",
                                       "uid_bytes_p4.pkl", "uid_nccl4py_p4.pkl" };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    vector v = read_vector(names[i]);
    uint8_t id[WEFT_NCCL_ID] = { 0xff };
    weft_why why = { 0 };
    const weft_err err = weft_nccl_id_read(v.data, v.len, id, &why);
    if (err != WEFT_OK) {
      fail_msg("%s: %s", names[i], why.text);
    }
    for (unsigned b = 0; b < WEFT_NCCL_ID; b++) {
      assert_int_equal(id[b], b);
    }
    free(v.data);
  }
  uint8_t raw[WEFT_NCCL_ID];
  uint8_t id[WEFT_NCCL_ID];
  memset(raw, 0x80, sizeof raw);
  assert_ok(weft_nccl_id_read(raw, sizeof raw, id, NULL));
  assert_memory_equal(raw, id, sizeof raw);
}

static void protocol_2_is_refused_in_its_own_words(void **state)
{
  (void)state;
  vector v = read_vector("uid_p2.pkl");
  uint8_t id[WEFT_NCCL_ID];
  weft_why why = { 0 };
  assert_err(weft_nccl_id_read(v.data, v.len, id, &why), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(why.text, "protocol 2"));
  assert_non_null(strstr(why.text, "_codecs.encode"));
  v.data[1] = 4; /* the call itself is refused too */
  assert_err(weft_nccl_id_read(v.data, v.len, id, &why), WEFT_E_DENIED);
  assert_non_null(strstr(why.text, "_codecs.encode"));
  free(v.data);
}

static void our_pickle_is_pythons(void **state)
{
  (void)state;
  vector v = read_vector("uid_p4.pkl");
  uint8_t id[WEFT_NCCL_ID];
  uint8_t out[WEFT_NCCL_ID_PICKLE_MAX];
  size_t len = 0;
  assert_ok(weft_nccl_id_read(v.data, v.len, id, NULL));
  assert_ok(weft_nccl_id_write(WEFT_NCCL_MODULE_VLLM, id, out, sizeof out, &len));
  assert_int_equal(len, v.len);
  assert_memory_equal(out, v.data, len);
  for (size_t cap = 0; cap < v.len; cap++) {
    assert_err(weft_nccl_id_write(WEFT_NCCL_MODULE_VLLM, id, out, cap, &len),
               WEFT_E_LIMIT);
  }
  assert_ok(weft_nccl_id_write(WEFT_NCCL_MODULE_VLLM, id, out, v.len, &len));
  free(v.data);
  char module[300];
  memset(module, 'm', sizeof module);
  module[255] = '\0';
  assert_ok(weft_nccl_id_write(module, id, out, sizeof out, &len));
  uint8_t again[WEFT_NCCL_ID];
  assert_ok(weft_nccl_id_read(out, len, again, NULL));
  assert_memory_equal(again, id, sizeof id);
  module[255] = 'm';
  module[256] = '\0';
  assert_err(weft_nccl_id_write(module, id, out, sizeof out, &len), WEFT_E_INVAL);
  assert_err(weft_nccl_id_write("", id, out, sizeof out, &len), WEFT_E_INVAL);
}

static void barrier_words_go_both_ways(void **state)
{
  (void)state;
  uint8_t out[300];
  size_t len = 0;
  char text[WEFT_PICKLED_TEXT_MAX + 1];
  weft_why why = { 0 };
  assert_ok(weft_pickled_text_write("barrier_12-ab", out, sizeof out, &len));
  assert_memory_equal(out,
                      P4 "\x95\x11\0\0\0\0\0\0\0\x8c\x0d"
                         "barrier_12-ab\x94.",
                      len);
  assert_ok(weft_pickled_text_read(out, len, text, &why));
  assert_string_equal(text, "barrier_12-ab");
  assert_ok(weft_pickled_text_write(NULL, out, sizeof out, &len));
  assert_int_equal(len, 4);
  assert_memory_equal(out, P4 "N.", 4);
  assert_err(weft_pickled_text_read(out, len, text, &why), WEFT_E_PROTO);
  assert_non_null(strstr(why.text, "None"));
  assert_err(weft_pickled_text_read(TEXT(P4 "\x8c\x03"
                                            "a\0b."),
                                    text, &why),
             WEFT_E_PROTO);
}

typedef struct bad_row {
  const char *pickle;
  size_t len;
  weft_err err;
  const char *says;
} bad_row;

#define BAD(s, e, t)                                                                     \
  {                                                                                      \
    (s), sizeof(s) - 1, (e), (t)                                                         \
  }

static const bad_row bad_rows[] = {
  BAD("", WEFT_E_TRUNCATED, "0 bytes"),
  BAD("\x80", WEFT_E_TRUNCATED, "1 bytes"),
  BAD(P4, WEFT_E_TRUNCATED, "ends inside"),
  BAD("(lp0\n.", WEFT_E_UNSUPPORTED, "0x28"),
  BAD("\x80\x06N.", WEFT_E_UNSUPPORTED, "protocol 6"),
  BAD("\x80\x01N.", WEFT_E_UNSUPPORTED, "protocol 1"),
  BAD(P4 P4 "N.", WEFT_E_PROTO, "PROTO"),
  /* the classic: os.system("...") */
  BAD("\x80\x03"
      "cos\nsystem\nX\x02\0\0\0id\x85R.",
      WEFT_E_DENIED, "os.system"),
  BAD(P4 "\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.", WEFT_E_DENIED,
      "posix.system"),
  BAD(P4 "\x8c\x08"
         "builtins\x8c\x04"
         "eval\x93.",
      WEFT_E_DENIED, "builtins.eval"),
  BAD(P4 "\x8c\x05torch\x8c\x04load\x93.", WEFT_E_DENIED, "torch.load"),
  BAD(P4 "\x8c\x05torch\x8c\x0b"
         "Size.__new__\x93.",
      WEFT_E_PROTO, "0x5f"),
  BAD(P4 "\x8c\x05to\xc3\xa4h\x8c\x01x\x93.", WEFT_E_DENIED, "to??h.x"),
  BAD("\x80\x03"
      "cos\nsys",
      WEFT_E_TRUNCATED, "ends inside"),
  BAD("\x80\x03"
      "cos",
      WEFT_E_TRUNCATED, "ends inside"),
  /* allowed names, calls that are not */
  BAD(P4 "\x8c\x05torch\x8c\x06Tensor\x93)R.", WEFT_E_DENIED, "REDUCE of the global"),
  BAD(P4 "\x8c\x05torch\x8c\x06Tensor\x93)\x81.", WEFT_E_DENIED, "NEWOBJ"),
  BAD(P4 "\x8c\x05torch\x8c\x04Size\x93NR.", WEFT_E_PROTO, "not a tuple"),
  BAD(P4 "NNR.", WEFT_E_DENIED, "REDUCE of None"),
  BAD(P4 "\x8c\x07_ctypes\x8c\x09_unpickle\x93\x8c\x05torch\x8c\x06Tensor\x93}\x86R.",
      WEFT_E_DENIED, "Tensor"),
  BAD(P4 "\x8c\x07_ctypes\x8c\x09_unpickle\x93)R.", WEFT_E_DENIED, "tuple of 0"),
  BAD(P4 "]Nb.", WEFT_E_DENIED, "BUILD of a list"),
  BAD(P4 "NN\x93.", WEFT_E_PROTO, "not both str"),
  /* opcodes that are not for us */
  BAD(P4 "(ios\nsystem\n.", WEFT_E_PROTO, "INST"),
  BAD(P4 "(No.", WEFT_E_PROTO, "OBJ"),
  BAD(P4 "\x82\x01.", WEFT_E_PROTO, "EXT1"),
  BAD(P4 "\x83\x01\0.", WEFT_E_PROTO, "EXT2"),
  BAD(P4 "\x84\x01\0\0\0.", WEFT_E_PROTO, "EXT4"),
  BAD(P4 "Pid\n.", WEFT_E_PROTO, "PERSID"),
  BAD(P4 "NQ.", WEFT_E_PROTO, "BINPERSID"),
  BAD(P4 "S'a'\n.", WEFT_E_PROTO, "STRING"),
  BAD(P4 "T\1\0\0\0a.", WEFT_E_PROTO, "BINSTRING"),
  BAD(P4 "U\1a.", WEFT_E_PROTO, "SHORT_BINSTRING"),
  BAD(P4 "Va\n.", WEFT_E_PROTO, "UNICODE"),
  BAD(P4 "I1\n.", WEFT_E_PROTO, "INT"),
  BAD(P4 "L1L\n.", WEFT_E_PROTO, "LONG"),
  BAD(P4 "\x8b\1\0\0\0\1.", WEFT_E_PROTO, "LONG4"),
  BAD(P4 "F1\n.", WEFT_E_PROTO, "FLOAT"),
  BAD(P4 "G\0\0\0\0\0\0\0\0.", WEFT_E_PROTO, "BINFLOAT"),
  BAD(P4 "NN0.", WEFT_E_PROTO, "POP"),
  BAD(P4 "N(1.", WEFT_E_PROTO, "POP_MARK"),
  BAD(P4 "N2.", WEFT_E_PROTO, "DUP"),
  BAD(P4 "(d.", WEFT_E_PROTO, "DICT"),
  BAD(P4 "(l.", WEFT_E_PROTO, "LIST"),
  BAD(P4 "Np0\n.", WEFT_E_PROTO, "PUT"),
  BAD(P4 "g0\n.", WEFT_E_PROTO, "GET"),
  BAD(P4 "\x8f.", WEFT_E_PROTO, "EMPTY_SET"),
  BAD(P4 "(\x91.", WEFT_E_PROTO, "FROZENSET"),
  BAD(P4 "N)}\x92.", WEFT_E_PROTO, "NEWOBJ_EX"),
  BAD("\x80\x05\x96\0\0\0\0\0\0\0\0.", WEFT_E_PROTO, "BYTEARRAY8"),
  BAD("\x80\x05\x97.", WEFT_E_PROTO, "NEXT_BUFFER"),
  BAD("\x80\x05\x98.", WEFT_E_PROTO, "READONLY_BUFFER"),
  BAD(P4 "\x8e\1\0\0\0\0\0\0\0a.", WEFT_E_PROTO, "BINBYTES8"),
  BAD(P4 "\x8d\1\0\0\0\0\0\0\0a.", WEFT_E_PROTO, "BINUNICODE8"),
  BAD(P4 "\xff.", WEFT_E_PROTO, "unknown (0xff)"),
  BAD(P4 "\0.", WEFT_E_PROTO, "unknown (0x00)"),
  /* lengths that lie */
  BAD(P4 "B\xff\xff\xff\xff.", WEFT_E_TRUNCATED, "ends inside"),
  BAD(P4 "X\xff\xff\xff\x7f"
         "a.",
      WEFT_E_TRUNCATED, "ends inside"),
  BAD(P4 "\x8c\xff"
         "a.",
      WEFT_E_TRUNCATED, "ends inside"),
  BAD(P4 "\x95\xff\xff\xff\xff\xff\xff\xff\xff"
         "N.",
      WEFT_E_TRUNCATED, "frame"),
  BAD(P4 "\x8a\x09\1\1\1\1\1\1\1\1\1.", WEFT_E_PROTO, "more than 8"),
  /* a machine out of step */
  BAD(P4 ".", WEFT_E_PROTO, "exactly one"),
  BAD(P4 "NN.", WEFT_E_PROTO, "exactly one"),
  BAD(P4 "(N.", WEFT_E_PROTO, "exactly one"),
  BAD(P4 "N.N", WEFT_E_TRAILING, "1 bytes behind"),
  BAD(P4 "\x86.", WEFT_E_PROTO, "too little"),
  BAD(P4 "N(N\x86.", WEFT_E_PROTO, "too little"),
  BAD(P4 "t.", WEFT_E_PROTO, "no MARK"),
  BAD(P4 "](e.", WEFT_E_PROTO, "a list of 0"),
  BAD(P4 "NNa.", WEFT_E_PROTO, "not onto a list"),
  BAD(P4 "NNNs.", WEFT_E_PROTO, "not into a dict"),
  BAD(P4 "}(Nu.", WEFT_E_PROTO, "without value"),
  BAD(P4 "}NNs.", WEFT_E_PROTO, "not a str"),
  BAD(P4 "}K\1Ns.", WEFT_E_PROTO, "not a str"),
  BAD(P4 "}\x8c\1"
         "aNs\x8c\1"
         "aNs.",
      WEFT_E_PROTO, "twice"),
  BAD(P4 "}\x8c\1"
         "aNs\x8c\1"
         "bNs.",
      WEFT_E_LIMIT, "keys in one dict"),
  BAD(P4 "\x8c\2\xc0\x80.", WEFT_E_PROTO, "UTF-8"),
  BAD(P4 "\x8c\3\xed\xa0\x80.", WEFT_E_PROTO, "UTF-8"),
  BAD(P4 "\x8c\1\xe2.", WEFT_E_PROTO, "UTF-8"),
  BAD(P4 "\x8c\4\xf4\x90\x80\x80.", WEFT_E_PROTO, "UTF-8"),
  BAD(P4 "h\0.", WEFT_E_PROTO, "empty memo"),
  BAD(P4 "j\xff\xff\xff\xff.", WEFT_E_PROTO, "empty memo"),
  BAD(P4 "Nq\1.", WEFT_E_PROTO, "out of order"),
  BAD(P4 "Nr\xff\xff\xff\xff.", WEFT_E_PROTO, "out of order"),
  BAD(P4 "\x94N.", WEFT_E_PROTO, "too little"),
  /* deep, wide */
  BAD(P4 "N\x85\x85\x85\x85\x85\x85\x85\x85\x85.", WEFT_E_LIMIT, "nested deeper"),
  BAD(P4 "(((((((((N.", WEFT_E_LIMIT, "open marks"),
  BAD(P4 "]\x94h\0ah\0ah\0ah\0ah\0ah\0ah\0ah\0ah\0a.", WEFT_E_LIMIT, "nested deeper"),
  /* sound, but not an id */
  BAD(P4 "N.", WEFT_E_PROTO, "found None"),
  BAD(P4 "\x88.", WEFT_E_PROTO, "found True"),
  BAD(P4 "\x89.", WEFT_E_PROTO, "found False"),
  BAD(P4 "C\4abcd.", WEFT_E_PROTO, "bytes of length 4"),
  BAD(P4 "\x8c\3a\nb.", WEFT_E_PROTO, "the text 'a?b'"),
  BAD(P4 "\x8a\1\xff.", WEFT_E_PROTO, "integer -1"),
  BAD(P4 "J\xfe\xff\xff\xff.", WEFT_E_PROTO, "integer -2"),
  BAD(P4 "\x8a\5\0\0\0\0\1.", WEFT_E_PROTO, "integer 4294967296"),
  BAD(P4 "\x8a\x08\0\0\0\0\0\0\0\x80.", WEFT_E_PROTO, "integer -9223372036854775808"),
  BAD(P4 "\x8a\0.", WEFT_E_PROTO, "integer 0"),
  BAD(P4 "M\xff\xff.", WEFT_E_PROTO, "integer 65535"),
  BAD(P4 "}.", WEFT_E_PROTO, "a dict of 0"),
  BAD(P4 "](NNe.", WEFT_E_PROTO, "a list of 2"),
  BAD(P4 "NNN\x87.", WEFT_E_PROTO, "a tuple of 3"),
  BAD(P4 "\x8c\5torch\x8c\4Size\x93.", WEFT_E_PROTO, "the global Size"),
  BAD(P4 "\x8c\5torch\x8c\4Size\x93)R.", WEFT_E_PROTO, "a call of Size"),
  BAD(P4 "\x8c\x0fnccl.core.utils\x8c\x08UniqueId\x93)\x81.", WEFT_E_PROTO,
      "a new UniqueId"),
  BAD(P4 "\x8c\x0fnccl.core.utils\x8c\x08UniqueId\x93)\x81Nb.", WEFT_E_PROTO,
      "an object with state"),
};

static void hostile_pickles_are_refused_by_name(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof bad_rows / sizeof bad_rows[0]; i++) {
    const bad_row *r = &bad_rows[i];
    uint8_t *copy = malloc(r->len + 1);
    uint8_t id[WEFT_NCCL_ID];
    weft_why why = { 0 };
    assert_non_null(copy);
    memcpy(copy, r->pickle, r->len);
    const weft_err err = weft_nccl_id_read(copy, r->len, id, &why);
    if (err != r->err || strstr(why.text, r->says) == NULL) {
      fail_msg("row %zu: %s (want %s): %s (want '%s')", i, weft_err_name(err),
               weft_err_name(r->err), why.text, r->says);
    }
    free(copy);
  }
}

static void values_over_the_limit_are_not_looked_at(void **state)
{
  (void)state;
  static uint8_t big[WEFT_NCCL_ID_VALUE_MAX + 1] = { 0x80, 4 };
  uint8_t id[WEFT_NCCL_ID];
  memset(big + 2, 'N', sizeof big - 2);
  assert_err(weft_nccl_id_read(big, sizeof big, id, NULL), WEFT_E_LIMIT);
  /* within the bytes, over the stack */
  weft_why why = { 0 };
  assert_err(weft_nccl_id_read(big, sizeof big - 1, id, &why), WEFT_E_LIMIT);
  assert_non_null(strstr(why.text, "64 values on the stack"));
  /* over the nodes: each tuple takes the one before in */
  for (size_t i = 2; i + 1 < sizeof big; i += 2) {
    big[i] = ']';
    big[i + 1] = 0x94;
  }
  assert_err(weft_nccl_id_read(big, sizeof big - 1, id, &why), WEFT_E_LIMIT);
  memset(big + 2, ')', sizeof big - 2);
  for (size_t i = 3; i + 1 < sizeof big; i += 2) {
    big[i] = ']';
    big[i + 1] = 'a'; /* ")]a" is no list below: refused */
  }
  assert_err(weft_nccl_id_read(big, sizeof big - 1, id, &why), WEFT_E_PROTO);
}

static void try_id(const uint8_t *data, size_t len)
{
  uint8_t id[WEFT_NCCL_ID];
  char text[WEFT_PICKLED_TEXT_MAX + 1];
  weft_why why = { 0 };
  const weft_err err = weft_nccl_id_read(data, len, id, &why);
  assert_true(err == WEFT_OK || why.text[0] != '\0');
  (void)!weft_pickled_text_read(data, len, text, NULL);
}

static void no_damage_to_an_id_crashes(void **state)
{
  (void)state;
  static const char *const names[] = { "uid_p2.pkl",       "uid_p3.pkl",
                                       "uid_p4.pkl",       "uid_p5.pkl",
                                       "uid_bytes_p4.pkl", "uid_nccl4py_p4.pkl" };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    vector v = read_vector(names[i]);
    each_damage(&v, 1, try_id);
    free(v.data);
  }
}

static void a_prefix_of_an_id_is_no_id(void **state)
{
  (void)state;
  vector v = read_vector("uid_p4.pkl");
  for (size_t n = 0; n < v.len; n++) {
    uint8_t id[WEFT_NCCL_ID];
    if (n != WEFT_NCCL_ID) { /* that length alone means raw bytes */
      assert_err(weft_nccl_id_read(v.data, n, id, NULL), WEFT_E_TRUNCATED);
    }
  }
  free(v.data);
}

static void base64_takes_the_standard_alphabet_only(void **state)
{
  (void)state;
  uint8_t id[WEFT_NCCL_ID];
  weft_why why = { 0 };
  static const struct {
    const char *text;
    const char *says;
  } rows[] = {
    { "QUJD", "must decode to 128 bytes, got 3" },
    { "QQ==", "must decode to 128 bytes, got 1" },
    { "", "must decode to 128 bytes, got 0" },
    { "QUJ", "not valid standard base64" },
    { "QUJ\n", "not valid standard base64" },
    { " QUJD", "not valid standard base64" },
    { "QU-D", "URL-safe base64 is not accepted" },
    { "QU_D", "URL-safe base64 is not accepted" },
    { "Q===", "not valid standard base64" },
    { "====", "not valid standard base64" },
    { "QU=D", "not valid standard base64" },
    { "QUJD====", "not valid standard base64" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    assert_err(weft_nccl_id_from_base64(rows[i].text, strlen(rows[i].text), id, &why),
               WEFT_E_INVAL);
    if (strstr(why.text, rows[i].says) == NULL) {
      fail_msg("'%s': %s", rows[i].text, why.text);
    }
  }
}

static void base64_of_an_id_is_the_id(void **state)
{
  (void)state;
  static const char text[] =
      "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7"
      "PD0+P0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWltcXV5fYGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3"
      "eHl6e3x9fn8=";
  uint8_t id[WEFT_NCCL_ID] = { 1 };
  assert_ok(weft_nccl_id_from_base64(text, strlen(text), id, NULL));
  for (unsigned b = 0; b < WEFT_NCCL_ID; b++) {
    assert_int_equal(id[b], b);
  }
}

static void an_id_names_its_host(void **state)
{
  (void)state;
  uint8_t id[WEFT_NCCL_ID] = { 0x5f, 5, 0x87, 0xcb, 0xa6, 0x8b, 0x66, 0x7c,
                               2,    0, 0xb4, 0x59, 192,  0,    2,    2 };
  char address[WEFT_NCCL_ADDRESS_MAX];
  weft_why why = { 0 };
  assert_ok(weft_nccl_id_check(id, address, &why));
  assert_string_equal(address, "192.0.2.2:46169");
  id[127] = 1;
  assert_err(weft_nccl_id_check(id, address, &why), WEFT_E_PROTO);
  id[127] = 0;
  id[10] = id[11] = 0;
  assert_err(weft_nccl_id_check(id, address, &why), WEFT_E_PROTO);
  memset(id + 8, 0, 120);
  id[8] = 10;
  id[11] = 1;
  id[31] = 1;
  assert_ok(weft_nccl_id_check(id, address, &why));
  assert_string_equal(address, "[::1]:1");
  id[8] = 1;
  assert_err(weft_nccl_id_check(id, address, &why), WEFT_E_PROTO);
}

static void memory_may_end_anywhere(void **state)
{
  (void)state;
  vector v = read_vector("uid_p4.pkl");
  FOR_EACH_FAILURE
  {
    uint8_t id[WEFT_NCCL_ID];
    const weft_err err = weft_nccl_id_read(v.data, v.len, id, NULL);
    END_UNLESS_FAILED
    assert_err(err, WEFT_E_NOMEM);
  }
  free(v.data);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(ids_of_all_forms_are_read),
    cmocka_unit_test(protocol_2_is_refused_in_its_own_words),
    cmocka_unit_test(our_pickle_is_pythons),
    cmocka_unit_test(barrier_words_go_both_ways),
    cmocka_unit_test(hostile_pickles_are_refused_by_name),
    cmocka_unit_test(values_over_the_limit_are_not_looked_at),
    cmocka_unit_test(no_damage_to_an_id_crashes),
    cmocka_unit_test(a_prefix_of_an_id_is_no_id),
    cmocka_unit_test(base64_takes_the_standard_alphabet_only),
    cmocka_unit_test(base64_of_an_id_is_the_id),
    cmocka_unit_test(an_id_names_its_host),
    cmocka_unit_test(memory_may_end_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
