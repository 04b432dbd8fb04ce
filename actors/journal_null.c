#include "journal.h"
#include "weft/messages.h"

static weft_err journal_null_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)self;
  if (msg->type == WEFT_MSG_JOURNAL_APPEND) {
    const weft_journal_done done = { .h = { .type = WEFT_MSG_JOURNAL_DONE },
                                     .err = WEFT_OK };
    /* Without memory for the answer the engine hears that it was lost. */
    (void)weft_reply(ctx, weft_return_of(msg), weft_msg_make(ctx, &done.h));
    return WEFT_OK;
  }
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  }
  return WEFT_E_STATE;
}

const weft_actor_class wefti_journal_null_class = {
  .name = "journal",
  .on = journal_null_on,
};
