"""Several engines that change together, under one coordinator: one call reaches all of
them, and all have it or none."""
import json
import shutil
import subprocess
import time

from weft_fleet import Fleet, die
from weft_scenario import (BIN, SLOW, Background, check, folder, main, model, same, stop_process, until,
                           weft, write_safetensors)


EACH_OK = [{"replica": i, "ok": True, "error": None} for i in range(2)]


def commits(w):
    """What its history says was committed, oldest first."""
    return [(v["kind"], v["version"], v.get("digest")) for v in reversed(w.get("/weight_versions").json["versions"])
            if v["kind"] in ("weights", "label")]


def one_push_reaches_every_engine(scheme):
    with folder() as d, Fleet(d, scheme=scheme) as f:
        before = [w.status()["sequence"] for w in f.all()]
        f.push("a")
        f.push("b")
        for w, n in zip(f.all(), before):
            same(w.status()["sequence"], n + 2, "each has counted two changes")
        same([commits(w) for w in f.all()], [commits(f.coordinator)] * 3, "the same history everywhere")
        same([c[:2] for c in commits(f.coordinator)], [("weights", "a"), ("weights", "b")], "and this is it")
        same([(r["replica"], r["version"], r["ready"]) for r in f.coordinator.status()["replicas"]],
             [(0, "b", True), (1, "b", True)], "results by replica")
        metrics = f.coordinator.get("/metrics").body.decode()
        check('\nweft_replicas{state="ready"} 2\n' in metrics and "weft_workers" not in metrics, "metrics count replicas")
        for i, r in enumerate(f.coordinator.status()["last_update"]["replicas"]):
            check(r["replica"] == i and r["receive_us"] > 0 and r["apply_us"] > 0, f"what its ranks took: {r}")
            for name in ("received_bytes", "receive_seconds", "apply_seconds"):
                check(f'\nweft_last_update_{name}{{replica="{i}"}} ' in metrics, f"{name} of replica {i}")
        check('{rank="' not in metrics, "no ranks there")
        got = f.coordinator.checksums()
        same({k.split(":")[0] for k in got}, {"dp0", "dp1"}, "checksums of both replicas")
        same(len(got), 4 * len(model("b")), "of each of their workers")


def test_sglang_4282_one_call_reaches_every_replica():
    one_push_reaches_every_engine("ipc")


def test_the_same_over_tcp_with_a_token():
    one_push_reaches_every_engine("tcp")


def test_every_watcher_hears_of_it():
    with folder() as d, Fleet(d) as f:
        watches = [Background(subprocess.run, [BIN / "weft", "watch", "--json", "--count", "1", "--server", w.url],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * SLOW)
                   for w in f.all()]
        # a watcher that has not connected yet sees the later one
        def pushed():
            f.push("a")
            return all(not w.is_alive() for w in watches)
        until(pushed, "every watcher has seen a commit", 60)
        for w in watches:
            lines = [json.loads(x) for x in w.result().stdout.splitlines()]
            events = [x["event"] for x in lines if x["is"] == "event" and x["topic"] == "weights.commit"]
            same([(e["kind"], e["version"], e["digest"]) for e in events],
                 [("weights", "a", f.coordinator.status()["digest"])], "the event")


def test_no_member_gives_anything_older_than_what_was_answered():
    with folder() as d, Fleet(d) as f:
        files = [f.file(seed) for seed in "ab"]
        for i in range(40):
            version = f"v{i}"
            f.coordinator.push(files[i % 2], version)
            for k in range(2):  # right after the 200, the other one first each other time
                m = f.members[(i + k) % 2]
                path = ("/weight_info", "/weight_status")[i // 2 % 2]
                r = m.get(path)
                same((r.status, r.json["version" if "status" in path else "weight_version"]), (200, version),
                     f"{path} of a member after the coordinator's answer")
        f.agree("v39", model("b"))


def test_stock_trainers_lifecycle_is_unchanged():
    with folder() as d, Fleet(d) as f:
        c = f.coordinator
        for method, path, body, want in (
                ("GET", "/get_world_size", None, b'{"world_size":4}'),
                ("GET", "/get_world_size?include_dp=false", None, b'{"world_size":2}'),
                ("GET", "/weight_info", None, b'{"weight_version":"default"}'),
                ("POST", "/init_weight_transfer_engine", {"init_info": {}}, b'{"message":"Weight transfer initialized"}'),
                ("POST", "/start_weight_update", None, b'{"message":"Weight update started"}'),
                ("POST", "/update_weights", c.file_source(f.file("a")), b'{"message":"Weights updated"}'),
                ("GET", "/weight_info", None, b'{"weight_version":"default"}'),
                ("POST", "/finish_weight_update", {"weight_version": "a"}, b'{"message":"Weight update finished"}'),
                ("GET", "/weight_info", None, b'{"weight_version":"a"}'),
                ("POST", "/shutdown_weight_transfer_engine", None, b'{"message":"Weight transfer shut down"}'),
                ("POST", "/start_weight_update", None, b'{"message":"Weight update started"}'),
                ("POST", "/abort_weight_update", None, b'{"message":"Weight update aborted"}'),
                ("POST", "/reset_prefix_cache", None, b'{"success":true}')):
            r = c.do(method, path, body)
            got = r.json
            replicas = got.pop("replicas", None)  # an error has them inside, if any was asked
            same((r.status, got), (200, json.loads(want)), f"{method} {path}")
            same(replicas, EACH_OK if method == "POST" else None, f"each replica's result of {path}")
        f.agree("a", model("a"))
        p = weft("push", f.file("b"), "--version", "b", server=c.url)
        same(p.returncode, 0, p.stderr)
        check("on 2 replicas" in p.stdout, p.stdout)
        f.agree("b", model("b"))
        p = weft("push", "--source", "tcp", f.file("c"), "--version", "c", server=c.url)
        same(p.returncode, 0, p.stderr)
        f.agree("c", model("c"))
        p = weft("status", server=c.url).stdout
        check("replica 0 " in p and "replica 1 " in p and "version c" in p, p)
        p = weft("status", server=f.members[1].url).stdout
        check("replica 1 of 2 of c, may serve" in p, p)


def test_a_label_reaches_all():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        r = f.coordinator.post("/update_weight_version", {"new_version": "a, renamed"})
        same(r.json, {"success": True, "new_version": "a, renamed", "replicas": EACH_OK}, "the answer")
        f.agree("a, renamed", model("a"))
        r = f.coordinator.post("/update_weight_version", {"new_version": "x", "expected_version": "other"})
        same(r.status, 412, f"compare and set: {r}")
        f.agree("a, renamed", model("a"))


def paused(w):
    return w.get("/is_paused").json["is_paused"]


def test_vllm_39366_pause_answers_when_every_replica_has_paused():
    with folder() as d, Fleet(d) as f:
        for _ in range(3):
            f.coordinator.ok("/pause")
            same([paused(w) for w in f.all()], [True] * 3, "all are paused when the answer is there")
            f.coordinator.ok("/resume")
            same([paused(w) for w in f.all()], [False] * 3, "all go on")
        stop_process(f.members[1].process.pid)
        r = f.coordinator.post("/pause")
        check(r.status != 200 and b"replica 1" in r.body, f"one did not answer: it is named: {r}")
        same([x["ok"] for x in r.json["replicas"]], [True, False], "and each one's result is there")
        r = f.coordinator.post("/resume?timeout_s=2")
        check(r.status != 200 and b": resume replica 1: " in r.body, f"so does a resume: {r}")


def test_vllm_38009_a_paused_fleet_takes_updates_and_stays_paused():
    with folder() as d, Fleet(d) as f:
        f.coordinator.ok("/pause")
        f.push("a")
        same([paused(w) for w in f.all()], [True] * 3, "still paused after an update")
        f.members[0].ok("/resume")  # a stray one, to one of them
        f.push("b")
        same([paused(w) for w in f.all()], [True, False, True], "the others stay as they are")
        f.coordinator.ok("/resume")
        same([paused(w) for w in f.all()], [False] * 3, "all go on")


def test_slime_2331_two_inits_at_once():
    with folder() as d, Fleet(d) as f:
        calls = [Background(f.coordinator.post, "/init_weight_transfer_engine", {"init_info": {}}) for _ in range(6)]
        for r in (c.result(40) for c in calls):
            check(r.status in (200, 409), f"done, or refused while another runs: {r}")
        f.coordinator.ok("/init_weight_transfer_engine", {"init_info": {}})
        f.push("a")


def test_what_one_replica_refuses_nobody_has():
    with folder() as d:
        only = d / "only"
        only.mkdir()
        with Fleet(d, member_args={1: ("--weights-root", only)}) as f:
            inside = write_safetensors(only / "a.safetensors", model("a"))
            f.coordinator.push(inside, "a")
            f.agree("a", model("a"))
            before = [w.status()["sequence"] for w in f.all()]
            f.coordinator.ok("/start_weight_update")
            r = f.coordinator.post("/update_weights", f.coordinator.file_source(f.file("b")))
            check(r.status >= 400 and b"replica 1" in r.body and b"replica 0" not in r.body, f"the one that refused: {r}")
            zero, one = r.json["error"]["replicas"]
            check(not one["ok"] and str(f.file("b")) in one["error"], f"the error of that one: {one}")
            check(zero["replica"] == 0 and one["replica"] == 1, f"in order: {zero}, {one}")
            f.coordinator.post("/abort_weight_update")
            f.agree("a", model("a"))
            same([w.status()["sequence"] for w in f.all()], before, "nothing was counted anywhere")
            f.coordinator.push_again(inside, "again")
            f.agree("again", model("a"))


def test_another_manifest_on_one_replica():
    with folder() as d:
        other = write_safetensors(d / "other.safetensors", model("other", layers=1, width=8))
        with Fleet(d, member_args={0: ("--manifest", other)}) as f:
            f.coordinator.ok("/start_weight_update")
            r = f.coordinator.post("/update_weights", f.coordinator.file_source(f.file("a")))
            check(r.status >= 400 and b"replica 0" in r.body, f"the one with the other manifest: {r}")
            f.coordinator.post("/abort_weight_update")
            f.agree("default")
            f.coordinator.push_again(other, "other")
            f.agree("other")


def test_a_member_sends_clients_to_its_coordinator():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        for path, body in (("/start_weight_update", None), ("/init_weight_transfer_engine", {"init_info": {}}),
                           ("/update_weight_version", {"new_version": "x"}), ("/finish_weight_update", None)):
            r = f.members[1].post(path, body)
            same(r.status, 409, f"{path} at a member: {r}")
            check(b"replica 1" in r.body and b"coordinator" in r.body, f"says whose it is: {r}")
        f.agree("a", model("a"))
        r = f.members[1].post("/resolve_weight_update", {"commit": True})
        same(r.status, 409, f"there is no doubt to resolve: {r}")


def lacks_one(f):
    """A fleet in which replica 1 has come back without weights."""
    f.push("a")
    die(f.members[1])
    until(lambda: f.coordinator.get("/ready").status == 503, "the coordinator is not ready")
    f.restart_member(1)
    until(lambda: f.coordinator.get("/weight_info").json.get("mixed"), "/weight_info says that the fleet is mixed")


def test_sglang_omni_663_a_mixed_fleet_says_so():
    with folder() as d, Fleet(d) as f:
        lacks_one(f)
        info = f.coordinator.get("/weight_info").json
        same(info["weight_version"], "a", "what stock clients read")
        same([(r["replica"], r["version"]) for r in info["replicas"]], [(0, "a"), (1, "default")], "versions by replica")
        status = f.coordinator.status()
        check(status["mixed"] and not status["ready"], f"/weight_status too: {status}")
        same([(r["replica"], r["ready"]) for r in status["replicas"]], [(0, True), (1, False)], "who is ready")
        f.push_again("b")
        check("mixed" not in f.coordinator.get("/weight_info").json, "not mixed any more")


def test_xtuner_2027_one_replica_is_brought_up_while_the_others_serve():
    with folder() as d, Fleet(d) as f:
        lacks_one(f)
        m, sequence = f.members[1], f.members[0].status()["sequence"]
        m.ok("/start_weight_update")
        m.ok("/update_weights", m.file_source(f.file("b")))
        r = m.post("/finish_weight_update", {"weight_version": "a"})
        check(r.status >= 400, f"other weights than the fleet's are not committed: {r}")
        same(f.coordinator.get("/weight_info").json["mixed"], True, "still mixed")
        same(m.get("/ready").status, 503, "still not ready")
        m.post("/abort_weight_update")
        until(lambda: m.post("/start_weight_update").status == 200, "a start is taken")
        m.ok("/update_weights", m.file_source(f.file("a")))
        same(f.members[0].get("/ready").status, 200, "the other one serves")
        m.ok("/finish_weight_update", {"weight_version": "whatever"})
        f.wait_ready()
        f.agree("a", model("a"))
        same(f.members[0].status()["sequence"], sequence, "the other one was not touched")
        check("mixed" not in f.coordinator.get("/weight_info").json, "not mixed any more")
        f.push("b")


def test_one_coordinator_at_a_time():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        other = f.start_coordinator("another", f.urls)
        until(lambda: "of fleet c: fleet another cannot have it" in other.log(), "the second is refused, and says why")
        until(lambda: "fleet another cannot have it" in f.members[0].log(), "so does the member")
        same(other.get("/ready").status, 503, "the second has nobody")
        f.push("b")
        die(other)


def test_two_coordinators_with_copies_of_one_record():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        shutil.copytree(d / "c" / "state", f.home("copy") / "state")
        copy = f.start_coordinator("copy", engine_id="c")
        copy.wait_ready()
        until(lambda: "are there two with one state directory" in f.coordinator.log(), "the first is told", 20)
        until(lambda: b"two with one state directory" in f.coordinator.get("/ready").body, "and says so itself")
        time.sleep(3)  # each would have taken them from the other by now
        for m in f.members:
            same(m.get("/ready").status, 200, "they serve the one that came last")
        check(len(f.coordinator.log().splitlines()) < 30, f"it does not go on and on about it: {f.coordinator.log()}")
        copy.push(f.file("b"), "b")
        die(f.coordinator)
        f.coordinator = copy
        f.agree("b", model("b"))


def test_both_ends_must_know_the_token():
    with folder() as d, Fleet(d, scheme="tcp") as f:
        f.push("a")
        right = f.token.read_text()
        f.token.write_text("not the token of this fleet\n")
        f.restart_coordinator()
        until(lambda: "token" in f.coordinator.log(), "the wrong token is named")
        same(f.coordinator.get("/ready").status, 503, "nobody is in")
        f.token.write_text(right)
        f.restart_coordinator()
        f.wait_ready()
        f.agree("a", model("a"))


def test_an_engine_twice_in_a_fleet():
    with folder() as d, Fleet(d, count=1) as f:
        f.push("a")
        (f.dir / "m0" / "same").symlink_to(f.dir / "m0")
        url = f.urls[0].replace("/m0/", "/m0/same/")
        die(f.coordinator)
        f.coordinator = f.start_coordinator(urls=[f.urls[0], url])
        until(lambda: "lead to the same engine" in f.coordinator.log(), "the second URL is refused")


def test_options():
    def refused(*args):
        p = subprocess.run([BIN / "weftd", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                           timeout=20 * SLOW)
        same((p.returncode, p.stdout), (2, ""), f"weftd {args}: {p.stderr}")
        return [line.removeprefix("weftd: ") for line in p.stderr.splitlines()]

    with folder() as d:
        (d / "token").write_text("t\n")
        r = ("--replica", "ipc:///tmp/x")
        s = ("--state-dir", d / "s")
        for args, says in (
                ((*r,), "--replica needs --state-dir"),
                (("--member", "ipc:///tmp/x"), "--member needs --state-dir"),
                ((*r, *s, "--member", "ipc:///tmp/y"), "a fleet of fleets is not supported"),
                ((*r, *r, *s), "named twice"),
                (("--replica", "tcp://127.0.0.1:1", *s), "needs --replica-token-file"),
                (("--member", "tcp://127.0.0.1:0", *s), "needs --member-token-file"),
                (("--member", "tcp://0.0.0.0:7", "--member-token-file", d / "token", *s), "--weights-root"),
                (("--replica", "http://x", *s), "want ipc:///PATH or tcp://HOST:PORT"),
                ((*r, *s, "--backend", "host"), "--backend has no meaning with --replica"),
                ((*r, *s, "--workers-join"), "--workers-join has no meaning"),
                ((*r, *s, "--restore"), "--restore has no meaning"),
                ((*r, *s, "--manifest", "/m"), "--manifest has no meaning"),
                ((*r, *s, "--staging", "inplace"), "--staging has no meaning"),
                ((*r, *s, "--dp-size", "3"), "--dp-size 3"),
                ((*r, *s, "--join", "tcp://127.0.0.1:0"), "--join tcp://127.0.0.1:0: over tcp it needs"),
                (("--replica-token-file", d / "token"), "--replica-token-file needs --replica"),
                (("--member-token-file", d / "token"), "--member-token-file needs --member")):
            lines = refused(*(str(a) for a in args))
            check(len(lines) == 1 and says in lines[0], f"one clear message for {args}: {lines}")
        many = [str(x) for i in range(257) for x in ("--replica", f"ipc:///tmp/{i}")]
        check(any("at most 256" in line for line in refused(*many, *map(str, s))), "too many replicas")
        check(not (d / "s").exists(), "nothing was made")


main(globals())
