"""--staging inplace in GPU memory (on the stand-ins of tests/doubles): an update goes over the live
weights.  What fails before its first byte leaves all as it was; what fails later leaves workers
poisoned, and a full push brings them back."""
import json
import os
import signal
import subprocess
import sys

import ipc_update
import nccl_trainer
import nccl_update
import sparse_update
import tp_slices
from ipc_trainer import info
from nccl_faults import aborted, failed
from nccl_update import GPUS, fine, push, trainer
from staging import INPLACE, is_poisoned, states
from weft_scenario import Background, check, folder, holds, main, model, noise, same, until


def daemon(*args, **kw):
    return nccl_update.daemon(*INPLACE, *args, **kw)


def begun(w):
    t = trainer(w, workers=len(w.pids()))
    fine(t.init())
    fine(t.start())
    fine(t.update(model("before")))
    w.ok("/finish_weight_update", {"weight_version": "before"})
    check(holds(w, model("before"), len(w.pids())), "the first push")
    return t


def as_before(w):
    aborted(w)
    same(w.version(), "before", "the version")
    check(holds(w, model("before"), len(w.pids())), "bytes as before")
    same(w.status()["poisoned"], None, "nobody is poisoned")
    check(w.is_ready(), "ready")


def settled(w):
    """A trainer whose init is refused waits in NCCL for ever: first everybody has to be there."""
    until(lambda: w.status()["session"] is None and
          not {"lost", "absent", "adopting"} & set(states(w)), "the workers", 30)


def heals(w):
    """A part is refused by the names of the rest; everything brings it back."""
    settled(w)
    tensors = model("after")
    t = trainer(w, workers=len(w.pids()))
    until(lambda: t.init()[0] == 200, "init is taken", 30)
    fine(t.start())
    fine(t.update({"scale": tensors["scale"]}))
    r = w.post("/finish_weight_update", {"weight_version": "part"})
    check(r.status >= 400 and "layers.1.weight" in r.body.decode(), f"a partial finish: {r}")
    same(w.version(), "default", "the version after a partial finish")
    check(not w.is_ready(), "not ready after a partial finish")
    aborted(w)
    until(lambda: t.init()[0] == 200, "init is taken", 30)
    fine(t.start())
    fine(t.update(tensors))
    w.ok("/finish_weight_update", {"weight_version": "after"})
    check(holds(w, tensors, len(w.pids())), "bytes after a full push")
    s = w.status()
    same((s["version"], s["poisoned"], s["session_paused"]), ("after", None, False), "healed")
    w.wait_ready()
    t.close()


def test_updates_go_over_the_live_weights():
    # A copy that is not waited for would still be old, or torn.
    with daemon(env={"WEFT_FAKE_STREAM_DELAY_US": "1000"}) as w:
        t = begun(w)
        for i, how in enumerate(({}, {"packed": 5000, "packed_num_buffers": 3}, {"packed": 1 << 30})):
            fine(t.init(**how))
            fine(t.start())
            s = w.status()
            same((s["staging"], s["session_paused"], s["paused"]), ("inplace", True, False),
                 "readers are paused by the session alone")
            w.ok("/abort_weight_update")
            fine(t.init(**how))
            push(w, t, model(i), f"v{i}")
            same(w.status()["session_paused"], False, "readers are served again")
            check(w.is_ready(), "ready")
        names, changed = list(model(2)), model("part")
        fine(t.start())
        for some in (names[:1], names[2:4], names[:1]):
            fine(t.update({n: changed[n] for n in some}))
        w.ok("/finish_weight_update", {"weight_version": "part"})
        check(holds(w, {**model(2), **{n: changed[n] for n in names[:1] + names[2:4]}}), "pieces")
        t.close()


def test_before_the_first_byte_all_stays():
    with daemon() as w:
        t = begun(w)
        fine(t.start())  # another shape
        failed(t.update({**model("b"), "scale": ("F32", [2], noise("s", 8))}), "tensor 'scale'")
        as_before(w)
        fine(t.init())
        fine(t.start())  # a trainer that announces and does not send
        failed((*t.post("update_weights", {"update_info": nccl_trainer.update_info(model("b"))},
                        "?timeout_s=2"), None), "update")
        as_before(w)
        t.close()
        killed_in_broadcast(w, 1)  # before the first tensor is there
        as_before(w)
        t = trainer(w)
        fine(t.init())
        push(w, t, model("a"), "a")
        t.close()


def killed_in_broadcast(w, number):
    """A trainer of its own that dies in that broadcast of its update."""
    told = {"address": w.address, "tensors": [[n, d, s, len(b)] for n, (d, s, b) in model("x").items()]}
    p = subprocess.run([sys.executable, nccl_trainer.__file__, json.dumps(told)],
                       env={**os.environ, **GPUS, "WEFT_FAKE_NCCL_KILL": f"broadcast:{number}"},
                       stdout=subprocess.PIPE, text=True, timeout=60)
    same((p.returncode, p.stdout), (-signal.SIGKILL, "started\n"), "the trainer died")
    aborted(w)


def test_a_trainer_killed_in_the_middle_poisons():
    with daemon() as w:
        begun(w).close()
        killed_in_broadcast(w, 3)
        is_poisoned(w)
        heals(w)
        w.ok("/resume")


def hangs(w, t):
    """An update of which the second tensor does not come."""
    fine(t.start())
    update = Background(t.update, model("torn"))
    until(lambda: set(states(w)) == {"updating"}, "all ranks have begun to write")
    check("in place" in w.get("/ready").body.decode(), "not ready, and why")
    return update


# The tenth broadcast: eight tensors come first, and one of the next update.
HANG = {"WEFT_FAKE_NCCL_HANG": "broadcast:10"}


def test_a_worker_killed_half_way():
    with daemon(env=HANG) as w:
        t = begun(w)
        update = hangs(w, t)
        os.kill(w.pids()[1], signal.SIGKILL)
        failed(update.result(), "poisoned")
        t.close()
        settled(w)
        is_poisoned(w, [0])  # rank 1 came back with nothing
        heals(w)
        w.ok("/resume")


def test_the_only_worker():
    """An abort half way poisons; a worker that is killed has nothing, and nothing is poisoned."""
    with daemon(workers=1, env=HANG) as w:
        t = begun(w)
        update = hangs(w, t)
        w.ok("/abort_weight_update")
        failed(update.result(), "poisoned")
        t.close()
        is_poisoned(w, [0])
        heals(w)
        w.ok("/resume")
        pid = w.pids()[0]
        os.kill(pid, signal.SIGKILL)
        until(lambda: w.pids()[0] not in (0, pid) and states(w) == ["behind"], "it is back, and behind", 30)
        check(not w.is_ready(), "not ready")
        same(w.status()["poisoned"], None, "it holds nothing that could be torn")
        begun(w).close()
        w.wait_ready()


# ---- memory

PIECE = 1 << 20


def big(seed, parts=4):
    return {f"t{i}": ("U8", [PIECE], noise((seed, i), PIECE)) for i in range(parts)}


def test_in_place_fits_where_two_do_not():
    # 1.3 models: the first tensor has room beside the others; 1.1: it has not.
    for limit in (13, 11):
        with daemon(workers=1, env={"WEFT_FAKE_GPU_BYTES": str(4 * PIECE * limit // 10)}) as w:
            t = trainer(w, workers=1)
            for i in range(3):
                fine(t.init())
                fine(t.start())
                fine(t.update(big(i)))
                w.ok("/finish_weight_update", {"weight_version": f"v{i}"})
                check(holds(w, big(i), 1), f"update {i} in {limit / 10} models")
            fine(t.start())  # one tensor more is too much
            new = {"new": ("U8", [2 * PIECE], noise("new", 2 * PIECE))}
            failed(t.update(new), f"has no {2 * PIECE} bytes")
            aborted(w)
            check(w.is_ready() and holds(w, big(2), 1), "nothing is lost")
            t.close()
    with nccl_update.daemon(workers=1, env={"WEFT_FAKE_GPU_BYTES": str(4 * PIECE * 13 // 10)}) as w:
        t = trainer(w, workers=1)
        fine(t.init())
        fine(t.start())
        fine(t.update(big(0)))
        w.ok("/finish_weight_update", {"weight_version": "one"})
        fine(t.start())
        failed(t.update(big(1)), f"has no {PIECE} bytes")
        aborted(w)
        same(w.version(), "one", "the version")
        check(w.is_ready() and holds(w, big(0), 1), "shadow staging is refused, and nothing is lost")
        t.close()


# ---- the other ways that bytes take

def test_slices():
    with folder() as d, tp_slices.daemon(tp_slices.plan_in(d), *INPLACE) as w:
        t = nccl_trainer.Trainer(w.address)
        for i, how in enumerate(({}, {"packed": 100}, {"packed": 1 << 30})):
            fine(t.init(**how))
            tp_slices.push(w, t, tp_slices.tensors_of(i), f"v{i}")
            tp_slices.push(w, t, tp_slices.tensors_of(("again", i)), f"again {i}")
        t.close()


def test_patches():
    with sparse_update.daemon(*INPLACE, env={"WEFT_FAKE_STREAM_DELAY_US": "300"}) as w:
        t = sparse_update.trainer(w)
        now = model("a")
        sparse_update.push(w, t, now, "one")
        names = list(now)[:2]
        for n, (part, in_order) in enumerate(((0.01, True), (0.3, False), (1, False))):
            p = sparse_update.change(now, n, part, in_order)
            q = sparse_update.change({k: now[k] for k in names}, f"q {n}", 0.2)
            sparse_update.start(t)
            fine(t.patch(p))
            fine(t.patch(q))  # over what came before it in the session
            w.ok("/finish_weight_update", {"weight_version": f"patch {n}"})
            now = nccl_trainer.patched(nccl_trainer.patched(now, p), q)
            check(holds(w, now), "every worker holds the patched tensors")
        # The second one is wrong: the first has not been written over either.
        wrong = sparse_update.change({k: now[k] for k in names}, "wrong", 0.2)
        wrong[names[1]][2][0] = -1
        sparse_update.start(t)
        failed(t.patch(wrong), "is negative")
        aborted(w)
        same((w.status()["poisoned"], w.version()), (None, "patch 2"), "nobody is poisoned")
        check(holds(w, now), "nothing was written")
        t.close()


def test_patches_of_tied_tensors():
    """Each is of what was live: one that says less than the other is not the same."""
    both = ("U8", [9], noise("tied", 9))
    now = {"a": both, "b": both}
    with folder() as d:
        (d / "m.json").write_text(json.dumps({"names": ["a", "b"], "dtype_names": ["uint8"] * 2, "shapes": [[9]] * 2,
                                              "tied": [["a", "b"]]}))
        with sparse_update.daemon(*INPLACE, "--manifest", d / "m.json") as w:
            t = sparse_update.trainer(w)
            sparse_update.push(w, t, now, "one")
            more, less = ("U8", [9], [1, 2], b"xy"), ("U8", [9], [1], b"x")
            for p, words in (({"a": more, "b": less}, "different bytes"), ({"a": more, "b": more}, None)):
                sparse_update.start(t)
                fine(t.patch(p))
                r = w.post("/finish_weight_update", {"weight_version": "two"})
                if words:
                    check(r.status == 409 and words in r.body.decode(), f"a finish of {p}: {r}")
                    w.ok("/abort_weight_update")
                    settled(w)
                    t.close()
                    t = sparse_update.trainer(w)
                    sparse_update.push(w, t, now, "one")
                else:
                    same(r.status, 200, r)
                    check(holds(w, nccl_trainer.patched(now, p)), "both are patched")
            t.close()


def ipc(*args, **kw):
    return ipc_update.daemon(*INPLACE, *args, **kw)


def test_shared_memory():
    os.environ["WEFT_FAKE_STREAM_DELAY_US"] = "3000"  # the trainer's: who does not wait reads poison
    try:
        with ipc() as w, ipc_update.exporter() as x:
            for i in range(3):
                tensors = model(i)
                ipc_update.push(w, info(tensors, ipc_update.one_by_one(x, tensors)), f"v{i}")
                check(holds(w, tensors), "every worker holds what was shared")
            tensors, size = model("packed"), 60000
            buffers = {gpu: x.allocate(gpu, size) for gpu in (0, 1)}
            for b in buffers.values():
                x.write(b, b"".join(d for _, _, d in tensors.values()))
            args = {x.uuid(g): x.args(b, 0, "U8", [size], size=size) for g, b in buffers.items()}
            ipc_update.push(w, info(tensors, args, tensor_sizes=[len(d) for _, _, d in tensors.values()]), "packed")
            check(holds(w, tensors), "packed")
            ipc_update.all_given_back(x)
    finally:
        del os.environ["WEFT_FAKE_STREAM_DELAY_US"]


def test_a_second_tensor_that_is_not_there_yet():
    """Everything is there before anything is written over."""
    with ipc(workers=1) as w, ipc_update.exporter() as x:
        first = big("ipc", 2)
        ipc_update.push(w, info(first, ipc_update.one_by_one(x, first, gpus=(0,))), "one")
        entries = ipc_update.one_by_one(x, big("late", 2), gpus=(0,))
        x.cuda.cudaStreamSynchronize(x.stream)
        os.environ["WEFT_FAKE_STREAM_DELAY_US"] = "2500000"
        try:
            at = x.allocate(0, PIECE)
            x.write(at, bytes(PIECE))
            entries[1] = {x.uuid(0): x.args(at, 0, "U8", [PIECE], size=PIECE)}
            w.ok("/start_weight_update")
            r = w.post("/update_weights?timeout_s=1", info(big("late", 2), entries))
        finally:
            del os.environ["WEFT_FAKE_STREAM_DELAY_US"]
        check(r.status >= 400, r)
        aborted(w)
        same((w.status()["poisoned"], w.version()), (None, "one"), "nobody is poisoned")
        check(w.is_ready() and holds(w, first, 1), "nothing was written")


def test_a_copy_that_fails_poisons():
    # The first update and its digests need some copies; the thirtieth is of the second.
    with ipc(workers=1, env={"WEFT_FAKE_FAIL": "cudaMemcpyAsync:30:700"}) as w, ipc_update.exporter() as x:
        first = big("ipc", 2)
        ipc_update.push(w, info(first, ipc_update.one_by_one(x, first, gpus=(0,))), "one")
        many = {**big("more", 2), **{f"small{i}": ("U8", [8], noise(i, 8)) for i in range(60)}}
        w.ok("/start_weight_update")
        r = w.post("/update_weights", info(many, ipc_update.one_by_one(x, many, gpus=(0,))))
        check(r.status >= 400 and "poisoned" in r.body.decode(), r)
        aborted(w)
        is_poisoned(w, [0])
        ipc_update.push(w, info(many, ipc_update.one_by_one(x, many, gpus=(0,))), "two")
        check(holds(w, many, 1), "a full push brings it back")
        ipc_update.all_given_back(x)


if __name__ == "__main__":
    main(globals())
