#define _GNU_SOURCE /* realpath */
#include "host_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INVALID "Invalid update_info for host backend: "

static bool below(const char *root, const char *path)
{
  const size_t n = strlen(root);
  return strncmp(path, root, n) == 0 && path[n] == '/';
}

/* Of a path that does not resolve: does as much of it as does lead out of the root?  Then
 * nobody is told whether the rest is there. */
static bool leads_outside(const char *root, const char *path)
{
  char *part = strdup(path);
  bool outside = true; /* without memory nothing is told either */
  char *slash = part == NULL ? NULL : strrchr(part, '/');
  for (; slash != NULL; slash = strrchr(part, '/')) {
    slash[slash == part ? 1 : 0] = '\0';
    char *resolved = realpath(part, NULL);
    if (resolved != NULL) {
      outside = !below(root, resolved) && strcmp(root, resolved) != 0;
      free(resolved);
      break;
    }
    if (slash == part) {
      break;
    }
  }
  free(part);
  return outside;
}

static weft_err not_below(const char *path, weft_why *why)
{
  return weft_whyf(why, WEFT_E_DENIED, "%s: is not below the weights root", path);
}

/* The file must lie below the root after all links are followed (model caches are full of
 * them), and still when it has been opened: somebody may have moved a link meanwhile. */
static weft_err open_below(const wefti_host *h, const char *path, int *fd, weft_why *why)
{
  char *resolved = realpath(path, NULL);
  if (resolved == NULL) {
    const int e = errno;
    if (leads_outside(h->root, path)) {
      return not_below(path, why);
    }
    errno = e;
    return weft_whyf(why, errno == EACCES ? WEFT_E_DENIED : WEFT_E_NOTFOUND,
                     "%s: cannot be opened (errno %d)", path, errno);
  }
  weft_err err = WEFT_OK;
  if (!below(h->root, resolved)) {
    err = not_below(path, why);
  } else {
    *fd = open(resolved, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (*fd < 0) {
      err = weft_whyf(why, errno == EACCES ? WEFT_E_DENIED : WEFT_E_NOTFOUND,
                      "%s: cannot be opened (errno %d)", path, errno);
    }
  }
  free(resolved);
  if (err != WEFT_OK) {
    return err;
  }
  char link[32];
  char real[PATH_MAX];
  (void)snprintf(link, sizeof link, "/proc/self/fd/%d", *fd);
  const ssize_t n = readlink(link, real, sizeof real - 1);
  if (n <= 0) {
    return weft_whyf(why, WEFT_E_SYS, "%s: cannot be checked against the weights root",
                     path);
  }
  real[n] = '\0';
  return below(h->root, real) ? WEFT_OK : not_below(path, why);
}

static weft_err open_file(const wefti_host *h, wefti_host_plan *plan, const char *path,
                          weft_why *why)
{
  if (path == NULL || path[0] != '/') {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'path' in source is %s",
                     path == NULL ? "missing or not a string" : "not absolute");
  }
  plan->label = path;
  if (h->root != NULL) {
    const weft_err err = open_below(h, path, &plan->fd, why);
    if (err != WEFT_OK) {
      return err;
    }
  } else {
    /* Non-blocking: a fifo must not hold us here. */
    plan->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (plan->fd < 0) {
      return weft_whyf(why, errno == EACCES ? WEFT_E_DENIED : WEFT_E_NOTFOUND,
                       "%s: cannot be opened (errno %d)", path, errno);
    }
  }
  if (fstat(plan->fd, &plan->seen) != 0 || !S_ISREG(plan->seen.st_mode)) {
    return weft_whyf(why, WEFT_E_INVAL, "%s: not a regular file", path);
  }
  return WEFT_OK;
}

static void take(wefti_host_plan *plan, size_t i, const weft_st_tensor *t)
{
  plan->tensors[i] = (weft_plan_tensor){ .name = t->name,
                                         .shape = t->shape,
                                         .bytes = t->bytes,
                                         .dtype = t->dtype,
                                         .ndim = t->ndim };
  plan->at[i] = t->at;
}

static weft_err whole_file(wefti_host_plan *plan, weft_why *why)
{
  const size_t n = plan->st->count;
  plan->tensors = calloc(n + 1, sizeof *plan->tensors);
  plan->at = calloc(n + 1, sizeof *plan->at);
  if (plan->tensors == NULL || plan->at == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: no memory for %zu tensors", plan->label, n);
  }
  for (size_t i = 0; i < n; i++) {
    if (plan->st->tensors[i].name[0] == '\0') {
      return weft_whyf(why, WEFT_E_INVAL, "%s: a tensor without a name", plan->label);
    }
    take(plan, i, &plan->st->tensors[i]);
  }
  plan->pub =
      (weft_plan){ .tensors = plan->tensors, .count = n, .bytes = plan->st->data_bytes };
  return WEFT_OK;
}

static weft_err compare(const wefti_host_plan *plan, const weft_plan_tensor *want,
                        const weft_st_tensor *have, weft_why *why)
{
  if (have == NULL) {
    return weft_whyf(why, WEFT_E_NOTFOUND, "%s: has no tensor '%s'", plan->label,
                     want->name);
  }
  if (have->dtype != want->dtype) {
    return weft_whyf(why, WEFT_E_INVAL, "%s: '%s' is %s, update_info says %s",
                     plan->label, want->name, weft_dtype_name(have->dtype),
                     weft_dtype_name(want->dtype));
  }
  bool same = have->ndim == want->ndim;
  for (unsigned i = 0; same && i < have->ndim; i++) {
    same = have->shape[i] == want->shape[i];
  }
  return same ? WEFT_OK
              : weft_whyf(why, WEFT_E_INVAL,
                          "%s: '%s' has another shape than update_info says", plan->label,
                          want->name);
}

/* Names alone: dtypes and shapes come from the file. */
static weft_err selected_names(wefti_host_plan *plan, const weft_json *names,
                               weft_why *why)
{
  const size_t n = weft_json_count(names);
  bool *taken = calloc(plan->st->count + 1, sizeof *taken);
  plan->tensors = calloc(n + 1, sizeof *plan->tensors);
  plan->at = calloc(n + 1, sizeof *plan->at);
  if (taken == NULL || plan->tensors == NULL || plan->at == NULL) {
    free(taken);
    return weft_whyf(why, WEFT_E_NOMEM, "%s: no memory for %zu tensors", plan->label, n);
  }
  weft_err err = WEFT_OK;
  size_t i = 0;
  for (const weft_json *v = weft_json_first(names); err == WEFT_OK && v != NULL;
       v = weft_json_next(v)) {
    const char *name = weft_json_str(v);
    if (name == NULL || name[0] == '\0') {
      err = weft_whyf(why, WEFT_E_INVAL, INVALID "a name is empty or not a string");
      break;
    }
    const weft_st_tensor *t = weft_safetensors_find(plan->st, name);
    if (t == NULL) {
      err = weft_whyf(why, WEFT_E_NOTFOUND, "%s: has no tensor '%s'", plan->label, name);
    } else if (taken[t - plan->st->tensors]) {
      err = weft_whyf(why, WEFT_E_INVAL, INVALID "'%s' is named twice", name);
    } else {
      taken[t - plan->st->tensors] = true;
      take(plan, i++, t);
      plan->pub.bytes += t->bytes; /* each once: at most the file's size */
    }
  }
  free(taken);
  plan->pub.tensors = plan->tensors;
  plan->pub.count = i;
  return err;
}

static weft_err checked_lists(wefti_host_plan *plan, const weft_json *names,
                              const weft_json *dtypes, const weft_json *shapes,
                              weft_why *why)
{
  weft_err err = wefti_host_lists(plan, names, dtypes, shapes, why);
  for (size_t i = 0; err == WEFT_OK && i < plan->pub.count; i++) {
    const weft_st_tensor *t = weft_safetensors_find(plan->st, plan->tensors[i].name);
    err = compare(plan, &plan->tensors[i], t, why);
    if (err == WEFT_OK) {
      plan->at[i] = t->at;
    }
  }
  return err;
}

static weft_err read_header(wefti_host_plan *plan, weft_why *why)
{
  const weft_err err = weft_safetensors_read(plan->fd, plan->label, &plan->st, why);
  if (err != WEFT_E_LIMIT) {
    return err;
  }
  if (why != NULL) { /* a fault of the file: LIMIT would be one of this machine */
    why->err = WEFT_E_INVAL;
  }
  return WEFT_E_INVAL;
}

weft_err wefti_host_file_accept(const wefti_host *h, wefti_host_plan *plan,
                                const weft_json *source, const weft_json *info,
                                weft_why *why)
{
  weft_err err = open_file(h, plan, weft_json_str(weft_json_get(source, "path")), why);
  if (err == WEFT_OK) {
    err = read_header(plan, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  plan->kind = WEFTI_SOURCE_FILE;
  const weft_json *names = weft_json_get(info, "names");
  const weft_json *dtypes = weft_json_get(info, "dtype_names");
  const weft_json *shapes = weft_json_get(info, "shapes");
  if (names == NULL) {
    if (dtypes != NULL || shapes != NULL) {
      return weft_whyf(why, WEFT_E_INVAL, INVALID "missing key 'names'");
    }
    return whole_file(plan, why);
  }
  if (weft_json_kind_of(names) != WEFT_JSON_ARRAY) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'names' is not a list");
  }
  return dtypes == NULL && shapes == NULL
             ? selected_names(plan, names, why)
             : checked_lists(plan, names, dtypes, shapes, why);
}
