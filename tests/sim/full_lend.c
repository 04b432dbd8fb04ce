/* Joined workers lend each other what they hold: what another process holds is copied
 * when it is lent, and comes late, wrong, damaged, or not at all when that one is gone.
 */
#include "full.h"
#include "lend.h"
#include "weft/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool lends(const full_process *p)
{
  return p->lends && weft_sim_now_ms(p->w->sim) < p->lends_until_ms;
}

static weft_err lend(void *arg, const weft_snapshot *snapshot, const char *towards,
                     weft_buf **info, weft_why *why)
{
  full_process *p = arg;
  char text[64];
  (void)towards;
  (void)why;
  (void)snprintf(text, sizeof text, "{\"process\":%" PRIu32 ",\"secret\":%" PRIu64 "}",
                 p->index, p->secret + 1);
  *info = weft_buf_create(text, strlen(text));
  if (*info == NULL) {
    return WEFT_E_NOMEM;
  }
  full_kept_of(snapshot, &p->offer);
  p->lends = true;
  p->lends_until_ms = weft_sim_now_ms(p->w->sim) + LEND_QUIET_MS;
  p->secret++;
  weft_store_unpin(p->device->store, snapshot);
  return WEFT_OK;
}

static void stop(void *arg)
{
  ((full_process *)arg)->lends = false;
}

static weft_err take(void *arg, const weft_buf *info, uint32_t timeout_ms,
                     wefti_entry **entries, size_t *count, weft_why *why)
{
  full_process *p = arg;
  full *w = p->w;
  full_trouble *t = &w->trouble[p->rank];
  uint32_t index = 0;
  uint64_t secret = 0;
  char text[64];
  (void)timeout_ms;
  (void)snprintf(text, sizeof text, "%.*s", (int)info->len, (const char *)info->data);
  if (sscanf(text, "{\"process\":%" SCNu32 ",\"secret\":%" SCNu64 "}", &index, &secret) !=
      2) {
    return weft_whyf(why, WEFT_E_PROTO, "not a loan: %s", text);
  }
  full_process *from = &w->processes[index];
  if (atomic_load(&p->device->cancel) && !t->ignores_cancel) {
    return weft_whyf(why, WEFT_E_CANCELLED, "cancelled");
  }
  if (!from->alive || !lends(from) || from->secret != secret) {
    return weft_whyf(why, WEFT_E_DOWN, "the lender is gone");
  }
  from->lends = false;
  const full_kept *k = &from->offer;
  if (t->offer_wrong) {
    const full_kept *other = full_kept_find(w, from->rank, k->digest, true);
    k = other != NULL ? other : k;
    t->offer_wrong = false;
  }
  full_kept got = *k;
  if (t->offer_damaged) { /* digests are of the bytes as they came */
    const unsigned i = (unsigned)full_random(w, FULL_CELLS);
    t->offer_damaged = false;
    got.content[i] ^= 1 << 20;
    weft_digest_store(weft_digest_of(&got.content[i], sizeof got.content[i]),
                      got.tensor_digest[i]);
  }
  full_kept_entries(p, &got, entries, count);
  return WEFT_OK;
}

void full_lender_make(full_process *p)
{
  p->lender = (wefti_lender){ .lend = lend, .stop = stop, .take = take, .arg = p };
  p->device->lender = !p->child && p->w->opts.keeps ? &p->lender : NULL;
}
