#!/usr/bin/env python3
"""Checks tests/field_reports.tsv: each report once, each named test there, each reason told.

check_field_reports.py SOURCE BUILD
A row says: source, number, status, where, what must hold (or why it does not apply).  where
is FILE:FUNCTION of a unit or scenario test, ctest:NAME, or FILE.md:HEADING.
"""
import pathlib
import re
import subprocess
import sys

ROWS = 144
STATUSES = {"test", "not-applicable", "decided-otherwise", "open"}


def registered(build):
    out = subprocess.run(["ctest", "-N", "--test-dir", str(build)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"Test +#\d+: (\S+)", out))


def wrong_place(where, root, names):
    """Why where is no test that runs; None when it is."""
    file, _, name = where.partition(":")
    if file == "ctest":
        return None if name in names else "ctest does not have it"
    path = root / file
    if not path.is_file():
        return "no such file"
    text = path.read_text()
    if path.suffix == ".md":
        return None if re.search(rf"^#+ {re.escape(name)}$", text, re.M) else "no such heading"
    if path.suffix == ".py":
        if f"scenario.{path.stem}" not in names:
            return f"ctest has no scenario.{path.stem}"
        return None if re.search(rf"^def {name}\(\):", text, re.M) else "no such function"
    folder, stem = path.parent.name, path.stem.removeprefix("test_")
    folder = "transport" if folder == "doubles" else folder
    if f"{folder}.{stem}" not in names:
        return f"ctest has no {folder}.{stem}"
    if not re.search(rf"^static void {name}\(void \*\*", text, re.M):
        return "no such function"
    return None if len(re.findall(rf"\b{name}\b", text)) > 1 else "it is in no list of tests"


def main(root, build):
    lines = (root / "tests/field_reports.tsv").read_text().splitlines()
    names, seen, used, bad = registered(build), set(), set(), []
    reasons = (root / "tests/field-reports.md").read_text()
    for n, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != 5:
            bad.append(f"line {n}: {len(cells)} cells, not 5")
            continue
        source, number, status, where, what = cells
        key = f"{source} {number}"
        places = [p for p in where.split(", ") if p]
        if key in seen:
            bad.append(f"line {n}: {key} is there twice")
        seen.add(key)
        used.update(places)
        if status not in STATUSES or not what:
            bad.append(f"line {n}: {key}: status '{status}', or nothing said")
        if status == "test" and not places:
            bad.append(f"line {n}: {key}: no test is named")
        if status != "test" and key not in reasons:
            bad.append(f"line {n}: {key} is not in tests/field-reports.md")
        bad += [f"line {n}: {key}: {p}: {why}" for p in places if (why := wrong_place(p, root, names))]
    if len(lines) - 1 != ROWS:
        bad.append(f"{len(lines) - 1} reports, not {ROWS}")
    for path in sorted((root / "tests/scenario").glob("field_*.py")):
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.M):
            if f"tests/scenario/{path.name}:{name}" not in used:
                bad.append(f"{path.name}:{name} is named after no report")
    print("\n".join(bad) or f"{len(seen)} reports")
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
