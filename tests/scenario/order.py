"""Wrong order, two clients at once, a late client, take-over by init, abort, idempotency."""
from weft_scenario import Background, Daemon, Silent, check, folder, holds, main, model, same, write_safetensors


def refused(reply, status, what, text=None):
    same(reply.status, status, f"{what}: {reply}")
    error = reply.json["error"]
    same(error["code"], status, f"{what}: code")
    if text:
        check(text in error["message"], f"{what}: says {error['message']!r}, not {text!r}")
    return error


def test_wrong_order():
    with folder() as d, Daemon() as w:
        path = write_safetensors(d / "a.safetensors", model("a"))
        e = refused(w.post("/update_weights", w.file_source(path)), 409, "update before start",
                    "start_weight_update must be called before update_weights.")
        same(e["type"], "Conflict", "type of wrong order")
        refused(w.post("/finish_weight_update"), 409, "finish before start",
                "finish_weight_update called without a matching start_weight_update.")
        w.ok("/start_weight_update")
        refused(w.post("/start_weight_update"), 409, "second start",
                "start_weight_update called while a weight update is already active.")
        w.ok("/update_weights", w.file_source(path))
        w.ok("/finish_weight_update", {"weight_version": "a"})
        refused(w.post("/finish_weight_update"), 409, "second finish",
                "finish_weight_update called without a matching start_weight_update.")
        refused(w.post("/start_draft_weight_update"), 400, "draft without a draft model",
                "Draft model weight update requested, but no draft model is configured.")
        same(w.version(), "a", "version")


def test_shutdown():
    """It lets the trainer go between updates, not in one; a next init or start is free to come."""
    with folder() as d, Daemon() as w:
        path = write_safetensors(d / "a.safetensors", model("a"))
        for _ in range(2):
            same(w.ok("/shutdown_weight_transfer_engine").json, {"message": "Weight transfer shut down"}, "answer")
        w.ok("/init_weight_transfer_engine", {"init_info": {}})
        w.ok("/start_weight_update")
        refused(w.post("/shutdown_weight_transfer_engine"), 409, "shutdown in a session",
                "Cannot release a trainer connection during a weight update")
        w.ok("/update_weights", w.file_source(path))
        w.ok("/finish_weight_update", {"weight_version": "a"})
        w.ok("/shutdown_weight_transfer_engine")
        check(holds(w, model("a")), "the weights stay")
        check('operations_total{operation="shutdown",outcome="success"} 3' in w.get("/metrics").body.decode(),
              "the metrics count it")


def test_two_clients():
    with folder() as d, Daemon() as w:
        a = write_safetensors(d / "a.safetensors", model("a"))
        b = write_safetensors(d / "b.safetensors", model("b"))
        mine = w.ok("/start_weight_update").headers["weft-session"]
        refused(w.post("/start_weight_update"), 409, "the second client's start")
        w.ok("/update_weights", w.file_source(a), headers={"Weft-Session": mine})
        refused(w.post("/update_weights", w.file_source(b), headers={"Weft-Session": "not-mine"}),
                409, "an update under another session's name")
        w.ok("/finish_weight_update", {"weight_version": "a"}, headers={"Weft-Session": mine})
        check(holds(w, model("a")), "the first client's bytes, and only they, became current")

        # a client that comes late with a session that is over cannot write into the next one
        next_one = w.ok("/start_weight_update").headers["weft-session"]
        check(next_one != mine, "every session has its own id")
        refused(w.post("/update_weights", w.file_source(b), headers={"Weft-Session": mine}), 409,
                "a late client")
        w.ok("/update_weights", w.file_source(b), headers={"Weft-Session": next_one})
        w.ok("/finish_weight_update", {"weight_version": "b"}, headers={"Weft-Session": next_one})
        check(holds(w, model("b")), "the second session's bytes")


def test_init_takes_over_what_was_left_open():
    with folder() as d, Daemon() as w:
        a = write_safetensors(d / "a.safetensors", model("a"))
        b = write_safetensors(d / "b.safetensors", model("b"))
        w.push(a, "a")
        left = w.ok("/start_weight_update").headers["weft-session"]
        w.ok("/update_weights", w.file_source(b))
        w.ok("/init_weight_transfer_engine", {"init_info": {}})
        why = f"(session {left} was aborted: taken over by a new init_weight_transfer_engine of connection "
        refused(w.post("/update_weights", w.file_source(b)), 409, "who does not say which session", why)
        refused(w.post("/finish_weight_update", headers={"Weft-Session": left}), 409,
                "finish of the session that was taken over", why)
        w.ok("/start_weight_update")
        refused(w.post("/update_weights", w.file_source(b), headers={"Weft-Session": left}), 409,
                "update of it while another one is open", why)
        w.ok("/abort_weight_update")
        same(w.version(), "a", "version after the take-over")
        check(holds(w, model("a")), "bytes after the take-over")
        w.push(b, "b")
        check(holds(w, model("b")), "a fresh push works")


def test_init_waits_for_a_live_caller():
    """While somebody's call is in flight and they are still there, a new init is refused."""
    with Daemon() as w, Silent() as trainer:
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights", trainer.source(), timeout=60)
        trainer.wait_for(1)
        refused(w.post("/init_weight_transfer_engine", {"init_info": {}}), 409,
                "init beside a live caller's update")
        w.ok("/abort_weight_update")
        r = update.result()
        check(r.status >= 400, f"the aborted update must fail: {r}")
        same(r.json["error"].get("outcome"), "not_committed", "outcome of an aborted update")
        same(w.status()["session"], None, "no session after the abort")


def test_abort():
    with folder() as d, Daemon() as w:
        a = write_safetensors(d / "a.safetensors", model("a"))
        b = write_safetensors(d / "b.safetensors", model("b"))
        w.push(a, "a")
        w.ok("/start_weight_update")
        w.ok("/update_weights", w.file_source(b))
        w.ok("/abort_weight_update")
        same(w.version(), "a", "version after abort")
        check(holds(w, model("a")), "bytes after abort")
        refused(w.post("/finish_weight_update", {"weight_version": "b"}), 409, "finish after abort")
        w.push(b, "b")
        check(holds(w, model("b")), "a fresh push works")


def test_idempotency_key():
    with Daemon() as w:
        key = {"Idempotency-Key": "k1"}
        first = w.ok("/update_weight_version", {"new_version": "one"}, headers=key)
        sequence = w.status()["sequence"]
        again = w.ok("/update_weight_version", {"new_version": "one"}, headers=key)
        same(again.body, first.body, "the stored answer")
        same(w.status()["sequence"], sequence, "a repeat changes nothing")
        refused(w.post("/update_weight_version", {"new_version": "two"}, headers=key), 422,
                "the key with another body")
        same(w.version(), "one", "version")


def test_expected_version():
    with Daemon() as w:
        w.ok("/update_weight_version", {"new_version": "one", "expected_version": "default"})
        refused(w.post("/update_weight_version", {"new_version": "x", "expected_version": "zero"}),
                412, "label with a wrong expected_version")
        w.ok("/start_weight_update")
        refused(w.post("/finish_weight_update", {"weight_version": "x", "expected_version": "zero"}),
                412, "finish with a wrong expected_version")
        w.ok("/finish_weight_update", {"weight_version": "two", "expected_version": "one"})
        same(w.version(), "two", "version")


if __name__ == "__main__":
    main(globals())
