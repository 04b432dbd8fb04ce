"""--staging inplace: an update goes over the live weights.  What fails before its first byte leaves
all as it was; what fails later leaves workers poisoned, and a full push brings them back."""
import json
import os
import re
import resource
import signal
import socket

from weft_fleet import Fleet
from weft_scenario import (SLOW, TORCH, Background, Daemon, Silent, check, folder, holds, main, model, same,
                           until, weft, write_safetensors)

INPLACE = ("--staging", "inplace")
MIB = 1 << 20


class Half:
    """A trainer that sends every worker the first part of the tensors, and then nothing more."""

    def __init__(self, tensors, part):
        self.tensors, self.connections = tensors, []
        self.data = b"".join(d for _, _, d in tensors.values())[:part]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20 * SLOW)

    def update(self):
        return {"update_info": {
            "source": {"kind": "tcp", "address": "127.0.0.1:%d" % self.listener.getsockname()[1],
                       "token": "a-scenario-token-1"},
            "names": list(self.tensors), "dtype_names": [TORCH[t] for t, _, _ in self.tensors.values()],
            "shapes": [list(s) for _, s, _ in self.tensors.values()]}}

    def serve(self, workers):
        for _ in range(workers):
            c = self.listener.accept()[0]
            self.connections.append(c)
            f = c.makefile("rwb")
            same(json.loads(f.readline(4096))["weft"], 1, "the worker's greeting")
            f.write(b'{"weft":1,"ok":true}\n' + self.data)
            f.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for c in self.connections:
            c.close()
        self.listener.close()


def begun(w, d):
    w.push(write_safetensors(d / "before.safetensors", model("before")), "before")
    check(holds(w, model("before"), len(w.pids())), "the first push")


def as_before(w):
    same(w.version(), "before", "the version")
    check(holds(w, model("before")), "bytes as before")
    same(w.status()["poisoned"], None, "nobody is poisoned")
    check(w.is_ready(), "ready")


def states(w):
    return [x["state"] for x in w.status()["workers"]]


def is_poisoned(w, ranks=(0, 1)):
    """As whoever asks is told."""
    s = w.status()
    check(s["poisoned"] and "poisoned" in s["poisoned"], f"the status says so: {s['poisoned']}")
    same([s["workers"][r]["state"] for r in ranks], ["poisoned"] * len(ranks), "states of the ranks")
    same([s["workers"][r]["digest"] for r in ranks], [None] * len(ranks), "bytes that are no set have no digest")
    check(f'\nweft_workers{{state="poisoned"}} {len(ranks)}\n' in w.get("/metrics").body.decode(), "the metric")
    same((s["version"], s["weights_sequence"], s["digest"]), ("default", 0, None), "no version is live")
    same(w.version(), "default", "/weight_info")
    r = w.get("/ready")
    check(r.status == 503 and "poisoned" in r.body.decode(), f"/ready: {r}")
    r = w.post("/weight_checker", {"action": "checksum"})
    check(r.status == 503 and "poisoned" in r.body.decode(), f"checksums: {r}")
    w.ok("/pause")
    r = w.post("/resume")
    check(r.status == 409 and "poisoned" in r.body.decode(), f"resume: {r}")
    r = w.post("/update_weight_version", {"new_version": "of nothing"})
    check(r.status == 409 and "no version is live" in r.body.decode() and "poisoned" in r.body.decode(), f"label: {r}")
    same((w.version(), w.status()["sequence"]), ("default", s["sequence"]), "no label is taken")


def heals(w, d):
    """A part is refused by the names of the rest; everything brings it back."""
    rest = dict(model("after"))
    one = rest.pop("layers.1.weight")
    part = write_safetensors(d / "part.safetensors", rest)
    w.ok("/start_weight_update")
    w.ok("/update_weights", w.file_source(part))
    r = w.post("/finish_weight_update", {"weight_version": "part"})
    check(r.status >= 400 and "layers.1.weight" in r.body.decode(), f"a partial finish: {r}")
    same(w.version(), "default", "the version after a partial finish")
    check(not w.is_ready(), "not ready after a partial finish")
    rest["layers.1.weight"] = one
    w.push_again(write_safetensors(d / "after.safetensors", rest), "after")
    check(holds(w, model("after")), "bytes after a full push")
    s = w.status()
    same((s["version"], s["poisoned"], s["session_paused"]), ("after", None, False), "healed")
    w.ok("/resume")


def test_updates_go_over_the_live_weights():
    with folder() as d, Daemon(*INPLACE) as w:
        begun(w, d)
        slabs = {r: slab_bytes(p) for r, p in w.pids().items()}
        for i in range(4):
            w.ok("/start_weight_update")
            s = w.status()
            same((s["staging"], s["session_paused"], s["paused"]), ("inplace", True, False),
                 "readers are paused by the session alone")
            same(w.get("/is_paused").json, {"is_paused": False}, "the client's own pause")
            w.ok("/update_weights", w.file_source(write_safetensors(d / "a.safetensors", model(i))))
            w.ok("/finish_weight_update", {"weight_version": f"v{i}"})
            same(w.status()["session_paused"], False, "readers are served again")
            check(w.is_ready() and holds(w, model(i)), f"push {i}")
        same({r: slab_bytes(p) for r, p in w.pids().items()}, slabs, "slabs after four updates")


def test_before_the_first_byte_all_stays():
    with folder() as d, Daemon(*INPLACE) as w, Silent() as silent:
        begun(w, d)
        w.ok("/start_weight_update")
        w.ok("/abort_weight_update")
        as_before(w)
        w.ok("/start_weight_update")  # a file that is not there
        check(w.post("/update_weights", w.file_source(d / "nothing")).status == 400, "refused")
        as_before(w)
        w.ok("/start_weight_update")  # a trainer that connects and never sends
        update = Background(w.post, "/update_weights", silent.source(["scale"], [[]]))
        silent.wait_for(2)
        w.ok("/abort_weight_update")
        check(update.result().status >= 400, "the update was aborted")
        as_before(w)
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        check(holds(w, model("a")), "a push afterwards")


def test_an_abort_half_way_poisons():
    with folder() as d, Daemon(*INPLACE) as w, Half(model("torn"), 9000) as half:
        begun(w, d)
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights", half.update())
        half.serve(2)
        until(lambda: states(w) == ["updating"] * 2, "both ranks have begun to write")
        check(not w.is_ready(), "not ready while bytes are written over")
        check("in place" in w.get("/ready").body.decode(), "and says why")
        p = weft("abort", server=w.url)
        check(p.returncode == 0 and "no version is live: rank " in p.stdout, f"weft abort says what it left: {p}")
        r = update.result()
        check(r.status >= 400 and "no version is live" in r.body.decode() and "poisoned" in r.body.decode(),
              f"the update says what it left: {r}")
        is_poisoned(w)
        heals(w, d)


def test_a_died_trainer_and_a_deadline_poison():
    with folder() as d, Daemon(*INPLACE, workers=1) as w:
        for how in ("closed", "late"):
            begun(w, d)
            with Half(model("torn"), 9000) as half:
                w.ok("/start_weight_update")
                limit = "" if how == "closed" else "?timeout_s=2"
                update = Background(w.post, "/update_weights" + limit, half.update())
                half.serve(1)
                until(lambda: states(w) == ["updating"], "the rank has begun to write")
                if how == "closed":
                    half.connections[0].shutdown(socket.SHUT_RDWR)
                check(update.result().status >= 400, f"the update fails ({how})")
            until(lambda: w.status()["state"] == "idle", "the session is over")
            is_poisoned(w, [0])


def test_a_push_that_fails_half_way_says_so():
    """weft push: the first file is there, the second is none."""
    with folder() as d, Daemon(*INPLACE) as w:
        begun(w, d)
        whole = write_safetensors(d / "a.safetensors", model("a"))
        bad = d / "bad.safetensors"
        bad.write_bytes((d / "a.safetensors").read_bytes()[:-1])
        p = weft("push", "--json", whole, bad, server=w.url)
        same(p.returncode, 1, f"refused: {p.stderr}")
        check("no version is live: rank " in p.stderr and "nothing was changed" not in p.stderr, p.stderr)
        is_poisoned(w)


def kill_half_way(w, rank):
    with Half(model("torn"), 9000) as half:
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights", half.update())
        half.serve(len(w.pids()))
        until(lambda: set(states(w)) == {"updating"}, "all ranks have begun to write")
        os.kill(w.pids()[rank], signal.SIGKILL)
        check(update.result().status >= 400, "the update fails")


def test_a_worker_killed_half_way():
    with folder() as d, Daemon(*INPLACE) as w:
        begun(w, d)
        kill_half_way(w, 1)
        until(lambda: states(w)[1] not in ("lost", "absent", "adopting"), "rank 1 is back")
        is_poisoned(w, [0])  # rank 1 came back with nothing
        heals(w, d)


def test_the_only_worker_killed_half_way():
    """Its slabs live on with the daemon, and say themselves that they are not whole."""
    with folder() as d, Daemon(*INPLACE, workers=1) as w:
        begun(w, d)
        pid = w.pids()[0]
        kill_half_way(w, 0)
        until(lambda: w.pids()[0] not in (0, pid) and states(w) == ["behind"], "it is back, and behind")
        check(not w.is_ready(), "not ready")
        w.push_again(write_safetensors(d / "a.safetensors", model("a")), "a")
        check(holds(w, model("a"), 1), "a full push brings it back")


def test_a_worker_killed_between_updates():
    """It maps what was committed again, and the next update goes over that."""
    with folder() as d, Daemon(*INPLACE, workers=1) as w:
        begun(w, d)
        before = slab_bytes(w.pids()[0])
        pid = w.pids()[0]
        os.kill(pid, signal.SIGKILL)
        until(lambda: w.pids()[0] not in (0, pid) and w.is_ready(), "it is back, and ready")
        same(w.version(), "before", "the version")
        check(holds(w, model("before"), 1), "its bytes")
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        check(holds(w, model("a"), 1), "the next update")
        same(slab_bytes(w.pids()[0]), before, "slabs after it")


def test_mistakes():
    try:
        Daemon("--staging", "both").kill()
    except AssertionError as e:
        check("--staging" in str(e), f"the mistake is named: {e}")
    else:
        raise AssertionError("--staging both was taken")


def test_a_fleet_of_engines_in_place():
    """Members are poisoned as any engine is, the fleet is not ready then, and one push heals all."""
    with folder() as d, Fleet(d, member_args={0: INPLACE, 1: INPLACE}) as f, Half(model("torn"), 9000) as half:
        c = f.coordinator
        f.push("a")
        f.agree("a", model("a"))
        f.push("b")  # over what is live
        f.agree("b", model("b"))
        c.ok("/start_weight_update")
        update = Background(c.post, "/update_weights", half.update())
        half.serve(4)
        until(lambda: all(states(m) == ["updating"] * 2 for m in f.members), "all have begun to write")
        c.ok("/abort_weight_update")
        check(update.result().status >= 400, "the update was aborted")
        for m in f.members:
            until(lambda m=m: m.status()["poisoned"], "the member says that it is poisoned")
            check(not m.is_ready(), "the member is not ready")
        until(lambda: not c.is_ready(), "nor is the coordinator")
        f.push("c")
        f.wait_ready()
        f.agree("c", model("c"))


# ---- memory

BIG = 256 * MIB


def big(seed):
    n = 4
    return {f"t{i}": ("U8", [BIG // n], bytes([seed + i]) * (BIG // n)) for i in range(n)}


def status_kib(pid, key):
    return int(re.search(rf"^{key}:\s+(\d+) kB", open(f"/proc/{pid}/status").read(), re.M)[1])


def slab_bytes(pid):
    """Of address space that slabs take."""
    total = 0
    for line in open(f"/proc/{pid}/maps"):
        if "weft-slab" in line:
            low, high = line.split()[0].split("-")
            total += int(high, 16) - int(low, 16)
    return total


def limited(d, *args):
    """A daemon whose one worker holds big(1) and may take 0.3 times as much address space more."""
    w = Daemon("--copy-threads", 1, *args, workers=1)
    try:
        w.push(write_safetensors(d / "one.safetensors", big(1)), "one")
        pid = w.pids()[0]
        limit = status_kib(pid, "VmSize") * 1024 + BIG * 3 // 10
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
    except BaseException:
        w.kill()
        raise
    return w, pid


def test_in_place_fits_where_two_do_not():
    if os.environ.get("WEFT_SANITIZE"):
        return  # shadow memory counts as address space
    with folder() as d:
        w, pid = limited(d, *INPLACE)
        with w:
            w.push(write_safetensors(d / "two.safetensors", big(2)), "two")
            check(holds(w, big(2), 1), "the update in place")
            peak = status_kib(pid, "VmHWM") * 1024
            check(peak < BIG * 1.3, f"peak of {peak / BIG:.2f} models")
        w, pid = limited(d)
        with w:
            w.ok("/start_weight_update")
            r = w.post("/update_weights", w.file_source(d / "two.safetensors"))
            check(r.status >= 400 and "memory" in r.body.decode(), f"shadow staging is refused: {r}")
            same(w.version(), "one", "the version")
            check(holds(w, big(1), 1) and w.is_ready(), "nothing is lost")
            small = {"t0": ("U8", [BIG // 4], b"\x09" * (BIG // 4))}
            w.push(write_safetensors(d / "part.safetensors", small), "part")
            check(holds(w, {**big(1), **small}, 1), "a part fits")
            peak = status_kib(pid, "VmHWM") * 1024
            check(peak < BIG * 1.6, f"peak of {peak / BIG:.2f} models")


if __name__ == "__main__":
    main(globals())
