"""Field reports about what can be seen from outside: metrics, status, the checker, what listens."""
import http.client
import json
import os
import pathlib
import re
import socket
import time

from field import fresh, here, metrics, paused, refused, run
from weft_scenario import (SLOW, TORCH, Background, Daemon, Silent, check, folder, model, noise, same, until,
                           write_safetensors)

TOOK = "vllm:rl_weight_update_operation_duration_seconds"
FLYING = "vllm:rl_weight_update_operations_in_flight"
ENDED = "vllm:rl_weight_update_operations_total"
OPERATIONS = ("init", "start", "start_draft", "update", "finish")
BUCKETS = ("0.01", "0.1", "1.0", "10.0", "30.0", "60.0", "120.0", "300.0", "600.0", "+Inf")


def file_of(seed):
    return write_safetensors(here["d"] / f"{seed}.safetensors", model(seed))


def test_vllm_55781_the_operations():
    w = fresh()
    before = metrics(w)
    for op in OPERATIONS:
        for le in BUCKETS:
            check(f'{TOOK}_bucket{{operation="{op}",le="{le}"}}' in before, f"bucket {le} of {op}")
        for name in (f"{TOOK}_sum", f"{TOOK}_count", FLYING):
            check(f'{name}{{operation="{op}"}}' in before, f"{name} of {op}")
    counted = lambda m: {op: m[f'{TOOK}_count{{operation="{op}"}}'] - before[f'{TOOK}_count{{operation="{op}"}}']
                         for op in OPERATIONS}
    flying = lambda: {op: metrics(w)[f'{FLYING}{{operation="{op}"}}'] for op in OPERATIONS}
    nothing = dict.fromkeys(OPERATIONS, 0)
    # what is refused is none
    refused(w.post("/update_weights", {}), 400)
    refused(w.post("/init_weight_transfer_engine", b"{"), 400)
    refused(w.post("/update_weights", w.file_source("/x")), 409)
    refused(w.post("/finish_weight_update"), 409)
    same(counted(metrics(w)), nothing, "refused calls")
    w.ok("/init_weight_transfer_engine", {"init_info": {}})
    w.push(file_of("a"), "a")
    same(counted(metrics(w)), {**nothing, "init": 1, "start": 1, "update": 1, "finish": 1}, "one update")
    # under way, then failed
    with Silent() as trainer:
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights?timeout_s=5", trainer.source())
        trainer.wait_for(2)
        same(flying(), {**nothing, "update": 1}, "while it is under way")
        same(update.result().status, 500, "its deadline")
    same(flying(), nothing, "after an error")
    # and left by its client
    with Silent() as trainer:
        until(lambda: w.post("/start_weight_update").status == 200, "start")
        host, port = w.address.rsplit(":", 1)
        c = http.client.HTTPConnection(host, int(port), timeout=10)
        c.request("POST", "/update_weights", body=json.dumps(trainer.source()))
        trainer.wait_for(2)
        c.close()
        until(lambda: w.post("/init_weight_transfer_engine", {"init_info": {}}).status == 200, "the next init", 20)
    same(flying(), nothing, "after a disconnect")
    after = metrics(w)
    same(counted(after)["update"], 3, "all three are counted")
    same(after[f'{ENDED}{{operation="update",outcome="error"}}'] -
         before[f'{ENDED}{{operation="update",outcome="error"}}'], 2, "two of them as errors")


def test_vllm_55781_sessions_of_the_draft_model_count_apart():
    with Daemon("--draft", workers=1) as w:
        refused(w.post("/finish_weight_update"), 409)
        w.ok("/start_draft_weight_update")
        w.ok("/finish_weight_update")
        m = metrics(w)
        same([m[f'{TOOK}_count{{operation="{op}"}}'] for op in OPERATIONS], [0, 0, 1, 0, 1], "counts")
        same(m[f'{FLYING}{{operation="start_draft"}}'], 0, "under way")


def test_vllm_45524_and_areal_1160_the_age_of_a_pause():
    with Daemon("--pause-lease", "1", workers=1) as w:
        same(metrics(w)["weft_paused"], 0, "not paused")
        w.ok("/pause?mode=keep")
        m = metrics(w)
        check(m["weft_paused"] == 1 and m["weft_pause_state_seconds"] < 1.0 * SLOW, f"just now: {m}")
        until(lambda: w.get("/ready").status == 503, "the lease is over", 10)
        check("--pause-lease" in w.get("/ready").json["reason"], "and /ready says so")
        s = w.status()
        check(s["paused_ms"] >= 1000 and s["pause_lease_ms"] == 1000 and not s["ready"], f"status: {s}")
        same(metrics(w)["weft_ready"], 0, "weft_ready")
        until(lambda: "not ready: paused for" in w.log(), "the log", 5)
        w.ok("/resume")
        same(w.get("/ready").status, 200, "ready again")


def test_gonka_1421_the_heartbeat_of_the_event_loop():
    w, name = fresh(), "weft_event_loop_heartbeat_total"
    seen = [metrics(w)[name]]
    for _ in range(3):
        until(lambda: metrics(w)[name] > seen[-1], "it grows while nobody calls", 5)
        seen.append(metrics(w)[name])
    same(seen, sorted(seen), "and never falls")


def test_sglang_27363_and_2708_the_last_update_rank_by_rank():
    w = fresh()
    tensors = {f"t{i}": ("F32", [1 << 20], noise(i, 1 << 16) * 64) for i in range(8)}  # 32 MiB
    size = sum(len(b) for _, _, b in tensors.values())
    w.push(write_safetensors(here["d"] / "big.safetensors", tensors), "big")
    m, last = metrics(w), w.status()["last_update"]
    same([r["rank"] for r in last["ranks"]], [0, 1], "ranks")
    for r in last["ranks"]:
        label = f'{{rank="{r["rank"]}"}}'
        same((r["received_bytes"], m["weft_last_update_received_bytes" + label]), (size, size), "bytes")
        check(r["receive_us"] > 0 and r["apply_us"] > 0, f"times: {r}")
        same((m["weft_last_update_receive_seconds" + label], m["weft_last_update_apply_seconds" + label]),
             (r["receive_us"] / 1e6, r["apply_us"] / 1e6), "the same in both places")
        check((r["receive_us"] + r["apply_us"]) / 1000 <= last["elapsed_ms"] + 2, f"within the update: {last}")
    slowest = min(size * 1e6 / r["receive_us"] for r in last["ranks"])
    check(abs(last["bytes_per_second"] - slowest) <= 1, f"{slowest} bytes/s: {last}")
    check(abs(m["weft_last_update_gigabytes_per_second"] * 1e9 - slowest) <= 1, "the same as a metric")
    # an update that fails leaves the last one's numbers
    w.ok("/start_weight_update")
    check(w.post("/update_weights", w.file_source("/nowhere")).status >= 400, "no such file")
    same(w.status()["last_update"], last, "the last update")


def test_dynamo_14703_others_are_answered_while_bytes_are_awaited():
    w = fresh()
    w.push(file_of("a"), "a")
    with Silent() as trainer:
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights", trainer.source())
        trainer.wait_for(2)
        for path in ("/health", "/weight_info", "/is_paused", "/metrics", "/ready", "/weight_status"):
            quick_at_least_once(lambda: same(w.get(path).status, 200, path), 0.05 * SLOW, path)
        same(w.status()["state"], "transferring", "status tells that it updates")
        same(metrics(w)['weft_session_state{state="transferring"}'], 1, "so do the metrics")
        w.ok("/abort_weight_update")
        update.result()


def test_vllm_9332_names_dtypes_and_shapes_are_listed():
    w = fresh()
    tensors = model("listed")
    w.push(file_of("listed"), "listed")
    got = w.get("/weights").json
    same(got["version"], "listed", "version")
    listed = {t["name"]: (t["dtype"], t["shape"]) for t in got["tensors"]}  # others' pushes are live, too
    same({n: listed.get(n) for n in tensors}, {n: (TORCH[d], s) for n, (d, s, _) in tensors.items()}, "what is live")
    same(len(listed), w.status()["tensors"], "all of it")


def test_vllm_52689_the_checker():
    with folder() as d, Daemon("--allow-weight-reset") as w:
        path = write_safetensors(d / "a.safetensors", model("a"))
        w.push(path, "a")
        base = w.checksums()
        same(w.checksums(), base, "stable")
        compare = lambda: w.ok("/weight_checker", {"action": "compare", "baseline": base}).json
        same(w.ok("/weight_checker", {"action": "reset"}).json, {"status": "reset"}, "reset")
        got = compare()
        same((got["match"], len(got["mismatches"])), (False, len([k for k in base if not k.endswith(":empty")])),
             "all that has bytes differs")
        w.push(path, "again")
        same(compare(), {"match": True, "mismatches": []}, "pushed again")
        # one byte on one rank
        flipped = {n: (t, s, (bytes([b[0] ^ 1]) + b[1:]) if n == "scale" else b) for n, (t, s, b) in model("a").items()}
        other = write_safetensors(d / "b.safetensors", flipped)
        w.ok("/start_weight_update")
        w.ok("/update_weights", {"update_info": [{"source": {"kind": "safetensors", "path": p}} for p in (path, other)]})
        w.ok("/finish_weight_update")
        same(compare(), {"match": False, "mismatches": ["dp0:pp0:pcp0:tp1:ep0:scale"]}, "rank and tensor are named")


def sockets_of(pid):
    out = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            out.add(target[8:-1])
    return out


def test_ms_swift_7091_all_that_listens_is_told():
    """The ready line names every listening TCP port and socket file; workers have one file each.
    Sockets without a file are of no use to others."""
    with Daemon() as w:
        told = [w.ready[k] for k in ("http", "events", "snapshot", "control")]
        for pid in (w.process.pid, *w.pids().values()):
            mine = sockets_of(pid)
            for table in ("tcp", "tcp6"):
                for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                    f = line.split()
                    if f[3] == "0A" and f[9] in mine:
                        port = int(f[1].rsplit(":", 1)[1], 16)
                        same(f":{port}", w.ready["http"][w.ready["http"].rindex(":"):], f"process {pid} listens")
            for line in pathlib.Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
                f = line.split()
                if f[6] not in mine or f[3] != "00010000":
                    continue
                path = f[7] if len(f) > 7 else ""
                if re.fullmatch("@[0-9a-f]{5}", path):  # where a process meets itself, and nobody else
                    with socket.socket(socket.AF_UNIX) as s:
                        s.settimeout(0.2)
                        s.connect("\0" + path[1:])
                        try:
                            same(s.recv(1), b"", f"what {pid} says to a stranger at {path}")
                        except TimeoutError:
                            pass  # it does not even look
                elif pid == w.process.pid:
                    check(f"ipc://{path}" in told or path.startswith(str(w.run_dir)), f"{path} is not told: {told}")
                else:
                    check(path.startswith(str(w.run_dir)), f"worker {pid} listens on {path}")


def quick_at_least_once(fn, seconds, what):
    """A cost is what the quickest of many takes: on a busy machine the others wait for it."""
    best = 60.0
    for _ in range(300):
        began = time.monotonic()
        fn()
        best = min(best, time.monotonic() - began)
        if best < seconds:
            return
    check(False, f"{what} took {best:.4f} s at best")


def test_marin_8936_and_vllm_52957_pause_costs_next_to_nothing():
    w = fresh()
    w.push(file_of("a"), "a")

    def nothing():
        with paused(w):
            w.ok("/start_weight_update")
            w.ok("/finish_weight_update")
    quick_at_least_once(nothing, 0.02 * SLOW, "pause to resume without data")
    w.ok("/resume")
    quick_at_least_once(lambda: w.ok("/pause"), 0.01 * SLOW, "a pause")


def test_open_instruct_1535_the_cost_of_control():
    w = fresh()
    tensors = {f"layers.{i}.w": ("F32", [16], noise(i, 64)) for i in range(400)}
    path = write_safetensors(here["d"] / "many.safetensors", tensors)
    best = 1e9
    for i in range(100):
        w.push(path, f"many {i}")
        last = w.status()["last_update"]
        best = min(best, last["elapsed_ms"] - max(r["receive_us"] + r["apply_us"] for r in last["ranks"]) / 1000)
        if best < 50 * SLOW:
            return
    check(False, f"{best:.1f} ms beside receiving and applying, at best")


if __name__ == "__main__":
    run(globals())
