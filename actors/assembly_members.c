#define _GNU_SOURCE
#include "assembly_members.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* Children: started, heard over their lifelines, and gone.  All on loop 0. */

enum { ARGS_MAX = 40, NUMBERS_MAX = 8, NUMBER_LEN = 24, OWED_MS = 50 };

/* argv of a worker; numbers are kept beside it. */
typedef struct arg_list {
  const char *argv[ARGS_MAX];
  size_t count;
  char numbers[NUMBERS_MAX][NUMBER_LEN];
  size_t used;
} arg_list;

static void add_text(arg_list *list, const char *name, const char *value)
{
  if (value && list->count + 3 <= ARGS_MAX) {
    list->argv[list->count++] = name;
    list->argv[list->count++] = value;
  }
}

static void add_number(arg_list *list, const char *name, uint64_t value)
{
  if (list->used < NUMBERS_MAX) {
    char *text = list->numbers[list->used++];
    (void)snprintf(text, NUMBER_LEN, "%" PRIu64, value);
    add_text(list, name, text);
  }
}

static const char *level_name(weft_log_level level)
{
  static const char *const names[] = { "debug", "info", "warn", "error" };
  return (size_t)level < 4 ? names[level] : "info";
}

static void fill_args(arg_list *list, const wefti_members *m, const wefti_child *child)
{
  *list = (arg_list){ .count = 0 };
  list->argv[list->count++] = m->program;
  list->argv[list->count++] = "worker";
  add_number(list, "--rank", child->rank);
  add_number(list, "--world-size", m->world_size);
  add_number(list, "--incarnation", child->incarnation);
  add_text(list, "--listen", child->url);
  add_text(list, "--backend", m->backend);
  add_text(list, "--weights-root", m->weights_root);
  add_text(list, "--tcp-allow", m->tcp_allow);
  add_number(list, "--tp", m->tp);
  add_number(list, "--pp", m->pp);
  add_number(list, "--copy-threads", m->copy_threads);
  add_text(list, "--cudart", m->cudart);
  add_text(list, "--nccl", m->nccl);
  add_text(list, "--tp-plan", m->tp_plan);
  add_text(list, "--manifest", m->manifest);
  add_text(list, "--draft-manifest", m->draft_manifest);
  if (m->draft) {
    list->argv[list->count++] = "--draft";
  }
  add_text(list, "--staging", m->inplace ? "inplace" : NULL);
  if (m->allow_ipc_pickle) {
    list->argv[list->count++] = "--allow-ipc-pickle";
  }
  if (m->fleet && !m->replicas) {
    list->argv[list->count++] = "--need-grant"; /* theirs ends with ours */
  }
  add_text(list, "--log-level", level_name(m->log_level));
  list->argv[list->count] = NULL;
}

static weft_err post_ready(const wefti_child *child)
{
  const weft_proc_ready ready = {
    .h = { .type = WEFT_MSG_PROC_READY, .flags = WEFT_MSG_F_RESERVED },
    .rank = child->rank,
    .world_size = child->members->world_size,
    .incarnation = child->incarnation,
    .kind = WEFT_MEMBER_CHILD,
    .pid = (uint32_t)weft_process_pid(child->process),
    .url = wefti_str(child->url), /* where we told it to listen */
  };
  return wefti_post(child->members->rt, child->members->supervisor, &ready.h);
}

static weft_err post_exit(const wefti_child *child)
{
  const weft_proc_exit gone = {
    .h = { .type = WEFT_MSG_PROC_EXIT, .flags = WEFT_MSG_F_RESERVED },
    .rank = child->rank,
    .incarnation = child->incarnation,
    .why = wefti_str(child->why),
  };
  return wefti_post(child->members->rt, child->members->supervisor, &gone.h);
}

static bool told(weft_err err)
{
  return err != WEFT_E_FULL && err != WEFT_E_NOMEM; /* nobody is left, else */
}

static void free_child(wefti_child *child)
{
  weft_process_destroy(child->process);
  free(child);
}

static void reap_child(void *arg)
{
  wefti_child *child = arg;
  for (wefti_child **at = &child->members->children; *at; at = &(*at)->next) {
    if (*at == child) {
      *at = child->next;
      break;
    }
  }
  free_child(child);
}

/* Without its exit a rank would wait for ever for the next life, so this does not give
 * up.  false: something is still owed. */
static bool pay(wefti_child *child)
{
  if (child->ready_owed && (child->gone || told(post_ready(child)))) {
    child->ready_owed = false;
  }
  if (!child->ready_owed && child->exit_owed && told(post_exit(child))) {
    child->exit_owed = false;
  }
  return !child->ready_owed && !child->exit_owed;
}

static void pay_all(void *arg)
{
  wefti_members *m = arg;
  bool all = true;
  for (wefti_child *child = m->children, *next; child; child = next) {
    next = child->next;
    const bool had_exit = child->exit_owed;
    all = pay(child) && all;
    if (had_exit && !child->exit_owed) {
      reap_child(child);
    }
  }
  if (!all) {
    weft_alarm_start(m->owing, OWED_MS);
  }
}

/* Why its start failed, in its words. */
static bool take_last_word(wefti_child *child, const void *data, size_t len)
{
  const size_t head = sizeof WEFT_LAST_WORD - 1;
  if (len < head || memcmp(data, WEFT_LAST_WORD, head) != 0) {
    return false;
  }
  (void)snprintf(child->word, sizeof child->word, "%.*s", (int)(len - head),
                 (const char *)data + head);
  for (char *c = child->word; *c != '\0'; c++) {
    if ((unsigned char)*c < 0x20) {
      *c = ' ';
    }
  }
  return true;
}

static void on_message(void *arg, const void *data, size_t len, int *fds, size_t nfds)
{
  wefti_child *child = arg;
  static const char ready[] = "{\"ready\":true";
  if (take_last_word(child, data, len)) {
    wefti_ignore_fds(NULL, data, len, fds, nfds);
    return;
  }
  if (len < sizeof ready - 1 || memcmp(data, ready, sizeof ready - 1) != 0) {
    const wefti_heard heard = { .data = data, .len = len, .fds = fds, .nfds = nfds };
    wefti_imports_message(child->members->imports, child->rank, child->incarnation,
                          &heard);
    return;
  }
  child->ready_owed = true;
  if (!pay(child)) {
    weft_alarm_start(child->members->owing, OWED_MS);
  }
  wefti_ignore_fds(NULL, data, len, fds, nfds);
}

static void release_export(void *arg, uint32_t rank, uint64_t incarnation, uint64_t epoch)
{
  const wefti_members *m = arg;
  const wefti_export_msg msg = { .magic = WEFTI_EXPORT_MAGIC,
                                 .version = WEFTI_EXPORT_VERSION,
                                 .kind = WEFTI_EXPORT_RELEASE,
                                 .epoch = epoch };
  for (wefti_child *child = m->children; child; child = child->next) {
    if (child->rank == rank && child->incarnation == incarnation && !child->gone &&
        weft_process_send(child->process, &msg, wefti_export_len(&msg), NULL, 0) !=
            WEFT_OK) {
      /* It does not read: it holds the memory until it ends, which will be soon. */
      return;
    }
  }
}

static weft_err send_export(void *arg, uint32_t rank, uint64_t incarnation,
                            const wefti_export_msg *msg, const int *fds, size_t nfds)
{
  const wefti_members *m = arg;
  for (wefti_child *child = m->children; child; child = child->next) {
    if (child->rank == rank && child->incarnation == incarnation && !child->gone) {
      return weft_process_send(child->process, msg, wefti_export_len(msg), fds, nfds);
    }
  }
  return WEFT_E_CLOSED;
}

static void on_exit_of(void *arg, int status)
{
  wefti_child *child = arg;
  wefti_members *m = child->members;
  if (WIFSIGNALED(status)) {
    (void)snprintf(child->why, sizeof child->why, "killed by signal %d",
                   WTERMSIG(status));
  } else {
    (void)snprintf(child->why, sizeof child->why, "exited with status %d%s%s",
                   WEXITSTATUS(status), child->word[0] == '\0' ? "" : ": ", child->word);
  }
  child->gone = true;
  child->exit_owed = true;
  m->alive--;
  weft_link_forget(child->url); /* the next one listens elsewhere */
  wefti_imports_gone(m->imports, child->rank, child->incarnation);
  if (!pay(child)) {
    weft_alarm_start(m->owing, OWED_MS);
    return;
  }
  /* Not from inside its own callback; without memory for that, at the engine's end. */
  const weft_err err = weft_loop_call(weft_runtime_loop(m->rt, 0), reap_child, child);
  (void)err;
}

static weft_err spawn_child(void *arg, uint32_t rank, uint64_t incarnation, weft_why *why)
{
  wefti_members *m = arg;
  if (m->ending) {
    return weft_whyf(why, WEFT_E_CLOSED, "the engine is ending");
  }
  wefti_child *child = calloc(1, sizeof *child);
  if (!child) {
    return weft_whyf(why, WEFT_E_NOMEM, "worker %" PRIu32 ": out of memory", rank);
  }
  child->members = m;
  child->rank = rank;
  child->incarnation = incarnation;
  char name[64];
  (void)snprintf(name, sizeof name, "w%" PRIu32 "-%" PRIx64, rank, incarnation);
  weft_err err = wefti_ipc_url(m->run_dir, name, child->url, why);
  if (err == WEFT_OK) {
    arg_list list;
    fill_args(&list, m, child);
    char *argv[ARGS_MAX];
    memcpy(argv, list.argv, sizeof argv);
    const weft_process_opts opts = { .size = sizeof opts,
                                     .path = m->program,
                                     .argv = argv,
                                     .on_message = on_message,
                                     .on_exit = on_exit_of,
                                     .arg = child };
    err = weft_process_spawn(weft_runtime_loop(m->rt, 0), &opts, &child->process, why);
  }
  if (err != WEFT_OK) {
    free(child);
    return err;
  }
  child->next = m->children;
  m->children = child;
  m->alive++;
  return WEFT_OK;
}

static void kill_child(void *arg, uint32_t rank, uint64_t incarnation)
{
  const wefti_members *m = arg;
  for (wefti_child *child = m->children; child; child = child->next) {
    if (child->rank == rank && child->incarnation == incarnation && !child->gone) {
      weft_process_signal(child->process, m->ending ? SIGTERM : SIGKILL);
      return;
    }
  }
}

static weft_err connect_member(void *arg, weft_ctx *ctx, const char *url,
                               weft_actor_id *out)
{
  wefti_members *m = arg;
  if (strncmp(url, WEFTI_ACTOR_URL, sizeof WEFTI_ACTOR_URL - 1) == 0) {
    *out = strtoull(url + sizeof WEFTI_ACTOR_URL - 1, NULL, 10);
    return *out ? WEFT_OK : WEFT_E_INVAL;
  }
  const weft_link_opts opts = { .size = sizeof opts, .url = url };
  const weft_err err = weft_link_spawn(ctx, &opts, out);
  if (err == WEFT_OK) {
    wefti_joins_connected(m, url, *out);
  }
  return err;
}

wefti_member_ops wefti_members_ops(wefti_members *members)
{
  return (wefti_member_ops){
    .spawn = spawn_child, .kill = kill_child, .connect = connect_member, .arg = members
  };
}

void wefti_members_end(wefti_members *m)
{
  m->ending = true;
}

uint32_t wefti_members_alive(wefti_members *m)
{
  return m->alive;
}

void wefti_members_kill(wefti_members *m)
{
  for (wefti_child *child = m->children; child; child = child->next) {
    if (!child->gone) {
      weft_process_signal(child->process, SIGKILL);
    }
  }
}

static weft_err copy_opts(wefti_members *m, const wefti_members_opts *opts)
{
  const struct {
    const char *from;
    char **to;
  } texts[] = { { opts->program, &m->program },
                { opts->backend, &m->backend },
                { opts->run_dir, &m->run_dir },
                { opts->weights_root, &m->weights_root },
                { opts->tcp_allow, &m->tcp_allow },
                { opts->join_url, &m->join_url },
                { opts->join_token, &m->join_token },
                { opts->cudart, &m->cudart },
                { opts->nccl, &m->nccl },
                { opts->tp_plan, &m->tp_plan },
                { opts->manifest, &m->manifest },
                { opts->draft_manifest, &m->draft_manifest } };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    if (texts[i].from) {
      *texts[i].to = strdup(texts[i].from);
      if (!*texts[i].to) {
        return WEFT_E_NOMEM;
      }
    }
  }
  m->kind = opts->workers;
  m->world_size = opts->world_size;
  m->tp = opts->tp;
  m->pp = opts->pp;
  m->copy_threads = opts->copy_threads;
  m->allow_ipc_pickle = opts->allow_ipc_pickle;
  m->draft = opts->draft;
  m->inplace = opts->inplace;
  m->log_level = opts->log_level;
  m->fleet = opts->fleet;
  m->replicas = opts->replicas;
  return WEFT_OK;
}

weft_err wefti_members_create(weft_runtime *rt, const wefti_members_opts *opts,
                              wefti_members **out, weft_why *why)
{
  wefti_members *m = calloc(1, sizeof *m);
  if (!m) {
    return weft_whyf(why, WEFT_E_NOMEM, "workers: out of memory");
  }
  m->rt = rt;
  weft_err err = copy_opts(m, opts);
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, "workers: out of memory");
  } else if (m->kind == WEFT_WORKERS_THREADS) {
    err = wefti_threads_create(m, why);
  } else if (m->kind == WEFT_WORKERS_PROCESSES) {
    const wefti_imports_ops ops = { .release = release_export,
                                    .send = send_export,
                                    .arg = m };
    err = wefti_imports_create(rt, m->world_size, &ops, &m->imports);
    if (err == WEFT_OK) {
      err = weft_alarm_create(weft_runtime_loop(rt, 0), pay_all, m, &m->owing);
    }
    if (err != WEFT_OK) {
      (void)weft_whyf(why, err, "workers: out of memory");
    }
  }
  if (err != WEFT_OK) {
    wefti_members_destroy(m);
    return err;
  }
  *out = m;
  return WEFT_OK;
}

weft_err wefti_members_begin(wefti_members *m, weft_actor_id supervisor, char *join_url,
                             weft_why *why)
{
  m->supervisor = supervisor;
  if (m->kind == WEFT_WORKERS_THREADS) {
    return wefti_threads_begin(m, why);
  }
  return m->kind == WEFT_WORKERS_JOIN ? wefti_joins_begin(m, join_url, why) : WEFT_OK;
}

void wefti_members_destroy(wefti_members *m)
{
  if (!m) {
    return;
  }
  while (m->children) {
    wefti_child *child = m->children;
    m->children = child->next;
    free_child(child);
  }
  weft_alarm_destroy(m->owing);
  wefti_imports_destroy(m->imports);
  wefti_joins_destroy(m);
  wefti_threads_destroy(m);
  free(m->program);
  free(m->backend);
  free(m->run_dir);
  free(m->weights_root);
  free(m->tcp_allow);
  free(m->join_url);
  free(m->join_token);
  free(m->cudart);
  free(m->nccl);
  free(m->tp_plan);
  free(m->manifest);
  free(m->draft_manifest);
  free(m);
}
