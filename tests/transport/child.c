/* child.c -- the other process of test_process.c and test_link_process.c.  Not a test.
 *   child lifeline            answers on the lifeline until it closes, then exits with 7
 *   child exit N              exits with N
 *   child hang                ignores everything
 *   child port URL LINK_URL   an echo behind a port, with a link of its own to LINK_URL
 */
#define _GNU_SOURCE
#include "link_world.h"
#include "weft/process.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

typedef struct child {
  weft_runtime *rt;
  weft_lifeline *line;
  bool closed;
} child;

/* Descriptors above stderr that are open in this process, without opendir's own. */
static int extra_fds(void)
{
  int n = 0;
  DIR *d = opendir("/proc/self/fd");
  for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
    const int fd = atoi(e->d_name);
    n += e->d_name[0] != '.' && fd > 2 && fd != dirfd(d);
  }
  if (d != NULL) {
    (void)closedir(d);
  }
  return n;
}

static void on_closed(void *arg)
{
  child *c = arg;
  c->closed = true;
  weft_lifeline_destroy(c->line); /* allowed inside */
  c->line = NULL;
  weft_runtime_stop(c->rt, 500);
}

/* "echo...": the same back, with the descriptors; "fds?": how many were inherited. */
static void on_message(void *arg, const void *data, size_t len, int *fds, size_t nfds)
{
  child *c = arg;
  char text[64];
  if (len == 4 && memcmp(data, "die!", 4) == 0) {
    (void)kill(getpid(), SIGKILL);
  }
  if (len == 4 && memcmp(data, "mask", 4) == 0) {
    sigset_t now;
    struct sigaction sa;
    (void)sigprocmask(SIG_BLOCK, NULL, &now);
    (void)sigaction(SIGUSR1, NULL, &sa);
    const int n = snprintf(text, sizeof text, "%d %d", sigismember(&now, SIGUSR2),
                           sa.sa_handler == SIG_DFL);
    (void)!weft_lifeline_send(c->line, text, (size_t)n, NULL, 0);
  } else {
    (void)!weft_lifeline_send(c->line, data, len, fds, nfds);
  }
  for (size_t i = 0; i < nfds; i++) {
    (void)close(fds[i]);
  }
}

static int run_lifeline(int inherited)
{
  child c = { 0 };
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  if (weft_runtime_create(&o, &c.rt) != WEFT_OK ||
      weft_lifeline_open(weft_runtime_loop(c.rt, 0), -1, on_message, on_closed, &c,
                         &c.line) != WEFT_OK) {
    return 3;
  }
  char text[32];
  const int n = snprintf(text, sizeof text, "up %d", inherited);
  if (weft_lifeline_send(c.line, text, (size_t)n, NULL, 0) != WEFT_OK) {
    return 4;
  }
  (void)puts("on stdout"); /* goes to stderr */
  weft_runtime_run(c.rt);
  weft_lifeline_destroy(c.line);
  weft_runtime_destroy(c.rt);
  return c.closed ? 7 : 5;
}

static int run_port(const char *url, const char *link_url)
{
  child c = { 0 };
  char bound[256];
  weft_actor_id echo_id;
  weft_actor_id port;
  weft_why why = { 0 };
  const weft_runtime_opts o = { .size = sizeof o,
                                .loops = 1,
                                .catalogue = &world_catalogue };
  const echo_args args = { .link_url = link_url };
  if (weft_runtime_create(&o, &c.rt) != WEFT_OK ||
      weft_lifeline_open(weft_runtime_loop(c.rt, 0), -1, on_message, on_closed, &c,
                         &c.line) != WEFT_OK ||
      weft_runtime_spawn(c.rt, 0, &echo_class, &args, NULL, &echo_id) != WEFT_OK) {
    return 3;
  }
  const weft_port_opts po = { .size = sizeof po,
                              .url = url,
                              .to = echo_id,
                              .roles = 1u << ROLE_SERVER,
                              .from_roles = 1u << ROLE_CLIENT };
  if (weft_port_spawn_on(c.rt, 0, &po, bound, sizeof bound, &port, &why) != WEFT_OK) {
    (void)fprintf(stderr, "%s\n", why.text);
    return 4;
  }
  if (weft_lifeline_send(c.line, bound, strlen(bound), NULL, 0) != WEFT_OK) {
    return 6;
  }
  weft_runtime_run(c.rt);
  weft_lifeline_destroy(c.line);
  weft_runtime_destroy(c.rt);
  return 7;
}

int main(int argc, char **argv)
{
  const int inherited = extra_fds();
  const char *what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "lifeline") == 0) {
    return run_lifeline(inherited);
  }
  if (strcmp(what, "exit") == 0 && argc > 2) {
    return atoi(argv[2]);
  }
  if (strcmp(what, "hang") == 0) {
    for (;;) {
      (void)pause();
    }
  }
  if (strcmp(what, "port") == 0 && argc > 3) {
    return run_port(argv[2], argv[3]);
  }
  return 2;
}
