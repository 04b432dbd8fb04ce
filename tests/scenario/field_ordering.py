"""Field reports about calls that meet: repeated, lost, from several clients and front ends."""
import contextlib
import http.client
import json
import socket

from field import fresh, here, metrics, refused, run, together
from remote_acceptor import front
from weft_scenario import (Background, Daemon, Silent, check, folder, holds, model, same, until,
                           write_safetensors)


def file_of(seed):
    return write_safetensors(here["d"] / f"{seed}.safetensors", model(seed))


def ask_and_leave(w, request):
    """A client that is gone before its answer."""
    host, port = w.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as s:
        s.sendall(request)


def test_prime_rl_2673_repeated_pause():
    w = fresh()
    for path, now in (("/pause", True), ("/resume", False)):
        def one(i):
            if i % 3 == 2:
                ask_and_leave(w, b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % path.encode())
                return 200
            return w.post(path).status
        calls = w.status()["calls"]
        same(set(together(10, one)), {200}, f"ten {path} at once")
        until(lambda: w.status()["calls"] >= calls + 10, "those of the clients that left have come, too")
        same(w.get("/is_paused").json["is_paused"], now, "one state")
        age = metrics(w)["weft_pause_state_seconds"]
        until(lambda: metrics(w)["weft_pause_state_seconds"] > age + 0.1, "time passes", 5)
        w.ok(path)
        check(metrics(w)["weft_pause_state_seconds"] > age, f"another {path} is no other change")


def test_relax_211_the_state_after_a_lost_reply():
    w = fresh()
    ask_and_leave(w, b"POST /pause HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    until(lambda: w.get("/is_paused").json["is_paused"], "it took effect")
    w.ok("/pause")
    same(w.get("/is_paused").json["is_paused"], True, "repeated")


def test_sglang_24462_and_vllm_34125_pause_is_seen_by_every_front():
    w = fresh()
    with front(w) as one, front(w) as two:
        fronts = (w, one, two)
        for i in range(30):
            by, path, want = fronts[i % 3], ("/pause", "/resume")[i % 2], i % 2 == 0
            by.ok(path)
            same([x.get("/is_paused").json["is_paused"] for x in fronts], [want] * 3, f"all fronts after {path}")
        one.ok("/pause")
        two.push(file_of("a"), "by another front")
        same(two.get("/is_paused").json["is_paused"], True, "the update met a paused engine")


def test_vllm_56364_fronts_have_their_own_rules():
    """Groups of routes: a front end in a process of its own has its own switch and token."""
    w = fresh()
    token = here["d"] / "token"
    token.write_text("of the trainers\n")
    token.chmod(0o600)
    plain = Daemon(command=("acceptor", "--engine", w.ready["control"], "--listen", "127.0.0.1:0"))
    with plain, front(w, "--token-file", token) as guarded:
        same([plain.get(p).status for p in ("/metrics", "/ready", "/health", "/weight_info")], [200, 200, 200, 404],
             "only what tells of the server")
        same(plain.post("/update_weight_version", {"new_version": "x"}).status, 404, "and nothing that changes")
        same([guarded.get(p).status for p in ("/metrics", "/weight_info", "/health")], [401, 401, 200], "no token")
        show = {"Authorization": "Bearer of the trainers"}
        same(guarded.do("POST", "/update_weight_version", {"new_version": "x"}, headers=show).status, 200, "with it")


def test_vllm_51316_an_update_while_not_paused_is_told_once():
    w = fresh()
    for version in ("one", "two"):
        w.push(file_of("u"), version)
    same(w.log().count("weights are updated while not paused"), 1, "lines in the log")


def test_vllm_51316_and_sglang_22304_strict_mode():
    with folder() as d, Daemon("--require-pause") as w:
        a = write_safetensors(d / "a.safetensors", model("a"))
        refused(w.post("/start_weight_update"), 409, "while not paused", "--require-pause")
        w.ok("/pause?mode=keep")
        w.ok("/start_weight_update")
        r = refused(w.post("/resume"), 409, "a weight update is open")
        check(isinstance(r.json["error"], str), "the pause family's errors are strings")
        w.ok("/update_weights", w.file_source(a))
        w.ok("/finish_weight_update", {"weight_version": "a"})
        w.ok("/resume")
        check(holds(w, model("a")), "the bytes")


def test_trl_3622_retried_posts():
    """Each call of an update is sent twice under its key, as after a lost reply."""
    w = fresh()
    before = w.status()["sequence"]
    calls = (("/start_weight_update", None), ("/update_weights", w.file_source(file_of("r"))),
             ("/finish_weight_update", {"weight_version": "retried"}),
             ("/update_weight_version", {"new_version": "relabelled"}))
    for i, (path, body) in enumerate(calls):
        key = {"Idempotency-Key": f"trl-3622-{i}"}
        first, again = (w.ok(path, body, headers=key) for _ in range(2))
        same((first.status, first.body), (again.status, again.body), f"both answers of {path}")
    same(w.status()["sequence"], before + 2, "one finish, one label")
    same(w.get("/weight_versions?limit=2").json["versions"][1]["version"], "retried", "history")
    # an update that was sent twice without a key is in the history of the session as two
    w.ok("/start_weight_update")
    for count in (1, 2):
        w.ok("/update_weights", w.file_source(file_of("r")))
        same(w.status()["session"]["updates"], count, "updates of the session")
    w.ok("/abort_weight_update")


def test_trl_6765_and_vllm_9744_cache_reset_and_an_open_session():
    w = fresh()
    for path in ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"):
        w.ok(path)
    w.ok("/start_weight_update")
    for path in ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"):
        refused(w.post(path), 409, "reset it after finish_weight_update")
    w.ok("/finish_weight_update")
    same(w.ok("/reset_prefix_cache").body, b'{"success":true}', "after finish")


def test_sglang_33698_each_caller_gets_its_own_answer():
    """Some leave before theirs: nobody's is lost or given to another."""
    w = fresh()
    before = w.status()["sequence"]

    def one(i):
        body = json.dumps({"new_version": f"mine {i}"}).encode()
        if i % 4 == 3:
            ask_and_leave(w, b"POST /update_weight_version HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                          % (len(body), body))
            return None
        return w.post("/update_weight_version", body)
    got = together(16, one)
    for i, r in enumerate(got):
        if r is not None:
            same((r.status, r.json), (200, {"success": True, "new_version": f"mine {i}"}), "its own answer")
    kept = [r.headers["weft-sequence"] for r in got if r is not None]
    same(len(set(kept)), 12, "each change has its own number")
    check(before + 12 <= w.status()["sequence"] <= before + 16, "no change is there twice")
    with Silent() as trainer:
        w.ok("/start_weight_update")
        host, port = w.address.rsplit(":", 1)
        c = http.client.HTTPConnection(host, int(port), timeout=10)
        c.request("POST", "/update_weights", body=json.dumps(trainer.source()))
        trainer.wait_for(2)
        c.close()
        other = Background(w.post, "/update_weight_version", {"new_version": "other"})
        same(other.result().json["new_version"], "other", "another's call while it waits")
        with contextlib.suppress(AssertionError):
            until(lambda: w.post("/init_weight_transfer_engine", {"init_info": {}}).status == 200, "init", 20)
        same(w.status()["session"], None, "who left is taken over by the next init")


if __name__ == "__main__":
    run(globals())
