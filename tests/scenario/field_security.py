"""Field reports about ports, rubbish and mistakes in the configuration."""
import random
import socket
import subprocess
import time

from field import fresh, here, run
from joined_worker import Worker
from weft_scenario import (BIN, SLOW, Daemon, check, folder, holds, model, same, write_safetensors)


def dial(url):
    if url.startswith("ipc://"):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(10 * SLOW)
        s.connect(url[len("ipc://"):])
        return s
    host, port = url.rsplit("/", 1)[-1].rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10 * SLOW)


def rubbish(url, seed):
    """Random bytes with and without a greeting that nng would take, half-closed, idle, and gone."""
    dice, kept = random.Random(seed), []
    for i in range(60):
        s = dial(url)
        # SP's greeting of req, sub and nothing that exists; then a length and what is no message
        head = (b"", b"\0SP\0\0\x30\0\0", b"\0SP\0\0\x21\0\0", b"\0SP\0\xff\xff\0\0")[i % 4]
        size = dice.choice((0, 1, 7, 8, 9, 64, 4096))
        body = dice.randbytes(size)
        if i % 4 and i % 3 == 0:
            prefix = b"\1" if url.startswith("ipc://") else b""
            body = prefix + dice.choice((0, size, 1 << 40, 2 ** 64 - 1)).to_bytes(8, "big") + body
        try:
            s.sendall(head + body)
            if i % 5 == 0:
                s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if i % 5 < 3:
            kept.append(s)  # idle or half-open until the end
        else:
            s.close()
    return kept


def test_rccl_2177_random_bytes_on_every_port():
    with folder() as d:
        token = d / "token"
        token.write_text("a token of some length\n")
        token.chmod(0o600)
        for tcp in (False, True):
            port = 0
            if tcp:
                with socket.create_server(("127.0.0.1", 0)) as s:
                    port = s.getsockname()[1]
            join = f"tcp://127.0.0.1:{port}" if tcp else f"ipc://{d}/join"
            with_token = ("--join-token-file", str(token)) if tcp else ()
            with Daemon("--workers-join", "--join", join, *with_token, ready=False) as w:
                same(w.read_door(), join, "the door")
                workers = [Worker(w, join, "--rank", str(r), "--world-size", "2", *with_token) for r in range(2)]
                kept = []
                try:
                    w.ready = w.read_ready()
                    w.push_again(write_safetensors(d / "a.safetensors", model("a")), "a")
                    before = {r: x.process.pid for r, x in enumerate(workers)}
                    for i, url in enumerate((w.ready["events"], w.ready["snapshot"], w.ready["control"], join,
                                             w.ready["http"])):
                        kept += rubbish(url, i)
                    began = time.monotonic()
                    same([w.get(p).status for p in ("/health", "/weight_info", "/ready", "/metrics")], [200] * 4,
                         "answers meanwhile")
                    check(time.monotonic() - began < 5 * SLOW, "in time")
                    w.push(write_safetensors(d / "b.safetensors", model("b")), "b")
                    check(holds(w, model("b")), "and a push")
                    same(w.pids(), before, "the same workers")
                finally:
                    for s in kept:
                        s.close()
                    for x in workers:
                        x.end()
                w.check_left = False


def test_vllm_ascend_13706_one_message_per_mistake():
    with folder() as d:
        p = subprocess.run([str(BIN / "weftd"), "--listen", "nonsense", "--workers", "0", "--backend", "pigeon",
                            "--token-file", str(d / "none"), "--weights-root", str(d / "no"), "--log-level", "shout",
                            "--dp-size", "2", "--no-such-option", "--tp", "x", "--join", "tcp://h:1",
                            "--pause-lease", "0"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20 * SLOW)
    lines = p.stderr.splitlines()
    same(p.returncode, 2, "exit code")
    check(all(x.startswith("weftd: ") for x in lines), f"lines: {lines}")
    for word in ("nonsense", "--workers", "pigeon", "--token-file", "--weights-root", "--log-level", "--no-such-option",
                 "--tp", "--join", "--pause-lease"):
        check([x for x in lines if word in x], f"a line for {word}: {lines}")
    same(len(lines), len(set(lines)), "each once")


def test_xtuner_1828_a_port_is_bound_once_and_kept():
    w = fresh()
    p = subprocess.run([str(BIN / "weftd"), "--listen", w.address, "--workers", "1", "--run-dir",
                        str(here["d"] / "second")], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       timeout=20 * SLOW)
    check(p.returncode != 0 and w.address in p.stderr, f"a second one on the same port: {p.stderr}")
    port = w.address.rsplit(":", 1)[1]
    for _ in range(20):
        same(w.get("/health").status, 200, "the first one goes on")
    same(w.address.rsplit(":", 1)[1], port, "its port")


if __name__ == "__main__":
    run(globals())
