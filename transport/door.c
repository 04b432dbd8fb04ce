#include "door_kind.h"
#include "nng_util.h"
#include "weft/clock.h"

#include <stdlib.h>
#include <string.h>

/* {"invite":1,"join","fleet","boot":"decimal","rank","size"}: see handshake.h. */

struct weft_door {
  wefti_hall hall;
  weft_door_fn *on_invited;
  void *arg;
};

static bool read_invitation(const weft_json *o, void *facts)
{
  weft_invitation *i = facts;
  return wefti_read_str(o, "join", i->join_url, sizeof i->join_url) &&
         wefti_url_scheme(i->join_url) != NULL &&
         wefti_read_str(o, "fleet", i->fleet, sizeof i->fleet) && i->fleet[0] != '\0' &&
         wefti_read_u64(o, "boot", &i->boot) && i->boot != 0 &&
         wefti_read_u32(o, "rank", &i->rank) && wefti_read_u32(o, "size", &i->size) &&
         i->rank < i->size;
}

static void write_invitation(weft_json_writer *w, const void *facts)
{
  const weft_invitation *i = facts;
  weft_jw_str(w, "join", i->join_url);
  weft_jw_str(w, "fleet", i->fleet);
  wefti_write_u64(w, "boot", i->boot);
  weft_jw_u64(w, "rank", i->rank);
  weft_jw_u64(w, "size", i->size);
}

static void pack_invitation(wefti_packed *p, const void *facts)
{
  const weft_invitation *i = facts;
  wefti_pack_str(p, i->join_url);
  wefti_pack_str(p, i->fleet);
  wefti_pack_u64(p, i->boot);
  wefti_pack_u64(p, i->rank);
  wefti_pack_u64(p, i->size);
}

const wefti_handshake_kind wefti_door_kind = { .verb = "invite",
                                               .guest = "coordinator",
                                               .host = "member",
                                               .read = read_invitation,
                                               .write = write_invitation,
                                               .pack = pack_invitation };
_Static_assert(sizeof(weft_invitation) <= WEFTI_FACTS_MAX, "the facts fit");

static weft_err on_guest(void *arg, const void *facts, weft_why *why)
{
  weft_door *d = arg;
  return d->on_invited(d->arg, facts, why);
}

/* NOLINTNEXTLINE(readability-function-size): the interface has nine parameters */
weft_err weft_door_listen(weft_loop *loop, const char *url, const char *token,
                          weft_door_fn *on_invited, void *arg, char *url_out,
                          size_t url_cap, weft_door **out, weft_why *why)
{
  weft_door *d = calloc(1, sizeof *d);
  if (d == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url);
  }
  d->on_invited = on_invited;
  d->arg = arg;
  wefti_hall_opts opts = { .loop = loop,
                           .url = url,
                           .token = token,
                           .url_cap = url_cap,
                           .on_guest = on_guest,
                           .arg = d };
  opts.url_out = url_out;
  const weft_err err = wefti_hall_open(&d->hall, &wefti_door_kind, &opts, why);
  if (err != WEFT_OK) {
    weft_door_close(d);
    return err;
  }
  *out = d;
  return WEFT_OK;
}

void weft_door_close(weft_door *door)
{
  if (door != NULL) {
    wefti_hall_close(&door->hall);
    free(door);
  }
}

weft_err weft_door_invite(const char *url, const char *token,
                          const weft_invitation *invitation, uint64_t timeout_ms,
                          weft_why *why)
{
  if (memchr(invitation->join_url, '\0', sizeof invitation->join_url) == NULL ||
      memchr(invitation->fleet, '\0', sizeof invitation->fleet) == NULL) {
    return weft_whyf(why, WEFT_E_INVAL, "invite: a text of the invitation has no end");
  }
  return wefti_guest_call(&wefti_door_kind, url, token, invitation,
                          weft_clock_ms() + timeout_ms, why);
}
