/* weft/atomics.h -- <stdatomic.h> under the names that C and C++ share, for public
 * headers. Not for C files: these include <stdatomic.h>. */
#ifndef WEFT_ATOMICS_H
#define WEFT_ATOMICS_H

#ifdef __cplusplus
#include <atomic>
using std::atomic_bool;
using std::atomic_uint_fast64_t;
#else
#include <stdatomic.h>
#endif

#endif /* WEFT_ATOMICS_H */
