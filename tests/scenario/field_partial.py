"""Field reports about updates that end half-way."""
from field import fresh, here, refused, run
from weft_scenario import Sender, check, holds, model, same, until, write_safetensors


def file_of(seed, tensors=None):
    return write_safetensors(here["d"] / f"{seed}.safetensors", model(seed) if tensors is None else tensors)


def test_trl_5892_resume_in_an_open_session_shows_the_old_weights():
    w = fresh()
    w.push(file_of("a"), "a")
    w.ok("/pause?mode=keep")
    w.ok("/start_weight_update")
    part = dict(list(model("b").items())[:3])
    w.ok("/update_weights", w.file_source(file_of("part", part)))
    w.ok("/resume")
    same((w.version(), w.is_ready()), ("a", True), "version, ready")
    check(holds(w, model("a")), "nothing of the open session is to be seen")
    w.ok("/finish_weight_update", {"weight_version": "b"})
    check(holds(w, {**model("a"), **part}), "after finish all of it")


def test_sglang_9663_and_trl_5766_a_part_is_fine_and_finish_says_what_is_missing():
    w = fresh()
    tensors = model("c")
    w.push(file_of("c"), "c")
    w.ok("/start_weight_update")
    part = {"scale": ("F32", [], b"abcd")}
    w.ok("/update_weights", w.file_source(file_of("scale", part)))
    r = refused(w.post("/finish_weight_update", {"weight_version": "d", "strict": True}), 409)
    for name in tensors:
        same(name in r.body.decode(), name != "scale", f"{name} among the missing")
    same(w.version(), "c", "nothing is committed")
    w.ok("/finish_weight_update", {"weight_version": "d"})
    last = w.status()["last_update"]
    same((last["missing"], sorted(last["missing_names"])), (len(tensors) - 1, sorted(set(tensors) - {"scale"})),
         "counted and listed")
    check(holds(w, {**tensors, **part}), "the part is new, the rest as it was")


def test_vllm_39212_start_after_every_failed_step():
    w = fresh()
    w.push(file_of("a"), "a")
    cut = here["d"] / "cut.safetensors"
    raw = open(file_of("x"), "rb").read()

    def bad_init():
        refused(w.post("/init_weight_transfer_engine", {"init_info": {"no": 1}}), 400, "host backend")

    def bad_update():
        cut.write_bytes(raw[:-9])
        w.ok("/start_weight_update")
        check(w.post("/update_weights", w.file_source(cut)).status >= 400, "a file that was cut")

    def bad_finish():
        sender = Sender({"scale": ("F32", [], None)}, lambda rank: bytes([rank]) * 4)
        w.ok("/start_weight_update")
        w.ok("/update_weights", sender.update())
        sender.done()
        r = refused(w.post("/finish_weight_update", {"weight_version": "b"}), 500, "rank 0", "rank 1")
        same(r.json["error"]["outcome"], "not_committed", "workers with different bytes")
    for step in (bad_init, bad_update, bad_finish):
        step()
        until(lambda: w.status()["session"] is None, f"{step.__name__}: the session is over")
        same(w.version(), "a", f"{step.__name__}: version")
        check(holds(w, model("a")), f"{step.__name__}: bytes")
        w.push(file_of("b"), "b")
        check(holds(w, model("b")), f"a push after {step.__name__}")
        w.push(file_of("a"), "a")


def test_prime_rl_3482_the_world_is_looked_at_again_at_start():
    """A rank that has gone since is named when the next update starts, before bytes move."""
    import os
    import signal
    w = fresh()
    w.push(file_of("a"), "a")
    w.ok("/init_weight_transfer_engine", {"init_info": {}})
    pid = w.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        r = refused(w.post("/start_weight_update?timeout_s=0.5"), 500, "rank 1", "start_weight_update failed")
        same(r.json["error"]["outcome"], "not_committed", "outcome")
    finally:
        os.kill(pid, signal.SIGCONT)
    w.push_again(file_of("b"), "b")
    check(holds(w, model("b")), "and a push when it is back, or replaced")


if __name__ == "__main__":
    run(globals())
