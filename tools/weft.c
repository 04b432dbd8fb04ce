/* weft -- the command line: pushes weights to a server, shows where it stands, watches.
 */
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  PUSH = 1,
  INFO = 2,
  STATUS = 4,
  WATCH = 8,
  ABORT = 16,
  CHECKSUM = 32,
  LOG = 64,
  RESOLVE = 128,
  ALL = 255
};

typedef struct command {
  const char *name;
  unsigned bit;
  int (*run)(const cli_opts *opts);
  const char *args, *what;
} command;

static const command commands[] = {
  { "push", PUSH, cmd_push, " FILE...",
    "Pushes safetensors files as one update: start, one update call for each FILE, "
    "finish.\n"
    "The new weights become current everywhere or nowhere." },
  { "info", INFO, cmd_info, "", "Shows the current version, its digest and its size." },
  { "status", STATUS, cmd_status, "",
    "Shows the engine, its session and every worker, from one consistent snapshot." },
  { "watch", WATCH, cmd_watch, "",
    "Prints each commit as it becomes visible, and what happens to sessions and "
    "workers.\n"
    "Within one life of the engine it misses no commit: gaps are filled from the "
    "server.\n"
    "After a restart it goes on with the status (weft log has the commits)." },
  { "log", LOG, cmd_log, "",
    "Lists what was committed and what was aborted, newest first." },
  { "abort", ABORT, cmd_abort, "",
    "Ends the open update session; weights and version stay as they were, unless it has\n"
    "written in place (weft status says so)." },
  { "resolve", RESOLVE, cmd_resolve, "",
    "Of a fleet's member whose coordinator is gone for good: ends the doubt about what "
    "it\n"
    "voted for.  Look in the coordinator's --state-dir, or at the other members, first:\n"
    "all must be told the same." },
  { "checksum", CHECKSUM, cmd_checksum, "",
    "Prints the SHA-256 of every tensor on every worker, as sha256sum does." },
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

typedef enum option_kind { FLAG, TEXT, NUMBER } option_kind;
typedef struct option {
  const char *name;
  option_kind kind;
  unsigned commands;
  size_t at; /* in cli_opts */
  const char *arg, *what;
} option;

#define AT(field) offsetof(cli_opts, field)
static const option options[] = {
  { "--server", TEXT, ALL, AT(server), "URL",
    "server, default $WEFT_SERVER or http://127.0.0.1:8000; unix:/path for a socket;\n"
    "http://user:TOKEN@host sends a token" },
  { "--token-file", TEXT, ALL, AT(token_file), "FILE", "file with the server's token" },
  { "--timeout", NUMBER, ALL, AT(timeout_s), "S",
    "seconds for each call, here and at the server; default: the server's own" },
  { "--json", FLAG, ALL, AT(json), NULL, "JSON on stdout, one text a line" },
  { "--version", TEXT, PUSH, AT(version), "V",
    "version string of the new weights; default: it stays as it is" },
  { "--expected-version", TEXT, PUSH, AT(expected), "V",
    "only if this is the current version, before bytes move and at the commit" },
  { "--source", TEXT, PUSH, AT(source), "KIND",
    "file: the workers read FILE themselves (default); tcp: they fetch it from here;\n"
    "nccl: broadcast from this process's GPU, as rank 0; ipc: out of its GPU memory" },
  { "--listen", TEXT, PUSH, AT(listen), "HOST:PORT",
    "tcp, nccl: where the workers reach this machine; default 127.0.0.1:0" },
  { "--rendezvous", TEXT, PUSH, AT(rendezvous), "HOW",
    "nccl: store (a TCPStore here, default), or id (NCCL's id in the init call)" },
  { "--packed", FLAG, PUSH, AT(packed), NULL, "nccl, ipc: many tensors at a time" },
  { "--packed-buffer-bytes", TEXT, PUSH, AT(packed_bytes), "N",
    "with --packed: of one buffer; default 1073741824" },
  { "--packed-buffers", NUMBER, PUSH, AT(packed_buffers), "N",
    "nccl with --packed: buffers at each worker; default 2" },
  { "--device", TEXT, PUSH, AT(device), "N",
    "nccl, ipc: GPU as CUDA counts them; default 0 for nccl, all for ipc" },
  { "--nccl", TEXT, PUSH, AT(nccl), "PATH",
    "the workers' libnccl; default $VLLM_NCCL_SO_PATH, else the system's" },
  { "--cudart", TEXT, PUSH, AT(cudart), "PATH", "libcudart; default: the system's" },
  { "--world-size", NUMBER, PUSH, AT(world_size), "N",
    "nccl: ranks in all; default: the server's workers and this process" },
  { "--draft", FLAG, PUSH, AT(draft), NULL,
    "the speculative draft model's set of weights, not the main one" },
  { "--take-over", FLAG, PUSH, AT(take_over), NULL,
    "first end a session that somebody left open" },
  { "--quiet", FLAG, PUSH, AT(quiet), NULL, "no progress" },
  { "--tensors", FLAG, INFO, AT(tensors), NULL, "list every tensor" },
  { "--count", NUMBER, WATCH | LOG, AT(count), "N",
    "watch: end after N commits; log: show at most N, 100 by default" },
  { "--reason", TEXT, ABORT, AT(reason), "TEXT", "told to watchers and to the loser" },
  { "--commit", FLAG, RESOLVE, AT(commit), NULL,
    "the coordinator had recorded the update: it becomes current here too" },
  { "--abort", FLAG, RESOLVE, AT(abort), NULL,
    "it had not: weights and version stay as they were" },
  { "--compare", TEXT, CHECKSUM, AT(compare), "FILE",
    "compare with what checksum --json printed before; exit 1 on a difference" },
};
enum { OPTIONS = sizeof options / sizeof options[0] };

static void print_indented(const char *text, const char *indent)
{
  for (; *text != '\0'; text++) {
    putchar(*text);
    if (*text == '\n') {
      fputs(indent, stdout);
    }
  }
  putchar('\n');
}

static void help_command(const command *c)
{
  printf("usage: weft %s [options]%s\n\n", c->name, c->args);
  print_indented(c->what, "");
  puts("\noptions:");
  for (size_t i = 0; i < OPTIONS; i++) {
    const option *const o = &options[i];
    char head[40];
    if ((o->commands & c->bit) == 0) {
      continue;
    }
    snprintf(head, sizeof head, "%s%s%s", o->name, o->arg != NULL ? " " : "",
             o->arg != NULL ? o->arg : "");
    printf("  %-22s ", head);
    print_indented(o->what, "                         ");
  }
  puts("\nexit codes: 0 done, 1 refused by the server, 2 usage, 3 server not reachable");
}

static void help(void)
{
  puts("weft: all-or-nothing weight updates for running inference workers\n\n"
       "usage: weft COMMAND [options] [FILE...]      (weft COMMAND --help says more)\n"
       "       weft --version\n");
  for (size_t i = 0; i < COMMANDS; i++) {
    printf("  %-10s ", commands[i].name);
    print_indented(commands[i].what, "             ");
  }
  puts("\nexit codes: 0 done, 1 refused by the server, 2 usage, 3 server not reachable");
}

static const option *find_option(const char *word, size_t len)
{
  for (size_t i = 0; i < OPTIONS; i++) {
    if (strlen(options[i].name) == len && strncmp(options[i].name, word, len) == 0) {
      return &options[i];
    }
  }
  return NULL;
}

static bool set_option(const option *o, const char *value, cli_opts *opts)
{
  char *const field = (char *)opts + o->at;
  char *end = NULL;
  if (o->kind == TEXT) {
    memcpy(field, &value, sizeof value);
    return true;
  }
  errno = 0;
  const unsigned long n = strtoul(value, &end, 10);
  if (*value < '0' || *value > '9' || *end != '\0' || errno != 0 || n == 0 ||
      n > 1000000) {
    cli_warn("%s %s: not a whole number from 1 to 1000000", o->name, value);
    return false;
  }
  const unsigned small = (unsigned)n;
  memcpy(field, &small, sizeof small);
  return true;
}

/* One word that begins with '-'; *i moves on when the value is the next word. */
static bool take_option(const command *c, int argc, char **argv, int *i, cli_opts *opts)
{
  const char *const word = argv[*i];
  const char *const eq = strchr(word, '=');
  const option *const o =
      find_option(word, eq != NULL ? (size_t)(eq - word) : strlen(word));
  if (o == NULL || (o->commands & c->bit) == 0) {
    cli_warn("%s: no option %s; see weft %s --help", c->name, word, c->name);
    return false;
  }
  if (o->kind == FLAG) {
    if (eq != NULL) {
      cli_warn("%s takes no value", o->name);
      return false;
    }
    const bool yes = true;
    memcpy((char *)opts + o->at, &yes, sizeof yes);
    return true;
  }
  if (eq == NULL && *i + 1 >= argc) {
    cli_warn("%s needs a value: %s", o->name, o->arg);
    return false;
  }
  return set_option(o, eq != NULL ? eq + 1 : argv[++*i], opts);
}

static bool parse(const command *c, int argc, char **argv, cli_opts *opts)
{
  bool only_files = false;
  for (int i = 2; i < argc; i++) {
    if (!only_files && strcmp(argv[i], "--") == 0) {
      only_files = true;
    } else if (!only_files && argv[i][0] == '-' && argv[i][1] != '\0') {
      if (!take_option(c, argc, argv, &i, opts)) {
        return false;
      }
    } else {
      opts->files[opts->file_count++] = argv[i];
    }
  }
  if (c->bit != PUSH && opts->file_count > 0) {
    cli_warn("%s: no argument %s; see weft %s --help", c->name, opts->files[0], c->name);
    return false;
  }
  return true;
}

static bool wants_help(int argc, char **argv, int from)
{
  for (int i = from; i < argc && strcmp(argv[i], "--") != 0; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      return true;
    }
  }
  return false;
}

static int run(const command *c, int argc, char **argv)
{
  cli_opts opts = { .server = getenv("WEFT_SERVER"), .source = "file" };
  char **const files = calloc((size_t)argc, sizeof *files);
  if (files == NULL) {
    cli_warn("out of memory");
    return CLI_REFUSED;
  }
  opts.files = files;
  if (opts.server == NULL || opts.server[0] == '\0') {
    opts.server = "http://127.0.0.1:8000";
  }
  const int code = parse(c, argc, argv, &opts) ? c->run(&opts) : CLI_USAGE;
  free(files);
  if (fflush(stdout) != 0) {
    cli_warn("stdout: cannot be written");
    return code != CLI_DONE ? code : CLI_REFUSED;
  }
  return code;
}

int main(int argc, char **argv)
{
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, NULL); /* cli_interrupted looks for them */

  if (argc < 2) {
    help();
    return CLI_USAGE;
  }
  for (size_t i = 0; i < COMMANDS; i++) {
    if (strcmp(argv[1], commands[i].name) == 0) {
      if (wants_help(argc, argv, 2)) {
        help_command(&commands[i]);
        return CLI_DONE;
      }
      return run(&commands[i], argc, argv);
    }
  }
  if (strcmp(argv[1], "--version") == 0) {
    puts("weft " WEFT_CLI_VERSION);
    return CLI_DONE;
  }
  if (wants_help(argc, argv, 1) || strcmp(argv[1], "help") == 0) {
    help();
    return CLI_DONE;
  }
  cli_warn("no command %s; see weft --help", argv[1]);
  return CLI_USAGE;
}
