#include "pickle_tree.h"
#include "weft/pickle.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sixty nodes would do for every form there is. */
static const wefti_plimits id_limits = { .bytes = WEFT_NCCL_ID_VALUE_MAX,
                                         .nodes = 256,
                                         .cells = 256,
                                         .stack = 64,
                                         .depth = 8,
                                         .dict_keys = 1 };

static const uint8_t *id_bytes(const wefti_ptree *t, wefti_pref ref)
{
  const wefti_pnode *n = wefti_pnode_as(t, ref, WEFTI_P_BYTES);
  return n != NULL && n->u.bytes.len == WEFT_NCCL_ID ? n->u.bytes.at : NULL;
}

static bool is_global(const wefti_ptree *t, wefti_pref ref, wefti_pglobal global)
{
  const wefti_pnode *n = wefti_pnode_as(t, ref, WEFTI_P_GLOBAL);
  return n != NULL && n->global == (uint8_t)global;
}

static bool is_empty(const wefti_ptree *t, wefti_pref ref, wefti_pkind kind)
{
  const wefti_pnode *n = wefti_pnode_as(t, ref, kind);
  return n != NULL && n->count == 0;
}

/* _ctypes._unpickle(ncclUniqueId, ({}, bytes)) */
static const uint8_t *of_ctypes(const wefti_ptree *t, const wefti_pnode *call)
{
  wefti_pref args[2];
  wefti_pref state[2];
  if (is_global(t, call->u.pair.a, WEFTI_G_CTYPES_UNPICKLE) &&
      wefti_ptuple(t, call->u.pair.b, args, 2) &&
      is_global(t, args[0], WEFTI_G_NCCL_ID) && wefti_ptuple(t, args[1], state, 2) &&
      is_empty(t, state[0], WEFTI_P_DICT)) {
    return id_bytes(t, state[1]);
  }
  return NULL;
}

/* nccl.core.utils.UniqueId() with bytes as its state */
static const uint8_t *of_nccl4py(const wefti_ptree *t, const wefti_pnode *build)
{
  const wefti_pnode *made = wefti_pnode_as(t, build->u.pair.a, WEFTI_P_NEW);
  if (made != NULL && is_global(t, made->u.pair.a, WEFTI_G_NCCL4PY_ID) &&
      is_empty(t, made->u.pair.b, WEFTI_P_TUPLE)) {
    return id_bytes(t, build->u.pair.b);
  }
  return NULL;
}

static const uint8_t *find_id(const wefti_ptree *t)
{
  const wefti_pnode *n = wefti_pnode_at(t, t->root);
  return n->kind == WEFTI_P_CALL    ? of_ctypes(t, n)
         : n->kind == WEFTI_P_BUILD ? of_nccl4py(t, n)
                                    : id_bytes(t, t->root);
}

weft_err weft_nccl_id_read(const void *value, size_t len, uint8_t out[WEFT_NCCL_ID],
                           weft_why *why)
{
  if (len == WEFT_NCCL_ID) {
    memcpy(out, value, WEFT_NCCL_ID);
    return WEFT_OK;
  }
  wefti_ptree t;
  const weft_err err = wefti_pickle_parse(value, len, &id_limits, &t, why);
  if (err != WEFT_OK) {
    return err;
  }
  const uint8_t *id = find_id(&t);
  char text[WEFTI_PTEXT];
  if (id != NULL) {
    memcpy(out, id, WEFT_NCCL_ID);
  } else {
    (void)weft_whyf(why, WEFT_E_PROTO, "not a pickled ncclUniqueId of %d bytes: found %s",
                    WEFT_NCCL_ID, wefti_pdescribe(&t, t.root, text));
  }
  wefti_pickle_free(&t);
  return id == NULL ? WEFT_E_PROTO : WEFT_OK;
}

weft_err weft_nccl_id_from_base64(const char *text, size_t len, uint8_t out[WEFT_NCCL_ID],
                                  weft_why *why)
{
  uint8_t *bytes = NULL;
  size_t n = 0;
  weft_err err = wefti_base64(text, len, WEFT_NCCL_ID_VALUE_MAX, &bytes, &n);
  if (err == WEFT_E_NOMEM) {
    return weft_whyf(why, err, "out of memory for nccl_unique_id_b64");
  }
  if (err == WEFT_E_LIMIT) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "nccl_unique_id_b64 must decode to 128 bytes, got %zu", len / 4 * 3);
  }
  if (err != WEFT_OK) {
    return weft_whyf(
        why, WEFT_E_INVAL,
        "nccl_unique_id_b64 is not valid standard base64 (URL-safe base64 is "
        "not accepted)");
  }
  if (n == WEFT_NCCL_ID) {
    memcpy(out, bytes, WEFT_NCCL_ID);
  } else {
    err = weft_whyf(why, WEFT_E_INVAL,
                    "nccl_unique_id_b64 must decode to 128 bytes, got %zu", n);
  }
  free(bytes);
  return err;
}

static bool zeros(const uint8_t *p, const uint8_t *end)
{
  while (p < end && *p == 0) {
    p++;
  }
  return p == end;
}

/* u64 magic, then a sockaddr of the host that made it. */
weft_err weft_nccl_id_check(const uint8_t id[WEFT_NCCL_ID],
                            char address[WEFT_NCCL_ADDRESS_MAX], weft_why *why)
{
  const uint8_t *sa = id + 8;
  const unsigned family = sa[0] | (unsigned)sa[1] << 8;
  const unsigned port = (unsigned)sa[2] << 8 | sa[3];
  const bool v6 = family == 10;
  const size_t used = v6 ? sizeof(struct sockaddr_in6) : 8;
  if ((family != 2 && !v6) || port == 0 || !zeros(sa + used, id + WEFT_NCCL_ID)) {
    return weft_whyf(why, WEFT_E_PROTO,
                     "the ncclUniqueId holds no socket address (family %u, port %u): not "
                     "made by ncclGetUniqueId?",
                     family, port);
  }
  char host[INET6_ADDRSTRLEN];
  if (inet_ntop(v6 ? AF_INET6 : AF_INET, sa + (v6 ? 8 : 4), host, sizeof host) == NULL) {
    return weft_whyf(why, WEFT_E_SYS, "the address in the ncclUniqueId has no text");
  }
  (void)snprintf(address, WEFT_NCCL_ADDRESS_MAX, v6 ? "[%s]:%u" : "%s:%u", host, port);
  return WEFT_OK;
}

/* ---- barrier words */

weft_err weft_pickled_text_read(const void *value, size_t len,
                                char out[WEFT_PICKLED_TEXT_MAX + 1], weft_why *why)
{
  wefti_ptree t;
  weft_err err = wefti_pickle_parse(value, len, &id_limits, &t, why);
  if (err != WEFT_OK) {
    return err;
  }
  const wefti_pnode *n = wefti_pnode_as(&t, t.root, WEFTI_P_TEXT);
  char text[WEFTI_PTEXT];
  if (n == NULL || n->u.bytes.len > WEFT_PICKLED_TEXT_MAX ||
      memchr(n->u.bytes.at, '\0', n->u.bytes.len) != NULL) {
    err = weft_whyf(why, WEFT_E_PROTO, "not a pickled word of at most %d bytes: found %s",
                    WEFT_PICKLED_TEXT_MAX, wefti_pdescribe(&t, t.root, text));
  } else {
    memcpy(out, n->u.bytes.at, n->u.bytes.len);
    out[n->u.bytes.len] = '\0';
  }
  wefti_pickle_free(&t);
  return err;
}
