"""kill -9, SIGTERM, SIGSTOP and SIGCONT of each process in each state of a session: what the
caller is told, what is visible, how the workers come back; and that a fresh init, start, update
and finish then works without a restart.  fault_cases.py has the table that is asserted.

  faults.py [PROCESS[:FAULT]…]   runs these cases (all), prints them as they were seen
  faults.py --table              prints the whole table as tests/README.md has it
  faults.py --check              whether tests/README.md has it
"""
import sys
import time
import traceback

from fault_cases import TABLE, markdown, only
from fault_run import run
from weft_scenario import ROOT, check, same

BEGIN, END = "<!-- table of faults: faults.py --table -->\n", "<!-- end of the table of faults -->\n"


def check_readme():
    text = (ROOT / "tests/README.md").read_text()
    check(BEGIN in text and END in text, "tests/README.md has both markers")
    same(text.split(BEGIN)[1].split(END)[0].strip("\n"), markdown(TABLE).strip("\n"),
         "the table in tests/README.md; put there what `python3 tests/scenario/faults.py --table` prints")


def run_row(process, fault, state, want):
    began = time.monotonic()
    try:
        got = run(process, state, fault)
        same(got, want, f"{process}, {fault}, {state}: (told, visible, workers)")
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        print(f"FAIL  {process} | {fault} | {state} ({time.monotonic() - began:.1f} s)", flush=True)
        return None
    print(f"ok    {process} | {fault} | {state} ({time.monotonic() - began:.1f} s)", flush=True)
    return got


def run_cases(wanted, states=None):
    seen, failed = {}, 0
    for (process, fault), rows in TABLE.items():
        if wanted and not any(w in (process, f"{process}:{fault}") for w in wanted):
            continue
        for names, *want in only(states, rows) if states else rows:
            for state in names.split(", "):
                got = run_row(process, fault, state, tuple(want))
                failed += got is None
                if got:
                    seen.setdefault((process, fault), []).append((state, *got))
    print("\n" + markdown(seen), flush=True)
    check(seen or failed, f"no such case: {wanted}")
    return failed


def main(args):
    if args == ["--table"]:
        print(markdown(TABLE), end="")
    elif args == ["--check"]:
        check_readme()
    else:
        states = [a[8:] for a in args if a.startswith("--state=")]
        sys.exit(1 if run_cases([a for a in args if not a.startswith("--")], states) else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
