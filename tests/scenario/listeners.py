"""Clients killed at any moment of their connecting stop no socket of the engine: the next
watcher, acceptor and worker is served, and no descriptor stays behind."""
import json
import os
import random
import signal
import socket
import subprocess
import time

from joined_worker import Worker, waiting_daemon
from watchers import Watch, label
from weft_scenario import (BIN, SLOW, Background, Daemon, check, folder, holds, http_do, main, model, same, until,
                           write_safetensors)

TIMES = 60


def descriptors(w):
    return len(os.listdir(f"/proc/{w.process.pid}/fd"))


def kill_many(argv_of, seed):
    """Each lives for 0 to 30 ms.  What they leave behind (a killed one cannot clean up) goes
    with the folder."""
    moments = random.Random(seed)
    with folder() as runtime_dir:
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime_dir)}
        for i in range(TIMES):
            process = subprocess.Popen([str(a) for a in argv_of(i)], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       env=environment)
            time.sleep(moments.uniform(0, 0.03))
            process.kill()
            process.wait()


def sees_next_commit(w):
    with Watch(w) as watch:
        watch.wait_status()
        label(w, 1, w.status()["sequence"])
        until(lambda: watch.sequences()[-1:] == [w.status()["sequence"]], "a good watcher saw the next commit")


def test_killed_watchers():
    with Daemon() as w:
        sees_next_commit(w)
        before = descriptors(w)
        kill_many(lambda _: (BIN / "weft", "watch", "--server", w.url), 1)
        sees_next_commit(w)
        until(lambda: descriptors(w) <= before, f"no more than {before} descriptors", 10)


def test_connections_without_a_greeting():
    """What a kill does now and then, done every time."""
    with folder() as d, Daemon() as w:
        s = w.status()
        sees_next_commit(w)
        before = descriptors(w)
        for what in ("events", "snapshot", "control"):
            for i in range(200):
                with socket.socket(socket.AF_UNIX) as c:
                    c.connect(s[what][len("ipc://"):])
                    c.sendall(b"\0SP\0"[:i % 5])
        sees_next_commit(w)
        until(lambda: descriptors(w) <= before, f"no more than {before} descriptors", 10)
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        check(holds(w, model("a")), "both workers hold the push")


def test_killed_acceptors():
    with Daemon() as w:
        control = w.status()["control"]
        argv = (BIN / "weftd", "acceptor", "--engine", control, "--listen", "127.0.0.1:0", "--dev")
        before = descriptors(w)
        kill_many(lambda _: argv, 2)
        good = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True)
        try:
            line = Background(good.stdout.readline).result(20)
            r = http_do(json.loads(line)["http"], "GET", "/weight_info")
            same((r.status, r.json["weight_version"]), (200, "default"), "what a good acceptor answers")
        finally:
            good.send_signal(signal.SIGTERM)
            good.wait(10 * SLOW)
            good.stdout.close()
        until(lambda: descriptors(w) <= before, f"no more than {before} descriptors", 10)


class Joiner:
    """A worker that is started again while its rank is still that of one that was killed."""

    def __init__(self, w, url, rank):
        self.args = (w, url, "--rank", str(rank), "--world-size", "2")
        self.worker = Worker(*self.args)

    def tend(self):
        if self.worker.process.poll() is not None:
            text = self.worker.text()
            check("is taken by a living worker" in text, f"why it ended: {text}")
            self.worker.end()
            self.worker = Worker(*self.args)


def test_killed_joiners():
    with folder() as d:
        url, daemon = waiting_daemon(d)
        with daemon as w:
            same(w.read_door(), url, "the door")
            before = descriptors(w)
            kill_many(lambda i: (BIN / "weftd", "worker", "--join", url, "--rank", i % 2, "--world-size", 2), 3)
            good = [Joiner(w, url, rank) for rank in range(2)]
            ready = Background(w.read_ready, 60)

            def let_in(done):
                for j in good:
                    j.tend()
                return done()
            try:
                until(lambda: let_in(lambda: not ready.is_alive()), "the engine has its workers", 60)
                w.ready = ready.result(1)
                pids = lambda: [j.worker.process.pid for j in good]
                until(lambda: let_in(lambda: [w.pids().get(rank) for rank in range(2)] == pids()),
                      "they are the good ones", 60)
                w.wait_ready()
                w.push_again(write_safetensors(d / "a.safetensors", model("a")), "a")
                check(holds(w, model("a")), "both hold the push")
                # of the ready line on: the HTTP listener and a link to each worker, six each (dial_gate.c)
                until(lambda: descriptors(w) <= before + 20, f"not many more than {before} descriptors", 10)
            finally:
                for j in good:
                    j.worker.end()


if __name__ == "__main__":
    main(globals())
