/* init_info of the nccl backend. */
#include "nccl_priv.h"
#include "weft/pickle.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Texts are answers to a client and begin as vLLM's do; whose: the engine's class. */
#define INVALID "Invalid init_info for %s: "
#define DATACLASS "NCCLWeightTransferInitInfo" /* of the sparse engine too */

enum { BUFFER_BYTES = 1 << 30, BUFFERS = 2, PORT_MAX = 65535, TORCH_RANKS_MAX = 128 };

static_assert(sizeof(wefti_nccl_id) == WEFT_NCCL_ID, "id");

static bool absent(const weft_json *v)
{
  return weft_json_kind_of(v) == WEFT_JSON_NONE || weft_json_kind_of(v) == WEFT_JSON_NULL;
}

weft_err wefti_packing_read(const weft_json *object, const char *where,
                            wefti_packing *out, weft_why *why)
{
  const weft_json *packed = weft_json_get(object, "packed");
  const weft_json *bytes = weft_json_get(object, "packed_buffer_size_bytes");
  const weft_json *buffers = weft_json_get(object, "packed_num_buffers");
  wefti_packing p = *out;
  int64_t n;
  if (!absent(packed)) {
    if (weft_json_kind_of(packed) != WEFT_JSON_BOOL) {
      return weft_whyf(why, WEFT_E_INVAL, "%s'packed' is not true or false", where);
    }
    p.packed = weft_json_bool(packed, false);
  }
  if (!absent(bytes)) {
    if (!weft_json_i64(bytes, &n) || n < 0) {
      return weft_whyf(why, WEFT_E_INVAL,
                       "%s'packed_buffer_size_bytes' is not a number of bytes", where);
    }
    p.buffer_bytes = (uint64_t)n;
  }
  if (!absent(buffers)) {
    if (!weft_json_i64(buffers, &n) || n < 1 || n > WEFTI_LANES_MAX) {
      return weft_whyf(why, WEFT_E_INVAL, "%s'packed_num_buffers' is not in 1..%d", where,
                       WEFTI_LANES_MAX);
    }
    p.buffers = (unsigned)n;
  }
  *out = p;
  return WEFT_OK;
}

static weft_err known_keys(const char *engine, const weft_json *root, weft_why *why)
{
  static const char *const keys[] = { "master_address",
                                      "master_port",
                                      "rank_offset",
                                      "world_size",
                                      "packed",
                                      "packed_buffer_size_bytes",
                                      "packed_num_buffers",
                                      "nccl_unique_id_b64",
                                      NULL };
  for (const weft_json *v = weft_json_first(root); v != NULL; v = weft_json_next(v)) {
    bool known = false;
    for (const char *const *k = keys; *k != NULL && !known; k++) {
      known = strcmp(*k, weft_json_key(v)) == 0;
    }
    if (!known && !wefti_nccl_profile_key(weft_json_key(v), root)) {
      return weft_whyf(why, WEFT_E_INVAL,
                       INVALID DATACLASS
                       ".__init__() got an unexpected keyword argument '%.100s'",
                       engine, weft_json_key(v));
    }
  }
  return WEFT_OK;
}

static weft_err number_of(const char *engine, const weft_json *root, const char *key,
                          int64_t *out, weft_why *why)
{
  const weft_json *v = weft_json_get(root, key);
  if (weft_json_kind_of(v) == WEFT_JSON_NONE) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID DATACLASS
                     ".__init__() missing 1 required positional argument: '%s'",
                     engine, key);
  }
  return weft_json_i64(v, out) ? WEFT_OK
                               : weft_whyf(why, WEFT_E_INVAL,
                                           INVALID "'%s' is not an integer", engine, key);
}

/* Every worker finds the same, so none enters when one does not fit. */
static weft_err read_ranks(const char *engine, const weft_json *root,
                           const weft_transfer_who *who, wefti_nccl_init *out,
                           weft_why *why)
{
  int64_t offset = 0, world = 0;
  weft_err err = number_of(engine, root, "rank_offset", &offset, why);
  if (err == WEFT_OK) {
    err = number_of(engine, root, "world_size", &world, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  if (world < 2 || world > INT_MAX) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "world_size %" PRId64
                             ": trainer and worker are two at least",
                     engine, world);
  }
  if (offset < 1 || offset >= world) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "rank_offset %" PRId64 " of world_size %" PRId64
                             ": the trainer is rank 0, workers come behind it",
                     engine, offset, world);
  }
  const int64_t before = (int64_t)who->dp_index * who->world_size;
  if (before + who->world_size > world - offset) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "world_size %" PRId64
                             " has no room for all: rank_offset %" PRId64 " + %" PRId64
                             " workers of other replicas + %u workers here are %" PRId64,
                     engine, world, offset, before, who->world_size,
                     offset + before + who->world_size);
  }
  out->rank = (int)(offset + before + who->rank);
  out->ranks = (int)world;
  return WEFT_OK;
}

static weft_err read_master(const char *engine, const weft_json *address,
                            const weft_json *port, wefti_nccl_init *out, weft_why *why)
{
  const char *host = weft_json_str(address);
  int64_t number;
  if (host == NULL || strlen(host) >= sizeof out->host) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'master_address' is no host name",
                     engine);
  }
  if (!weft_json_i64(port, &number) || number < 1 || number > PORT_MAX) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'master_port' is not in 1..%d", engine,
                     PORT_MAX);
  }
  if (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "master_address %s is every address and none: name one of "
                             "the trainer's that the workers can reach",
                     engine, host);
  }
  (void)snprintf(out->host, sizeof out->host, "%s", host);
  out->port = (uint16_t)number;
  return WEFT_OK;
}

static weft_err read_meeting(const char *engine, const weft_json *root,
                             wefti_nccl_init *out, weft_why *why)
{
  const weft_json *b64 = weft_json_get(root, "nccl_unique_id_b64");
  const weft_json *address = weft_json_get(root, "master_address");
  const weft_json *port = weft_json_get(root, "master_port");
  const char *text = weft_json_str(b64);
  const char *host = weft_json_str(address);
  const bool by_id = !absent(b64) && !(text != NULL && text[0] == '\0');
  const bool has_host = !absent(address) && !(host != NULL && host[0] == '\0');
  const bool has_port = !absent(port);
  if (by_id && (has_host || has_port)) {
    return weft_whyf(why, WEFT_E_INVAL,
                     DATACLASS ": pass nccl_unique_id_b64 OR master_address/master_port, "
                               "not both");
  }
  if (!by_id && !(has_host && has_port)) {
    return weft_whyf(why, WEFT_E_INVAL,
                     DATACLASS ": need nccl_unique_id_b64, or both master_address and "
                               "master_port (got master_address %s, master_port %s)",
                     has_host ? host : "None", has_port ? "given" : "None");
  }
  out->has_id = by_id;
  if (!by_id) {
    return read_master(engine, address, port, out, why);
  }
  if (text == NULL) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'nccl_unique_id_b64' is not a string",
                     engine);
  }
  weft_why inner = { 0 };
  char where[WEFT_NCCL_ADDRESS_MAX];
  weft_err err =
      weft_nccl_id_from_base64(text, strlen(text), (uint8_t *)out->id.bytes, &inner);
  if (err == WEFT_OK) {
    err = weft_nccl_id_check((const uint8_t *)out->id.bytes, where, &inner);
  }
  return err == WEFT_OK ? WEFT_OK
                        : weft_whyf(why, WEFT_E_INVAL, DATACLASS ": %.400s", inner.text);
}

static weft_err torch_fits(const char *engine, const wefti_nccl_init *init, weft_why *why)
{
  if (init->has_id) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "profile torch-group has its id in the trainer's store: "
                             "master_address and master_port, not nccl_unique_id_b64",
                     engine);
  }
  if (init->ranks > TORCH_RANKS_MAX) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "world_size %d: torch makes groups of more than %d ranks by "
                             "several ids, which is not supported",
                     engine, init->ranks, TORCH_RANKS_MAX);
  }
  return WEFT_OK;
}

weft_err wefti_nccl_init_read(const char *engine, const char *text, size_t len,
                              const weft_transfer_who *who, wefti_nccl_init *out,
                              weft_why *why)
{
  weft_json *root = NULL;
  weft_why inner = { 0 };
  wefti_nccl_init init = { .packing = { .buffer_bytes = BUFFER_BYTES,
                                        .buffers = BUFFERS } };
  weft_err err = weft_json_parse(text, len, NULL, &root, &inner);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, INVALID "%.400s", engine, inner.text);
  }
  if (weft_json_kind_of(root) != WEFT_JSON_OBJECT) {
    err = weft_whyf(why, WEFT_E_INVAL, INVALID "not an object", engine);
  }
  if (err == WEFT_OK) {
    err = wefti_nccl_profile_read(engine, root, &init, why);
  }
  if (err == WEFT_OK) {
    err = known_keys(engine, root, why);
  }
  if (err == WEFT_OK) {
    char where[WEFTI_WHERE_MAX];
    (void)snprintf(where, sizeof where, INVALID, engine);
    err = wefti_packing_read(root, where, &init.packing, why);
  }
  if (err == WEFT_OK) {
    err = read_meeting(engine, root, &init, why);
  }
  if (err == WEFT_OK) {
    err = read_ranks(engine, root, who, &init, why);
  }
  if (err == WEFT_OK && init.torch) {
    err = torch_fits(engine, &init, why);
  }
  weft_json_free(root);
  if (err == WEFT_OK) {
    *out = init;
  }
  return err;
}
