#include "conn.h"

#include <string.h>

/* Adds method to "A, B". */
static void allow_add(char *allow, size_t cap, const char *method)
{
  const size_t have = strlen(allow);
  const size_t more = strlen(method);
  if (more + 3 > cap - have) {
    return;
  }
  memcpy(allow + have, ", ", 3);
  memcpy(allow + (have == 0 ? 0 : have + 2), method, more + 1);
}

static bool may(const weft_http *server, const wefti_head *head)
{
  const int at = wefti_head_find(head, "authorization");
  return at >= 0 && wefti_auth_ok(server->auth, head->data + head->fields[at].value,
                                  head->fields[at].value_len);
}

/* Fills out from the routes of path. */
static void match(const weft_http *server, const wefti_head *head, const char *path,
                  wefti_outcome *out)
{
  const bool is_head = strcmp(head->method, "HEAD") == 0;
  const weft_http_route *as_get = NULL;
  for (size_t i = 0; i < server->opts.route_count; i++) {
    const weft_http_route *r = &server->opts.routes[i];
    if (strcmp(r->path, path) != 0 ||
        ((r->flags & WEFT_HTTP_DEV) != 0 && !server->opts.dev)) {
      continue;
    }
    if (strcmp(r->method, head->method) == 0) {
      out->route = r;
      return;
    }
    allow_add(out->allow, sizeof out->allow, r->method);
    if (strcmp(r->method, "GET") == 0) {
      allow_add(out->allow, sizeof out->allow, "HEAD");
      as_get = is_head ? r : as_get;
    }
  }
  out->route = as_get;
  out->status = out->allow[0] == '\0' ? 404 : 405;
}

void wefti_route_find(const weft_http *server, const wefti_head *head, wefti_outcome *out)
{
  out->route = NULL;
  out->status = 404;
  out->allow[0] = '\0';
  char path[1024] = "/"; /* no route is longer */
  size_t len = 1;
  if (head->path_len > 0) { /* "http://host" means "/" */
    const weft_err err = wefti_percent_decode(head->data + head->path, head->path_len,
                                              false, path, sizeof path - 1, &len);
    if (err == WEFT_E_PROTO) {
      out->status = 400;
    }
    if (err != WEFT_OK) {
      return;
    }
  }
  path[len] = '\0';
  match(server, head, path, out);
  if (out->route != NULL && server->auth != NULL &&
      (out->route->flags & WEFT_HTTP_OPEN) == 0 && !may(server, head)) {
    out->route = NULL;
    out->status = 401;
  }
}
