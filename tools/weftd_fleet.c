#include "weft/http.h"
#include "weftd.h"

#include <inttypes.h>
#include <string.h>

/* Options of a fleet's coordinator and of its members: each mistake is one line. */

const char weftd_fleet_help[] =
    "Of a fleet, several engines that change together:\n"
    "  --replica URL          coordinate the engine whose --member is URL; repeated, "
    "one\n"
    "                         for each; needs --state-dir; --tp and --pp are then those\n"
    "                         of each engine, and there are no workers here\n"
    "  --replica-token-file FILE\n"
    "                         token of replicas that are not on ipc; every one of\n"
    "                         them then needs it, on ipc too\n"
    "  --join URL             where replicas come back to [chosen to be reached]\n"
    "  --member URL           be a member: a coordinator invites this engine at URL, "
    "and\n"
    "                         it serves as long as that one lets it; needs --state-dir\n"
    "  --member-token-file FILE\n"
    "                         the coordinator's --replica-token-file; needed on tcp\n"
    "\n";

static bool is_tcp(const char *url)
{
  return strncmp(url, "tcp://", 6) == 0;
}

static unsigned check_url(const char *option, const char *url, const char *token_option,
                          const char *token)
{
  if (!is_tcp(url) && strncmp(url, "ipc://", 6) != 0) {
    return weftd_mistake("%s %s: want ipc:///PATH or tcp://HOST:PORT", option, url);
  }
  return is_tcp(url) && !token
             ? weftd_mistake("%s %s: over tcp it needs %s", option, url, token_option)
             : 0;
}

/* What would be silently without effect in an engine that has no workers. */
static unsigned check_unused(const weftd_opts *o)
{
  const struct {
    const char *option;
    bool given;
  } unused[] = { { "--workers-join", o->workers_join },
                 { "--backend", o->backend != NULL },
                 { "--cudart", o->cudart != NULL },
                 { "--nccl", o->nccl != NULL },
                 { "--weights-root", o->weights_root != NULL },
                 { "--tcp-allow", o->tcp_allow != NULL },
                 { "--copy-threads", o->copy_threads != 0 },
                 { "--tp-plan", o->tp_plan != NULL },
                 { "--manifest", o->manifest != NULL },
                 { "--draft", o->draft },
                 { "--staging", o->staging_name != NULL },
                 { "--draft-manifest", o->draft_manifest != NULL },
                 { "--restore", o->restore } };
  unsigned bad = 0;
  for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
    if (unused[i].given) {
      bad += weftd_mistake("%s has no meaning with --replica: workers and weights are "
                           "the replicas'; give it to them",
                           unused[i].option);
    }
  }
  return bad;
}

static unsigned check_coordinator(const weftd_opts *o)
{
  unsigned bad = check_unused(o);
  for (size_t i = 0; i < o->replica_count; i++) {
    bad += check_url("--replica", o->replicas[i], "--replica-token-file",
                     o->replica_token_file);
    for (size_t j = 0; j < i; j++) {
      if (strcmp(o->replicas[i], o->replicas[j]) == 0) {
        bad += weftd_mistake("--replica %s: named twice", o->replicas[i]);
        break;
      }
    }
  }
  if (o->join) {
    bad += check_url("--join", o->join, "--replica-token-file", o->replica_token_file);
  }
  if (o->join_token_file) {
    bad += weftd_mistake("--join-token-file: what replicas show is in "
                         "--replica-token-file");
  }
  if (!o->state_dir) {
    bad += weftd_mistake("--replica needs --state-dir: the coordinator's record decides "
                         "what its replicas are in doubt about");
  }
  if (o->has_dp_size && o->dp_size != o->replica_count) {
    bad += weftd_mistake("--dp-size %" PRIu64 ": there are %zu times --replica",
                         o->dp_size, o->replica_count);
  }
  return bad;
}

static unsigned check_member(const weftd_opts *o)
{
  unsigned bad =
      check_url("--member", o->member, "--member-token-file", o->member_token_file);
  if (!o->state_dir) {
    bad += weftd_mistake("--member needs --state-dir: its votes must outlive it");
  }
  if (is_tcp(o->member) && !weft_http_is_loopback(o->member + 6) && !o->weights_root) {
    bad += weftd_mistake("--member %s is not a loopback address: give --weights-root, "
                         "the directory that weights may be loaded from",
                         o->member);
  }
  return bad;
}

unsigned weftd_fleet_check(const weftd_opts *o)
{
  unsigned bad = 0;
  if (o->replica_count > 0 && o->member) {
    return weftd_mistake("--replica and --member: an engine is a coordinator or a "
                         "member; a fleet of fleets is not supported");
  }
  if (o->replica_count == 0 && o->replica_token_file) {
    bad += weftd_mistake("--replica-token-file needs --replica");
  }
  if (!o->member && o->member_token_file) {
    bad += weftd_mistake("--member-token-file needs --member");
  }
  return bad + (o->replica_count > 0 ? check_coordinator(o) : 0) +
         (o->member ? check_member(o) : 0);
}
