"""Field reports about NCCL and GPU memory, on the stand-ins of tests/doubles."""
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import ipc_trainer
import ipc_update
import nccl_trainer
from nccl_faults import comes_back, failed, still
from nccl_trainer import Group
from nccl_update import GPUS, daemon, fine, push, trainer
from weft_scenario import SLOW, Background, check, holds, main, model, noise, same, until


def test_nccl_2349_200_communicators_on_one_port():
    """Init and tear-down, 200 times, by way of a store that listens on the same port each time;
    others are answered meanwhile."""
    with daemon() as w:
        store = nccl_trainer.Store(b"/broadcast_from/0/0", None)
        t, worst = trainer(w), 0.0

        def publish(group):
            store.value = pickle.dumps(group.id)
        for i in range(200):
            store.value = None  # who comes before it is published waits for it
            fine(t.init(publish=publish, store=store.port))
            if i % 20 == 0:
                began = time.monotonic()
                same(w.get("/health").status, 200, "health")
                worst = max(worst, time.monotonic() - began)
        check(worst < 1.0 * SLOW, f"the slowest answer took {worst:.2f} s")
        push(w, t, model("a"), "after 200")
        store.close()
        t.close()


def test_dynamo_11418_a_trainer_that_is_late():
    """With the default deadline; the one that never comes is nccl_faults.py's."""
    with daemon() as w:
        t = trainer(w)
        t.group = Group(3)
        info = {"rank_offset": 1, "world_size": 3, "nccl_unique_id_b64": t.group.id_text()}
        call = Background(t.post, "init_weight_transfer_engine", {"init_info": info})
        until(lambda: {x["phase"] for x in w.status()["workers"]} == {"receiving"}, "the workers are waiting")
        time.sleep(2)  # this is the lateness
        check(call.is_alive(), "still waiting")
        t.group.join()
        same(call.result()[0], 200, "init")
        push(w, t, model("a"), "late")
        t.close()


def test_slime_2331_two_trainers_in_opposite_order():
    """Each has the first worker of one engine and waits for the other's: both end in time, and
    both engines take a fresh init."""
    with daemon(workers=1) as one, daemon(workers=1) as two:
        results = {}

        def trainer_of(name, first, second):
            group = Group(3)
            def info(offset):
                return {"init_info": {"rank_offset": offset, "world_size": 3, "nccl_unique_id_b64": group.id_text()}}
            a = Background(first.post, "/init_weight_transfer_engine?timeout_s=3", info(1))
            until(lambda: first.status()["workers"][0]["phase"] == "receiving", "the first has taken it")
            gate.wait(20)
            b = Background(second.post, "/init_weight_transfer_engine?timeout_s=3", info(2))
            results[name] = (a.result(30).status, b.result(30).status)
            group.abort()
        gate = threading.Barrier(2)
        began = time.monotonic()
        both = [Background(trainer_of, "x", one, two), Background(trainer_of, "y", two, one)]
        for t in both:
            t.result(60)
        check(time.monotonic() - began < 10 * SLOW, "inside the deadlines")
        same({s for pair in results.values() for s in pair} & {200}, set(), f"nobody believes that it is in: {results}")
        for w in (one, two):
            t = trainer(w, workers=1)
            until(lambda: t.init()[0] == 200, "a fresh init", 20)
            fine(t.start())
            fine(t.update(model("a")))
            w.ok("/finish_weight_update")
            check(holds(w, model("a"), workers=1), "the bytes")
            t.close()


def test_areal_1439_a_late_update_tells_of_each_rank():
    with daemon(env={"WEFT_FAKE_NCCL_HANG": "broadcast:10"}) as w:
        t = trainer(w)
        fine(t.init())
        push(w, t, model("a"), "one")
        fine(t.start())
        got = t.update(model("b"), query="?timeout_s=2")
        failed(got, "update_weights failed in phase transfer")
        error = json.loads(got[1])["error"]
        for rank in (0, 1):
            check(f"rank {rank}" in error["workers"], f"named: {error}")
            said = [x for x in w.log().splitlines() if f"late in transfer rank={rank} " in x]
            same(len(said), 1, f"lines of the log about rank {rank}: {w.log()}")
            numbers = dict(x.split("=") for x in said[0].split() if "=" in x)
            check(int(numbers["received"]) < int(numbers["expected"]) == sum(len(b) for _, _, b in model("b").values())
                  and int(numbers["after_ms"]) >= 1500, f"bytes and time: {said}")


def test_sglang_17870_one_handle_for_both_sets():
    """The same memory for main and draft model: mapped, copied from and let go of in each session."""
    with ipc_update.daemon("--draft") as w, ipc_update.exporter() as x:
        w.ok("/init_weight_transfer_engine", {"init_info": {"packed": False}})
        size = 5000
        tensors = {"w": ("U8", [size], noise("shared", size))}
        bases = {gpu: x.allocate(gpu, size) for gpu in (0, 1)}
        for base in bases.values():
            x.write(base, tensors["w"][2])
        x.cuda.cudaStreamSynchronize(x.stream)
        for start in ("/start_weight_update", "/start_draft_weight_update") * 3:
            handles = [{x.uuid(g): x.args(b, 0, "U8", [size], size=size, event=False) for g, b in bases.items()}]
            w.ok(start)
            w.ok("/update_weights", ipc_trainer.info(tensors, handles))
            w.ok("/finish_weight_update")
            same(w.get("/health").status, 200, "health")
        same(sorted(w.checksums().values()), [hashlib.sha256(tensors["w"][2]).hexdigest()] * 4,
             "both sets on both ranks")
        ipc_update.all_given_back(x)


def test_sglang_4446_a_hundred_updates_in_the_memory_of_two():
    tensors = lambda seed: {"w": ("U8", [100000], noise(seed, 100000)), "v": ("U8", [50000], noise((seed, "v"), 50000))}
    # old and new, the warm-up's pair and no third copy
    with daemon(env={"WEFT_FAKE_GPU_BYTES": str(2 * 150000 + 4096)}) as w:
        t = trainer(w)
        fine(t.init())
        for i in range(100):
            fine(t.start())
            fine(t.update(tensors(i % 2)))
            w.ok("/finish_weight_update", {"weight_version": str(i)})
        check(holds(w, tensors(1)), "the last")
        t.close()


def test_vllm_48644_packed_needs_its_buffers_and_no_more():
    """Tensors in a shuffled order, in memory for old, new and the announced buffers."""
    import random
    sizes = [30000] * 4 + [1000] * 20
    make = lambda seed: {f"t{i}": ("U8", [n], noise((seed, i), n)) for i, n in enumerate(sizes)}
    total, packed, buffers = sum(sizes), 20000, 2
    chunk = packed + max(sizes)  # the last tensor of a chunk goes over
    limit = 2 * total + buffers * chunk + 4096  # the warm-up
    with daemon(env={"WEFT_FAKE_GPU_BYTES": str(limit)}) as w:
        t = trainer(w)
        fine(t.init(packed=packed, packed_num_buffers=buffers))
        for i in range(6):
            tensors = list(make(i).items())
            random.Random(i).shuffle(tensors)
            push(w, t, dict(tensors), f"packed {i}")
        t.close()


def test_miles_1444_a_restarted_worker_asks_for_a_new_init():
    with daemon() as w:
        t = trainer(w)
        fine(t.init())
        push(w, t, model("a"), "one")
        pid = w.pids()[1]
        os.kill(pid, signal.SIGKILL)
        until(lambda: w.pids()[1] not in (0, pid), "another worker", 20)
        until(lambda: t.start()[0] == 200, "start", 20)
        failed((*t.post("update_weights", {"update_info": nccl_trainer.update_info(model("b"))}), None),
               "NCCL weight transfer not initialized. Call init_transfer_engine() first.")
        same(w.version(), "one", "version")
        comes_back(w, model("c"), "two")


def test_vllm_39846_sigterm_with_a_dead_trainer():
    with daemon(env={"WEFT_FAKE_NCCL_HANG": "broadcast:1"}) as w:
        told = {"address": w.address, "tensors": [[n, d, s, len(b)] for n, (d, s, b) in model("a").items()]}
        p = subprocess.Popen([sys.executable, nccl_trainer.__file__, json.dumps(told)], env={**os.environ, **GPUS},
                             stdout=subprocess.PIPE, text=True)
        same(p.stdout.readline(), "started\n", "the trainer's update")
        until(lambda: {x["phase"] for x in w.status()["workers"]} == {"receiving"}, "bytes are awaited", 20)
        p.kill()
        p.wait()
        p.stdout.close()
        w.stop(5)


def test_areal_1101_another_world_size():
    """A second rank of the trainer's joins: a new init with a larger world, then the small one."""
    with daemon() as w:
        t = trainer(w)
        fine(t.init())
        push(w, t, model("a"), "three ranks")
        t.close()

        wide, tensors = trainer(w, world_size=4), model("b")
        wide.group = Group(4)

        def second():
            g = Group(4, gpu=2, rank=1, beside=wide.group)
            g.join()
            nccl_trainer.send_unpacked(g, tensors)  # a broadcast of rank 0: what it gets is as long
            g.abort()
        info = {"rank_offset": 2, "world_size": 4, "nccl_unique_id_b64": wide.group.id_text()}
        call = Background(wide.post, "init_weight_transfer_engine", {"init_info": info})
        other = Background(second)
        wide.group.join()
        same(call.result()[0], 200, "init")
        push(w, wide, tensors, "four ranks")
        other.result(20)
        wide.close()

        t = trainer(w)
        fine(t.init())
        push(w, t, model("c"), "three again")
        t.close()


def test_skyrl_143_nccls_version_and_settings_are_told():
    with daemon(env={"NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1"}) as w:
        want = "NCCL 2.28.9 (libfakenccl.so), NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1"
        for worker in w.status()["workers"]:
            check(worker["device"].endswith(want), f"status: {worker}")
        same(w.log().count(want), 2, "lines of the log")


def test_sglang_14064_the_version_over_nccl():
    for packed in (None, 5000):
        with daemon() as w:
            t = trainer(w)
            fine(t.init(packed=packed))
            same(w.version(), "default", "before")
            fine(t.start())
            fine(t.update(model("a")))
            same(w.version(), "default", "not before finish")
            w.ok("/finish_weight_update", {"weight_version": "v"})
            same(w.version(), "v", "finish")
            fine(t.start())
            failed((*t.post("update_weights", {"update_info": {"names": ["x"]}}), None))
            check(w.post("/finish_weight_update", {"weight_version": "no"}).status >= 400, "it failed")
            still(w, model("a"), "v")
            t.close()


if __name__ == "__main__":
    main(globals())
