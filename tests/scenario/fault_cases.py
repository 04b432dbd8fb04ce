"""The table of faults: process x state x fault -> outcome.  What faults.py asserts, and what
tests/README.md has between its markers."""
from fault_run import CONT, KILL, STOP, TERM

INIT, START = "init", "starting"
BEFORE = "accepting, transferring, finishing"          # a call is under way, nothing is recorded
AFTER = "recording, publishing"                        # the commit record was issued

# What a child that was killed is when it is back by itself: it has its weights from kept slabs.
CHILD = "ready"
# A joined worker that was started anew gets them from the other rank.
JOINED = "ready"

FAILED = "500 not_committed, names rank 1"
ABSENT = "503 not_committed, names rank 1"  # start: try again
LOST, NONE, LATER = "connection lost", "no call", "200 after SIGCONT"
UNKNOWN, ENDED = "503 unknown", "503 not_committed"
KEPT = "none loaded; last commit old"
CUT = KEPT + "; session aborted"
DONE = "none loaded; last commit new"


def killed_worker(back):
    return [
        ("idle", NONE, "old", back),
        ("init, " + BEFORE, FAILED, "old", back),
        (START, ABSENT, "old", back),
        ("open", "409 not_committed", "old", back),
        ("recording", "200, fenced: rank 1", "new", back),
        ("publishing", "200", "new", back),  # it had confirmed
        ("aborting", "200", "old", back),
    ]


def hung_worker(back):
    return [
        ("idle, init, starting, open, " + BEFORE, FAILED, "old", back),
        (AFTER, "200, fenced: rank 1", "new", back),
        ("aborting", "200", "old", back),
    ]


def unharmed(idle):
    return [
        ("idle", idle, "old", "ready"),
        ("init, starting, accepting, transferring, aborting", "200", "old", "ready"),
        ("open, finishing, " + AFTER, "200", "new", "ready"),
    ]


def caller_gone(answer_before, answer_after, abort, init=None):
    return [
        ("idle, open", NONE, "old", "ready"),
        ("init, starting", init or answer_before, "old", "ready"),
        ("accepting, transferring", answer_before, "old", "ready"),
        ("finishing, " + AFTER, answer_after, "new", "ready"),
        ("aborting", abort, "old", "ready"),
    ]


def only(states, rows):
    """The rows cut to these states."""
    out = []
    for names, *rest in rows:
        kept = [s for s in names.split(", ") if s in states]
        if kept:
            out.append((", ".join(kept), *rest))
    return out


SOME = ("idle", "open", "transferring", "finishing", "publishing")  # where joined workers are slow to test
FEW = ("open", "transferring", "publishing")

ENGINE_KILLED = [
    ("idle", NONE, KEPT, "ready"),
    ("init, starting", LOST, KEPT, "ready"),
    ("open", NONE, CUT, "ready"),
    (BEFORE + ", recording, aborting", LOST, CUT, "ready"),
    ("publishing", LOST, DONE, "ready"),
]
ENGINE_ENDED = [
    ("idle", NONE, KEPT, "ready"),
    ("init, starting", ENDED, KEPT, "ready"),
    ("open", NONE, CUT, "ready"),
    (BEFORE, ENDED, CUT, "ready"),
    ("recording", UNKNOWN, CUT, "ready"),
    ("publishing", UNKNOWN + ", names rank 0", DONE, "ready"),  # it has not confirmed
    ("aborting", "503", CUT, "ready"),
]

TABLE = {
    ("worker", KILL): killed_worker(CHILD),
    ("worker", TERM): killed_worker(CHILD),
    ("worker", STOP): hung_worker(CHILD),
    ("worker", CONT): unharmed(NONE),
    ("joined worker", KILL): only(SOME, killed_worker(JOINED)),
    ("joined worker", TERM): only(SOME, killed_worker(JOINED)),
    ("joined worker", STOP): only(SOME, hung_worker("ready")),
    ("joined worker", CONT): only(SOME, unharmed(NONE)),
    ("engine", KILL): ENGINE_KILLED,
    ("engine", TERM): ENGINE_ENDED,
    ("engine", STOP): unharmed("200"),
    ("engine", CONT): unharmed("200"),
    ("engine of joined workers", KILL): only(FEW, ENGINE_KILLED),
    ("engine of joined workers", TERM): only(FEW, ENGINE_ENDED),
    ("engine of joined workers", STOP): only(FEW, unharmed("200")),
    ("acceptor", KILL): caller_gone(LOST, LOST, LOST),
    ("acceptor", TERM): caller_gone(UNKNOWN, UNKNOWN, "503", ENDED),
    ("acceptor", STOP): caller_gone(LATER, LATER, LATER),
    ("acceptor", CONT): unharmed("200"),
    ("trainer", KILL): caller_gone(LOST, LOST, LOST),
    ("trainer", TERM): caller_gone(LOST, LOST, LOST),
    ("trainer", STOP): caller_gone(LATER, LATER, LATER),
    ("trainer", CONT): unharmed("200"),
    ("watcher", KILL): unharmed("200"),
    ("watcher", TERM): unharmed("200"),
    ("watcher", STOP): unharmed("200"),
    ("watcher", CONT): unharmed("200"),
}

HEAD = """\
| process | fault | in state | the caller is told | visible then: version and bytes | workers, by themselves |
|---|---|---|---|---|---|
"""


def merged(rows):
    """Rows that say the same of the same fault, as one; in the order of the first."""
    out = {}
    for names, *rest in rows:
        out.setdefault(tuple(rest), []).append(names)
    return [(", ".join(names), *rest) for rest, names in out.items()]


def markdown(table):
    text = HEAD
    for (process, fault), rows in table.items():
        for states, told, visible, after in merged(rows):
            text += f"| {process} | {fault} | {states} | {told} | {visible} | {after} |\n"
    return text
