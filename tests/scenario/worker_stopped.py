"""A worker that hangs (SIGSTOP) is named within the deadline plus two seconds; nobody else
waits for it, and the next push goes through."""
import contextlib
import os
import signal
import time

from weft_scenario import SLOW, Background, Daemon, Silent, check, folder, holds, main, model, same, stop_process, write_safetensors


def test_named_within_the_deadline():
    with folder() as d, Daemon() as w, Silent() as stream:
        a = write_safetensors(d / "a.safetensors", model("a"))
        w.push(a, "a")
        pid = w.pids()[1]
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights?timeout_s=4", stream.source())
        began = time.monotonic()
        stream.wait_for(2)
        stop_process(pid)
        while update.is_alive() and time.monotonic() - began < 10 * SLOW:
            t = time.monotonic()
            same(w.get("/health").status, 200, "/health while a worker hangs")
            same(w.version(), "a", "/weight_info while a worker hangs")
            check(time.monotonic() - t < 1.0 * SLOW, "answers at once while a worker hangs")
            time.sleep(0.1)
        r = update.result(10)
        took = time.monotonic() - began
        check(r.status >= 500, f"update with a stopped worker: {r}")
        check(took < 4 + 2 * SLOW, f"answered after {took:.1f} s, deadline was 4 s")
        error = r.json["error"]
        same(error.get("outcome"), "not_committed", f"outcome of {error}")
        check("1" in error.get("workers", ""), f"the stopped worker is named: {error}")
        with contextlib.suppress(ProcessLookupError):  # replaced meanwhile, perhaps
            os.kill(pid, signal.SIGCONT)
        b = write_safetensors(d / "b.safetensors", model("b"))
        w.push_again(b, "b")
        check(holds(w, model("b")), "a fresh push works")


def test_start_names_it_too():
    with folder() as d, Daemon() as w:
        pid = w.pids()[0]
        stop_process(pid)
        began = time.monotonic()
        r = w.post("/start_weight_update?timeout_s=2")
        took = time.monotonic() - began
        check(r.status >= 500, f"start with a stopped worker: {r}")
        check(took < 2 + 2 * SLOW, f"answered after {took:.1f} s, deadline was 2 s")
        check("0" in r.json["error"].get("workers", ""), f"named: {r}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        w.push_again(write_safetensors(d / "a.safetensors", model("a")), "a")
        check(holds(w, model("a")), "a fresh push works")


if __name__ == "__main__":
    main(globals())
