"""While bytes move, hang or are refused, and while clients flood, everybody else is answered."""
import socket
import threading
import time

from weft_scenario import (SLOW, Background, Daemon, Silent, check, folder, holds, main, model, noise, raw_http,
                           same, write_safetensors)


def slowest(w, seconds, until=None):
    """Asks in turn; gives the longest wait and how many were asked."""
    worst, asked, end = 0.0, 0, time.monotonic() + seconds
    while time.monotonic() < end and (until is None or until()):
        for path in ("/health", "/weight_info", "/weight_status", "/ready"):
            t = time.monotonic()
            same(w.get(path, timeout=10).status, 200, f"GET {path}")
            worst = max(worst, time.monotonic() - t)
            asked += 1
    return worst, asked


def test_while_an_update_waits():
    with folder() as d, Daemon() as w, Silent() as stream:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights", stream.source())
        stream.wait_for(2)
        worst, asked = slowest(w, 2.0)
        check(asked >= 40 and worst < 1.0 * SLOW, f"{asked} answers, the slowest after {worst:.2f} s")
        same(w.version(), "a", "the version that is visible")
        s = w.status()
        same(s["session"]["call"]["operation"], "update_weights", "status tells what runs")
        same([x["phase"] for x in s["workers"]], ["receiving", "receiving"], "and on which worker")
        w.ok("/abort_weight_update")
        check(update.result().status >= 400, "the update was ended")


def test_while_bytes_move():
    with folder() as d, Daemon() as w:
        big = {f"t{i}": ("F32", [4 << 20], noise(i, 1 << 20) * 16) for i in range(16)}  # 256 MiB
        path = write_safetensors(d / "big.safetensors", big)
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights", w.file_source(path))
        worst, asked = slowest(w, 60, update.is_alive)
        same(update.result().status, 200, "update")
        finish = Background(w.post, "/finish_weight_update", {"weight_version": "big"})
        more, also = slowest(w, 60, finish.is_alive)
        same(finish.result().status, 200, "finish")
        check(max(worst, more) < 1.0 * SLOW, f"{asked + also} answers, the slowest after {max(worst, more):.2f} s")


def test_while_clients_flood():
    """Slow heads, half bodies, garbage, many connections: the control loop goes on."""
    with folder() as d, Daemon() as w:
        host, port = w.address.rsplit(":", 1)
        held = []
        for i in range(200):
            s = socket.create_connection((host, int(port)), timeout=10)
            s.sendall((b"GET /weight_info HTTP/1.1\r\nHost", b"POST /update_weights HTTP/1.1\r\nHost: x\r\n"
                       b"Content-Length: 1000000\r\n\r\n{", b"")[i % 3])
            held.append(s)
        stop = threading.Event()

        def garbage():
            while not stop.is_set():
                raw_http(w.address, noise("g", 512))

        flood = [Background(garbage) for _ in range(2)]
        try:
            w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
            worst, _ = slowest(w, 2.0)
            check(worst < 1.0 * SLOW, f"the slowest answer took {worst:.2f} s")
        finally:
            stop.set()
            for f in flood:
                f.result()
            for s in held:
                s.close()
        check(holds(w, model("a")), "and the push went through")


def test_a_body_of_10000_names():
    """A large update_info is parsed on the workers' threads, not on the loop that answers."""
    with Daemon() as w:
        n = 10000
        info = {"source": {"kind": "safetensors", "path": "/nonexistent"},
                "names": [f"model.layers.{i}.mlp.experts.weight" for i in range(n)],
                "dtype_names": ["bfloat16"] * n, "shapes": [[4096, 4096]] * n}
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights", {"update_info": info})
        worst, _ = slowest(w, 10, update.is_alive)
        check(update.result().status >= 400, "no such file")
        check(worst < 1.0 * SLOW, f"the slowest answer took {worst:.2f} s")


if __name__ == "__main__":
    main(globals())
