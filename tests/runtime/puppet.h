/* puppet.h -- an actor whose behaviour is a function of the test.  Not an actor of ours.
 */
#ifndef WEFT_TESTS_PUPPET_H
#define WEFT_TESTS_PUPPET_H

#include "weft/actor.h"

typedef weft_err puppet_fn(weft_ctx *ctx, void *arg, const weft_msg *msg);

typedef struct puppet_args {
  puppet_fn *on;
  void *arg;
  void (*fini)(weft_ctx *ctx, void *arg);     /* may be NULL */
  weft_err (*init)(weft_ctx *ctx, void *arg); /* may be NULL */
} puppet_args;

static inline weft_err puppet_init(weft_ctx *ctx, void *self, const void *args)
{
  puppet_args *p = self;
  *p = *(const puppet_args *)args;
  return p->init == NULL ? WEFT_OK : p->init(ctx, p->arg);
}

static inline void puppet_fini(weft_ctx *ctx, void *self)
{
  const puppet_args *p = self;
  if (p->fini != NULL) {
    p->fini(ctx, p->arg);
  }
}

static inline weft_err puppet_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  const puppet_args *p = self;
  return p->on(ctx, p->arg, msg);
}

static const weft_actor_class puppet_class = { .name = "puppet",
                                               .state_size = sizeof(puppet_args),
                                               .init = puppet_init,
                                               .fini = puppet_fini,
                                               .on = puppet_on };

#endif /* WEFT_TESTS_PUPPET_H */
