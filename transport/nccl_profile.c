/* How trainers meet: vLLM's StatelessProcessGroup, or a process group of torch's as
 * SGLang, verl, slime and OpenRLHF make them. */
#include "nccl_priv.h"

#include <stdio.h>
#include <string.h>

#define INVALID "Invalid init_info for %s: "
#define PROFILE "profile"
#define TORCH "torch-group"
#define VLLM_KEY                                                                         \
  "/broadcast_from/0/0" /* the first thing that rank 0 tells all others                  \
                         */
#define DEFAULT_GROUP_KEY "/default_pg/0//cuda//0" /* of init_process_group */
#define DEFAULT_NAME "weight_update_group"         /* SGLang's */

enum { NAME_MAX_BYTES = 128 };

static bool is_torch(const weft_json *root)
{
  const char *profile = weft_json_str(weft_json_get(root, PROFILE));
  return profile != NULL && strcmp(profile, TORCH) == 0;
}

bool wefti_nccl_profile_key(const char *key, const weft_json *root)
{
  static const char *const torch[] = { "group_name", "id_key", "lazy", "backend" };
  for (size_t i = 0; i < sizeof torch / sizeof *torch; i++) {
    if (strcmp(torch[i], key) == 0) {
      return is_torch(root);
    }
  }
  return strcmp(key, PROFILE) == 0;
}

/* NULL in *out: not given. */
static weft_err text_of(const char *engine, const weft_json *root, const char *key,
                        size_t max, const char **out, weft_why *why)
{
  const weft_json *v = weft_json_get(root, key);
  *out = weft_json_str(v);
  if (weft_json_kind_of(v) == WEFT_JSON_NONE || weft_json_kind_of(v) == WEFT_JSON_NULL) {
    return WEFT_OK;
  }
  if (*out == NULL || **out == '\0' || strlen(*out) > max) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'%s' is not a string of 1 to %zu bytes",
                     engine, key, max);
  }
  return WEFT_OK;
}

static weft_err torch_keys(const char *engine, const weft_json *root,
                           wefti_nccl_init *out, weft_why *why)
{
  const char *name, *key;
  weft_err err = text_of(engine, root, "group_name", NAME_MAX_BYTES, &name, why);
  if (err == WEFT_OK) {
    err = text_of(engine, root, "id_key", WEFTI_ID_KEY_MAX - 1, &key, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  if (key != NULL) {
    (void)snprintf(out->keys[0], WEFTI_ID_KEY_MAX, "%s", key);
    out->key_count = 1;
    return WEFT_OK;
  }
  name = name != NULL ? name : DEFAULT_NAME;
  (void)snprintf(out->keys[0], WEFTI_ID_KEY_MAX, "/%s/%s//cuda//0", name, name);
  (void)snprintf(out->keys[1], WEFTI_ID_KEY_MAX, "%s", DEFAULT_GROUP_KEY);
  out->key_count = 2;
  return WEFT_OK;
}

static weft_err torch_group(const char *engine, const weft_json *root,
                            wefti_nccl_init *out, weft_why *why)
{
  const weft_json *lazy = weft_json_get(root, "lazy");
  const char *backend;
  weft_err err = text_of(engine, root, "backend", NAME_MAX_BYTES, &backend, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (backend != NULL && strcmp(backend, "nccl") != 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID
                     "backend '%.100s': only a group of backend 'nccl' alone can be "
                     "joined",
                     engine, backend);
  }
  out->look = WEFTI_LOOK_SHORTLY;
  if (weft_json_kind_of(lazy) == WEFT_JSON_BOOL) {
    out->look = weft_json_bool(lazy, false) ? WEFTI_LOOK_LATER : WEFTI_LOOK_ON;
  } else if (weft_json_kind_of(lazy) != WEFT_JSON_NONE &&
             weft_json_kind_of(lazy) != WEFT_JSON_NULL) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'lazy' is not true or false", engine);
  }
  out->torch = true;
  return torch_keys(engine, root, out, why);
}

weft_err wefti_nccl_profile_read(const char *engine, const weft_json *root,
                                 wefti_nccl_init *out, weft_why *why)
{
  const char *profile;
  const weft_err err = text_of(engine, root, PROFILE, NAME_MAX_BYTES, &profile, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (profile != NULL && strcmp(profile, TORCH) == 0) {
    return torch_group(engine, root, out, why);
  }
  if (profile != NULL && strcmp(profile, "vllm") != 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "profile '%.100s' is not known; there are: vllm, " TORCH,
                     engine, profile);
  }
  out->look = WEFTI_LOOK_ON;
  (void)snprintf(out->keys[0], WEFTI_ID_KEY_MAX, "%s", VLLM_KEY);
  out->key_count = 1;
  return WEFT_OK;
}
