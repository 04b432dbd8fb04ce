"""weft push --source nccl and ipc: a trainer without Python, on the stand-ins of tests/doubles.
Two workers hold what was pushed, whichever way it went; what fails, fails on both sides."""
import base64
import http.server
import json
import os
import pickle
import pickletools
import re
import signal
import threading
import time

import ipc_trainer
from nccl_trainer import CUDART, NCCL
from weft_scenario import (SLOW, Background, Daemon, check, folder, holds, main, model, noise, same, until, weft,
                           write_safetensors)

GPUS = {"WEFT_FAKE_GPUS": "4"}
HOW = {"nccl": ("--nccl", NCCL, "--cudart", CUDART, "--device", "3"), "ipc": ("--cudart", CUDART)}


def daemon(backend, *args, env=None, **kw):
    more = ["--nccl", NCCL] if backend == "nccl" else ["--allow-ipc-pickle"]
    return Daemon("--backend", backend, "--cudart", CUDART, *more, *args, env={**GPUS, **(env or {})}, **kw)


def push(w, source, *args, env=None, how=None):
    return weft("push", "--source", source, *(how or HOW[source]), *args, server=w.url, env={**GPUS, **(env or {})})


def fine(w, p, tensors, version, workers=2):
    same(p.returncode, 0, f"weft push: {p.stderr}{p.stdout}\n{w.log()[-2000:]}")
    same(w.version(), version, "the version")
    check(holds(w, tensors, workers), "every worker holds what was pushed")


def failed(p, code, *words):
    same(p.returncode, code, f"weft push: {p.stderr}{p.stdout}")
    for word in words:
        check(re.search(word, p.stderr), f"{word!r} is not in {p.stderr}")


def still(w, tensors, version):
    until(lambda: w.status()["session"] is None, "the session is over", 20)
    same(w.version(), version, "the version")
    check(holds(w, tensors), "every worker holds what it had")


def test_nccl():
    ways = [("--rendezvous", "store"), ("--rendezvous", "id"), (), ("--packed",),
            ("--packed", "--packed-buffer-bytes", "8192", "--packed-buffers", "3", "--rendezvous", "id"),
            ("--packed", "--packed-buffer-bytes", "0"), ("--listen", "127.0.0.1:0")]
    with folder() as d, daemon("nccl") as w:
        for i, way in enumerate(ways):
            tensors = model(i)
            fine(w, push(w, "nccl", "--version", f"v{i}", *way, write_safetensors(d / "a", tensors)), tensors, f"v{i}")
        # Several files are several calls of one session; the second one is the larger.
        first, second = model("x", layers=1), model("y", layers=5)
        files = [write_safetensors(d / n, t) for n, t in (("x", first), ("y", second))]
        p = push(w, "nccl", "--version", "both", "--json", *files)
        fine(w, p, {**first, **second}, "both")
        same(json.loads(p.stdout)["workers"], 2, "the report")
        # No tensor, and one larger than a pinned block.
        fine(w, push(w, "nccl", "--version", "none", write_safetensors(d / "n", {})), {**first, **second}, "none")
        big = {"w": ("U8", [9 << 20], noise("big", 9 << 20)), "v": ("U8", [3], b"abc")}
        for way in ((), ("--packed",)):
            both = {**first, **second, **big}
            fine(w, push(w, "nccl", "--version", "big", *way, write_safetensors(d / "b", big)), both, "big")


def test_late_streams():
    """Nothing is taken for done that is not: streams and calls are late on both sides."""
    late = {"WEFT_FAKE_STREAM_DELAY_US": "2000", "WEFT_FAKE_NCCL_LAUNCH_US": "2000"}
    with folder() as d, daemon("nccl", env=late) as w:
        for i, way in enumerate(((), ("--packed", "--packed-buffer-bytes", "9000"))):
            t = model(("late", i), layers=8)
            fine(w, push(w, "nccl", "--version", f"{i}", *way, write_safetensors(d / "a", t), env=late), t, f"{i}")
    with folder() as d, daemon("ipc", env=late) as w:
        for i, way in enumerate(((), ("--packed", "--packed-buffer-bytes", "9000"))):
            t = model(("late", i), layers=8)
            fine(w, push(w, "ipc", "--version", f"{i}", *way, write_safetensors(d / "a", t), env=late), t, f"{i}")


def test_ipc():
    with folder() as d, daemon("ipc") as w:
        ways = [(), ("--packed",), ("--packed", "--packed-buffer-bytes", "8448")]
        for i, way in enumerate(ways):
            tensors = model(i)
            fine(w, push(w, "ipc", "--version", f"v{i}", *way, write_safetensors(d / "a", tensors)), tensors, f"v{i}")
        files = [write_safetensors(d / n, model(n, layers=k)) for n, k in (("x", 2), ("y", 5))]
        for way in ((), ("--packed", "--packed-buffer-bytes", "20000")):
            fine(w, push(w, "ipc", "--version", "both", *way, *files), {**model("x", layers=2), **model("y", layers=5)},
                 "both")
        p = push(w, "ipc", "--packed", "--packed-buffer-bytes", "8000", files[0])
        failed(p, 2, "layers.0.weight.*more than --packed-buffer-bytes", "nothing was changed")
        # One GPU only: the other worker says that there is nothing for it.
        failed(push(w, "ipc", "--device", "0", files[0]), 1, "none for this worker's GPU")
        still(w, {**model("x", layers=2), **model("y", layers=5)}, "both")


class Recorder(http.server.BaseHTTPRequestHandler):
    """A server that says yes to everything, and keeps what it was told: nobody of weft's reads it."""

    def do_GET(self):
        self.answer(b'{"world_size":2}' if self.path == "/get_world_size" else b"{}")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.told.append((self.path, json.loads(body) if body else None))
        self.server.seen(self.server.told[-1][1])
        self.answer(b"{}")

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def recorded(source, *args, seen=lambda body: None):
    """The requests of a push, in order."""
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    s.told, s.seen, s.url = [], seen, "http://127.0.0.1:%d" % s.server_address[1]
    threading.Thread(target=s.serve_forever, daemon=True).start()
    try:
        same(push(s, source, *args).returncode, 0, "weft push")
        return s.told
    finally:
        s.shutdown()
        s.server_close()


def test_handles_as_pythons_pickle_reads_them():
    """The fifteen of rebuild_cuda_tensor for each GPU, with counters that torch's receivers find."""
    counters = []

    def seen(body):
        if body and "update_info" in body:  # while the call runs
            for entry in pickle.loads(base64.b64decode(body["update_info"]["ipc_handles_pickled"])):
                counters.extend(open("/dev/shm" + a[11].decode(), "rb").read() for a in entry.values() if a[11])

    with folder() as d:
        tensors = {**model("a"), "wide": ("U8", [1, 70000, 2], bytes(140000))}
        told = recorded("ipc", write_safetensors(d / "a", tensors), seen=seen)
        same([p for p, _ in told], ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights",
                                    "/finish_weight_update"], "the calls")
        info = told[2][1]["update_info"]
        raw = base64.b64decode(info["ipc_handles_pickled"], validate=True)
        pickletools.dis(raw, out=open(os.devnull, "w"))
        entries = pickle.loads(raw)
        same(info["names"], list(tensors), "names")
        same(len(entries), len(tensors), "one entry for each tensor")
        for entry, (dtype, shape, data) in zip(entries, tensors.values()):
            same(len(entry), 4, "GPUs")
            for uuid, a in entry.items():
                check(re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid), uuid)
                same((len(a), a[0], a[1], a[4]), (15, ipc_trainer.Tensor, tuple(shape), ipc_trainer.TypedStorage), "args")
                check(isinstance(a[1], ipc_trainer.Size) and a[5] is ipc_trainer.DTYPES[dtype], f"{a[5]}")
                stride, n = [], 1
                for k in reversed(shape):
                    stride.insert(0, n)
                    n *= k or 1
                same((a[2], a[3], a[6], a[8], a[10], a[14]), (tuple(stride), 0, 0, len(data), False, False), "args")
                check(a[9] % 256 == 0 and len(a[13]) == 64, f"{a}")
                same(a[7] if not data else a[7][:2] + bytes([len(a[7])]), b"\2cB" if data else None, "handle")
                check(not data or re.fullmatch(rb"/torch_[0-9]+_[0-9]+_[0-9]+", a[11]), f"{a[11]}")
        used = len([t for t in tensors.values() if t[2]])
        for raw in counters:
            same((len(raw), raw[:4]), (64 + 80000, b"\1\0\0\0"), "a file of counters")
            same(raw[64:], (b"\1" + bytes(7)) * used + bytes(8 * (10000 - used)), "counted up once each")
        same(len(counters), 4 * used, "all could be opened")
        check(not any(os.path.exists("/dev/shm" + a[11].decode()) for e in entries for a in e.values() if a[11]),
              "and are gone with the push")


def test_what_is_refused():
    with folder() as d, daemon("nccl") as w:
        a = write_safetensors(d / "a", model("a"))
        fine(w, push(w, "nccl", "--version", "one", a), model("a"), "one")
        for args, words in ((("--nccl", "/no/such.so"), "NCCL .*cannot be loaded"),
                            (("--cudart", "/no/such.so"), "CUDA runtime .*cannot be loaded"),
                            (("--device", "17"), "device 17: this process sees 4; --device"),
                            (("--device", "x"), "--device x: not a whole number"),
                            (("--rendezvous", "pigeon"), "store or id"),
                            (("--packed-buffer-bytes", "7"), "need --packed"),
                            (("--listen", "nowhere"), "--listen: must be HOST:PORT")):
            how = list(HOW["nccl"])
            if args[0] in how:
                i = how.index(args[0])
                del how[i:i + 2]
            failed(push(w, "nccl", *args, a, how=how), 2, words)
        failed(push(w, "nccl", a, env={"WEFT_FAKE_NO_DRIVER": "1"}), 2, "no NVIDIA driver")
        # Another's session is not ended without being asked to.
        w.ok("/start_weight_update")
        failed(push(w, "nccl", a), 1, "already", "--take-over")
        check(w.status()["session"], "the other's session was left alone")
        fine(w, push(w, "nccl", "--take-over", "--version", "two", a), model("a"), "two")
    with Daemon() as w, folder() as d:  # host backend
        a = write_safetensors(d / "a", model("a"))
        failed(push(w, "nccl", a), 1, "init_weight_transfer_engine")
        failed(push(w, "ipc", a), 1, "weft: ")


def test_wrong_versions_and_sizes():
    with folder() as d, daemon("nccl") as w:
        a, b = write_safetensors(d / "a", model("a")), write_safetensors(d / "b", model("b"))
        fine(w, push(w, "nccl", "--version", "one", a), model("a"), "one")
        for way in ("store", "id"):
            # Another NCCL than the workers'.
            p = push(w, "nccl", "--rendezvous", way, b, env={"WEFT_FAKE_NCCL_VERSION": "22705"})
            failed(p, 1, "Mismatched NCCL version")
            # Too few: refused by name before anybody waits.
            failed(push(w, "nccl", "--rendezvous", way, "--world-size", "2", b), 1, "rank 2|world_size")
            # One too many: all wait for it, but not for ever.
            began = time.monotonic()
            p = push(w, "nccl", "--rendezvous", way, "--world-size", "4", "--timeout", "3", b)
            failed(p, 1, "init_weight_transfer_engine")
            check(time.monotonic() - began < 30 * SLOW, "in time")
            # The same GPU as a worker's.
            failed(push(w, "nccl", "--rendezvous", way, b, how=[*HOW["nccl"][:-1], "1"]), 1, "Duplicate GPU")
        until(lambda: all(x["state"] in ("ready", "behind") for x in w.status()["workers"]), "workers", 30)
        fine(w, until(lambda: (lambda p: p if p.returncode == 0 else None)(push(w, "nccl", "--version", "two", b)),
                      "the next push", 30), model("b"), "two")


def stuck_push(w, path, *args):
    """A push whose second broadcast never ends: under way when this returns."""
    p = Background(push, w, "nccl", *args, path, env={"WEFT_FAKE_NCCL_HANG": "broadcast:2"})
    until(lambda: (w.status()["session"] or {}).get("phase") == "transferring" or
          any(x.get("received") for x in w.status()["workers"]), "the transfer is under way", 20)
    return p


def test_a_worker_dies():
    with folder() as d, daemon("nccl") as w:
        a, b = write_safetensors(d / "a", model("a")), write_safetensors(d / "b", model("b"))
        fine(w, push(w, "nccl", "--version", "one", a), model("a"), "one")
        p = stuck_push(w, b)
        os.kill(w.pids()[1], signal.SIGKILL)
        failed(p.result(), 1, "rank 1")
        same(w.version(), "one", "the version")
        until(lambda: all(x["state"] in ("ready", "behind") for x in w.status()["workers"]), "the worker is back", 30)
        fine(w, push(w, "nccl", "--version", "two", b), model("b"), "two")


def test_aborted_and_interrupted():
    with folder() as d, daemon("nccl") as w:
        a, b = write_safetensors(d / "a", model("a")), write_safetensors(d / "b", model("b"))
        fine(w, push(w, "nccl", "--version", "one", a), model("a"), "one")
        p = stuck_push(w, b)
        w.ok("/abort_weight_update", {"reason": "on purpose"})
        failed(p.result(), 1, "on purpose|abort")
        still(w, model("a"), "one")
        # The server's deadline ends it too: its words come out, and the communicator is gone.
        p = stuck_push(w, b, "--timeout", "2")
        failed(p.result(), 1, "update_weights")
        still(w, model("a"), "one")
        # Rank 0 fails alone: a call of CUDA's does.
        p = push(w, "nccl", b, env={"WEFT_FAKE_FAIL": "ncclBroadcast:3:3"})
        failed(p, 1, "rank 0, update_weights: .*ncclBroadcast: NCCL error 3, the test asked")
        still(w, model("a"), "one")
        # The communicator is left with its thread, and that is what the program says.
        leak = os.environ.get("TSAN_OPTIONS", "") + ":report_thread_leaks=0"
        p = push(w, "nccl", b, env={"WEFT_FAKE_NCCL_ABORT_HANG": "1", "WEFT_FAKE_FAIL": "ncclBroadcast:3:3",
                                    "TSAN_OPTIONS": leak})
        failed(p, 1, "ncclCommAbort does not come back")
        still(w, model("a"), "one")
        fine(w, push(w, "nccl", "--version", "two", b), model("b"), "two")


def test_the_server_dies():
    with folder() as d:
        w = daemon("nccl", check_left=False)
        b = write_safetensors(d / "b", model("b"))
        p = stuck_push(w, b)
        w.kill()
        failed(p.result(), 3, "weft: ")


if __name__ == "__main__":
    main(globals())
