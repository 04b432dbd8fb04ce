"""weftd acceptor --engine URL: HTTP from processes of their own, two of them on one engine."""
import os
import signal

from weft_scenario import (Background, Daemon, Silent, check, folder, holds, main, model, same, until,
                           write_safetensors)


def front(w, *args):
    return Daemon(*args, command=("acceptor", "--engine", w.ready["control"], "--listen", "127.0.0.1:0",
                                  "--dev"))


def test_two_fronts_one_engine():
    with folder() as d, Daemon() as w, front(w) as one, front(w) as two:
        a = write_safetensors(d / "a.safetensors", model("a"))
        one.push(a, "a")
        for x in (w, one, two):
            same(x.version(), "a", "every front shows the same truth")
            check(holds(x, model("a")), "and the same bytes")
        s1, s2 = one.status(), two.status()
        same((s1["boot_id"], s1["sequence"], s1["digest"]), (s2["boot_id"], s2["sequence"], s2["digest"]),
             "status")
        # a session started through one is seen, refused and ended through the other
        one.ok("/start_weight_update")
        same(two.post("/start_weight_update").status, 409, "the second start")
        two.ok("/abort_weight_update")
        same(one.post("/finish_weight_update").status, 409, "it is over on both")
        for i in range(50):  # what one front was told, the other one shows at once
            (one if i % 2 else two).ok("/update_weight_version", {"new_version": f"v{i}"})
            same((two if i % 2 else one).version(), f"v{i}", "no front lags behind")


def test_a_front_that_dies_takes_its_session_with_it():
    with folder() as d, Daemon() as w, Silent() as stream:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        with front(w) as one:
            one.ok("/start_weight_update")
            update = Background(one.post, "/update_weights", stream.source())
            stream.wait_for(2)
            os.kill(one.process.pid, signal.SIGKILL)
            one.process.wait()
            one.check_left = False
            try:
                update.result(10)
                check(False, "a call over a dead front cannot succeed")
            except (ConnectionError, OSError):
                pass
            except Exception as e:  # http.client's own kinds
                check("Remote" in type(e).__name__ or "Incomplete" in type(e).__name__, repr(e))
        same(w.version(), "a", "the engine lives")
        # the engine learns that the caller is gone, so a new trainer gets in by init
        until(lambda: w.post("/init_weight_transfer_engine", {"init_info": {}}).status == 200,
              "init after the front died", 30)
        w.push(write_safetensors(d / "b.safetensors", model("b")), "b")
        check(holds(w, model("b")), "a fresh push works")


def test_engine_gone():
    with Daemon() as w, front(w) as one:
        same(one.get("/ready").status, 200, "ready")
        w.stop()
        until(lambda: one.get("/ready").status == 503, "the front says that its engine is gone", 20)
        r = one.get("/weight_info")
        check(r.status in (500, 503), f"no stale answer: {r}")
        w.check_left = False


if __name__ == "__main__":
    main(globals())
