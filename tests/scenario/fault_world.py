"""A real daemon with two workers whose session is held in a state for as long as a test wants,
without sleeps: what waits, waits for something that the test has in its hand.

init, starting, accepting, finishing, aborting   the other worker is stopped (SIGSTOP)
transferring                                     a trainer's TCP end keeps the bytes back
recording                                        the journal's disk is full (RLIMIT_FSIZE)
publishing                                       recorded, and the other worker is stopped

Rank 1 is the worker that faults happen to; rank 0 is the one that is stopped to hold a state.
"""
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading

from joined_worker import Worker
from watchers import Watch
from weft_scenario import (SLOW, TORCH, Background, Daemon, check, cut_names, folder, http_do, model, same,
                           stop_process, until, write_safetensors)

HOLDER, VICTIM = 0, 1
INF = resource.RLIM_INFINITY
OLD, NEW, FRESH = (model(s, layers=1, width=16) for s in ("old", "new", "fresh"))


def go_on(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


class Gate(threading.Thread):
    """The trainer's end of a tcp source: greets every worker, sends when open() was called."""

    def __init__(self, tensors, workers=2):
        super().__init__(daemon=True)
        self.tensors, self.workers = tensors, workers
        self.opened, self.greeted = threading.Event(), threading.Semaphore(0)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20 * SLOW)
        self.ends = []
        self.start()

    def update(self):
        return {"update_info": {
            "source": {"kind": "tcp", "address": "127.0.0.1:%d" % self.listener.getsockname()[1],
                       "token": "a-scenario-token-1"},
            "names": list(self.tensors), "dtype_names": [TORCH[t] for t, _, _ in self.tensors.values()],
            "shapes": [list(s) for _, s, _ in self.tensors.values()]}}

    def serve(self, connection):
        # A worker that is killed, or an engine that gives up, ends this as it likes.
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rwb") as f:
            json.loads(f.readline(4096))
            f.write(b'{"weft":1,"ok":true}\n')
            f.flush()
            self.greeted.release()
            self.opened.wait(60 * SLOW)
            f.write(b"".join(data for _, _, data in self.tensors.values()))
            f.flush()
            f.readline(4096)

    def run(self):
        with contextlib.suppress(OSError), self.listener:
            for _ in range(self.workers):
                self.ends.append(Background(self.serve, self.listener.accept()[0]))

    def wait_for_all(self):
        for _ in range(self.workers):
            check(self.greeted.acquire(timeout=20 * SLOW), "all workers have come for their bytes")

    def open(self):
        self.opened.set()


TRAINER = """
import http.client, json, sys
host, port = sys.argv[1].rsplit(":", 1)
for line in sys.stdin:
    path, body = json.loads(line)
    c = http.client.HTTPConnection(host, int(port), timeout=300)
    c.request("POST", path, body=None if body is None else json.dumps(body))
    r = c.getresponse()
    print(json.dumps([r.status, dict((k.lower(), v) for k, v in r.getheaders()), r.read().decode()]), flush=True)
    c.close()
"""


class Trainer:
    """A client in a process of its own; one call at a time."""

    def __init__(self, address):
        self.process = subprocess.Popen([sys.executable, "-c", TRAINER, address], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, path, body):
        """(status, headers, body), or None when there is nobody to be told."""
        try:
            self.process.stdin.write(json.dumps([path, body]) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        return tuple(json.loads(line)) if line else None

    def end(self):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()


def told(answer):
    """An answer in the words of the table."""
    if answer is None:
        return "connection lost"
    status, headers, body = answer
    out = str(status)
    if status != 200:
        error = json.loads(body)["error"]
        if error.get("outcome"):
            out += " " + error["outcome"]
        if error.get("workers"):
            out += ", names " + error["workers"]
    elif headers.get("weft-fenced"):
        out += ", fenced: rank " + headers["weft-fenced"]
    return out


class World:
    """kind: who runs the workers (children, joined); front: who the caller talks to (engine's
    own acceptor, one in a process of its own); trainer: calls come from a process."""

    def __init__(self, kind="children", front=False, trainer=False, watcher=False):
        self.stack = contextlib.ExitStack()
        self.d = self.stack.enter_context(folder())
        self.state_dir = self.d / "state"
        self.files = {n: write_safetensors(self.d / f"{n}.safetensors", t)
                      for n, t in (("old", OLD), ("new", NEW), ("fresh", FRESH))}
        self.joined, self.watch, self.call = {}, None, None
        self.release = lambda: None
        try:
            self.w = self.daemon(kind)
            self.stack.callback(self.w.__exit__, None, None, None)
            if kind == "joined":
                self.join_all()
            self.w.wait_ready()
            self.front = Daemon(command=("acceptor", "--engine", self.w.ready["control"], "--listen",
                                         "127.0.0.1:0", "--dev"), check_left=False) if front else None
            if self.front:
                self.stack.callback(self.front.kill)
            address = (self.front or self.w).address
            self.trainer = Trainer(address) if trainer else None
            if self.trainer:
                self.stack.callback(self.trainer.end)
            self.caller = self.trainer.call if trainer else self.plain_call
            self.w.push(self.files["old"], "old")
            if watcher:
                self.watch = Watch(self.w)
                self.watch.wait_status()
            self.pids = self.w.pids()
        except BaseException:
            self.close()
            raise

    def daemon(self, kind):
        args = ["--state-dir", self.state_dir]
        if kind == "joined":
            args += ["--workers-join", "--join", f"ipc://{self.d}/join"]
        return Daemon(*args, workers=2, ready=kind != "joined", check_left=False)

    def join_all(self):
        self.w.read_door()
        for rank in (0, 1):
            self.join(rank)
        self.w.ready = self.w.read_ready()

    def join(self, rank):
        """A worker as a launcher starts it."""
        self.joined[rank] = Worker(self.w, f"ipc://{self.d}/join", "--rank", str(rank), "--world-size", "2", "--tp", "2")

    def close(self):
        if self.watch:
            go_on(self.watch.process.pid)
            self.watch.process.terminate()
            self.watch.process.wait(10)
            self.watch.process.stdout.close()
        for x in self.joined.values():
            x.end()
        self.stack.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            print(f"--- weftd's log:\n{self.w.log()[-5000:]}\n---", flush=True)
        self.close()

    # ---- calls

    def plain_call(self, path, body):
        try:
            r = http_do((self.front or self.w).address, "POST", path, body)
        except (OSError, http.client.HTTPException):
            return None
        return r.status, r.headers, r.body.decode()

    def ok(self, path, body=None):
        answer = self.caller(path, body)
        check(answer is not None and answer[0] == 200, f"POST {path}: {answer}\n{self.w.log()[-2000:]}")

    def source(self, name):
        return self.w.file_source(self.files[name])

    def state(self):
        s = self.w.status()
        return s["state"], ((s["session"] or {}).get("call") or {}).get("phase", "")

    # ---- holding a state

    def enter(self, state, timeout_s=None, hold=HOLDER):
        """Brings the session into state and keeps it there until self.release(); hold: the
        worker that is stopped for it, where one has to be."""
        self.late = f"?timeout_s={timeout_s}" if timeout_s else ""
        self.hold_rank = hold
        getattr(self, "enter_" + state)()

    def begin(self, path, body, *wanted):
        self.call = Background(self.caller, path + self.late, body)
        until(lambda: self.state() in wanted, f"{path}: one of {wanted}", 20)

    def hold(self):
        pid = self.pids[self.hold_rank]
        stop_process(pid)
        self.release = lambda: go_on(pid)
        self.stack.callback(self.release)

    def enter_idle(self):
        pass

    def enter_init(self):
        self.hold()
        self.begin("/init_weight_transfer_engine", {"init_info": {}}, ("initializing", ""))

    def enter_starting(self):
        self.hold()
        self.begin("/start_weight_update", None, ("starting", "start"))

    def enter_open(self):
        self.ok("/start_weight_update")
        self.ok("/update_weights", self.source("new"))

    def enter_accepting(self):
        self.ok("/start_weight_update")
        self.hold()
        self.begin("/update_weights", self.source("new"), ("transferring", "accept"))

    def enter_transferring(self):
        gate = Gate(NEW)
        self.stack.callback(gate.open)
        self.ok("/start_weight_update")
        self.release = gate.open
        self.begin("/update_weights", gate.update(), ("transferring", "transfer"))
        gate.wait_for_all()

    def enter_finishing(self):
        self.enter_open()
        self.hold()
        self.begin("/finish_weight_update", {"weight_version": "new"}, ("finishing", "finish"))

    def disk(self, full):
        """To the daemon each write to a file fails as on a full disk, or works again."""
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self.w.process.pid, resource.RLIMIT_FSIZE, (16 if full else INF, INF))

    def enter_recording(self):
        self.enter_open()
        self.disk(full=True)
        self.release = lambda: self.disk(full=False)
        self.begin("/finish_weight_update", {"weight_version": "new"}, ("committing", ""))

    def enter_publishing(self):
        self.enter_recording()
        self.hold()
        self.disk(full=False)
        until(lambda: self.state() == ("committing", "publish") and self.serves_new(), "published to one worker", 20)

    def serves_new(self):
        """The other worker has the change and has said so; the one that is held has not."""
        sequence = {x["rank"]: x["sequence"] for x in self.w.status()["workers"]}
        other = HOLDER if self.hold_rank == VICTIM else VICTIM
        return sequence[other] > sequence[self.hold_rank]

    def enter_aborting(self):
        self.enter_open()
        self.hold()
        self.begin("/abort_weight_update", {"reason": "a test"}, ("aborting", ""))

    def next_call(self, state):
        """In a state without a call under way: the one that the trainer makes next."""
        if state == "open":
            return self.caller("/finish_weight_update" + self.late, {"weight_version": "new"})
        return self.caller("/start_weight_update" + self.late, None)

    # ---- what came of it

    def settled(self, seconds=30):
        """"ready": kept weights, or those that another rank lends, take one that is back a moment."""
        def look():
            s = self.w.status()
            states = {x["state"] for x in s["workers"]}
            if s["state"] in ("aborting", "committing") or not states <= {"ready", "behind"}:
                return None
            return "ready" if self.w.is_ready() else None
        return until(look, "all workers are in again", seconds)

    def bytes_of(self):
        """Which weights each rank holds, by SHA-256 of what lies in its memory."""
        import hashlib
        sets = {name: {n: hashlib.sha256(data).hexdigest() for n, (_, _, data) in t.items()}
                for name, t in (("old", OLD), ("new", NEW), ("fresh", FRESH))}
        got = cut_names(self.w.checksums())
        names = [next((n for n, want in sets.items() if got.get(f"dp0:pp0:pcp0:tp{r}:ep0") == want), None)
                 for r in (0, 1)]
        for r, name in enumerate(names):
            check(name or f"dp0:pp0:pcp0:tp{r}:ep0" not in got, f"rank {r} holds a mixture")
        return names

    def works_again(self):
        """I7: a stock trainer's four calls, the first retried for a moment, as after a restart."""
        def init():
            return http_do(self.w.address, "POST", "/init_weight_transfer_engine", {"init_info": {}}).status == 200
        until(init, "a new trainer's init", 30)
        self.w.push(self.files["fresh"], "fresh")
        self.w.wait_ready()
        same((self.w.version(), self.bytes_of()), ("fresh", ["fresh", "fresh"]), "after a fresh update")
