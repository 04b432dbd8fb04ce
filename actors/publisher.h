/* publisher.h -- private to actors/.  Sends engine events to watchers, keeps the last
 * ones for replay and answers resync requests.  Sockets come through the operation table.
 */
#ifndef WEFT_ACTORS_PUBLISHER_H
#define WEFT_ACTORS_PUBLISHER_H

#include "weft/actor.h"
#include "weft/messages.h"

typedef struct wefti_publish_ops {
  /* nng pub and event streams; borrowed for the call. */
  void (*publish)(void *arg, const char *topic, uint64_t sequence, const weft_buf *json);
  void *arg;
} wefti_publish_ops;

typedef struct wefti_publisher_args {
  uint32_t keep; /* numbered events, 0 = 1,024 */
  wefti_publish_ops ops;
} wefti_publisher_args;

extern const weft_actor_class wefti_publisher_class; /* args: wefti_publisher_args */

#endif /* WEFT_ACTORS_PUBLISHER_H */
