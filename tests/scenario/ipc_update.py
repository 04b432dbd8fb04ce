"""Weights come by CUDA IPC handles (on the stand-ins of tests/doubles): one by one and packed,
the trainer's events and counters, and what is refused."""
import contextlib
import os

from ipc_export import CUDART
from ipc_trainer import Exporter, info, rebuild_cuda_tensor
from weft_scenario import Daemon, check, holds, main, model, noise, same, until

HEADS = (b"\1c", b"\2c", b"\3c", b"")  # of three torch generations, and of those before


def daemon(*args, pickles=True, env=None, **kw):
    return Daemon("--backend", "ipc", "--cudart", CUDART, *args, *(["--allow-ipc-pickle"] if pickles else []),
                  env={"WEFT_FAKE_GPUS": "4", **(env or {})}, **kw)


@contextlib.contextmanager
def exporter():
    x = Exporter()
    try:
        yield x
    finally:
        x.close()


def one_by_one(x, tensors, gpus=(0, 1), old=False, **how):
    """A list of {uuid: args}, all tensors of a GPU in one cudaMalloc, with a gap before."""
    entries = [{} for _ in tensors]
    for gpu in gpus:
        size = 512 + sum(len(d) + -len(d) % 256 for _, _, d in tensors.values())
        base, at = x.allocate(gpu, size), 256
        for i, (dtype, shape, data) in enumerate(tensors.values()):
            x.write(base.value + 256 + at, data)
            args = x.args(base, at, dtype, shape, size=size - 256, base_at=256, head=HEADS[i % 4], **how)
            entries[i][x.uuid(gpu)] = (rebuild_cuda_tensor, args) if old else args
            at += len(data) + -len(data) % 256
    return entries


def push(w, body, version):
    w.ok("/start_weight_update")
    w.ok("/update_weights", body)
    w.ok("/finish_weight_update", {"weight_version": version})
    same(w.version(), version, "the version")


def all_given_back(x):
    check(x.exports > 0 and not any(x.counters()), f"every export was counted down once: {x.counters()}")


def test_one_by_one():
    # Each operation of the trainer's stream is late: who does not wait for its event reads poison.
    os.environ["WEFT_FAKE_STREAM_DELAY_US"] = "5000"
    try:
        with daemon() as w, exporter() as x:
            w.ok("/init_weight_transfer_engine", {"init_info": {"packed": False}})
            first, second = model("a"), model("b")
            push(w, info(first, one_by_one(x, first)), "one")
            check(holds(w, first), "every worker holds what was shared")
            push(w, info(second, one_by_one(x, second, old=True)), "two")
            check(holds(w, second), "every worker holds what was shared")
            all_given_back(x)
            for worker in w.status()["workers"]:
                check("CUDA 13.0" in worker["device"] and "NCCL" not in worker["device"], worker)
    finally:
        del os.environ["WEFT_FAKE_STREAM_DELAY_US"]


def test_packed_in_chunks():
    with daemon() as w, exporter() as x:
        w.ok("/init_weight_transfer_engine", {"init_info": {"packed": True}})
        tensors, size = model("a"), 20000
        buffers = {gpu: x.allocate(gpu, size) for gpu in (0, 1)}
        args = {x.uuid(g): x.args(b, 0, "U8", [size], size=size, event=False) for g, b in buffers.items()}
        w.ok("/start_weight_update")
        chunk = {}
        for i, (name, t) in enumerate(tensors.items()):
            chunk[name] = t
            if i % 3 == 2 or i + 1 == len(tensors):
                for b in buffers.values():
                    x.write(b, b"".join(d for _, _, d in chunk.values()))
                x.cuda.cudaStreamSynchronize(x.stream)
                w.ok("/update_weights", info(chunk, args, tensor_sizes=[len(d) for _, _, d in chunk.values()]))
                for b in buffers.values():
                    x.write(b, noise(("over", i), size))  # the answer says that all is copied
                chunk = {}
        w.ok("/finish_weight_update")
        check(holds(w, tensors), "every worker holds what was shared")
        all_given_back(x)


def test_each_worker_its_own_entry():
    with daemon() as w, exporter() as x:
        tensors = model("a")
        mine = [info(tensors, one_by_one(x, tensors, gpus=(g,)))["update_info"] for g in (0, 1)]
        push(w, {"update_info": mine}, "one")
        check(holds(w, tensors), "every worker holds what was shared")
        # Nothing for anybody.
        none = {"names": [], "dtype_names": [], "shapes": []}
        push(w, {"update_info": [none, none]}, "two")
        check(holds(w, tensors), "and still does")


def test_a_tensor_with_gaps():
    with daemon(workers=1) as w, exporter() as x:
        rows = [noise(("row", i), 14) for i in range(5)]
        base = x.allocate(0, 200)
        x.write(base, b"".join(r + b"gapgap" for r in rows))
        tensors = {"w": ("BF16", [5, 7], b"".join(rows))}
        args = x.args(base, 0, "BF16", [5, 7], size=200, stride=[10, 1], event=False)
        push(w, info(tensors, [{x.uuid(0): args}]), "one")
        check(holds(w, tensors, workers=1), "the gaps are left out")


def refused(w, body, *words, code=None):
    w.ok("/start_weight_update")
    r = w.post("/update_weights", body)
    check(r.status >= 400 and (code is None or r.status == code), r)
    for word in words:
        check(word in r.json["error"]["message"], f"{word!r} is not in {r}")
    until(lambda: w.status()["session"] is None, "the session is over", 20)


def test_without_consent():
    with daemon(pickles=False) as w, exporter() as x:
        tensors = model("a")
        refused(w, info(tensors, one_by_one(x, tensors)),
                "Refusing to deserialize `ipc_handles_pickled` without VLLM_ALLOW_INSECURE_SERIALIZATION=1")
    with daemon(pickles=False, env={"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}) as w, exporter() as x:
        push(w, info(tensors, one_by_one(x, tensors)), "one")


def test_what_does_not_fit():
    with daemon() as w, exporter() as x:
        first = model("a")
        push(w, info(first, one_by_one(x, first)), "one")
        tensors = model("b")
        good = one_by_one(x, tensors)
        refused(w, info(tensors, good[:-1]), "handles for")
        refused(w, info(tensors, one_by_one(x, tensors, gpus=(2, 3))), "none for this worker's GPU", x.uuid(2))
        other = {**tensors, "scale": ("F32", [1], noise("s", 4))}
        refused(w, info(tensors, one_by_one(x, other)), "the handle of 'scale' is of another shape")
        refused(w, info(tensors, good, ipc_handles=[1]), "Cannot specify both")
        refused(w, {"update_info": {k: v for k, v in info(tensors, good)["update_info"].items()
                                    if k != "ipc_handles_pickled"}},
                "Either `ipc_handles` or `ipc_handles_pickled` must be provided")
        refused(w, info(tensors, good[0]), "`tensor_sizes` is required when packed=True")
        expandable = x.args(x.allocate(0, 8), 0, "U8", [8], size=8, event=False, head=b"\2e")
        refused(w, info({"w": ("U8", [8], b"")}, [{x.uuid(0): expandable, x.uuid(1): expandable}]),
                "expandable_segments")
        refused(w, info(tensors, [print]), "builtins.print")
        r = w.post("/init_weight_transfer_engine", {"init_info": {"packed": True, "x": 1}})
        check(r.status >= 400 and "unexpected keyword argument 'x'" in r.json["error"]["message"], r)
        same(w.version(), "one", "the version")
        check(holds(w, first), "every worker holds what it had")
        push(w, info(tensors, one_by_one(x, tensors)), "two")
        check(holds(w, tensors), "every worker holds what was shared")


def test_memory_that_is_gone():
    with daemon() as w, exporter() as x:
        first = model("a")
        push(w, info(first, one_by_one(x, first)), "one")
        tensors = {"w": ("U8", [64], noise("w", 64))}
        entries = one_by_one(x, tensors)
        x.cuda.cudaStreamSynchronize(x.stream)
        while x.memory:
            x.cuda.cudaSetDevice(len(x.memory) % 2)
            x.cuda.cudaFree(x.memory.pop())
        refused(w, info(tensors, entries), "cudaIpcOpenMemHandle", "'w'")
        same(w.version(), "one", "the version")
        check(holds(w, first), "every worker holds what it had")


def test_an_event_that_does_not_come():
    with daemon(workers=1) as w, exporter() as x:
        tensors = {"w": ("U8", [64], noise("w", 64))}
        base = x.allocate(0, 64)
        x.write(base, tensors["w"][2])
        x.cuda.cudaStreamSynchronize(x.stream)
        # Recorded behind work that takes longer than anybody waits.
        os.environ["WEFT_FAKE_STREAM_DELAY_US"] = "8000000"
        try:
            args = x.args(base, 0, "U8", [64], size=64)
            w.ok("/start_weight_update")
            r = w.post("/update_weights?timeout_s=2", info(tensors, [{x.uuid(0): args}]))
        finally:
            del os.environ["WEFT_FAKE_STREAM_DELAY_US"]
        check(r.status >= 400 and "update" in r.json["error"]["message"], r)
        until(lambda: w.status()["session"] is None, "the session is over", 20)
        args = x.args(base, 0, "U8", [64], size=64, event=False)
        push(w, info(tensors, [{x.uuid(0): args}]), "one")
        check(holds(w, tensors, workers=1), "the next one gets in")


if __name__ == "__main__":
    main(globals())
