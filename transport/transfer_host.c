#define _GNU_SOURCE /* realpath */
#include "host_priv.h"
#include "plan_lists.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INVALID "Invalid update_info for host backend: "

enum {
  NO_PROGRESS_MS = 120000,
  THREADS_MAX = 64,
  INFO_DEPTH = 16,
  INFO_NODES = 16000000
};

bool wefti_cancelled(const atomic_bool *cancel)
{
  return cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed);
}

static void host_close(void *state)
{
  wefti_host *h = state;
  if (h == NULL) {
    return;
  }
  for (size_t i = 0; i < h->allow_count; i++) {
    free(h->allow[i]);
  }
  free(h->allow);
  free(h->root);
  free(h);
}

static weft_err copy_allow(wefti_host *h, const weft_transfer_opts *opts)
{
  h->allow = calloc(opts->tcp_allow_count + 1, sizeof(char *));
  if (h->allow == NULL) {
    return WEFT_E_NOMEM;
  }
  for (size_t i = 0; i < opts->tcp_allow_count; i++) {
    h->allow[i] = strdup(opts->tcp_allow[i]);
    if (h->allow[i] == NULL) {
      return WEFT_E_NOMEM;
    }
    h->allow_count++;
  }
  return WEFT_OK;
}

static weft_err host_open(const weft_transfer_opts *opts, void **state, weft_why *why)
{
  if (opts->size != sizeof *opts) {
    return weft_whyf(why, WEFT_E_INVAL, "host backend: options of another version");
  }
  wefti_host *h = calloc(1, sizeof *h);
  if (h == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "host backend: no memory");
  }
  h->threads = opts->threads > THREADS_MAX ? THREADS_MAX : opts->threads;
  h->no_progress_ms = opts->no_progress_ms == 0 ? NO_PROGRESS_MS : opts->no_progress_ms;
  weft_err err = copy_allow(h, opts);
  if (err != WEFT_OK) {
    host_close(h);
    return weft_whyf(why, err, "host backend: no memory");
  }
  if (opts->weights_root != NULL) {
    h->root = realpath(opts->weights_root, NULL);
    if (h->root == NULL) {
      err = weft_whyf(why, WEFT_E_NOTFOUND, "weights root %s: not there or not readable",
                      opts->weights_root);
      host_close(h);
      return err;
    }
    if (strcmp(h->root, "/") == 0) {
      h->root[0] = '\0';
    }
  }
  *state = h;
  return WEFT_OK;
}

static weft_err host_check_init(void *state, const char *init_info, size_t len,
                                const weft_transfer_who *who, weft_why *why)
{
  (void)state;
  (void)who;
  weft_json *root = NULL;
  weft_why inner = { 0 };
  weft_err err = weft_json_parse(init_info, len, NULL, &root, &inner);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "Invalid init_info for host backend: %s", inner.text);
  }
  if (weft_json_kind_of(root) != WEFT_JSON_OBJECT) {
    err =
        weft_whyf(why, WEFT_E_INVAL, "Invalid init_info for host backend: not an object");
  } else if (weft_json_count(root) > 0) {
    err = weft_whyf(why, WEFT_E_INVAL,
                    "Invalid init_info for host backend: unknown key '%s'",
                    weft_json_key(weft_json_first(root)));
  }
  weft_json_free(root);
  return err;
}

static weft_err host_init(void *state, const char *init_info, size_t len,
                          const weft_transfer_who *who, const atomic_bool *cancel,
                          weft_why *why)
{
  (void)cancel;
  return host_check_init(state, init_info, len, who, why);
}

static void host_abandon(void *state, weft_plan *plan)
{
  (void)state;
  if (plan == NULL) {
    return;
  }
  wefti_host_plan *p = (wefti_host_plan *)plan; /* pub is the first member */
  if (p->fd >= 0) {
    (void)close(p->fd);
  }
  weft_safetensors_free(p->st);
  weft_json_free(p->json);
  free(p->tensors);
  free(p->at);
  free(p->dims);
  free(p);
}

/* The lists, and where each tensor will be found. */
weft_err wefti_host_lists(wefti_host_plan *plan, const weft_json *names,
                          const weft_json *dtype_names, const weft_json *shapes,
                          weft_why *why)
{
  wefti_lists l;
  weft_err err = wefti_lists_read("host backend", names, dtype_names, shapes, &l, why);
  if (err != WEFT_OK) {
    return err;
  }
  plan->at = calloc(l.count + 1, sizeof *plan->at);
  if (plan->at == NULL) {
    err = weft_whyf(why, WEFT_E_NOMEM, "no memory for %zu tensors", l.count);
    wefti_lists_free(&l);
    return err;
  }
  plan->tensors = l.tensors;
  plan->dims = l.dims;
  plan->pub = (weft_plan){ .tensors = l.tensors, .count = l.count, .bytes = l.bytes };
  return WEFT_OK;
}

static weft_err only_keys(const weft_json *object, const char *const *keys,
                          const char *where, weft_why *why)
{
  for (const weft_json *v = weft_json_first(object); v != NULL; v = weft_json_next(v)) {
    bool known = false;
    for (const char *const *k = keys; *k != NULL && !known; k++) {
      known = strcmp(*k, weft_json_key(v)) == 0;
    }
    if (!known) {
      return weft_whyf(why, WEFT_E_INVAL, INVALID "unknown key '%s'%s", weft_json_key(v),
                       where);
    }
  }
  return WEFT_OK;
}

static weft_err accept_source(const wefti_host *h, wefti_host_plan *plan,
                              const weft_json *source, const weft_json *info,
                              weft_why *why)
{
  static const char *const file_keys[] = { "kind", "path", NULL };
  static const char *const shm_keys[] = { "kind", "name", "offsets", NULL };
  static const char *const tcp_keys[] = { "kind", "address", "token", NULL };
  if (weft_json_kind_of(source) != WEFT_JSON_OBJECT) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'source' is %s",
                     source == NULL ? "missing" : "not an object");
  }
  const char *kind = weft_json_str(weft_json_get(source, "kind"));
  const bool file = kind != NULL && strcmp(kind, "safetensors") == 0;
  const bool shm = kind != NULL && strcmp(kind, "shm") == 0;
  const bool tcp = kind != NULL && strcmp(kind, "tcp") == 0;
  if (!file && !shm && !tcp) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "source kind '%s' is none of safetensors, shm, tcp",
                     kind == NULL ? "(none)" : kind);
  }
  weft_err err = only_keys(source,
                           file  ? file_keys
                           : shm ? shm_keys
                                 : tcp_keys,
                           " in source", why);
  if (err == WEFT_OK && !file) {
    err = wefti_host_lists(plan, weft_json_get(info, "names"),
                           weft_json_get(info, "dtype_names"),
                           weft_json_get(info, "shapes"), why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  if (file) {
    return wefti_host_file_accept(h, plan, source, info, why);
  }
  return shm ? wefti_host_shm_accept(plan, source, why)
             : wefti_host_tcp_accept(h, plan, source, why);
}

static weft_err accept_info(const wefti_host *h, wefti_host_plan *plan, weft_why *why)
{
  static const char *const keys[] = { "source", "names", "dtype_names", "shapes", NULL };
  const weft_json *info;
  weft_err err = wefti_lists_entry("host backend", plan->json, &plan->who, &info, why);
  if (err == WEFT_OK) {
    err = only_keys(info, keys, "", why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  const weft_json *source = weft_json_get(info, "source");
  const weft_json *names = weft_json_get(info, "names");
  if (source == NULL && weft_json_kind_of(names) == WEFT_JSON_ARRAY &&
      weft_json_count(names) == 0) { /* nothing for this worker */
    return wefti_host_lists(plan, names, weft_json_get(info, "dtype_names"),
                            weft_json_get(info, "shapes"), why);
  }
  return accept_source(h, plan, source, info, why);
}

static weft_err host_accept(void *state, const char *update_info, size_t len,
                            const weft_transfer_who *who, weft_plan **plan, weft_why *why)
{
  wefti_host_plan *p = calloc(1, sizeof *p);
  if (p == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "host backend: no memory");
  }
  p->fd = -1;
  p->who = *who;
  const weft_json_limits limits = { .depth = INFO_DEPTH, .nodes = INFO_NODES };
  weft_why inner = { 0 };
  weft_err err = weft_json_parse(update_info, len, &limits, &p->json, &inner);
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, INVALID "%s", inner.text);
  } else {
    err = accept_info(state, p, why);
  }
  if (err != WEFT_OK) {
    host_abandon(state, &p->pub);
    return err;
  }
  *plan = &p->pub;
  return WEFT_OK;
}

/* NOLINTNEXTLINE(readability-function-size): the interface has eight parameters */
static weft_err host_receive(void *state, weft_plan *plan, void *const *dst,
                             weft_digest *digests, const atomic_bool *cancel,
                             weft_progress_fn *progress, void *arg, weft_why *why)
{
  wefti_host_plan *p = (wefti_host_plan *)plan;
  wefti_host_job job = { .plan = p,
                         .dst = dst,
                         .digests = digests,
                         .cancel = cancel,
                         .progress = progress,
                         .progress_arg = arg,
                         .host = state };
  switch (p->kind) {
  case WEFTI_SOURCE_FILE:
  case WEFTI_SOURCE_SHM:
    return wefti_host_copy(&job, why);
  case WEFTI_SOURCE_TCP:
    return wefti_host_tcp_receive(&job, why);
  case WEFTI_SOURCE_NONE:
    break;
  }
  return WEFT_OK;
}

static const weft_transfer_ops host_ops = {
  .name = "host",
  .open = host_open,
  .init = host_init,
  .accept = host_accept,
  .receive = host_receive,
  .abandon = host_abandon,
  .close = host_close,
  .check_init = host_check_init,
};

const weft_transfer_ops *weft_transfer_host(void)
{
  return &host_ops;
}
