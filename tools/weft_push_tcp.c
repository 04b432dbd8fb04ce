/* weft push --source tcp: the workers fetch a file's tensors from this process, for when
 * they cannot read the file.  Handshake: weft/transfer.h. */
#define _GNU_SOURCE /* getrandom */
#include "push.h"
#include "weft/host_sender.h"
#include "weft/safetensors.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { SECRET = 16 }; /* bytes */

typedef struct serving {
  weft_host_sender *sender;
  atomic_bool
      cancel; /* set by the main thread, read by the sender's; nothing else hangs on it */
  weft_err err; /* these two belong to the sender's thread until it is joined */
  weft_why why;
} serving;

static void *serve(void *arg)
{
  serving *const s = arg;
  s->err = weft_host_sender_run(s->sender, &s->cancel, NULL, NULL, &s->why);
  return NULL;
}

static bool make_token(char *out, size_t cap)
{
  unsigned char raw[SECRET];
  if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
    cli_warn("no random bytes for a token");
    return false;
  }
  for (size_t i = 0; i < sizeof raw; i++) {
    snprintf(out + 2 * i, cap - 2 * i, "%02x", raw[i]);
  }
  return true;
}

bool push_split_address(const char *text, char *host, size_t cap, unsigned *port)
{
  const char *const colon = strrchr(text, ':');
  char *end = NULL;
  const unsigned long n = colon != NULL ? strtoul(colon + 1, &end, 10) : 0;
  size_t len = colon != NULL ? (size_t)(colon - text) : 0;
  if (len > 2 && text[0] == '[' && text[len - 1] == ']') {
    text++;
    len -= 2;
  }
  if (colon == NULL || colon[1] < '0' || colon[1] > '9' || *end != '\0' || n > 65535 ||
      len == 0 || len >= cap) {
    cli_warn("--listen: must be HOST:PORT, port 0 for a free one");
    return false;
  }
  memcpy(host, text, len);
  host[len] = '\0';
  *port = (unsigned)n;
  return true;
}

void push_lists(weft_json_writer *w, const weft_safetensors *st, size_t first,
                size_t count)
{
  weft_jw_array(w, "names");
  for (size_t i = first; i < first + count; i++) {
    weft_jw_str(w, NULL, st->tensors[i].name);
  }
  weft_jw_end(w);
  weft_jw_array(w, "dtype_names");
  for (size_t i = first; i < first + count; i++) {
    weft_jw_str(w, NULL, weft_dtype_name(st->tensors[i].dtype));
  }
  weft_jw_end(w);
  weft_jw_array(w, "shapes");
  for (size_t i = first; i < first + count; i++) {
    weft_jw_array(w, NULL);
    for (unsigned d = 0; d < st->tensors[i].ndim; d++) {
      weft_jw_i64(w, NULL, st->tensors[i].shape[d]);
    }
    weft_jw_end(w);
  }
  weft_jw_end(w);
}

/* {"update_info":{"source":{…},"names":[…],"dtype_names":[…],"shapes":[…]}} */
static char *update_body(const weft_safetensors *st, const char *address,
                         const char *token)
{
  weft_json_writer w;
  char *body = NULL;
  size_t len = 0;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_object(&w, "update_info");
  weft_jw_object(&w, "source");
  weft_jw_str(&w, "kind", "tcp");
  weft_jw_str(&w, "address", address);
  weft_jw_str(&w, "token", token);
  weft_jw_end(&w);
  push_lists(&w, st, 0, st->count);
  weft_jw_end(&w);
  weft_jw_end(&w);
  return weft_jw_take(&w, &body, &len) == WEFT_OK ? body : NULL;
}

/* How many workers will come, *ranks of each replica; 0: said on stderr, *code set. */
static unsigned count_workers(push *p, unsigned *ranks, int *code)
{
  cli_reply reply;
  weft_json *status = NULL;
  unsigned n = 0;
  *code = cli_get_json(p->opts, p->http, "/weight_status", &reply, &status);
  if (*code == CLI_DONE) {
    const size_t replicas = weft_json_count(weft_json_get(status, "replicas"));
    n = (unsigned)weft_json_count(weft_json_get(status, "workers"));
    if (replicas > 0) {
      *ranks = (unsigned)(cli_u64(status, "tp") * cli_u64(status, "pp"));
      n = *ranks * (unsigned)replicas;
    }
    if (n == 0) {
      cli_warn("%s has no workers", cli_http_base(p->http));
      *code = CLI_REFUSED;
    }
    weft_json_free(status);
    cli_reply_fini(&reply);
  }
  return n;
}

static int push_served(push *p, const char *path, serving *s, const char *body)
{
  pthread_t thread;
  if (pthread_create(&thread, NULL, serve, s) != 0) {
    cli_warn("%s: cannot start a thread", path);
    return CLI_REFUSED;
  }
  const int code = push_post(p, "/update_weights", body);
  if (code != CLI_DONE) {
    atomic_store_explicit(&s->cancel, true, memory_order_relaxed);
  }
  pthread_join(thread, NULL);
  if (s->err != WEFT_OK && s->err != WEFT_E_CANCELLED) {
    cli_warn("%s: %s", path, s->why.text);
    return code != CLI_DONE ? code : CLI_REFUSED;
  }
  return code;
}

static int push_open_file(push *p, const char *path, int fd, const weft_safetensors *st)
{
  char host[256] = "127.0.0.1";
  char token[2 * SECRET + 1];
  weft_host_sender_opts opts = { .size = sizeof opts, .host = host, .token = token };
  serving s = { .sender = NULL };
  int code = CLI_USAGE;
  if (p->opts->listen != NULL &&
      !push_split_address(p->opts->listen, host, sizeof host, &opts.port)) {
    return CLI_USAGE;
  }
  opts.workers = count_workers(p, &opts.ranks, &code);
  if (opts.workers == 0 || !make_token(token, sizeof token)) {
    return code != CLI_DONE ? code : CLI_REFUSED;
  }
  if (weft_host_sender_create(&opts, fd, st, &s.sender, &s.why) != WEFT_OK) {
    cli_warn("--source tcp: %s", s.why.text);
    return CLI_USAGE;
  }
  char *const body = update_body(st, weft_host_sender_address(s.sender), token);
  if (body != NULL) {
    code = push_served(p, path, &s, body);
  } else {
    cli_warn("%s: out of memory", path);
    code = CLI_REFUSED;
  }
  free(body);
  weft_host_sender_destroy(s.sender);
  return code;
}

int push_update_tcp(push *p, const char *path)
{
  weft_safetensors *st = NULL;
  weft_why why = { .err = WEFT_OK };
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    cli_warn("%s: cannot be read", path);
    return CLI_USAGE;
  }
  int code = CLI_USAGE;
  if (weft_safetensors_read(fd, path, &st, &why) != WEFT_OK) {
    cli_warn("%s", why.text);
  } else {
    code = push_open_file(p, path, fd, st);
  }
  weft_safetensors_free(st);
  close(fd);
  return code;
}
