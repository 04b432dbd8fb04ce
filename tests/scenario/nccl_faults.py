"""What goes wrong over NCCL is an error in time, names its cause, leaves the old weights and
the way free for a new trainer.  On the stand-ins of tests/doubles."""
import json
import os
import signal
import subprocess
import sys
import time

import nccl_trainer
from nccl_trainer import CUDART, NCCL, update_info
from starts import ready
from nccl_update import GPUS, daemon, fine, push, trainer
from weft_scenario import Daemon, check, folder, holds, main, model, noise, same, until


def failed(got, *words):
    """An answer that is no success, with these words."""
    check(got[0] >= 400, f"an error was expected: {got}")
    for word in words:
        check(word in got[1], f"{word!r} is not in {got[1]}")


def aborted(w):
    until(lambda: w.status()["session"] is None, "the session is over", 20)


def still(w, tensors, version):
    """Old version, old bytes."""
    aborted(w)
    same(w.version(), version, "the version")
    check(holds(w, tensors), "every worker holds what it had")


def comes_back(w, tensors, version):
    """A new trainer gets in with the calls that stock ones make."""
    t = trainer(w)
    # Whose init is refused waits in NCCL for ever: first of all everybody has to be there.
    until(lambda: all(x["state"] in ("ready", "behind") for x in w.status()["workers"]), "workers", 30)
    until(lambda: t.init()[0] == 200, "init is taken", 30)
    fine(until(lambda: (lambda g: g if g[0] == 200 else None)(t.start()), "start is taken", 30))
    fine(t.update(tensors))
    w.ok("/finish_weight_update", {"weight_version": version})
    check(holds(w, tensors), "every worker holds what was sent")
    w.wait_ready()
    t.close()


def test_trainer_killed_in_the_middle_of_a_broadcast():
    with daemon() as w:
        first = model("a")
        t = trainer(w)
        fine(t.init())
        push(w, t, first, "one")
        t.close()
        told = {"address": w.address, "tensors": [[n, d, s, len(b)] for n, (d, s, b) in first.items()]}
        p = subprocess.run([sys.executable, nccl_trainer.__file__, json.dumps(told)],
                           env={**os.environ, **GPUS, "WEFT_FAKE_NCCL_KILL": "broadcast:3"},
                           stdout=subprocess.PIPE, text=True, timeout=60)
        same((p.returncode, p.stdout), (-signal.SIGKILL, "started\n"), "the trainer died")
        still(w, first, "one")
        comes_back(w, model("b"), "two")


def test_trainer_that_never_comes():
    with daemon() as w:
        t = trainer(w)
        began = time.monotonic()
        got = t.init(query="?timeout_s=2", come=False)
        check(time.monotonic() - began < 20, "in time")
        failed(got, "init")
        comes_back(w, model("a"), "one")


def test_store_that_is_not_there():
    with daemon() as w:
        t = trainer(w)
        import socket
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        body = {"rank_offset": 1, "world_size": 3, "master_address": "127.0.0.1", "master_port": port}
        failed((*t.post("init_weight_transfer_engine", {"init_info": body}, "?timeout_s=2"), None),
               "init")
        for host in ("0.0.0.0", "::"):
            failed((*t.post("init_weight_transfer_engine",
                            {"init_info": {**body, "master_address": host}}), None),
                   f"master_address {host} is every address")
        comes_back(w, model("a"), "one")


def test_another_version_of_nccl():
    with daemon(env={"WEFT_FAKE_NCCL_VERSION": "22105"}) as w:
        t = trainer(w)
        got = t.init()
        failed(got, "Mismatched NCCL version detected", "NCCL 2.21.5 here",
               "--nccl is not the library that the trainer loads")
        check("Mismatched NCCL version" in got[2], "the trainer is told too")
        check("NCCL 2.21.5" in w.status()["workers"][0]["device"], "the status names it")


def test_world_sizes_that_do_not_fit():
    with daemon() as w:
        t = trainer(w, world_size=2)
        began = time.monotonic()
        failed(t.init(come=False), "world_size 2 has no room for all",
               "rank_offset 1 + 0 workers of other replicas + 2 workers here are 3")
        check(time.monotonic() - began < 5, "at once: nobody has entered NCCL")
        t = trainer(w, world_size=1)
        failed(t.init(come=False), "trainer and worker are two at least")
        t = trainer(w)
        failed(t.init(come=False, rank_offset=0), "the trainer is rank 0")
        failed(t.init(come=False, colour="blue"), "unexpected keyword argument 'colour'")
        comes_back(w, model("a"), "one")


def test_trainer_on_a_workers_gpu():
    with daemon() as w:
        t = trainer(w, gpu=0)
        got = t.init()
        failed(got, "Duplicate GPU detected", "ipc backend")
        check("Duplicate GPU" in got[2], "the trainer is told too")
        comes_back(w, model("a"), "one")


def test_update_before_init():
    with daemon() as w:
        t = trainer(w)
        fine(t.start())
        failed((*t.post("update_weights", {"update_info": update_info(model("a"))}), None),
               "NCCL weight transfer not initialized. Call init_transfer_engine() first.")
        comes_back(w, model("a"), "one")


def test_another_list_than_announced():
    with daemon() as w:
        first = model("a")
        t = trainer(w)
        fine(t.init())
        push(w, t, first, "one")
        fine(t.start())
        other = {**model("b"), "layers.1.weight": ("BF16", [64, 63], noise("x", 64 * 63 * 2))}
        got = t.update(model("b"), send=other)
        failed(got, "collectives do not match")
        check(got[2], "the trainer fails too")
        still(w, first, "one")
        comes_back(w, model("c"), "two")


def test_a_refusal_does_not_strand_the_trainer():
    with daemon() as w:
        first = model("a")
        t = trainer(w)
        fine(t.init())
        push(w, t, first, "one")
        fine(t.start())
        wrong = {**model("b"), "scale": ("F32", [2], noise("s", 8))}
        got = t.update(wrong)
        failed(got, "tensor 'scale'")
        check(got[2], "the trainer's broadcast fails: the communicator is aborted")
        still(w, first, "one")
        comes_back(w, model("c"), "two")


def test_a_collective_that_never_completes():
    with daemon(env={"WEFT_FAKE_NCCL_HANG": "broadcast:10"}) as w:
        first = model("a")
        t = trainer(w)
        fine(t.init())
        push(w, t, first, "one")  # eight broadcasts, one of which has no bytes
        fine(t.start())
        got = t.update(model("b"), query="?timeout_s=2")
        failed(got, "update")
        check(got[2], "the trainer fails too")
        still(w, first, "one")
        comes_back(w, model("c"), "two")


def test_an_abort_that_hangs_costs_the_worker():
    with folder() as dir:
        flag = dir / "abort-hangs"
        with daemon(env={"WEFT_FAKE_NCCL_HANG": "broadcast:10",
                         "WEFT_FAKE_NCCL_ABORT_HANG": str(flag)}) as w:
            first = model("a")
            t = trainer(w)
            fine(t.init())
            push(w, t, first, "one")
            before = w.pids()
            flag.touch()
            fine(t.start())
            failed(t.update(model("b"), query="?timeout_s=2"), "update")
            until(lambda: all(w.pids()[r] not in (0, before[r]) for r in before),
                  "both workers are replaced", 60)
            flag.unlink()
            same(w.version(), "one", "the version")
            comes_back(w, model("c"), "two")


def test_no_memory_on_the_gpu():
    with daemon(env={"WEFT_FAKE_GPU_BYTES": "100000"}) as w:
        t = trainer(w)
        fine(t.init())
        fine(t.start())
        got = t.update({"big": ("U8", [200000], noise("b", 200000))})
        failed(got, "has no 200000 bytes")
        check(got[2], "the trainer fails too")
        aborted(w)
        comes_back(w, {"small": ("U8", [20000], noise("s", 20000))}, "one")


def test_a_gpu_that_is_lost():
    """An error that every later call gives, too: only another process gets the GPU back."""
    with daemon(workers=1, env={"WEFT_FAKE_FAIL": "cudaMemcpyAsync:20:700", "WEFT_FAKE_STICKY": "1"}) as w:
        t = trainer(w, workers=1)
        fine(t.init())
        push_alone(w, t, model("a"), "one")  # seven copies, and seven for checksums
        before = w.pids()[0]
        fine(t.start())
        got = t.update(model("b"))
        if got[0] == 200:  # digests come behind
            got = t.post("finish_weight_update")
        failed(got, "CUDA error 700")
        t.close()
        until(lambda: w.pids()[0] not in (0, before), "the worker is replaced", 30)
        check("the GPU is lost to this process" in w.log(), "the log says why")
        until(lambda: [x["state"] for x in w.status()["workers"]] == ["behind"], "it is back, and behind", 30)
        check(not w.is_ready(), "not ready without weights")
        t = trainer(w, workers=1)
        fine(t.init())
        push_alone(w, t, model("c"), "two")
        w.wait_ready()
        t.close()


def push_alone(w, t, tensors, version):
    fine(t.start())
    fine(t.update(tensors))
    w.ok("/finish_weight_update", {"weight_version": version})
    check(holds(w, tensors, 1), "the worker holds what was sent")


def test_libraries_that_are_not_there():
    for more, env, words in (
            (("--cudart", "/nowhere/libcudart.so.13", "--nccl", NCCL), {}, "/nowhere/libcudart.so.13"),
            (("--cudart", CUDART, "--nccl", "/nowhere/libnccl.so.2"), {}, "/nowhere/libnccl.so.2"),
            (("--cudart", CUDART, "--nccl", "libm.so.6"), {}, "libm.so.6 has no nccl"),
            (("--cudart", CUDART, "--nccl", NCCL), {"WEFT_FAKE_NO_DRIVER": "1"}, "no NVIDIA driver"),
            (("--cudart", CUDART, "--nccl", NCCL), {"WEFT_FAKE_GPUS": "4", "CUDA_VISIBLE_DEVICES": ""},
             "no GPU here"),
            (("--cudart", CUDART, "--nccl", NCCL), {"WEFT_FAKE_GPUS": "4", "CUDA_VISIBLE_DEVICES": "0,1"},
             "worker 2 has no GPU of its own, this process sees 2: say which with --device")):
        for backend in ("nccl", "sparse_nccl", "ipc"):
            if backend != "ipc" or "libnccl" not in words and "nccl" not in words:
                does_not_start(backend, more, env, words)


def does_not_start(backend, more, env, words):
    """No crash: the worker ends with a reason, which the log has, and /ready."""
    with folder() as d:
        at = d / "http"
        w = Daemon("--backend", backend, *more, workers=3 if "worker 2" in words else 1,
                   env=env, listen=f"unix:{at}", ready=False)
        try:
            until(at.exists, "it listens", 20)
            until(lambda: words in w.log(), f"the log says {words!r}", 20)
            said = until(lambda: (lambda r: r[1] if words in r[1] else None)(ready(at)), "/ready says so", 20)
            check("exited with status" in said, said)
        except AssertionError as e:
            raise AssertionError(f"{backend}: {e}\n{w.log()[-2000:]}") from None
        finally:
            w.kill()


def test_init_info_is_refused_by_name():
    """400, before any worker enters; every key, and every key's type."""
    good = {"rank_offset": 1, "world_size": 3, "master_address": "127.0.0.1", "master_port": 1}
    with daemon() as w:
        t = trainer(w)
        for key, value in (("rank_offset", "1"), ("rank_offset", None), ("rank_offset", 1.5), ("world_size", True),
                           ("world_size", []), ("master_port", "29500"), ("master_port", 0), ("master_address", 7),
                           ("master_address", "h" * 300), ("nccl_unique_id_b64", 7), ("packed", 1),
                           ("packed_buffer_size_bytes", "1G"), ("packed_buffer_size_bytes", -1),
                           ("packed_num_buffers", 0), ("profile", 3), ("colour", "blue"), ("group_name", "g")):
            info = {**good, key: value}
            if key == "nccl_unique_id_b64":
                del info["master_address"], info["master_port"]
            status, text = t.post("init_weight_transfer_engine", {"init_info": info})
            check(status == 400 and key in text, f"{key} = {value!r}: {status} {text}")
        comes_back(w, model("a"), "one")


FAULTS = {
    "same-GPU peers": ["test_trainer_on_a_workers_gpu"],
    "world size 1": ["test_world_sizes_that_do_not_fit"],
    "another version of NCCL": ["test_another_version_of_nccl"],
    "unreachable master": ["test_store_that_is_not_there"],
    "0.0.0.0 as master": ["test_store_that_is_not_there"],
    "a trainer that never comes": ["test_trainer_that_never_comes"],
    "a trainer that dies in the middle of a broadcast": ["test_trainer_killed_in_the_middle_of_a_broadcast"],
    "a collective that never completes": ["test_a_collective_that_never_completes",
                                          "test_an_abort_that_hangs_costs_the_worker"],
    "an error of the GPU that stays": ["test_a_gpu_that_is_lost"],
    "no library, no driver, no GPU": ["test_libraries_that_are_not_there"],
}


def test_the_table_of_faults():
    """What has to be here, and where it is: all of it ran above."""
    for fault, names in FAULTS.items():
        for name in names:
            check(callable(globals().get(name)), name)
        print(f"      {fault:50} {', '.join(names)}")


if __name__ == "__main__":
    main(globals())
