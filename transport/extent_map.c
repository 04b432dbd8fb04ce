#include "extent_map.h"

#include "weft/base.h"

#include <stdlib.h>

typedef wefti_free_node node;

static bool before(const node *n, uint32_t slab, uint64_t offset)
{
  return n->slab < slab || (n->slab == slab && n->offset < offset);
}

static void update(node *n)
{
  n->largest = n->bytes;
  if (n->left != NULL && n->left->largest > n->largest) {
    n->largest = n->left->largest;
  }
  if (n->right != NULL && n->right->largest > n->largest) {
    n->largest = n->right->largest;
  }
}

/* *a gets what lies before (slab, offset), *b the rest. */
static void split(node *n, uint32_t slab, uint64_t offset, node **a, node **b)
{
  if (n == NULL) {
    *a = NULL;
    *b = NULL;
  } else if (before(n, slab, offset)) {
    split(n->right, slab, offset, &n->right, b);
    *a = n;
    update(n);
  } else {
    split(n->left, slab, offset, a, &n->left);
    *b = n;
    update(n);
  }
}

/* All of a lies before all of b. */
static node *merge(node *a, node *b)
{
  if (a == NULL || b == NULL) {
    return a == NULL ? b : a;
  }
  if (a->priority > b->priority) {
    a->right = merge(a->right, b);
    update(a);
    return a;
  }
  b->left = merge(a, b->left);
  update(b);
  return b;
}

static weft_err keep_spares(wefti_extent_map *m)
{
  /* Free pieces are separated by taken ones or by slabs. */
  while (m->nodes < m->pieces + m->slabs) {
    node *n = malloc(sizeof *n);
    if (n == NULL) {
      return WEFT_E_NOMEM;
    }
    n->left = m->spare;
    m->spare = n;
    m->nodes++;
  }
  return WEFT_OK;
}

static void insert(wefti_extent_map *m, uint32_t slab, uint64_t offset, uint64_t bytes)
{
  node *n = m->spare;
  m->spare = n->left;
  m->seed = m->seed * 1664525u + 1013904223u;
  *n = (node){ .offset = offset,
               .bytes = bytes,
               .largest = bytes,
               .slab = slab,
               .priority = m->seed ^ m->seed >> 16 };
  node *a;
  node *b;
  split(m->root, slab, offset, &a, &b);
  m->root = merge(merge(a, n), b);
}

/* Takes the node that begins exactly there out of the tree. */
static void erase(wefti_extent_map *m, uint32_t slab, uint64_t offset)
{
  node *a;
  node *b;
  node *c;
  split(m->root, slab, offset, &a, &b);
  split(b, slab, offset + 1, &b, &c);
  m->root = merge(a, c);
  if (b != NULL) { /* always */
    b->left = m->spare;
    m->spare = b;
  }
}

/* Changes a node's piece where it is, which keeps its place in the order; what lies above
 * it learns of it. */
static void resize(node *n, const node *which, uint64_t offset, uint64_t bytes)
{
  WEFT_ASSERT(n != NULL); /* which is in the tree */
  if (n == which) {
    n->offset = offset;
    n->bytes = bytes;
  } else {
    resize(before(n, which->slab, which->offset) ? n->right : n->left, which, offset,
           bytes);
  }
  update(n);
}

weft_err wefti_extent_add_slab(wefti_extent_map *m, uint32_t slab, uint64_t bytes)
{
  m->slabs++;
  if (keep_spares(m) != WEFT_OK) {
    m->slabs--;
    return WEFT_E_NOMEM;
  }
  insert(m, slab, 0, bytes);
  return WEFT_OK;
}

void wefti_extent_remove_slab(wefti_extent_map *m, uint32_t slab)
{
  erase(m, slab, 0);
  m->slabs--;
}

weft_err wefti_extent_take(wefti_extent_map *m, uint64_t bytes, uint32_t *slab,
                           uint64_t *offset)
{
  node *n = m->root;
  if (n == NULL || n->largest < bytes) {
    return WEFT_E_NOTFOUND;
  }
  m->pieces++;
  if (keep_spares(m) != WEFT_OK) {
    m->pieces--;
    return WEFT_E_NOMEM;
  }
  for (;;) {
    if (n->left != NULL && n->left->largest >= bytes) {
      n = n->left;
    } else if (n->bytes >= bytes) {
      break;
    } else {
      n = n->right;
    }
  }
  *slab = n->slab;
  *offset = n->offset;
  if (n->bytes > bytes) {
    resize(m->root, n, n->offset + bytes, n->bytes - bytes);
  } else {
    erase(m, n->slab, n->offset);
  }
  return WEFT_OK;
}

void wefti_extent_return(wefti_extent_map *m, uint32_t slab, uint64_t offset,
                         uint64_t bytes)
{
  const node *ahead = NULL;
  const node *behind = NULL;
  for (const node *n = m->root; n != NULL;) {
    if (before(n, slab, offset)) {
      ahead = n;
      n = n->right;
    } else {
      behind = n;
      n = n->left;
    }
  }
  const bool joins_ahead =
      ahead != NULL && ahead->slab == slab && ahead->offset + ahead->bytes == offset;
  const bool joins_behind =
      behind != NULL && behind->slab == slab && behind->offset == offset + bytes;
  if (joins_ahead) {
    if (joins_behind) {
      bytes += behind->bytes;
      erase(m, slab, behind->offset);
    }
    resize(m->root, ahead, ahead->offset, ahead->bytes + bytes);
  } else if (joins_behind) {
    resize(m->root, behind, offset, behind->bytes + bytes);
  } else {
    insert(m, slab, offset, bytes);
  }
  m->pieces--;
}

const wefti_free_node *wefti_extent_next(const wefti_extent_map *m, uint32_t slab,
                                         uint64_t offset)
{
  const node *found = NULL;
  for (const node *n = m->root; n != NULL;) {
    if (before(n, slab, offset)) {
      n = n->right;
    } else {
      found = n;
      n = n->left;
    }
  }
  return found;
}

static void free_tree(node *n)
{
  if (n != NULL) {
    free_tree(n->left);
    free_tree(n->right);
    free(n);
  }
}

void wefti_extent_trim(wefti_extent_map *m)
{
  while (m->nodes > m->pieces + m->slabs && m->spare != NULL) {
    node *n = m->spare;
    m->spare = n->left;
    free(n);
    m->nodes--;
  }
}

void wefti_extent_fini(wefti_extent_map *m)
{
  free_tree(m->root);
  while (m->spare != NULL) {
    node *n = m->spare;
    m->spare = n->left;
    free(n);
  }
}
