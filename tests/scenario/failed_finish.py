"""A finish that fails on one worker leaves version and bytes as they were, on every worker."""
import hashlib
import os
import signal
import time

from weft_scenario import (SLOW, Daemon, Sender, check, cut_names, folder, holds, main, model, same, stop_process,
                           write_safetensors)


def as_before(w, what):
    same(w.version(), "before", f"version {what}")
    check(holds(w, model("before")), f"bytes on both workers {what}")


def test_replicas_whose_bytes_differ():
    """A trainer's end that sends each worker something else: both finish, but replicas that
    disagree cannot become visible."""
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "before.safetensors", model("before")), "before")
        sequence = w.status()["sequence"]
        sender = Sender({"w": ("F32", [4], None)}, lambda rank: bytes([rank]) * 16)
        w.ok("/start_weight_update")
        w.ok("/update_weights", sender.update())
        sender.done()
        r = w.post("/finish_weight_update", {"weight_version": "after"})
        check(r.status >= 500, f"finish of replicas that differ: {r}")
        error = r.json["error"]
        same(error.get("outcome"), "not_committed", f"outcome of {error}")
        check("rank 0" in error["workers"] and "rank 1" in error["workers"], f"names both: {error}")
        as_before(w, "after the failed finish")
        same(w.status()["sequence"], sequence, "no number was used")
        a = write_safetensors(d / "a.safetensors", model("a"))
        w.push_again(a, "after")
        check(holds(w, model("a")), "a fresh push works")


def test_shards_may_differ():
    """In list form every worker is sent its own: then different bytes are what was wanted."""
    with folder() as d, Daemon() as w:
        files = [write_safetensors(d / f"{i}.safetensors", model(i)) for i in range(2)]
        w.ok("/start_weight_update")
        w.ok("/update_weights", {"update_info": [
            {"source": {"kind": "safetensors", "path": f}} for f in files]})
        w.ok("/finish_weight_update", {"weight_version": "shards"})
        got = cut_names(w.checksums())
        for rank, seed in (("dp0:pp0:pcp0:tp0:ep0", 0), ("dp0:pp0:pcp0:tp1:ep0", 1)):
            want = {n: hashlib.sha256(data).hexdigest() for n, (_, _, data) in model(seed).items()}
            same(got[rank], want, f"tensors of {rank}")


def test_worker_that_does_not_answer():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "before.safetensors", model("before")), "before")
        a = write_safetensors(d / "a.safetensors", model("a"))
        w.ok("/start_weight_update")
        w.ok("/update_weights", w.file_source(a))
        pid = w.pids()[1]
        stop_process(pid)
        began = time.monotonic()
        r = w.post("/finish_weight_update?timeout_s=2", {"weight_version": "after"})
        took = time.monotonic() - began
        check(r.status >= 400, f"finish with a stopped worker: {r}")
        check(took < 4 * SLOW, f"answered after {took:.1f} s, deadline was 2 s")
        error = r.json["error"]
        same(error.get("outcome"), "not_committed", f"outcome of {error}")
        check("1" in error.get("workers", "") and "0" not in error.get("workers", ""),
              f"the worker is named: {error}")
        same(w.version(), "before", "version")
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # fenced meanwhile: its place is taken by a new process
        same(w.version(), "before", "version after the worker is back")
        w.push_again(a, "after")
        check(holds(w, model("a")), "a fresh push works")


def test_worker_killed_before_finish():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "before.safetensors", model("before")), "before")
        a = write_safetensors(d / "a.safetensors", model("a"))
        w.ok("/start_weight_update")
        w.ok("/update_weights", w.file_source(a))
        os.kill(w.pids()[0], signal.SIGKILL)
        r = w.post("/finish_weight_update", {"weight_version": "after"})
        check(r.status >= 400, f"finish without worker 0: {r}")
        same(w.version(), "before", "version")
        w.push_again(a, "after")
        check(holds(w, model("a")), "a fresh push works")


if __name__ == "__main__":
    main(globals())
