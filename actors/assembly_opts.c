#include "assembly.h"
#include "weft/transfer.h"

#include <inttypes.h>

/* What is wrong with an engine's options. */

enum {
  THREAD_WORKERS_MAX = (WEFT_LOOPS_MAX - 3) / 2 /* loops: engine, clerk, journal */
};

/* A backend that is not known is the workers' to name. */
static weft_err check_backend(const weft_engine_opts *o, weft_why *why)
{
  const weft_transfer_ops *backend = weft_transfer_named(o->backend);
  if (!backend || o->replica_count > 0) {
    return WEFT_OK;
  }
  if (o->tp_plan && !backend->nccl) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED,
                     "a TP plan is for the nccl and sparse_nccl backends, not for '%s'",
                     backend->name);
  }
  if (o->draft && backend->no_draft) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED, "backend '%s' has no draft model: %s",
                     backend->name, backend->no_draft);
  }
  return WEFT_OK;
}

weft_err wefti_opts_check(const weft_engine_opts *o, weft_why *why)
{
  if (o->size != sizeof *o) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "weft_engine_opts: size is not that of this library");
  }
  const weft_err fleet = wefti_fleet_check(o, why);
  if (fleet != WEFT_OK) {
    return fleet;
  }
  const uint64_t workers = (uint64_t)(o->tp ? o->tp : 1) * (o->pp ? o->pp : 1);
  const uint64_t most = o->workers == WEFT_WORKERS_THREADS && o->replica_count == 0
                            ? (uint64_t)THREAD_WORKERS_MAX
                            : ENGINE_WORLD_MAX;
  if (workers > most) {
    return weft_whyf(why, WEFT_E_LIMIT, "tp x pp = %" PRIu64 " workers: at most %" PRIu64,
                     workers, most);
  }
  if (o->dp_index != 0 && o->dp_index >= o->dp_size) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "dp_index %" PRIu32 " is not below dp_size %" PRIu32, o->dp_index,
                     o->dp_size);
  }
  if (o->workers == WEFT_WORKERS_PROCESSES && o->replica_count == 0 &&
      !o->worker_program) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "worker processes need worker_program, the path of weftd or alike");
  }
  const char *const urls[] = { o->events_url, o->control_url };
  for (size_t i = 0; i < 2; i++) {
    if (urls[i] && !o->insecure && !wefti_url_is_local(urls[i])) {
      return weft_whyf(
          why, WEFT_E_DENIED,
          "%s: not on this machine, and this socket asks for no token; use ipc "
          "or loopback (or say insecure by name)",
          urls[i]);
    }
  }
  return check_backend(o, why);
}
