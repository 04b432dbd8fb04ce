#!/usr/bin/env python3
"""Shows that weft-sim finds planted bugs: builds each mutant of mutations/table.py from the
objects of a finished build and the few mutated files, and runs it until it fails.

  check_mutations.py --build BUILD [--seeds N] [--jobs J] [--only NAME…]
  check_mutations.py --look

BUILD is a CMake build folder (Ninja) in which weft-sim was built, better with optimisation.
Ends with 0 when every mutant was caught within N seeds and the unmutated program passes the
first 300.  A mutant whose text is no longer in the code, or that the table
of tests/README.md does not have, is a failure: nothing is run then; --look does that alone."""
import argparse
import concurrent.futures
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE / "mutations"))
from table import FLEET_MUTATIONS, MUTATIONS  # noqa: E402


class Broken(Exception):
    """The table or the build does not fit the code."""


def compile_commands(build):
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        commands[str(pathlib.Path(entry["file"]).resolve())] = entry["command"]
    return commands


def link_command(build):
    """The last command of Ninja for weft-sim, without its shell dressing."""
    out = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "weft-sim"],
                         check=True, capture_output=True, text=True).stdout
    words = shlex.split(out.strip().splitlines()[-1])
    return [w for w in words if w not in (":", "&&")]


def mutated(name, edits):
    """File → text with all edits done."""
    texts = {}
    for path, old, new in edits:
        text = texts.get(path) or (ROOT / path).read_text()
        if text.count(old) != 1:
            raise Broken(f"{name}: {path} has the text to change {text.count(old)} times:\n{old}")
        texts[path] = text.replace(old, new)
    return texts


def does_not_fit(mutation):
    """What is wrong with its edits, or None."""
    try:
        mutated(mutation[0], mutation[2])
    except (Broken, OSError) as error:
        return str(error)
    return None


def not_told():
    """How the table of tests/README.md differs from mutations/table.py, line by line."""
    text = (ROOT / "tests/README.md").read_text()
    rows = text.split("| mutant | found as |")[1].split("\n\n")[0].splitlines()[2:]
    told = []
    for cell in (row.split("|")[1].strip() for row in rows):
        fleet = cell.startswith("fleet: ")
        told += [(fleet, name.strip()) for name in cell.removeprefix("fleet: ").split(",")]
    there = [(m in FLEET_MUTATIONS, m[0]) for m in MUTATIONS + FLEET_MUTATIONS]
    return [f"tests/README.md has no {name} (fleet: {fleet})" for fleet, name in there if (fleet, name) not in told] + \
        [f"tests/README.md has {name}, the table has not, or not once" for fleet, name in told
         if (fleet, name) not in there or told.count((fleet, name)) > 1]


def build_mutant(args, name, edits, out):
    objects = []
    for path, text in mutated(name, edits).items():
        source = out / pathlib.Path(path).name
        source.write_text(text)
        command = args.commands[str((ROOT / path).resolve())]
        words = shlex.split(command)
        words[words.index("-c") + 1] = str(source)
        words[words.index("-o") + 1] = str(source.with_suffix(".o"))
        # Where it stood, it found its neighbours' private headers; -w: it is no style to follow.
        words += ["-I", str((ROOT / path).parent), "-w", "-g0"]
        words = [w for w in words if w != "-Werror"]
        subprocess.run(words, check=True, cwd=args.build)
        objects.append(str(source.with_suffix(".o")))
    link = list(args.link)
    link[link.index("-o") + 1] = str(out / "weft-sim")
    # Before the archives, whose members of the same names are then not looked at.
    first = next(i for i, w in enumerate(link) if w.endswith(".a"))
    link[first:first] = objects
    subprocess.run(link, check=True, cwd=args.build)
    return out / "weft-sim"


def run(program, seeds, fleet=False):
    """None when it passed, else the first line that says what broke."""
    words = [str(program), "--quick", "--seeds", str(seeds)] + (["--fleet"] if fleet else [])
    done = subprocess.run(words,
                          capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    first = lines[0] if lines else f"exit code {done.returncode}"
    if done.returncode > 0 and not first.startswith("seed "):
        raise Broken(f"{program} ended with {done.returncode}: {first}")
    return first  # of a broken invariant, or of what ended it with a signal


def check(args, mutation):
    name, what, edits = mutation
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="weft-mutant-") as out:
        found = run(build_mutant(args, name, edits, pathlib.Path(out)), args.seeds,
                    mutation in FLEET_MUTATIONS)
    return name, what, found, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--look", action="store_true", help="build nothing: does the table fit code and README?")
    parser.add_argument("--seeds", type=int, default=8000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    chosen = [m for m in MUTATIONS + FLEET_MUTATIONS if not args.only or m[0] in args.only]
    unknown = set(args.only or ()) - {m[0] for m in chosen}
    if unknown:
        raise Broken(f"the table has no {', '.join(sorted(unknown))}")
    stale = [problem for problem in map(does_not_fit, chosen) if problem] + not_told()
    if stale:
        raise Broken("the table has fallen behind:\n" + "\n".join(stale))
    if args.look:
        return 0
    if args.build is None:
        parser.error("--build BUILD is needed, or --look")
    args.build = args.build.resolve()
    args.commands = compile_commands(args.build)
    args.link = link_command(args.build)
    began = time.monotonic()
    missed = 0
    for fleet in (False, True):
        clean = run(args.build / "tests/sim/weft-sim", min(args.seeds, 300), fleet)
        if clean is not None:
            print(f"the unmutated simulator fails: {clean}")
            missed += 1
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, what, found, took in pool.map(lambda m: check(args, m), chosen):
            text = re.sub(r"^seed (\d+) at \d+ ms: ", r"seed \1: ", found or "")
            print(f"{'caught' if found else 'MISSED'} {name} ({took:.0f} s): {text or what}",
                  flush=True)
            missed += found is None
    print(f"{len(chosen)} mutants, {missed} problems, {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Broken as error:
        sys.exit(f"check_mutations.py: {error}")
