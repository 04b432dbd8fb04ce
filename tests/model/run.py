#!/usr/bin/env python3
"""Checks commit.pml and fleet.pml with spin: no trace breaks what must hold as the rules stand,
and each rule that is switched off has one.

  run.py [commit|fleet]... [--full] [--only WORD] [--seconds N]

Prints a table.  A search that ends by itself is exhaustive for its bounds; one that does not
in N seconds (default 180, with --full 900) or 2.8 GiB is reported as far as it came, "bounded",
and so is one with hash compaction ("HC": two states in some 10^12 may be taken for one).
--full adds what takes minutes.  --only runs the rows with WORD in them.  A row that is not as
it should be is followed by its trace.  Without spin or gcc: SKIP."""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


class Row:
    """One search.  rule: switched off, a trace must be found.  claim: an ltl property."""

    def __init__(self, model, defines, rule=None, claim=None, full=False, compact=False):
        self.model, self.rule, self.claim = model, rule, claim
        self.full, self.compact = full, compact
        self.defines = defines.split()

    def number(self, name, otherwise):
        for define in self.defines:
            if define.startswith(name + "="):
                return int(define[len(name) + 1:])
        return otherwise

    def size(self):
        return self.number("W", 2) if self.model == "commit" else self.number("N", 2)

    def switches(self):
        words = [d for d in self.defines if d[:2] not in ("W=", "N=")]
        return " ".join(([self.rule] if self.rule else []) + words)


COMMIT_CHILD = "E=2"
COMMIT_JOINED = "E=2 JOINED=1 ECRASHES=1"
COMMIT_LIVE = "E=2 LIVE STOPS=1 CRASHES=0"
FLEET_RULE = "E=2"
ROWS = [
    Row("commit", "E=3 CRASHES=2 BLIPS=2"),
    Row("commit", "E=3 ECRASHES=1"),
    Row("commit", "E=2 JOINED=1"),
    Row("commit", "E=2 JOINED=1 CRASHES=0 ECRASHES=1"),
    Row("commit", "W=3 E=1 CRASHES=2 BLIPS=1"),
    Row("commit", "W=3 E=2 BLIPS=0"),
    Row("commit", "W=3 E=1 JOINED=1 CRASHES=0"),
    Row("commit", "E=2 JOINED=1 CRASHES=2 BLIPS=2", full=True),
    Row("commit", "E=2 JOINED=1 ECRASHES=1", full=True),
    Row("commit", "W=3 E=2", full=True),
    Row("commit", "W=3 E=1 JOINED=1", full=True),
    Row("commit", "W=3 E=2 JOINED=1 CRASHES=0", full=True, compact=True),
    *[Row("commit", COMMIT_CHILD, rule=rule) for rule in (
        "PIPE_FENCES", "VISIBLE_EARLY", "EARLY_PUBLISH", "SOME_FINISHED", "OLD_ANSWER",
        "NO_ENDED", "ABORT_ISSUED", "EARLY_ACK", "NO_WAIT_ACK")],
    *[Row("commit", COMMIT_JOINED, rule=rule) for rule in (
        "NO_DOOR", "PIPE_FENCES", "NOT_ENDED_AT_ADOPTION", "STALE_GRANT", "NO_HOLD",
        "LATE_ADOPT", "NO_FENCE_WAIT", "NO_LIFE", "NO_BOOT_WAIT")],
    *[Row("commit", COMMIT_LIVE, claim=claim) for claim in (
        "ends", "visible_in_the_end", "fresh")],
    *[Row("commit", COMMIT_LIVE, rule="NO_FENCE", claim=claim) for claim in (
        "ends", "visible_in_the_end", "fresh")],
    *[Row("commit", "E=2 LIVE STOPS=1", claim=claim, full=True) for claim in (
        "ends", "visible_in_the_end", "fresh")],
    *[Row("commit", "E=2 LIVE STOPS=1 JOINED=1 BLIPS=0", claim=claim, full=True) for claim in (
        "ends", "visible_in_the_end", "fresh")],
    Row("commit", "E=2 LIVE JOINED=1 BLIPS=0 ECRASHES=1", claim="fresh", full=True),
    Row("fleet", "E=1"),
    Row("fleet", "E=2 BLIPS=0"),
    Row("fleet", "E=2 CRASHES=0"),
    Row("fleet", "E=2 CCRASHES=0"),
    Row("fleet", "E=1 OPERATOR=1"),
    Row("fleet", "E=2 OPERATOR=1", full=True),
    Row("fleet", "E=2 CCRASHES=2 BLIPS=0", full=True),
    Row("fleet", "N=3 E=1", full=True, compact=True),
    Row("fleet", "E=1 CCRASHES=0", rule="VOTE_NOT_DURABLE"),
    Row("fleet", "E=2 CRASHES=0", rule="VERDICT_UNNAMED"),
    *[Row("fleet", FLEET_RULE, rule=rule) for rule in (
        "PRESUMED_COMMIT", "PRESUMED_ABORT", "DROP_AT_BOOT", "GRANT_OUTLIVES", "VISIBLE_EARLY",
        "SHOWN_AT_PUBLISH", "EARLY_PUBLISH", "NO_BOOT_WAIT", "NO_HOLD")],
    *[Row("fleet", "E=1", rule=rule) for rule in ("HASTY_VERDICT", "OPERATOR_EARLY")],
    *[Row("fleet", "E=1 LIVE", claim=claim) for claim in (
        "resolved", "ends", "visible_in_the_end")],
    Row("fleet", "E=1 LIVE", rule="NO_VERDICT", claim="resolved"),
    *[Row("fleet", "E=2 LIVE CRASHES=0", claim=claim, full=True) for claim in (
        "resolved", "ends", "visible_in_the_end")],
]


def run(command, work):
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"run.py: {' '.join(command)}: {done.stdout[-500:]}{done.stderr[-500:]}")


def steps(trace):
    """The first statement of each step of a trail."""
    kept, last = [], None
    for line in trace.splitlines():
        found = re.match(r"\s*(\d+):\s+proc\s+\d+ (\S+) \S+:(\d+) .*?\[(.*)\]$", line)
        if found and found[1] != last:
            kept.append(f"  {found[1]:>3} {found[2]:16} line {found[3]:>3}: {found[4]}")
            last = found[1]
    return "\n".join(kept)


def search(row, seconds):
    """(as it should be, the table's cells, trace)"""
    model = HERE / f"{row.model}.pml"
    defines = [f"-D{d}" for d in row.defines + ([row.rule] if row.rule else [])]
    with tempfile.TemporaryDirectory(prefix="weft-model-") as work:
        run(["spin", *defines, "-a", str(model)], work)
        mode = ["-DNFAIR=12"] if row.claim else ["-DSAFETY", "-DNOCLAIM"]
        memory = "-DHC4" if row.compact else "-DCOLLAPSE"
        run(["gcc", "-O1", "-w", *mode, memory, "-DMEMLIM=2800", "-o", "pan", "pan.c"], work)
        command = ["timeout", "-s", "INT", str(seconds), "./pan", "-E", "-m100000"]
        command += ["-a", "-f", "-N", row.claim] if row.claim else []
        out = subprocess.run(command, cwd=work, capture_output=True, text=True,
                             errors="replace").stdout
        found = re.search(r"errors: (\d+)", out)
        if not found:
            sys.exit(f"run.py: {row.model} {row.switches()}: {out[-500:]}")
        broken = int(found[1]) > 0
        ended = not re.search(r"Interrupted|Search not completed|max search depth|"
                              r"memory usage limit|out of memory|hash table full", out) or broken
        states = re.search(r"(\d+) states, stored", out)
        depth = re.search(r"depth reached (\d+)", out)
        good = broken == bool(row.rule)
        result = ("trace" if broken else "NO TRACE") if row.rule else \
            ("BROKEN" if broken else "holds")
        extent = "-" if broken else \
            "bounded" + (", HC" if row.compact else "") if not ended else \
            "whole, HC" if row.compact else "exhaustive"
        trace = ""
        trail = next(pathlib.Path(work).glob("*.trail"), None)
        if broken and not good and trail:
            trace = subprocess.run(["spin", "-k", str(trail), "-p", *defines, str(model)],
                                   cwd=work, capture_output=True, text=True,
                                   errors="replace").stdout
        cells = (row.model, str(row.size()), row.switches(), row.claim or "safety",
                 states[1] if states else "?", depth[1] if depth else "?", result, extent)
        return good, cells, steps(trace)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="commit|fleet")
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    models = args.models or ["commit", "fleet"]
    if not set(models) <= {"commit", "fleet"}:
        parser.error("the models are commit and fleet")
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            print(f"SKIP: {tool} is not installed (Debian package {tool})")
            return 0
    seconds = args.seconds or (900 if args.full else 180)
    rows = [r for r in ROWS if r.model in models and (args.full or not r.full) and
            args.only in f"{r.switches()} {r.claim or 'safety'} {r.model}"]
    if not rows:
        sys.exit(f"run.py: no row has {args.only!r} in it")
    line = "| {:6} | {:1} | {:47} | {:18} | {:>8} | {:>5} | {:8} | {:10} |"
    print(line.format("model", "n", "switches", "property", "states", "depth", "result",
                      "extent"))
    print("|---|---|---|---|--:|--:|---|---|", flush=True)
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for good, cells, trace in pool.map(lambda r: search(r, seconds), rows):
            print(line.format(*cells), flush=True)
            if not good:
                bad += 1
                print(trace, flush=True)
    print(f"{len(rows) - bad} of {len(rows)} searches are as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
