"""Field reports about bodies and routes: what clients of several ages send, and what nobody should."""
import json
import os
import subprocess

from field import fresh, here, refused, run
from weft_scenario import (BIN, Daemon, check, holds, model, same, until, write_safetensors)

J = {"Content-Type": "application/json"}


def file_of(seed):
    return write_safetensors(here["d"] / f"{seed}.safetensors", model(seed))


def routes():
    out = subprocess.run([str(BIN / "weftd"), "--print-routes"], capture_output=True, text=True, check=True,
                         stdin=subprocess.DEVNULL).stdout
    return [line.split()[:2] for line in out.splitlines() if line.strip()]


# Routes that need a body of a certain form; the others read none, or an optional one.
NEEDS = {"/init_weight_transfer_engine", "/update_weights", "/update_weight_version", "/weight_checker",
         "/abort_requests", "/resolve_weight_update"}
OPTIONAL = {"/finish_weight_update", "/abort_weight_update"}
BODIES = {
    "empty": b"", "not JSON": b"{nope", "cut": b'{"a":', "list": b"[]", "string": b'"x"', "number": b"1",
    "null": b"null", "deep": b'{"update_info":' + b"[" * 5000 + b"]" * 5000 + b"}", "bytes": b"\xff\xfe\x00",
    "wrong types": json.dumps({"init_info": 1, "update_info": "x", "weight_version": 1, "new_version": [],
                               "action": {}, "baseline": 1, "reason": 7, "request_ids": {}}).encode(),
    "10 MB": b'{"' + b"k" * (10 << 20) + b'":1}', "10 MB of white space": b" " * (10 << 20),
}


def test_vime_296_every_route_and_every_body():
    """Whatever the body: 2xx where the route reads none, else a 4xx that is JSON; no 5xx, no loss."""
    w = fresh()
    for method, path in routes():
        if method != "POST":
            continue
        for what, body in BODIES.items():
            w.ok("/abort_weight_update")
            r = w.post(path, body, headers=J)
            case = f"POST {path} with {what}: {r}"
            if (path, what) == ("/abort_requests", "10 MB"):
                same(r.status, 200, case)  # an object with an unknown key
            elif path in NEEDS:
                check(400 <= r.status < 500, case)
            elif path in OPTIONAL:
                # a finish without a session is 409 also where its body is fine
                check(r.status in (200, 400, 409, 413), case)
            else:
                check(r.status < 500, case)
            if r.status >= 400:
                check(r.json["error"], case)
    for method, path in routes():
        if method == "GET" and path != "/weight_events":
            r = w.do("GET", path, b"[" * 100, headers=J)
            check(r.status == 200 or (path, r.status) == ("/weights", 503), f"GET {path} with a body: {r}")
    same(w.get("/health").status, 200, "alive")
    w.ok("/abort_weight_update")
    w.push(file_of("after"), "after")
    check(holds(w, model("after")), "and a push works")


def backends():
    cuda, nccl = os.environ.get("WEFT_FAKE_CUDART", ""), os.environ.get("WEFT_FAKE_NCCL", "")
    yield "host", ()
    if cuda and nccl:
        yield "nccl", ("--backend", "nccl", "--cudart", cuda, "--nccl", nccl)
        yield "ipc", ("--backend", "ipc", "--cudart", cuda, "--allow-ipc-pickle")


def test_tokenspeed_546_every_route_answers_for_every_backend():
    good = {"/init_weight_transfer_engine": {"init_info": {}}, "/update_weights": {"update_info": {}},
            "/update_weight_version": {"new_version": "v"}, "/weight_checker": {"action": "checksum"},
            "/abort_requests": {"request_ids": []}}
    for name, args in backends():
        with Daemon(*args, env={"WEFT_FAKE_GPUS": "4"}) as w:
            for method, path in routes():
                if path == "/weight_events":
                    continue
                query = "?timeout_s=5" if method == "POST" else ""
                def answer():
                    got = w.do(method, path + query, good.get(path) if method == "POST" else None, timeout=6)
                    return None if got.status == 503 and b"ask again" in got.body else got
                r = until(answer, f"{name}: {method} {path} is done with what was before it", 10)
                check(r.status < 500 or (path, r.status) == ("/weights", 503), f"{name}: {method} {path}: {r}")
            w.ok("/abort_weight_update")
            same(w.get("/health").status, 200, f"{name}: alive")


def test_prime_rl_3062_what_does_not_fit_the_backend_names_it():
    w = fresh()
    nccl = {"master_address": "h", "master_port": 1, "rank_offset": 1, "world_size": 3}
    refused(w.post("/init_weight_transfer_engine", {"init_info": nccl}), 400, "host backend")
    w.ok("/start_weight_update")
    ipc = {"names": ["a"], "dtype_names": ["float32"], "shapes": [[1]], "ipc_handles_pickled": "gASV"}
    refused(w.post("/update_weights", {"update_info": ipc}), 400, "host backend")


def test_trl_6110_the_order_of_trls_client():
    """pause(keep), start with its old body, update, finish, resume: as its client sends them."""
    w = fresh()
    same(w.ok("/init_weight_transfer_engine", json.dumps({"init_info": {}}).encode(), headers=J).json,
         {"message": "Weight transfer initialized"}, "init")
    for version in ("1", "2"):
        same(w.post("/pause?mode=keep").json, {"status": "paused"}, "pause")
        same(w.ok("/start_weight_update", b'{"is_checkpoint_format": true}', headers=J).json,
             {"message": "Weight update started"}, "start")
        same(w.ok("/update_weights", json.dumps(w.file_source(file_of(version))).encode(), headers=J).json,
             {"message": "Weights updated"}, "update")
        same(w.ok("/finish_weight_update", b"", headers=J).json, {"message": "Weight update finished"}, "finish")
        w.ok("/update_weight_version", {"new_version": version})
        same(w.ok("/reset_prefix_cache").json, {"success": True}, "cache")
        same(w.post("/resume").json, {"status": "resumed"}, "resume")
        same(w.get("/health").status, 200, "health")
        check(holds(w, model(version)), "the bytes")


def test_ms_swift_8275_clients_of_several_ages():
    """The bodies of start and finish that the releases since 0.20 have sent, one update each."""
    w = fresh()
    for i, (start, finish, want) in enumerate((
            (b'{"is_checkpoint_format": true}', b"", None), (b'{"is_checkpoint_format":false}', None, None),
            (None, None, None), (None, b"{}", None), (None, b'{"weight_version":null}', None),
            (None, b'{"weight_version":"v5"}', "v5"), (b"", b'{"weight_version":"v6","more":1}', "v6"))):
        before = w.version()
        w.ok("/start_weight_update", start)
        w.ok("/update_weights", w.file_source(file_of(f"age {i}")))
        w.ok("/finish_weight_update", finish)
        same(w.version(), before if want is None else want, f"version after {finish!r}")
        check(holds(w, model(f"age {i}")), "the bytes")


def test_vllm_51220_abort_requests():
    w = fresh()
    for body in (b"{}", b'{"request_ids":[]}', b'{"request_ids":["unknown","mine"]}'):
        r = w.post("/abort_requests", body, headers=J)
        same((r.status, r.body), (200, b'{"status":"aborted","aborted":0}'), f"{body!r}: nothing generates here")


def test_sglang_14062_races_trip_nothing():
    """Every mutating call at once, again and again, with good bodies and bad: 2xx or 4xx/5xx replies."""
    from field import together
    w = fresh()
    path = file_of("race")
    calls = [("/start_weight_update", None), ("/update_weights", w.file_source(path)),
             ("/finish_weight_update", {"weight_version": "r"}), ("/abort_weight_update", None),
             ("/init_weight_transfer_engine", {"init_info": {}}), ("/update_weight_version", {"new_version": "l"}),
             ("/pause", None), ("/resume", None), ("/update_weights", {"update_info": {"no": 1}}),
             ("/reset_prefix_cache", None)]
    pids = w.pids()
    for _ in range(20):
        for r in together(len(calls), lambda i: w.post(*calls[i])):
            check(r.status in (200, 400, 409, 500, 503), f"{r}")
    same(w.pids(), pids, "every worker lives")
    w.ok("/abort_weight_update")
    until(lambda: w.status()["session"] is None, "no session")
    w.push(path, "after")
    check(holds(w, model("race")), "and a push works")


if __name__ == "__main__":
    run(globals())
