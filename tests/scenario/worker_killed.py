"""A worker process killed in mid-update: the update fails with its name, weights and version
stay, the worker is replaced, and the next push goes through without a restart."""
import os
import signal

from weft_scenario import Background, Daemon, Silent, check, folder, holds, main, model, same, until, write_safetensors


def kill_in_update(w, rank, signal_number=signal.SIGKILL):
    with Silent() as stream:
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights", stream.source())
        stream.wait_for(2)  # bytes are being waited for: certainly in mid-update
        old = w.pids()[rank]
        os.kill(old, signal_number)
        r = update.result(30)
    check(r.status >= 500, f"an update whose worker died: {r}")
    error = r.json["error"]
    same(error.get("outcome"), "not_committed", f"outcome of {error}")
    check(str(rank) in error.get("workers", "") + error["message"], f"the dead worker is named: {error}")
    return old


def test_killed_in_mid_update():
    with folder() as d, Daemon() as w:
        a = write_safetensors(d / "a.safetensors", model("a"))
        b = write_safetensors(d / "b.safetensors", model("b"))
        w.push(a, "a")
        for rank in (1, 0):
            old = kill_in_update(w, rank)
            same(w.version(), "a" if rank == 1 else "b", "version after the death")
            same(w.get("/health").status, 200, "the daemon lives")
            until(lambda: w.pids().get(rank) not in (0, None, old), f"a new process for rank {rank}")
            same(w.post("/finish_weight_update").status, 409, "the session is over")
            w.push_again(b, "b")
            same(w.version(), "b", "version after a fresh push")
            check(holds(w, model("b")), "both workers hold the fresh push")


def test_a_worker_that_keeps_dying_does_not_stop_the_daemon():
    with Daemon() as w:
        for _ in range(5):
            until(lambda: w.pids().get(1, 0) > 0, "worker 1 is there", 60)
            old = w.pids()[1]
            os.kill(old, signal.SIGKILL)
            until(lambda: w.pids().get(1) != old, "the death is noticed", 10)
            same(w.get("/weight_info").status, 200, "/weight_info answers")
        w.wait_ready(60)
        mine = {p.name.split("~")[0] for p in w.run_dir.iterdir() if p.name.startswith("w")}
        same(len(mine), 2, f"sockets of living workers only: {mine}")


if __name__ == "__main__":
    main(globals())
