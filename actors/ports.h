/* ports.h -- private to actors/.  What may come in at each kind of port of the product.
 * Not here: listening (weft/link.h), who may join (weft/join.h). */
#ifndef WEFT_ACTORS_PORTS_H
#define WEFT_ACTORS_PORTS_H

#include "weft/link.h"

/* An engine's control socket: what clients say to engines. */
weft_port_opts wefti_control_port(const char *url, weft_actor_id to);
/* Of a worker, and of an engine of a fleet towards its coordinator: what engines say to
 * workers. */
weft_port_opts wefti_worker_port(const char *url, weft_actor_id to);

#endif /* WEFT_ACTORS_PORTS_H */
