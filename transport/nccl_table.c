#include "nccl_table.h"

#include "env.h"

#include <dlfcn.h>
#include <stdio.h>

static const wefti_symbol nccl_symbols[] = {
#define WEFTI_X(need, name, args) { "nccl" #name, offsetof(wefti_nccl, name), (need) },
  WEFTI_NCCL_TABLE(WEFTI_X)
#undef WEFTI_X
      { "ncclGetErrorString", offsetof(wefti_nccl, GetErrorString), false },
  { "ncclGetLastError", offsetof(wefti_nccl, GetLastError), false },
};

weft_err wefti_nccl_open(const char *path, wefti_nccl *out, weft_why *why)
{
  static const char *const names[] = { "libnccl.so.2", "libnccl.so", NULL };
  wefti_nccl nccl = { 0 };
  const char *from_env = wefti_env_get("VLLM_NCCL_SO_PATH");
  if (path == NULL && from_env != NULL && from_env[0] != '\0') {
    path = from_env;
  }
  weft_err err = wefti_library_open(path, names, "NCCL (--nccl, VLLM_NCCL_SO_PATH)",
                                    &nccl.library, nccl.path, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_library_resolve(nccl.library, nccl_symbols,
                              sizeof nccl_symbols / sizeof *nccl_symbols, &nccl,
                              nccl.path, why);
  if (err == WEFT_OK) {
    const int code = nccl.GetVersion(&nccl.version);
    err = code == WEFTI_NCCL_OK
              ? WEFT_OK
              : wefti_nccl_fail(&nccl, NULL, code, why, "ncclGetVersion");
  }
  if (err != WEFT_OK) {
    wefti_nccl_close(&nccl);
    return err;
  }
  *out = nccl;
  return WEFT_OK;
}

void wefti_nccl_close(wefti_nccl *nccl)
{
  if (nccl->library != NULL) {
    (void)dlclose(nccl->library);
  }
  *nccl = (wefti_nccl){ 0 };
}

void wefti_nccl_version_text(int version, char out[WEFTI_NCCL_VERSION_TEXT])
{
  /* NCCL_VERSION(): two digits for the minor since 2.9. */
  const int unit = version >= 10000 ? 10000 : 1000;
  (void)snprintf(out, WEFTI_NCCL_VERSION_TEXT, "%d.%d.%d", version / unit,
                 version % unit / 100, version % 100);
}

weft_err wefti_nccl_fail(const wefti_nccl *nccl, wefti_comm comm, int code, weft_why *why,
                         const char *what)
{
  const char *text = nccl->GetErrorString != NULL ? nccl->GetErrorString(code) : NULL;
  const char *last = nccl->GetLastError != NULL ? nccl->GetLastError(comm) : NULL;
  const bool more = last != NULL && last[0] != '\0';
  return weft_whyf(why, code == WEFTI_NCCL_REMOTE ? WEFT_E_DOWN : WEFT_E_FAILED,
                   "%s: NCCL error %d, %.300s", what, code,
                   more           ? last
                   : text != NULL ? text
                                  : "no text");
}
