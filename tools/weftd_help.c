#include "weftd.h"

#include <stdio.h>

/* What --help says; of a fleet: weftd_fleet.c. */

static const char engine_help[] =
    "usage: weftd [OPTION…]\n"
    "       weftd worker --join URL --rank R --world-size W [OPTION…]\n"
    "       weftd acceptor --engine URL --listen HOST:PORT [OPTION…]\n"
    "\n"
    "Takes weight updates over HTTP and makes each current on every worker, or on none.\n"
    "Prints one JSON line on stdout when all workers are there; logs go to stderr.  "
    "With\n"
    "--workers-join, --member or --replica a line with \"ready\":false comes first.\n"
    "\n"
    "  --listen HOST:PORT     where HTTP is served; port 0 picks one; unix:/path works "
    "too;\n"
    "                         may be repeated [127.0.0.1:8000]\n"
    "  --workers N            worker processes, one per rank [tp x pp]\n"
    "  --tp N, --pp N         tensor and pipeline parallel size; workers = tp x pp\n"
    "  --dp-size N            data parallel size, for get_world_size [1]\n"
    "  --dp-index I           which replica this is [0]\n"
    "  --dev                  serve the routes that change things (or "
    "VLLM_SERVER_DEV_MODE=1)\n"
    "  --backend NAME         how bytes arrive: host, nccl, sparse_nccl, ipc\n"
    "                         [host]\n"
    "  --cudart PATH          libcudart, of the GPU backends [the system's]\n"
    "  --nccl PATH            the libnccl that the trainer loads [VLLM_NCCL_SO_PATH, or\n"
    "                         the system's]\n"
    "  --allow-ipc-pickle     let ipc read the handles that trainers pickle (never\n"
    "                         evaluated), or VLLM_ALLOW_INSECURE_SERIALIZATION=1\n"
    "  --weights-root DIR     only files below DIR may be loaded; needed beyond "
    "loopback\n"
    "  --tp-plan FILE         JSON of name patterns and dimensions: of these tensors "
    "each\n"
    "                         tensor parallel rank keeps its slice (NCCL backends)\n"
    "  --manifest FILE        the tensors that there may be: safetensors, or JSON of "
    "names,\n"
    "                         dtype_names, shapes, tied [new names are added]\n"
    "  --draft                there is a speculative draft model, too: a second set of\n"
    "                         weights, updated by start_draft_weight_update\n"
    "  --draft-manifest FILE  the tensors of that set\n"
    "  --staging HOW          shadow: updates are staged beside what is live; inplace:\n"
    "                         over it, for weights that do not fit twice [shadow]\n"
    "  --tcp-allow LIST       hosts that a tcp source may name, beside loopback\n"
    "  --copy-threads N       threads that copy and hash, per worker [its share of the "
    "cores]\n"
    "  --strict-coverage      refuse a finish when tensors that are live, or in the\n"
    "                         manifest, did not come in its session\n"
    "  --require-pause        refuse start while not paused, resume while an update is "
    "open\n"
    "  --pause-lease SECONDS  not ready when paused for longer\n"
    "  --allow-weight-reset   let the weight checker destroy weights\n"
    "  --token-file FILE      token that callers must show; needed beyond loopback\n"
    "  --insecure             beyond loopback without a token\n"
    "  --max-body BYTES       largest request body [33554432]\n"
    "  --events URL           nng socket for events [in the run directory]\n"
    "  --control URL          nng socket for acceptors and clients [in the run "
    "directory]\n"
    "  --workers-join         wait for workers that somebody else starts; then a line "
    "with\n"
    "                         \"ready\":false and the join socket comes first\n"
    "  --join URL             where they announce themselves [in the run directory]\n"
    "  --join-token-file FILE token of a join over tcp\n"
    "  --run-dir DIR          private folder for sockets [a new one, removed at the "
    "end]\n"
    "  --state-dir DIR        private folder where commits are recorded: numbers, "
    "history "
    "and\n"
    "                         engine id go on after a restart\n"
    "  --restore              load the last commit's files again after a restart\n"
    "  --engine-id ID         name of the engine over its lives [random]\n"
    "  --log-level LEVEL      debug, info, warn or error [info]\n"
    "  --print-routes         list the HTTP routes and end\n"
    "  --version, --help\n"
    "\n";

static const char engine_help_end[] =
    "Ends with 0 after SIGTERM or SIGINT, 1 when something failed, 2 for a wrong "
    "option.\n";

static const char worker_help[] =
    "usage: weftd worker --join URL --rank R --world-size W [OPTION…]\n"
    "\n"
    "One worker, started by a launcher; announces itself to the engine at URL.\n"
    "\n"
    "  --join URL             the engine's join socket (\"join\" of its ready line)\n"
    "  --rank R               [$RANK, $OMPI_COMM_WORLD_RANK or $SLURM_PROCID]\n"
    "  --world-size W         [$WORLD_SIZE, $OMPI_COMM_WORLD_SIZE or $SLURM_NTASKS]\n"
    "  --join-token-file FILE needed on tcp\n"
    "  --listen URL           own nng socket [chosen to fit the join URL]\n"
    "  --backend NAME, --weights-root DIR, --tcp-allow LIST, --copy-threads N,\n"
    "  --tp N, --pp N, --cudart PATH, --nccl PATH, --tp-plan FILE, --manifest FILE,\n"
    "  --draft, --draft-manifest FILE, --staging HOW,\n"
    "  --log-level LEVEL      as of weftd\n"
    "  --device N             its GPU [the only one that it sees, else the rank's]\n";

static const char acceptor_help[] =
    "usage: weftd acceptor --engine URL --listen HOST:PORT [OPTION…]\n"
    "\n"
    "An HTTP front end in a process of its own; several may serve one engine.\n"
    "\n"
    "  --engine URL           the engine's control socket (\"control\" of its ready "
    "line)\n"
    "  --listen HOST:PORT     may be repeated\n"
    "  --dev, --token-file FILE, --insecure, --allow-weight-reset, --max-body BYTES,\n"
    "  --tp N, --pp N, --dp-size N, --dp-index I, --log-level LEVEL\n"
    "                         as of weftd\n";

void weftd_help(weftd_mode mode)
{
  if (mode != WEFTD_ENGINE) {
    (void)fputs(mode == WEFTD_WORKER ? worker_help : acceptor_help, stdout);
    return;
  }
  (void)fputs(engine_help, stdout);
  (void)fputs(weftd_fleet_help, stdout);
  (void)fputs(engine_help_end, stdout);
}
