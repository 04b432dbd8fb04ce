"""Tensor parallel ranks keep their slices of what everybody is sent (--tp-plan).  On the
stand-ins of tests/doubles; what the slices are is computed here from the whole tensors."""
import hashlib
import json

from nccl_faults import aborted, failed
from nccl_trainer import CUDART, NCCL, Trainer
from nccl_update import GPUS, fine
from weft_scenario import Daemon, check, cut_names, folder, main, noise, same, until

PLAN = {"keep.*": None, "*.rows": 0, "*.columns": 1, "*.middle": 1, "*.last": 2}
ITEM = {"F32": 4, "BF16": 2, "U8": 1}


def tensors_of(seed):
    shapes = {"a.rows": ("BF16", [8, 6]), "a.columns": ("BF16", [8, 6]), "b.middle": ("F32", [3, 4, 5]),
              "b.last": ("U8", [3, 5, 14]), "b.bias.rows": ("F32", [10]), "empty.columns": ("F32", [0, 4]),
              "keep.rows": ("F32", [7, 3]), "norm": ("BF16", [33])}
    out = {}
    for name, (dtype, shape) in shapes.items():
        n = ITEM[dtype]
        for d in shape:
            n *= d
        out[name] = (dtype, shape, noise((seed, name), n))
    return out


def slice_of(tensor, dim, index, of):
    """Element by element."""
    dtype, shape, data = tensor
    size, out = ITEM[dtype], []
    inner = 1
    for d in shape[dim + 1:]:
        inner *= d
    part = shape[dim] // of
    for e in range(len(data) // size):
        if e // inner % shape[dim] // part == index:
            out.append(data[e * size:(e + 1) * size])
    cut = [d // of if n == dim else d for n, d in enumerate(shape)]
    return dtype, cut, b"".join(out)


def dim_of(name):
    from fnmatch import fnmatchcase
    return next((d for p, d in PLAN.items() if fnmatchcase(name, p)), None)


def kept(tensors, index, of):
    return {n: t if dim_of(n) is None else slice_of(t, dim_of(n), index, of) for n, t in tensors.items()}


def daemon(plan, *args, backend="nccl", **kw):
    return Daemon("--backend", backend, "--cudart", CUDART, "--nccl", NCCL, "--tp", "2", "--tp-plan", plan,
                  *args, env=GPUS, **kw)


def holds_slices(w, tensors):
    got = cut_names(w.checksums())
    return len(got) == 2 and all(
        sums == {n: hashlib.sha256(d).hexdigest() for n, (_, _, d) in
                 kept(tensors, int(rank.split(":tp")[1].split(":")[0]), 2).items()}
        for rank, sums in got.items())


def push(w, t, tensors, version):
    fine((*t.post("start_weight_update"), None))
    fine(t.update(tensors))
    w.ok("/finish_weight_update", {"weight_version": version})
    check(holds_slices(w, tensors), "each rank holds its slices")
    same(w.version(), version, "the version")


def plan_in(d):
    path = d / "plan.json"
    path.write_text(json.dumps(PLAN))
    return path


def test_slices():
    with folder() as d, daemon(plan_in(d)) as w:
        t = Trainer(w.address)
        fine(t.init())
        push(w, t, tensors_of("a"), "one")
        for size in (0, 100, 1 << 30):
            fine(t.init(packed=size))
            push(w, t, tensors_of(size), f"packed {size}")
        whole = tensors_of("part")
        some = {n: whole[n] for n in ("a.columns", "norm")}
        fine((*t.post("start_weight_update"), None))
        fine(t.update(some))
        w.ok("/finish_weight_update")
        check(holds_slices(w, {**tensors_of(1 << 30), **some}), "a part of them")
        first = kept({**tensors_of(1 << 30), **some}, 0, 2)
        for tensor in w.get("/weights").json["tensors"]:  # rank 0's
            dim = dim_of(tensor["name"])
            same(tensor.get("slice"), None if dim is None else {"dim": dim, "index": 0, "of": 2}, tensor["name"])
            same(tensor["shape"], first[tensor["name"]][1], tensor["name"])
        t.close()


def test_a_manifest_tells_of_whole_tensors():
    with folder() as d:
        tensors = tensors_of("m")
        manifest = d / "manifest.json"
        torch = {"F32": "float32", "BF16": "bfloat16", "U8": "uint8"}
        manifest.write_text(json.dumps({
            "names": list(tensors), "dtype_names": [torch[t] for t, _, _ in tensors.values()],
            "shapes": [s for _, s, _ in tensors.values()]}))
        with daemon(plan_in(d), "--manifest", manifest) as w:
            t = Trainer(w.address)
            fine(t.init())
            push(w, t, tensors, "one")
            t.close()


def test_what_cannot_be_sliced():
    with folder() as d, daemon(plan_in(d), backend="sparse_nccl") as w:
        for name, shape, words in (("x.rows", [7, 2], "dimension 0 of 'x.rows' is 7, which 2 tensor parallel ranks cannot share"),
                                   ("x.last", [4, 2], "'x.last' has 2 dimensions, the TP plan slices dimension 2")):
            t = Trainer(w.address)
            fine(t.init())
            fine((*t.post("start_weight_update"), None))
            n = shape[0] * shape[1]
            got = t.update({name: ("U8", shape, noise("x", n))})
            failed(got, words)
            check(got[2], "the trainer fails too")
            aborted(w)
        t = Trainer(w.address)
        fine(t.init())
        push(w, t, tensors_of("a"), "one")
        fine((*t.post("start_weight_update"), None))
        failed(t.patch({"a.rows": ("BF16", [8, 6], [1], b"xy")}), "'a.rows' is patched, and the TP plan slices it")
        aborted(w)
        t = Trainer(w.address)
        fine(t.init())
        fine((*t.post("start_weight_update"), None))
        fine(t.patch({"norm": ("BF16", [33], [1], b"xy")}))
        w.ok("/finish_weight_update")
        dtype, shape, data = tensors_of("a")["norm"]
        check(holds_slices(w, {**tensors_of("a"), "norm": (dtype, shape, data[:2] + b"xy" + data[4:])}), "patched")
        t.close()


def test_plans_that_are_none():
    with folder() as d:
        bad = d / "bad.json"
        bad.write_text('{"a": "rows"}')
        for backend, plan, words in (("nccl", bad, "TP plan: 'a' is not a dimension"),
                                     ("nccl", d / "none.json", "no such file"),
                                     ("host", plan_in(d), "--tp-plan is for the nccl and sparse_nccl backends")):
            w = daemon(plan, backend=backend, ready=False)
            try:
                until(lambda: words in w.log(), f"the log says {words!r}", 20)
            finally:
                w.kill()


if __name__ == "__main__":
    main(globals())
