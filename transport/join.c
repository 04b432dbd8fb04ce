#include "join_kind.h"
#include "nng_util.h"

#include <stdlib.h>

/* {"join":1,"url","rank","world_size","pid","draft","incarnation":"decimal",
 * "settings":{"frames":"decimal","tp","pp","backend","staging","tp_plan"}}: see
 * handshake.h.  settings may be lacking. */

struct weft_join_server {
  wefti_hall hall;
  weft_join_fn *on_join;
  void *arg;
};

static bool read_settings(const weft_json *o, weft_join_settings *s)
{
  return o == NULL ||
         (wefti_read_u64(o, "frames", &s->frames) && s->frames != 0 &&
          wefti_read_u32(o, "tp", &s->tp) && wefti_read_u32(o, "pp", &s->pp) &&
          wefti_read_str(o, "backend", s->backend, sizeof s->backend) &&
          wefti_read_str(o, "staging", s->staging, sizeof s->staging) &&
          wefti_read_str(o, "tp_plan", s->tp_plan, sizeof s->tp_plan));
}

static bool read_hello(const weft_json *o, void *facts)
{
  weft_join_hello *h = facts;
  return wefti_read_str(o, "url", h->url, sizeof h->url) &&
         wefti_url_scheme(h->url) != NULL && wefti_read_u32(o, "rank", &h->rank) &&
         wefti_read_u32(o, "world_size", &h->world_size) &&
         wefti_read_u32(o, "pid", &h->pid) && wefti_read_u32(o, "draft", &h->draft) &&
         wefti_read_u64(o, "incarnation", &h->incarnation) &&
         read_settings(weft_json_get(o, "settings"), &h->settings);
}

static void write_hello(weft_json_writer *w, const void *facts)
{
  const weft_join_hello *h = facts;
  weft_jw_str(w, "url", h->url);
  weft_jw_u64(w, "rank", h->rank);
  weft_jw_u64(w, "world_size", h->world_size);
  weft_jw_u64(w, "pid", h->pid);
  weft_jw_u64(w, "draft", h->draft);
  wefti_write_u64(w, "incarnation", h->incarnation);
  const weft_join_settings *s = &h->settings;
  if (s->frames != 0) {
    weft_jw_object(w, "settings");
    wefti_write_u64(w, "frames", s->frames);
    weft_jw_u64(w, "tp", s->tp);
    weft_jw_u64(w, "pp", s->pp);
    weft_jw_str(w, "backend", s->backend);
    weft_jw_str(w, "staging", s->staging);
    weft_jw_str(w, "tp_plan", s->tp_plan);
    weft_jw_end(w);
  }
}

static void pack_hello(wefti_packed *p, const void *facts)
{
  const weft_join_hello *h = facts;
  wefti_pack_str(p, h->url);
  wefti_pack_u64(p, h->rank);
  wefti_pack_u64(p, h->world_size);
  wefti_pack_u64(p, h->pid);
  wefti_pack_u64(p, h->draft);
  wefti_pack_u64(p, h->incarnation);
  const weft_join_settings *s = &h->settings;
  if (s->frames != 0) {
    wefti_pack_u64(p, s->frames);
    wefti_pack_u64(p, s->tp);
    wefti_pack_u64(p, s->pp);
    wefti_pack_str(p, s->backend);
    wefti_pack_str(p, s->staging);
    wefti_pack_str(p, s->tp_plan);
  }
}

const wefti_handshake_kind wefti_join_kind = { .verb = "join",
                                               .guest = "worker",
                                               .host = "engine",
                                               .read = read_hello,
                                               .write = write_hello,
                                               .pack = pack_hello };
_Static_assert(sizeof(weft_join_hello) <= WEFTI_FACTS_MAX, "the facts fit");

static weft_err on_guest(void *arg, const void *facts, weft_why *why)
{
  weft_join_server *s = arg;
  return s->on_join(s->arg, facts, why);
}

/* NOLINTNEXTLINE(readability-function-size): the interface has nine parameters */
weft_err weft_join_listen(weft_loop *loop, const char *url, const char *token,
                          weft_join_fn *on_join, void *arg, char *url_out, size_t url_cap,
                          weft_join_server **out, weft_why *why)
{
  weft_join_server *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url);
  }
  s->on_join = on_join;
  s->arg = arg;
  wefti_hall_opts opts = { .loop = loop,
                           .url = url,
                           .token = token,
                           .url_cap = url_cap,
                           .on_guest = on_guest,
                           .arg = s };
  opts.url_out = url_out;
  const weft_err err = wefti_hall_open(&s->hall, &wefti_join_kind, &opts, why);
  if (err != WEFT_OK) {
    weft_join_close(s);
    return err;
  }
  *out = s;
  return WEFT_OK;
}

void weft_join_close(weft_join_server *server)
{
  if (server != NULL) {
    wefti_hall_close(&server->hall);
    free(server);
  }
}
