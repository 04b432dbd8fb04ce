"""What the scenarios share: start a real weftd, talk to it, and see that it leaves nothing.

Python's standard library only.  A scenario is a file with functions named test_*; main()
runs them in order.  WEFT_BIN_DIR names the folder with weftd and weft.  A part that cannot
run says why with skip(); when all parts do, the exit code is 77.
"""
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid

BIN = pathlib.Path(os.environ.get("WEFT_BIN_DIR", "build/dev/tools")).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOW = float(os.environ.get("WEFT_TIME_SCALE", "1"))  # sanitizers: patience, never less
SANITIZED = os.environ.get("WEFT_SANITIZE", "") != ""
MARK = "WEFT_SCENARIO_ID"
CACHE = pathlib.Path(os.environ.get("WEFT_CACHE", str(pathlib.Path.home() / ".cache" / "weft-tests")))


class Skip(Exception):
    """Raised by skip(): this part cannot run here."""


def skip(why):
    raise Skip(why)


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def same(got, want, what):
    if got != want:
        raise AssertionError(f"{what}:\n  got  {got!r}\n  want {want!r}")


def until(condition, what, seconds=15.0):
    """Waits until condition() gives something true, and returns it."""
    end = time.monotonic() + seconds * SLOW
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds * SLOW:.0f} s: {what}")
        time.sleep(0.02)


# ---- what a package registry gives, where one answers

def pip(*args, timeout=100):
    try:
        p = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", *args],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "pip did not come back"
    return None if p.returncode == 0 else (p.stderr.strip().splitlines() or ["pip failed"])[-1]


def python_package(name, *with_it):
    """The environment in which this Python can import name; fetched once into CACHE."""
    where = CACHE / f"python-{name}"
    if not (where / name).exists():
        bad = pip("install", "--only-binary", ":all:", "--target", str(where), name, *with_it, "--retries", "1")
        if bad:
            skip(f"Python's {name} is not installed and cannot be fetched: {bad}")
    return {**os.environ, "PYTHONPATH": str(where)}


# ---- safetensors, written and read by this file alone

ITEM = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
        "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
         "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
         "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


def size_of(dtype, shape):
    n = ITEM[dtype]
    for d in shape:
        n *= d
    return n


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes), written in this order."""
    head, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        check(len(data) == size_of(dtype, shape), f"test bug: {name} has a wrong size")
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)
    return str(path)


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8:8 + n])
    body = raw[8 + n:]
    return {name: (t["dtype"], t["shape"], body[t["data_offsets"][0]:t["data_offsets"][1]])
            for name, t in head.items() if name != "__metadata__"}


def noise(seed, n):
    """n bytes that look random and are the same in every run."""
    return hashlib.shake_128(f"weft {seed}".encode()).digest(n)


def model(seed, layers=3, width=64):
    """A small model; every byte depends on seed."""
    out = {}
    for i in range(layers):
        out[f"layers.{i}.weight"] = ("BF16", [width, width], noise((seed, i, "w"), width * width * 2))
        out[f"layers.{i}.bias"] = ("F32", [width], noise((seed, i, "b"), width * 4))
    out["scale"] = ("F32", [], noise((seed, "s"), 4))
    out["empty"] = ("F16", [0, width], b"")
    return out


def checksums_of(tensors, rank_key):
    """What /weight_checker must answer for one worker that holds these tensors."""
    return {f"{rank_key}:{name}": hashlib.sha256(data).hexdigest()
            for name, (_, _, data) in tensors.items()}


# ---- HTTP

class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:400]!r}"


def http_do(address, method, path, body=None, headers=None, timeout=60.0):
    host, port = address.rsplit(":", 1)
    c = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout * SLOW)
    try:
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        c.request(method, path, body=body, headers=headers or {})
        r = c.getresponse()
        return Reply(r.status, dict((k.lower(), v) for k, v in r.getheaders()), r.read())
    finally:
        c.close()


def raw_http(address, data, timeout=10.0):
    """Sends bytes as they are and reads until the server closes."""
    host, port = address.rsplit(":", 1)
    got = b""
    with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout * SLOW) as s:
        s.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            while True:
                piece = s.recv(65536)
                if not piece:
                    break
                got += piece
    return got


class Background(threading.Thread):
    """A call in a thread of its own; result() raises what the call raised."""

    def __init__(self, fn, *args, **kwargs):
        super().__init__(daemon=True)
        self.call, self.value, self.error = (fn, args, kwargs), None, None
        self.start()

    def run(self):
        fn, args, kwargs = self.call
        try:
            self.value = fn(*args, **kwargs)
        except BaseException as e:  # handed to result()
            self.error = e

    def result(self, seconds=60.0):
        self.join(seconds * SLOW)
        check(not self.is_alive(), f"a call did not come back within {seconds * SLOW:.0f} s")
        if self.error:
            raise self.error
        return self.value


# ---- processes

def processes_with(mark):
    """Pids of live processes that inherited this scenario's mark."""
    want = f"{MARK}={mark}".encode()
    found = []
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if want in (p / "environ").read_bytes().split(b"\0") and \
                    (p / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.append(int(p.name))
        except OSError:
            pass
    return found


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def stop_process(pid):
    """SIGSTOP, and back only when it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) in "Tt", f"process {pid} stopped", 5)


class Daemon:
    """One weftd.  Use in a with statement: leaving it stops the daemon and looks for what it left."""

    def __init__(self, *args, workers=2, dev=True, listen="127.0.0.1:0", env=None, command=(),
                 run_dir=None, ready=True, check_left=True):
        self.mark = uuid.uuid4().hex
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="wft", dir="/tmp"))
        self.run_dir = pathlib.Path(run_dir) if run_dir else self.dir / "run"
        self.check_left = check_left
        self.shm_before = set(os.listdir("/dev/shm"))
        argv = [str(BIN / "weftd"), *command]
        if not command:
            argv += ["--listen", listen, "--run-dir", str(self.run_dir)]
            if workers is not None:
                argv += ["--workers", str(workers)]
            if dev:
                argv += ["--dev"]
        argv += [str(a) for a in args]
        environment = {k: v for k, v in os.environ.items() if k != "VLLM_SERVER_DEV_MODE"}
        environment.update(env or {})
        environment[MARK] = self.mark
        self.errfile = open(self.dir / "stderr", "wb+")
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=self.errfile, env=environment,
                                        start_new_session=True)
        self.ready = None
        if ready:
            try:
                self.ready = self.read_ready()
            except BaseException:
                self.kill()
                raise

    def log(self):
        self.errfile.flush()
        return (self.dir / "stderr").read_text(errors="replace")

    def read_line(self, seconds=20):
        line = Background(self.process.stdout.readline).result(seconds)
        if not line:
            self.process.wait(10)
            raise AssertionError(f"weftd ended with {self.process.returncode} before it was "
                                 f"ready:\n{self.log()}")
        return json.loads(line)

    def read_door(self):
        """Where workers may join, of a daemon that waits for them: its first line."""
        got = self.read_line()
        same(got.get("ready"), False, "the line before the ready line")
        return got["join"]

    def read_ready(self, seconds=20):
        got = self.read_line(seconds)
        same(got.get("ready"), True, "the ready line")
        return got

    @property
    def address(self):
        return self.ready["http"]

    @property
    def url(self):
        return "http://" + self.address

    def do(self, method, path, body=None, headers=None, timeout=60.0):
        return http_do(self.address, method, path, body, headers, timeout)

    def get(self, path, **kw):
        return self.do("GET", path, **kw)

    def post(self, path, body=None, **kw):
        return self.do("POST", path, body, **kw)

    def ok(self, path, body=None, **kw):
        r = self.post(path, body, **kw)
        check(r.status == 200, f"POST {path} answered {r}\n{self.log()[-3000:]}")
        return r

    def status(self):
        r = self.get("/weight_status")
        check(r.status == 200, f"GET /weight_status answered {r}")
        return r.json

    def version(self):
        return self.get("/weight_info").json["weight_version"]

    def pids(self):
        return {w["rank"]: w["pid"] for w in self.status()["workers"]}

    def checksums(self):
        """Of what is live; a worker that is still letting go of an aborted update says so first."""
        def ask():
            r = self.post("/weight_checker", {"action": "checksum"})
            return r if r.status != 503 else None
        r = until(ask, "checksums", 10)
        check(r.status == 200, f"POST /weight_checker answered {r}")
        return r.json["checksums"]

    def is_ready(self):
        return self.get("/ready").status == 200

    def wait_ready(self, seconds=30):
        until(self.is_ready, "/ready answers 200", seconds)

    def file_source(self, path, **more):
        return {"update_info": {"source": {"kind": "safetensors", "path": str(path)}, **more}}

    def push(self, path, version=None):
        """The whole lifecycle over HTTP, each step answered 200."""
        self.ok("/start_weight_update")
        self.ok("/update_weights", self.file_source(path))
        self.ok("/finish_weight_update", {"weight_version": version} if version is not None else None)

    def push_again(self, path, version):
        """A push after a fault: as soon as start is taken, which must be soon; ready then."""
        until(lambda: self.post("/start_weight_update").status == 200, "start is taken again", 30)
        self.ok("/update_weights", self.file_source(path))
        self.ok("/finish_weight_update", {"weight_version": version})
        self.wait_ready()

    def kill(self):
        for pid in processes_with(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.errfile.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def left_behind(self):
        """What a daemon that has ended must not leave."""
        left = [f"process {p}: {pathlib.Path(f'/proc/{p}/cmdline').read_bytes()!r}"
                for p in processes_with(self.mark)]
        if self.run_dir.exists():
            left += [f"file {p}" for p in self.run_dir.rglob("*")]
        left += [f"/dev/shm/{n}" for n in set(os.listdir("/dev/shm")) - self.shm_before
                 if n.startswith("weft") and not n.startswith("weft-test")]
        return left

    def stop(self, seconds=5):
        """SIGTERM: exit 0 within five seconds, and nothing left."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"SIGTERM: still there after {seconds * SLOW:.0f} s\n"
                                 f"{self.log()[-3000:]}") from None
        took = time.monotonic() - began
        same(code, 0, f"exit code after SIGTERM\n{self.log()[-3000:]}")
        same(self.left_behind(), [], "left behind after SIGTERM")
        return took

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            if kind is None and self.check_left and self.process.poll() is None:
                self.stop()
            elif kind is not None:
                print(f"--- weftd's log:\n{self.log()[-6000:]}\n---", flush=True)
        finally:
            self.kill()
        return False


class Silent:
    """A trainer's TCP end that takes connections and never sends: an update that names it
    is under way for as long as the test wants."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20 * SLOW)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.connections = []

    def source(self, names=("w",), shapes=((1024,),)):
        return {"update_info": {
            "source": {"kind": "tcp", "address": self.address, "token": "a-scenario-token-1"},
            "names": list(names), "dtype_names": ["float32"] * len(names),
            "shapes": [list(s) for s in shapes]}}

    def wait_for(self, count):
        """Until this many workers have connected: the update is certainly under way."""
        while len(self.connections) < count:
            self.connections.append(self.listener.accept()[0])

    def close(self):
        for c in self.connections:
            c.close()
        self.listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Sender(threading.Thread):
    """The trainer's end of a tcp source (handshake: weft/transfer.h): bytes_of(rank) are what
    that worker gets."""

    def __init__(self, tensors, bytes_of, workers=2):
        super().__init__(daemon=True)
        self.tensors, self.bytes_of, self.workers, self.errors = tensors, bytes_of, workers, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20 * SLOW)
        self.start()

    def update(self):
        return {"update_info": {
            "source": {"kind": "tcp", "address": "127.0.0.1:%d" % self.listener.getsockname()[1],
                       "token": "a-scenario-token-1"},
            "names": list(self.tensors), "dtype_names": [TORCH[t] for t, _, _ in self.tensors.values()],
            "shapes": [list(s) for _, s, _ in self.tensors.values()]}}

    def serve(self, connection):
        with connection, connection.makefile("rwb") as f:
            hello = json.loads(f.readline(4096))
            same((hello["weft"], hello["token"]), (1, "a-scenario-token-1"), "the worker's greeting")
            f.write(b'{"weft":1,"ok":true}\n' + self.bytes_of(hello["rank"]))
            f.flush()
            same(json.loads(f.readline(4096)), {"weft": 1, "received": hello["bytes"]}, "its receipt")

    def run(self):
        try:
            with self.listener:
                for _ in range(self.workers):
                    self.serve(self.listener.accept()[0])
        except BaseException as e:  # shown by done()
            self.errors.append(e)

    def done(self):
        self.join(20 * SLOW)
        same(self.errors, [], "errors of the sending end")


@contextlib.contextmanager
def folder():
    path = pathlib.Path(tempfile.mkdtemp(prefix="wftd", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def weft(*args, server=None, timeout=60.0, env=None):
    """Runs the command line client; never raises for its exit code."""
    argv = [str(BIN / "weft"), *(str(a) for a in args)]
    environment = dict(os.environ)
    if server:
        environment["WEFT_SERVER"] = server
    environment.update(env or {})
    if {"nccl", "ipc"} & set(args):  # threads of the stand-ins that end meanwhile crash what looks for leaks
        environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout * SLOW, env=environment)


def cut_names(keys):
    """Ranks and tensor names of checksum keys dp{d}:pp{p}:pcp0:tp{t}:ep0:{name}."""
    out = {}
    for k, v in keys.items():
        *rank, name = k.split(":", 5)
        out.setdefault(":".join(rank), {})[name] = v
    return out


def holds(daemon, tensors, workers=2):
    """True when every worker holds exactly these tensors, byte for byte."""
    want = {n: hashlib.sha256(d).hexdigest() for n, (_, _, d) in tensors.items()}
    got = cut_names(daemon.checksums())
    return len(got) == workers and all(w == want for w in got.values())


def main(names):
    """Runs every test_* in names (a module's globals()), in the order of the file."""
    tests = [(n, f) for n, f in names.items() if n.startswith("test_")]
    only = sys.argv[1:]
    failed = skipped = 0
    for name, fn in tests:
        if only and name not in only:
            continue
        began = time.monotonic()
        try:
            fn()
            print(f"ok    {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Skip as why:
            skipped += 1
            print(f"SKIP: {name}: {why}", flush=True)
        except BaseException:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL  {name} ({time.monotonic() - began:.1f} s)", flush=True)
    if failed:
        sys.exit(1)
    sys.exit(77 if skipped == len(tests) else 0)
