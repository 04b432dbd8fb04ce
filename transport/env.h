/* env.h -- the environment without getenv's promise problems.  Nothing is ever set. */
#ifndef WEFT_TRANSPORT_ENV_H
#define WEFT_TRANSPORT_ENV_H

/* Value of name in this process's environment, or NULL.  Borrowed from it: only while
 * nobody changes the environment. */
const char *wefti_env_get(const char *name);

#endif /* WEFT_TRANSPORT_ENV_H */
