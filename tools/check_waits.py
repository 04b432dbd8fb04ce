#!/usr/bin/env python3
"""Fails if a wait of the product is timed by a clock that can be set: it would last until
that clock is where it was.  Only who tells people the date may ask for it.  The monotonic
clock and the waits by it are weft/clock.h's, for all."""
import pathlib, re, sys

DATES = {"runtime/ctx.c", "actors/assembly_util.c", "actors/assembly_state.c"}
CLOCK = "runtime/clock.c"
FOLDERS = ("runtime", "transport", "http", "actors", "tools")
# None of these takes a clock: they wait by CLOCK_REALTIME.
OTHERS = re.compile(r"\b(sem_timedwait|pthread_mutex_timedlock|PTHREAD_COND_INITIALIZER)\b")
OWNED = re.compile(r"\bclock_gettime\s*\(\s*CLOCK_MONOTONIC|\bpthread_cond_timedwait\b|\bpthread_condattr_setclock\b")
BY_DEFAULT = re.compile(r"\bpthread_cond_init\s*\([^,;]*,\s*NULL\s*\)")

def faults(rel, text):
    if "CLOCK_REALTIME" in text and rel not in DATES:
        yield "CLOCK_REALTIME"
    for found in OTHERS.findall(text):
        yield found
    if rel != CLOCK:
        yield from OWNED.findall(text)
    if "weft_cond_wait_until" in text and BY_DEFAULT.search(text):
        yield "pthread_cond_init(…, NULL) of a condition with timed waits"

def main(root):
    root = pathlib.Path(root)
    bad = [f"{rel}: {fault}: take weft/clock.h"
           for folder in FOLDERS for src in sorted((root / folder).rglob("*.[ch]"))
           for rel in [str(src.relative_to(root))] for fault in faults(rel, src.read_text())]
    print("\n".join(bad) or "waits ok")
    return bool(bad)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
