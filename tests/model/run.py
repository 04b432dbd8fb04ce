#!/usr/bin/env python3
"""Checks commit.pml with spin: no trace breaks an assertion as the rules stand, and each rule
that is switched off has one.

  run.py [--seconds N] [--full]

Each search may take N seconds and 2 GiB; one that does not end by then is reported as far as
it came ("bounded").  --full adds three workers and liveness.  Without spin: SKIP."""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MODEL = pathlib.Path(__file__).resolve().parent / "commit.pml"

HOLDS = [
    ("one session, children", ["E=1", "JOINED=0"]),
    ("one session, joined workers", ["E=1", "JOINED=1"]),
    ("two sessions, children", ["JOINED=0", "STOPS=0", "DUPS=0", "BLIPS=0"]),
    ("two sessions, joined workers", ["JOINED=1", "CRASHES=0", "DUPS=0", "BLIPS=0"]),
    ("crash of the engine", ["JOINED=1", "CRASHES=0", "STOPS=0", "DUPS=0", "BLIPS=0", "ECRASHES=1"]),
]
FULL = [
    ("three workers, one session", ["W=3", "E=1", "JOINED=1", "DUPS=0"]),
    ("two sessions, every fault", ["JOINED=1"]),
]
RULES = [  # each must have a trace
    ("NO_DOOR", ["JOINED=1"]),
    ("PIPE_FENCES", ["JOINED=1"]),
    ("VISIBLE_EARLY", ["JOINED=1"]),
    ("STALE_GRANT", ["JOINED=1"]),
]


def search(work, defines, seconds, liveness=None):
    """(errors, states, ended)"""
    flags = [f"-D{d}" for d in defines]
    subprocess.run(["spin", *flags, "-a", str(MODEL)], cwd=work, check=True, capture_output=True)
    mode = ["-DNFAIR=12"] if liveness else ["-DSAFETY", "-DNOCLAIM"]
    subprocess.run(["gcc", "-O2", "-w", *mode, "-DBITSTATE", "-DMEMLIM=2000", "-o", "pan", "pan.c"],
                   cwd=work, check=True)
    command = ["./pan", "-m100000", "-w27"]
    command += ["-a", "-f", "-N", liveness] if liveness else ["-E"]
    try:
        out = subprocess.run(["timeout", "-s", "INT", str(seconds), *command], cwd=work,
                             capture_output=True, text=True, errors="replace").stdout
    except OSError as error:
        sys.exit(f"run.py: {error}")
    errors = re.search(r"errors: (\d+)", out)
    states = re.search(r"(\d+) states, stored", out)
    ended = "Search not completed" not in out and "Interrupted" not in out
    return int(errors[1]) if errors else 0, states[1] if states else "?", ended and errors is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    if not shutil.which("spin") or not shutil.which("gcc"):
        print("SKIP: spin is not installed (Debian package spin)")
        return 0
    bad = 0
    with tempfile.TemporaryDirectory(prefix="weft-model-") as work:
        for name, defines in HOLDS + (FULL if args.full else []):
            errors, states, ended = search(work, defines, args.seconds)
            bad += errors
            print(f"{'BROKEN' if errors else 'holds'} {'' if ended or errors else '(bounded) '}"
                  f"{name}: {states} states", flush=True)
        for claim in (["idle", "answers"] if args.full else []):
            errors, states, ended = search(work, ["E=1", "JOINED=0", "STOPS=0", "DUPS=0"],
                                           args.seconds, claim)
            bad += errors
            print(f"{'BROKEN' if errors else 'holds'} {'' if ended or errors else '(bounded) '}"
                  f"liveness {claim}: {states} states", flush=True)
        for rule, defines in RULES:
            errors, states, _ = search(work, [rule, *defines], max(args.seconds, 60))
            bad += not errors
            print(f"{'trace found' if errors else 'NO TRACE'} with {rule}: {states} states", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
