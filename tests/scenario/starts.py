"""A start that fails says why: too few descriptors, a worker that cannot start."""
import http.client
import resource
import socket
import subprocess

from weft_scenario import BIN, Daemon, check, folder, main, same, until


def test_too_few_descriptors():
    for n in (16, 24, 30, 63):
        r = subprocess.run([str(BIN / "weftd"), "--listen", "127.0.0.1:0", "--workers", "2"], capture_output=True,
                           text=True, stdin=subprocess.DEVNULL, timeout=30, check=False,
                           preexec_fn=lambda n=n: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))
        same(r.returncode, 1, f"exit code with {n} descriptors: {r.stderr}")
        check(f"only {n} files" in r.stderr and "ulimit -n" in r.stderr, r.stderr)


class Unix(http.client.HTTPConnection):
    """No ready line will name a port: HTTP over a path that the test chooses."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def ready(path):
    c = Unix(path)
    try:
        c.request("GET", "/ready")
        r = c.getresponse()
        return r.status, r.read().decode()
    finally:
        c.close()


def test_ready_has_a_workers_last_word():
    with folder() as d:
        at = d / "http"
        with Daemon("--backend", "nccl", "--nccl", "/nonexistent/libnccl.so", listen=f"unix:{at}", ready=False) as w:
            until(at.exists, "it listens")
            said = until(lambda: (lambda r: r if "could not start" in r[1] else None)(ready(at)), "/ready says why")
            same(said[0], 503, f"{said}")
            for word in ("rank 0", "exited with status", "/nonexistent/libnccl.so", "--nccl"):
                check(word in said[1], f"{word} in {said}")
            w.stop()


if __name__ == "__main__":
    main(globals())
