/* extent_map.h -- which parts of the slabs are free: a treap in address order that knows
 * the largest piece below each node.  No locking, no mapping; memory_host.c does that. */
#ifndef WEFT_TRANSPORT_EXTENT_MAP_H
#define WEFT_TRANSPORT_EXTENT_MAP_H

#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wefti_free_node {
  struct wefti_free_node *left, *right;
  uint64_t offset, bytes;
  uint64_t largest; /* in this subtree */
  uint32_t slab, priority;
} wefti_free_node;

typedef struct wefti_extent_map {
  wefti_free_node *root;
  wefti_free_node *spare; /* linked by left */
  size_t nodes;           /* in the tree and spare */
  size_t pieces;          /* taken and not yet returned */
  size_t slabs;
  uint32_t seed;
} wefti_extent_map;

/* Each taken piece keeps one node in reserve, so that returning it cannot fail. */
weft_err wefti_extent_add_slab(wefti_extent_map *m, uint32_t slab, uint64_t bytes)
    WEFT_MUST_USE;
void wefti_extent_remove_slab(wefti_extent_map *m, uint32_t slab); /* wholly free */
/* First fit in (slab id, offset) order.  Errors: NOTFOUND, NOMEM. */
weft_err wefti_extent_take(wefti_extent_map *m, uint64_t bytes, uint32_t *slab,
                           uint64_t *offset) WEFT_MUST_USE;
void wefti_extent_return(wefti_extent_map *m, uint32_t slab, uint64_t offset,
                         uint64_t bytes);
/* The free piece that begins at or behind (slab, offset); NULL = none. */
const wefti_free_node *wefti_extent_next(const wefti_extent_map *m, uint32_t slab,
                                         uint64_t offset);
/* Frees the nodes that no free piece can come to need before the next take. */
void wefti_extent_trim(wefti_extent_map *m);
void wefti_extent_fini(wefti_extent_map *m);

#endif /* WEFT_TRANSPORT_EXTENT_MAP_H */
