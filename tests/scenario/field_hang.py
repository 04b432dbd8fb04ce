"""Field reports about hangs and timeouts: every wait ends, and says whose it was."""
import time

from field import fresh, here, paused, refused, run
from weft_scenario import (SLOW, Background, Silent, check, holds, model, same, until, write_safetensors)


def file_of(seed):
    return write_safetensors(here["d"] / f"{seed}.safetensors", model(seed))


def test_vime_87_update_before_start_is_answered_at_once():
    w, best = fresh(), 60.0
    for _ in range(300):  # the quickest of many: others wait for the machine
        began = time.monotonic()
        refused(w.post("/update_weights", w.file_source("/nowhere")), 409, "start_weight_update must be called")
        best = min(best, time.monotonic() - began)
        if best < 0.1 * SLOW:
            return
    check(False, f"the quickest answer took {best:.3f} s")


def test_prime_rl_2337_ready_to_receive_can_be_polled():
    """Until every worker says "receiving" a trainer has no need to send."""
    w = fresh()
    with Silent() as trainer:
        same({x["phase"] for x in w.status()["workers"]}, {"idle"}, "before the start")
        w.ok("/start_weight_update")
        same(w.status()["session"]["state"], "open", "the session")
        same({x["phase"] for x in w.status()["workers"]}, {"open"}, "started")
        update = Background(w.post, "/update_weights", trainer.source())
        until(lambda: {x["phase"] for x in w.status()["workers"]} == {"receiving"}, "both say receiving")
        w.ok("/abort_weight_update")
        check(update.result().status >= 400, "the update was ended")
        until(lambda: {x["phase"] for x in w.status()["workers"]} == {"idle"}, "idle again")


def test_prime_rl_3016_a_trainer_that_sends_nothing():
    w = fresh()
    w.push(file_of("a"), "a")
    with Silent() as trainer:
        w.ok("/pause?mode=keep")
        w.ok("/start_weight_update")
        r = refused(w.post("/update_weights?timeout_s=1", trainer.source()), 500, "update_weights failed in phase transfer")
        error = r.json["error"]
        same((error["operation"], error["phase"], error["outcome"]), ("update_weights", "transfer", "not_committed"),
             "what failed")
        check("rank 0" in error["workers"] and "rank 1" in error["workers"], f"both are named: {error}")
    until(lambda: w.status()["session"] is None, "the session is over")
    w.ok("/resume")
    same((w.version(), w.is_ready()), ("a", True), "the old version serves")
    check(holds(w, model("a")), "the old bytes")


def test_nemo_rl_4019_one_budget_for_all_calls():
    """A caller that gives each call what is left of its budget waits no longer than that."""
    w, budget = fresh(), 3.0
    end = time.monotonic() + budget
    left = lambda path: f"{path}?timeout_s={max(0.01, end - time.monotonic()):.3f}"
    with Silent() as trainer:
        same(w.post(left("/init_weight_transfer_engine"), {"init_info": {}}).status, 200, "init")
        same(w.post(left("/start_weight_update")).status, 200, "start")
        check(w.post(left("/update_weights"), trainer.source()).status >= 400, "nothing comes")
        check(w.post(left("/finish_weight_update")).status >= 400, "there is nothing to finish")
    over = time.monotonic() - end
    check(over <= 1.0 * SLOW, f"{over:.2f} s over the budget")


def test_fastdeploy_8073_timeout_of_one_request():
    w = fresh()
    with Silent() as trainer:
        w.ok("/start_weight_update")
        for bad in ("0", "-1", "nan", "inf", "1e3", "x", "", "86401", "0.0000"):
            r = refused(w.post(f"/update_weights?timeout_s={bad}", trainer.source()), 400)
            same(r.json["error"]["param"], "query.timeout_s", f"timeout_s={bad}")
        began = time.monotonic()
        r = w.post("/update_weights?timeout_s=0.5", trainer.source())
        took = time.monotonic() - began
        same(r.status, 500, f"{r}")
        check(took < 1.5 * SLOW + 0.5, f"answered after {took:.2f} s, the default is 280 s")


def test_vllm_29390_expiry_names_the_operation():
    w = fresh()
    with Silent() as trainer:
        w.ok("/start_weight_update")
        r = w.post("/update_weights?timeout_s=0.3", trainer.source())
        error = r.json["error"]
        check(error["message"].startswith("update_weights failed in phase transfer"), error["message"])
        check(error["elapsed_ms"] >= 290, f"elapsed time: {error}")
        same(error["workers"], "rank 0, rank 1", "both ranks are late")
        same(w.status()["last_abort"], error["message"], "the status keeps why")


def test_trl_6913_start_after_failed_and_abandoned_updates():
    w = fresh()
    w.push(file_of("a"), "a")
    for what in ("failed", "aborted", "left open"):
        w.ok("/start_weight_update")
        if what == "failed":
            check(w.post("/update_weights", w.file_source("/nowhere")).status >= 400, "no such file")
        else:
            w.ok("/update_weights", w.file_source(file_of("b")))
        if what == "aborted":
            w.ok("/abort_weight_update")
        if what == "left open":
            w.ok("/init_weight_transfer_engine", {"init_info": {}})
        w.push(file_of("c"), what)
        check(holds(w, model("c")), f"a push after an update that {what}")
        w.push(file_of("a"), "a")


def test_sglang_22290_an_update_completes_while_paused():
    w = fresh()
    with paused(w):
        w.push(file_of("p"), "paused")
        same((w.version(), w.get("/is_paused").json["is_paused"]), ("paused", True), "pushed, and paused still")
    check(holds(w, model("p")), "the bytes")


if __name__ == "__main__":
    run(globals())
