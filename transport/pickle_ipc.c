#include "pickle_ipc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A parameter takes about thirty nodes and as many cells. */
static const wefti_plimits ipc_limits = { .bytes = WEFT_IPC_PICKLE_MAX,
                                          .nodes = 8u << 20,
                                          .cells = 8u << 20,
                                          .stack = 64u << 10,
                                          .depth = 16,
                                          .dict_keys = WEFT_IPC_GPUS_MAX };
enum { ENTRIES_MAX = 4 * WEFT_IPC_PARAMS_MAX };

bool weft_gpu_uuid_equal(const char *a, size_t a_len, const char *b, size_t b_len)
{
  if (a_len >= 4 && strncasecmp(a, "GPU-", 4) == 0) {
    a += 4;
    a_len -= 4;
  }
  if (b_len >= 4 && strncasecmp(b, "GPU-", 4) == 0) {
    b += 4;
    b_len -= 4;
  }
  return a_len == b_len && strncasecmp(a, b, a_len) == 0;
}

static weft_err no_entry(wefti_ipc_reader *r, const wefti_pnode *dict)
{
  char names[160] = "";
  size_t len = 0;
  uint32_t at = dict->u.cells.head;
  for (uint32_t i = 0; i < dict->count && i < 6; i += 2) {
    const wefti_pnode *key = wefti_pnode_at(r->tree, r->tree->cells[at].node);
    char text[48];
    len += (size_t)snprintf(
        names + len, sizeof names - len, "%s%s", i == 0 ? "" : ", ",
        wefti_escape(key->u.bytes.at, key->u.bytes.len, text, sizeof text));
    at = r->tree->cells[r->tree->cells[at].next].next;
  }
  if (r->uuid == NULL) {
    return weft_whyf(r->why, WEFT_E_NOTFOUND,
                     "IPC handle of parameter %zu: %u GPUs (%s), expected one", r->param,
                     dict->count / 2, names);
  }
  return weft_whyf(
      r->why, WEFT_E_NOTFOUND,
      "IPC handle of parameter %zu: none for this worker's GPU %s; the trainer "
      "sent %u: %s",
      r->param, r->uuid, dict->count / 2, names);
}

/* {uuid: args, ...}: all are checked, the own one is kept. */
static weft_err read_dict(wefti_ipc_reader *r, wefti_pref ref, weft_ipc_tensor *out)
{
  const wefti_pnode *dict = wefti_pnode_as(r->tree, ref, WEFTI_P_DICT);
  if (dict == NULL) {
    return wefti_ipc_bad(r, "entry", "is not a dict {uuid: args}", ref);
  }
  bool found = false;
  uint32_t at = dict->u.cells.head;
  for (uint32_t i = 0; i < dict->count; i += 2) {
    const wefti_pcell *key = &r->tree->cells[at];
    const wefti_pcell *value = &r->tree->cells[key->next];
    const wefti_pnode *k = wefti_pnode_at(r->tree, key->node);
    weft_ipc_tensor t;
    if (k->u.bytes.len == 0 || k->u.bytes.len > WEFT_IPC_UUID_MAX) {
      return wefti_ipc_bad(r, "key", "is not the UUID of a GPU", key->node);
    }
    if (++r->entries > ENTRIES_MAX) {
      return weft_whyf(r->why, WEFT_E_LIMIT, "IPC handles: more than %d entries",
                       ENTRIES_MAX);
    }
    const weft_err err = wefti_ipc_args(r, value->node, &t);
    if (err != WEFT_OK) {
      return err;
    }
    const bool own = r->uuid == NULL
                         ? dict->count == 2
                         : weft_gpu_uuid_equal((const char *)k->u.bytes.at,
                                               k->u.bytes.len, r->uuid, strlen(r->uuid));
    if (own && found) {
      return wefti_ipc_bad(r, "key", "names this worker's GPU a second time", key->node);
    }
    if (own) {
      *out = t;
      found = true;
    }
    at = value->next;
  }
  return found ? WEFT_OK : no_entry(r, dict);
}

static weft_err read_root(wefti_ipc_reader *r, weft_ipc_handles *h)
{
  const wefti_pnode *list = wefti_pnode_as(r->tree, r->tree->root, WEFTI_P_LIST);
  h->packed = list == NULL;
  h->count = list == NULL ? 1 : list->count;
  if (h->count > WEFT_IPC_PARAMS_MAX) {
    return weft_whyf(r->why, WEFT_E_LIMIT, "IPC handles: %zu parameters, at most %d",
                     h->count, WEFT_IPC_PARAMS_MAX);
  }
  h->tensors = calloc(h->count + 1, sizeof *h->tensors);
  if (h->tensors == NULL) {
    return weft_whyf(r->why, WEFT_E_NOMEM,
                     "out of memory for the IPC handles of %zu parameters", h->count);
  }
  if (list == NULL) {
    return read_dict(r, r->tree->root, &h->tensors[0]);
  }
  uint32_t at = list->u.cells.head;
  for (size_t i = 0; i < h->count; i++) {
    r->param = i;
    const weft_err err = read_dict(r, r->tree->cells[at].node, &h->tensors[i]);
    if (err != WEFT_OK) {
      return err;
    }
    at = r->tree->cells[at].next;
  }
  return WEFT_OK;
}

weft_err weft_ipc_handles_read(const void *pickle, size_t len, const char *uuid,
                               weft_ipc_handles *out, weft_why *why)
{
  wefti_ptree t;
  weft_err err = wefti_pickle_parse(pickle, len, &ipc_limits, &t, why);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_ipc_reader r = { .tree = &t, .uuid = uuid, .why = why };
  weft_ipc_handles h = { 0 };
  err = read_root(&r, &h);
  if (err == WEFT_OK) {
    *out = h;
  } else {
    weft_ipc_handles_free(&h);
  }
  wefti_pickle_free(&t);
  return err;
}

weft_err weft_ipc_handles_from_base64(const char *text, size_t len, const char *uuid,
                                      weft_ipc_handles *out, weft_why *why)
{
  uint8_t *bytes = NULL;
  size_t n = 0;
  weft_err err = wefti_base64(text, len, WEFT_IPC_PICKLE_MAX, &bytes, &n);
  if (err == WEFT_E_INVAL) {
    return weft_whyf(
        why, err,
        "ipc_handles_pickled is not valid standard base64 (URL-safe base64 is "
        "not accepted)");
  }
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "ipc_handles_pickled: %s (at most %d bytes are taken)",
                     weft_strerror(err), WEFT_IPC_PICKLE_MAX);
  }
  err = weft_ipc_handles_read(bytes, n, uuid, out, why);
  free(bytes);
  return err;
}

void weft_ipc_handles_free(weft_ipc_handles *handles)
{
  if (handles != NULL) {
    free(handles->tensors);
    *handles = (weft_ipc_handles){ 0 };
  }
}
