#include "cli.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  BODY_MAX = 256 * 1024 * 1024, /* bytes of one answer: checksums of very many tensors */
  TOKEN_MAX = 4096,
  CONNECT_S = 5,
  TICK_MS = 100
};

/* One easy handle with everything that must live as long as its transfer. */
typedef struct transfer {
  CURL *easy;
  struct curl_slist *headers;
  char why[CURL_ERROR_SIZE];
  cli_reply reply;
  bool too_big, no_memory;
} transfer;

struct cli_http {
  CURLM *multi;
  char *base;     /* scheme://[user:password@]host[:port], no '/' at the end */
  char *shown;    /* the same without credentials */
  char *socket;   /* path of a unix socket, or NULL */
  char *token;    /* or NULL */
  bool local;     /* no proxy for this host */
  transfer *call; /* under way, or NULL */
  transfer *ask;  /* the one beside it, or NULL */
  bool ask_done;
};

static size_t on_body(char *data, size_t size, size_t count, void *arg)
{
  transfer *const t = arg;
  const size_t n = size * count; /* libcurl: size is always 1 */
  if (n > BODY_MAX - t->reply.len) {
    t->too_big = true;
    return 0;
  }
  char *const grown = realloc(t->reply.body, t->reply.len + n + 1);
  if (grown == NULL) {
    t->no_memory = true;
    return 0;
  }
  memcpy(grown + t->reply.len, data, n);
  t->reply.body = grown;
  t->reply.len += n;
  grown[t->reply.len] = '\0';
  return n;
}

static size_t on_header(char *data, size_t size, size_t count, void *arg)
{
  static const char name[] = "weft-session:";
  transfer *const t = arg;
  const size_t n = size * count;
  if (n > sizeof name - 1 && curl_strnequal(data, name, sizeof name - 1)) {
    size_t at = sizeof name - 1;
    size_t end = n;
    while (at < end && (data[at] == ' ' || data[at] == '\t')) {
      at++;
    }
    while (end > at && (data[end - 1] == '\r' || data[end - 1] == '\n')) {
      end--;
    }
    if (end - at < sizeof t->reply.session) {
      memcpy(t->reply.session, data + at, end - at);
      t->reply.session[end - at] = '\0';
    }
  }
  return n;
}

static void transfer_free(cli_http *http, transfer *t)
{
  if (t == NULL) {
    return;
  }
  if (t->easy != NULL) {
    curl_multi_remove_handle(http->multi, t->easy);
    curl_easy_cleanup(t->easy);
  }
  curl_slist_free_all(t->headers);
  free(t->reply.body);
  free(t);
}

static bool add_header(transfer *t, const char *line)
{
  struct curl_slist *const more = curl_slist_append(t->headers, line);
  if (more == NULL) {
    return false;
  }
  t->headers = more;
  return true;
}

static bool add_body(transfer *t, const cli_call *call)
{
  char line[128];
  bool ok = true;
  if (strcmp(call->method, "POST") == 0) {
    const char *const body = call->body != NULL ? call->body : "";
    curl_easy_setopt(t->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    ok = curl_easy_setopt(t->easy, CURLOPT_COPYPOSTFIELDS, body) == CURLE_OK;
    ok = ok && add_header(t, call->body != NULL ? "Content-Type: application/json"
                                                : "Content-Type:");
    ok = ok && add_header(t, "Expect:"); /* the bodies are small */
  }
  if (ok && call->session != NULL && call->session[0] != '\0') {
    snprintf(line, sizeof line, "Weft-Session: %s", call->session);
    ok = add_header(t, line);
  }
  return ok;
}

static transfer *transfer_start(cli_http *http, const cli_call *call)
{
  transfer *const t = calloc(1, sizeof *t);
  char *const url = malloc(strlen(http->base) + strlen(call->path) + 1);
  if (t == NULL || url == NULL) {
    goto fail;
  }
  t->easy = curl_easy_init();
  if (t->easy == NULL) {
    goto fail;
  }
  strcpy(stpcpy(url, http->base), call->path); /* NOLINT: sized above */
  const unsigned timeout_s = call->timeout_s != 0 ? call->timeout_s : 300;
  if (curl_easy_setopt(t->easy, CURLOPT_URL, url) != CURLE_OK || !add_body(t, call)) {
    goto fail;
  }
  if (http->socket != NULL) {
    curl_easy_setopt(t->easy, CURLOPT_UNIX_SOCKET_PATH, http->socket);
  }
  if (http->local) {
    curl_easy_setopt(t->easy, CURLOPT_NOPROXY, "*");
  }
  if (http->token != NULL) {
    curl_easy_setopt(t->easy, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
    curl_easy_setopt(t->easy, CURLOPT_XOAUTH2_BEARER, http->token);
  } else {
    curl_easy_setopt(t->easy, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
  }
  curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
  curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
  curl_easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
  curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
  curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->why);
  curl_easy_setopt(t->easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(t->easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
  curl_easy_setopt(t->easy, CURLOPT_TIMEOUT, (long)timeout_s);
  curl_easy_setopt(t->easy, CURLOPT_USERAGENT, "weft");
  if (curl_multi_add_handle(http->multi, t->easy) != CURLM_OK) {
    goto fail;
  }
  free(url);
  return t;
fail:
  free(url);
  transfer_free(http, t);
  return NULL;
}

/* What came of it, in t->reply. */
static void transfer_settle(transfer *t, CURLcode code)
{
  if (code == CURLE_OK) {
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->reply.status);
    return;
  }
  const char *why = t->why[0] != '\0' ? t->why : curl_easy_strerror(code);
  if (t->too_big) {
    why = "the answer is larger than 256 MiB";
  } else if (t->no_memory) {
    why = "out of memory";
  }
  t->reply.status = 0;
  snprintf(t->reply.error, sizeof t->reply.error, "%s", why);
}

/* Moves what can move; waits up to TICK_MS.  Returns true when the call has ended. */
static bool pump(cli_http *http)
{
  bool ended = false;
  int running = 0;
  CURLMsg *m;
  int left;
  if (curl_multi_perform(http->multi, &running) != CURLM_OK) {
    snprintf(http->call->reply.error, sizeof http->call->reply.error, "libcurl failed");
    return true;
  }
  while ((m = curl_multi_info_read(http->multi, &left)) != NULL) {
    transfer *t = NULL;
    if (m->msg != CURLMSG_DONE) {
      continue;
    }
    const CURLcode code = m->data.result;
    curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
    transfer_settle(t, code);
    ended = ended || t == http->call;
    http->ask_done = http->ask_done || t == http->ask;
  }
  if (!ended) {
    curl_multi_poll(http->multi, NULL, 0, TICK_MS, NULL);
  }
  return ended;
}

/* Hands t's reply over; the body is never NULL. */
static void take_reply(transfer *t, cli_reply *out)
{
  *out = t->reply;
  t->reply.body = NULL;
  if (out->body == NULL) {
    out->body = calloc(1, 1);
    out->len = 0;
  }
  if (out->body == NULL) {
    out->status = 0;
    snprintf(out->error, sizeof out->error, "out of memory");
  }
}

void cli_http_do(cli_http *http, const cli_call *call, cli_reply *out)
{
  memset(out, 0, sizeof *out);
  http->call = transfer_start(http, call);
  if (http->call == NULL) {
    snprintf(out->error, sizeof out->error, "out of memory");
    return;
  }
  double next = cli_now_s();
  while (!pump(http)) {
    if (call->tick != NULL && cli_now_s() >= next) {
      next = cli_now_s() + TICK_MS / 1000.0;
      if (!call->tick(call->arg)) {
        snprintf(http->call->reply.error, sizeof http->call->reply.error, "interrupted");
        break;
      }
    }
  }
  take_reply(http->call, out);
  transfer_free(http, http->call);
  http->call = NULL;
}

void cli_reply_fini(cli_reply *reply)
{
  free(reply->body);
  reply->body = NULL;
}

void cli_http_ask(cli_http *http, const char *path)
{
  if (http->ask == NULL) {
    http->ask_done = false;
    http->ask = transfer_start(
        http, &(cli_call){ .method = "GET", .path = path, .timeout_s = CONNECT_S });
  }
}

bool cli_http_ready(cli_http *http, cli_reply *out)
{
  if (http->ask == NULL || !http->ask_done) {
    return false;
  }
  take_reply(http->ask, out);
  transfer_free(http, http->ask);
  http->ask = NULL;
  return true;
}

static char *read_token(const char *path)
{
  char text[TOKEN_MAX + 1];
  FILE *const f = fopen(path, "re");
  if (f == NULL) {
    cli_warn("--token-file %s: cannot be read (errno %d)", path, errno);
    return NULL;
  }
  size_t n = fread(text, 1, sizeof text, f);
  const bool bad = ferror(f) != 0;
  (void)fclose(f); /* only read */
  while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' ')) {
    n--;
  }
  if (bad || n == 0 || n > TOKEN_MAX || memchr(text, '\n', n) != NULL ||
      memchr(text, '\0', n) != NULL) {
    cli_warn("--token-file %s: must hold one line of 1 to %d bytes", path, TOKEN_MAX);
    return NULL;
  }
  char *const token = malloc(n + 1);
  if (token != NULL) {
    memcpy(token, text, n);
    token[n] = '\0';
  }
  return token;
}

/* Fills base, shown and local from a URL.  False: said on stderr. */
static bool parse_url(cli_http *http, const char *server)
{
  char *host = NULL;
  char *scheme = NULL;
  char *text = NULL;
  bool ok = false;
  CURLU *const url = curl_url();
  if (url == NULL ||
      curl_url_set(url, CURLUPART_URL, server, CURLU_DEFAULT_SCHEME) != CURLUE_OK ||
      curl_url_get(url, CURLUPART_HOST, &host, 0) != CURLUE_OK ||
      curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
      (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0)) {
    cli_warn("--server %s: not a URL such as http://127.0.0.1:8000 or unix:/path",
             server);
    goto out;
  }
  http->local = strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
                strcmp(host, "[::1]") == 0;
  curl_url_set(url, CURLUPART_QUERY, NULL, 0);
  curl_url_set(url, CURLUPART_FRAGMENT, NULL, 0);
  if (curl_url_get(url, CURLUPART_URL, &text, 0) == CURLUE_OK) {
    http->base = strdup(text);
    curl_free(text);
    text = NULL;
  }
  curl_url_set(url, CURLUPART_USER, NULL, 0);
  curl_url_set(url, CURLUPART_PASSWORD, NULL, 0);
  if (curl_url_get(url, CURLUPART_URL, &text, 0) == CURLUE_OK) {
    http->shown = strdup(text);
  }
  ok = http->base != NULL && http->shown != NULL;
  for (char **s = (char *[]){ http->base, http->shown, NULL }; ok && *s != NULL; s++) {
    size_t n = strlen(*s);
    while (n > 0 && (*s)[n - 1] == '/') {
      (*s)[--n] = '\0';
    }
  }
out:
  curl_free(text);
  curl_free(host);
  curl_free(scheme);
  curl_url_cleanup(url);
  return ok;
}

cli_http *cli_http_create(const cli_opts *opts)
{
  cli_http *const http = calloc(1, sizeof *http);
  bool ok = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK && http != NULL;
  if (ok && strncmp(opts->server, "unix:", 5) == 0) {
    const char *path = opts->server + 5;
    path += strncmp(path, "//", 2) == 0 ? 2 : 0; /* unix:///path too */
    http->socket = strdup(path);
    http->base = strdup("http://localhost");
    http->shown = strdup(opts->server);
    http->local = true;
    ok = http->socket != NULL && http->base != NULL && http->shown != NULL;
  } else if (ok) {
    ok = parse_url(http, opts->server);
  }
  if (ok && opts->token_file != NULL) {
    http->token = read_token(opts->token_file);
    ok = http->token != NULL;
  }
  if (ok) {
    http->multi = curl_multi_init();
    ok = http->multi != NULL;
  }
  if (!ok) {
    cli_http_destroy(http);
    return NULL;
  }
  return http;
}

void cli_http_destroy(cli_http *http)
{
  if (http == NULL) {
    return;
  }
  transfer_free(http, http->ask);
  if (http->multi != NULL) {
    curl_multi_cleanup(http->multi);
  }
  free(http->base);
  free(http->shown);
  free(http->socket);
  free(http->token);
  free(http);
  curl_global_cleanup();
}

const char *cli_http_base(const cli_http *http)
{
  return http->shown;
}
