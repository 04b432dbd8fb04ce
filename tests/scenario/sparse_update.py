"""Patches over NCCL (sparse_nccl, on the stand-ins of tests/doubles): applied to a copy,
all or nothing, to the version that they name."""
import random

from nccl_faults import aborted, failed
from nccl_trainer import CUDART, KINDS, NCCL, Trainer, patched
from nccl_update import GPUS, fine
from weft_scenario import Daemon, check, holds, main, model, noise, same, until


def daemon(*args, env=None, **kw):
    return Daemon("--backend", "sparse_nccl", "--cudart", CUDART, "--nccl", NCCL, *args,
                  env={**GPUS, **(env or {})}, **kw)


def trainer(w):
    t = Trainer(w.address)
    fine(t.init())
    return t


def start(t):
    fine((*t.post("start_weight_update"), None))


def push(w, t, tensors, version):
    """Whole tensors: how a worker gets what can be patched."""
    start(t)
    fine(t.update(tensors))
    w.ok("/finish_weight_update", {"weight_version": version})
    check(holds(w, tensors), "every worker holds what was sent")


def change(tensors, seed, part, in_order=True):
    """Patches of part of each tensor's elements."""
    rng, out = random.Random(seed), {}
    for name, (dtype, shape, data) in tensors.items():
        size = KINDS[dtype][0]
        n = len(data) // size
        indices = rng.sample(range(n), int(n * part))
        if in_order:
            indices.sort()
        out[name] = (dtype, shape, indices, noise((seed, name), len(indices) * size))
    return out


def test_patches():
    with daemon(env={"WEFT_FAKE_STREAM_DELAY_US": "300"}) as w:
        t = trainer(w)
        now = model("a")
        push(w, t, now, "one")
        same(w.status()["backend"], "sparse_nccl", "backend")
        for n, (part, in_order) in enumerate(((0.01, True), (0.3, False), (1, False))):
            patches = change(now, n, part, in_order)
            start(t)
            fine(t.patch(patches))
            check(holds(w, now), "nothing is seen before finish")
            w.ok("/finish_weight_update", {"weight_version": f"patch {n}"})
            now = patched(now, patches)
            check(holds(w, now), "every worker holds the patched tensors")
            same(w.version(), f"patch {n}", "the version")
        t.close()


def test_some_tensors_in_several_calls():
    with daemon() as w:
        t = trainer(w)
        first = model("a")
        push(w, t, first, "one")
        names = list(first)[:2]
        some = {n: first[n] for n in names}
        p, q = change(some, "p", 0.2), change(some, "q", 0.2)
        start(t)
        fine(t.patch(p))
        fine(t.patch(q, base_version="one"))  # over what came before it in the session
        fine(t.patch({names[1]: ("F32", first[names[1]][1], [], b"")}))
        w.ok("/finish_weight_update", {"weight_version": "two"})
        check(holds(w, patched(patched(first, p), q)), "both are there, the rest as it was")
        t.close()


def test_the_base_has_to_be_there():
    with daemon() as w:
        t = trainer(w)
        tensors = model("a")
        start(t)
        got = t.patch(change(tensors, 1, 0.1))
        failed(got, "tensor 'layers.0.weight' is patched, but there is none to patch")
        check(got[2], "the trainer fails too")
        aborted(w)
        # Every element of every tensor: nothing is missing.
        t = trainer(w)
        everything = change(tensors, 2, 1)
        start(t)
        fine(t.patch(everything))
        w.ok("/finish_weight_update", {"weight_version": "one"})
        now = patched(tensors, everything)
        check(holds(w, now), "every worker holds what was sent")
        start(t)
        other = {"layers.0.bias": ("F32", [32], [1], noise("x", 4))}
        failed(t.patch(other), "tensor 'layers.0.bias'")
        aborted(w)
        check(holds(w, now), "nothing has changed")
        t.close()


def test_the_base_version():
    with daemon() as w:
        t = trainer(w)
        first = model("a")
        push(w, t, first, "one")
        patches = change(first, 1, 0.1)
        start(t)
        got = t.patch(patches, base_version="nought")
        failed(got, "the update builds on version 'nought', its session on 'one': nothing was written")
        check(got[2], "the trainer fails too")
        aborted(w)
        same(w.version(), "one", "the version")
        check(holds(w, first), "nothing was written")
        t = trainer(w)
        start(t)
        failed(t.patch(patches, base_version=1), "'base_version' is not a string")
        aborted(w)
        t = trainer(w)
        start(t)
        fine(t.patch(patches, base_version="one"))
        w.ok("/finish_weight_update", {"weight_version": "two"})
        check(holds(w, patched(first, patches)), "every worker holds the patched tensors")
        t.close()


def test_wrong_patches_change_nothing():
    with daemon() as w:
        first = {"w": ("F32", [4, 25], noise("w", 400)), "b": ("BF16", [7], noise("b", 14))}
        t = trainer(w)
        push(w, t, first, "one")
        for indices, words in (([5, -1], "index -1 (at 1) is negative"),
                               ([5, 100], "index 100 (at 1), the tensor has 100 elements"),
                               ([99, 5, 99], "index 99 is given twice")):
            start(t)
            failed(t.patch({"b": ("BF16", [7], [1], b"xy"),
                            "w": ("F32", [4, 25], indices, noise("v", 4 * len(indices)))}),
                   f"patch of 'w': {words}")
            aborted(w)
            check(holds(w, first), "nothing has changed")
            t.close()
            t = trainer(w)
        start(t)
        got = t.patch({"b": ("BF16", [7], list(range(8)), noise("v", 16))})
        failed(got, "num_updates of 'b' is 8, the tensor has 7 elements")
        check(got[2], "refused before anything moves: the trainer fails too")
        aborted(w)
        same(w.version(), "one", "the version")
        check(holds(w, first), "nothing has changed")
        t.close()


def test_a_worker_that_was_replaced():
    """It has nothing: patches do not bring it back, whole tensors do."""
    import os
    import signal

    with daemon() as w:
        first = model("a")
        t = trainer(w)
        push(w, t, first, "one")
        old = w.pids()[1]
        os.kill(old, signal.SIGKILL)
        until(lambda: w.pids()[1] not in (0, old), "the worker is replaced", 30)
        until(lambda: all(x["state"] in ("ready", "behind") for x in w.status()["workers"]), "workers", 30)
        t.close()
        t = trainer(w)
        start(t)
        failed(t.patch(change(first, 1, 0.1)), "is patched, but what this rank holds is not what the update builds on")
        aborted(w)
        t = trainer(w)
        push(w, t, model("b"), "two")
        patches = change(model("b"), 2, 0.1)
        start(t)
        fine(t.patch(patches, base_version="two"))
        w.ok("/finish_weight_update")
        check(holds(w, patched(model("b"), patches)), "every worker holds the patched tensors")
        t.close()


def test_no_draft_sessions():
    text = "SparseNCCLWeightTransferEngine does not support draft model weight updates."
    with daemon(workers=1) as w:
        r = w.post("/start_draft_weight_update")
        check(r.status >= 400 and text in r.json["error"]["message"], str(r))
    try:
        daemon("--draft", workers=1).kill()
    except AssertionError as e:
        check("--draft" in str(e) and text in str(e), f"the mistake is named: {e}")
    else:
        raise AssertionError("--draft was taken")


if __name__ == "__main__":
    main(globals())
