"""A finish that fails on one worker leaves version and bytes as they were, on every worker."""
import os
import signal
import time

from weft_scenario import SLOW, Daemon, check, folder, holds, main, model, same, stop_process, write_safetensors


def as_before(w, what):
    same(w.version(), "before", f"version {what}")
    check(holds(w, model("before")), f"bytes on both workers {what}")


def test_workers_whose_bytes_differ():
    """Each worker gets a file of its own (list-form update_info): both finish, but replicas
    that disagree cannot become visible."""
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "before.safetensors", model("before")), "before")
        a = write_safetensors(d / "a.safetensors", model("a"))
        b = write_safetensors(d / "b.safetensors", model("b"))
        sequence = w.status()["sequence"]
        w.ok("/start_weight_update")
        w.ok("/update_weights", {"update_info": [
            {"source": {"kind": "safetensors", "path": a}},
            {"source": {"kind": "safetensors", "path": b}}]})
        r = w.post("/finish_weight_update", {"weight_version": "after"})
        check(r.status >= 400, f"finish of replicas that differ: {r}")
        same(r.json["error"].get("outcome"), "not_committed", "outcome")
        as_before(w, "after the failed finish")
        same(w.status()["sequence"], sequence, "no number was used")
        w.push(a, "after")
        check(holds(w, model("a")), "a fresh push works")


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
