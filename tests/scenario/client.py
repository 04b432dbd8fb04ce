"""The command line client: what it prints, its exit codes, what it does when interrupted."""
import json
import os
import pty
import signal
import socket
import subprocess

from weft_scenario import (BIN, SLOW, Daemon, check, folder, holds, main, model, noise, same, until, weft,
                           write_safetensors)

COMMANDS = ("push", "info", "status", "log", "watch", "abort", "checksum", "resolve")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def test_help_and_usage():
    p = weft("--help")
    same(p.returncode, 0, "weft --help")
    daemon = subprocess.run([BIN / "weftd", "--version"], capture_output=True, text=True, check=True)
    same(weft("--version").stdout, daemon.stdout.replace("weftd", "weft"), "weft --version")
    for c in COMMANDS:
        check(c in p.stdout, f"weft --help tells of {c}")
        h = weft(c, "--help")
        same((h.returncode, h.stderr), (0, ""), f"weft {c} --help")
        check("--server" in h.stdout and "exit codes" in h.stdout, f"weft {c} --help says what it takes")
    for args in ((), ("nonsense",), ("info", "--nonsense"), ("info", "stray"), ("push",),
                 ("push", "/no/such/file"), ("push", "--source", "pigeon", "/etc/hostname"),
                 ("info", "--server"), ("info", "--timeout", "soon"), ("info", "--timeout", "0"),
                 ("info", "--server", "ftp://x"), ("info", "--json=yes"), ("watch", "--version", "x"),
                 ("info", "--token-file", "/no/such/file"), ("resolve",), ("resolve", "--commit", "--abort")):
        p = weft(*args)
        same(p.returncode, 2, f"weft {args}: {p.stderr}")
        check(p.stderr or not args, f"weft {args} says why")
    with folder() as d:
        f = write_safetensors(d / "a", model("a"))
        same(weft("push", "--source", "tcp", "--listen", "nowhere", f,
                  server="http://127.0.0.1:%d" % free_port()).returncode, 3, "reached before --listen matters")


def test_unreachable():
    url = f"http://127.0.0.1:{free_port()}"
    with folder() as d:
        f = write_safetensors(d / "a", model("a"))
        for args in (("info",), ("status",), ("log",), ("watch",), ("abort",), ("checksum",), ("push", f), ("info", "--json"), ("resolve", "--abort")):
            p = weft(*args, server=url)
            same(p.returncode, 3, f"weft {args} without a server: {p.stderr}")
            check(url in p.stderr, f"names the server: {p.stderr}")
    same(weft("info", server="unix:/no/such/socket").returncode, 3, "no such socket")


def test_log():
    with folder() as d, Daemon(workers=1) as w:
        f = write_safetensors(d / "a", model("a"))
        same(weft("log", server=w.url).stdout, "", "nothing yet")
        for v in ("one", "two"):
            same(weft("push", f, "--version", v, server=w.url).returncode, 0, "push")
        w.ok("/start_weight_update")
        w.ok("/abort_weight_update", {"reason": "on purpose"})
        lines = weft("log", server=w.url).stdout.splitlines()
        same(len(lines), 3, f"{lines}")
        check("aborted" in lines[0] and lines[0].endswith("on purpose"), lines[0])
        check(lines[1].split()[0] == "2" and "weights" in lines[1] and lines[1].endswith("two"), lines[1])
        same(len(weft("log", "--count", "1", server=w.url).stdout.splitlines()), 1, "--count")
        got = json.loads(weft("log", "--json", server=w.url).stdout)
        same([v["sequence"] for v in got["versions"]], [None, 2, 1], "--json")


def test_refused():
    with folder() as d, Daemon() as w:
        f = write_safetensors(d / "a", model("a"))
        w.ok("/start_weight_update")
        p = weft("push", f, server=w.url)
        same(p.returncode, 1, f"push while another session is open: {p.stderr}")
        check("409" in p.stderr and "already active" in p.stderr and "--take-over" in p.stderr,
              f"says why, and what helps: {p.stderr}")
        check(w.status()["session"], "the other's session was left alone")
        p = weft("push", "--take-over", "--version", "mine", f, server=w.url)
        same(p.returncode, 0, f"push --take-over: {p.stderr}")
        same(w.version(), "mine", "version")
        seen = w.status()["calls"]
        p = weft("push", "--json", "--expected-version", "theirs", "--version", "x", f, server=w.url)
        same(p.returncode, 1, f"push with a wrong --expected-version: {p.stderr}")
        text = "expected_version 'theirs' does not match the visible 'mine'; nothing was changed"
        same((p.stderr, json.loads(p.stdout)["error"]["message"]), (f"weft: push: {text}\n", text), "what it says")
        same((w.status()["session"], w.version(), w.status()["calls"]), (None, "mine", seen), "nothing was called")
        bad = d / "bad"
        bad.write_bytes((d / "a").read_bytes()[:-1])
        p = weft("push", "--json", "--version", "x", bad, server=w.url)
        same(p.returncode, 1, f"push of a truncated file: {p.stderr}")
        check("error" in json.loads(p.stdout.splitlines()[0]), "the server's words as JSON")
        same(w.status()["session"], None, "no session is left")
        p = weft("push", "--version", "x", f, bad, server=w.url)
        same(p.returncode, 1, f"push of a good and a bad file: {p.stderr}")
        check("nothing was changed" in p.stderr, f"says what it left: {p.stderr}")
        same((w.version(), w.status()["session"]), ("mine", None), "all or nothing")
        check(holds(w, model("a")), "bytes")
    with Daemon(dev=False) as w:
        p = weft("info", server=w.url)
        same(p.returncode, 1, f"dev mode off: {p.stderr}")
        check("--dev" in p.stderr, f"says what to do: {p.stderr}")


def test_what_it_prints():
    with folder() as d, Daemon() as w:
        os.chdir(d)
        write_safetensors("a.safetensors", model("a"))
        p = weft("push", "--version", "one", "a.safetensors", server=w.url)  # a relative path
        same(p.returncode, 0, f"push: {p.stderr}")
        digest = w.status()["digest"]
        check("one" in p.stdout and digest in p.stdout, f"push tells version and digest: {p.stdout}")
        p = weft("push", "--json", "--version", "two", "a.safetensors", server=w.url)
        got = json.loads(p.stdout)
        same((got["ok"], got["version"], got["sequence"], got["digest"], got["workers"], got["tensors"]),
             (True, "two", 2, digest, 2, len(model("a"))), "push --json")
        same(got["bytes"], sum(len(x[2]) for x in model("a").values()), "bytes")
        p = weft("info", server=w.url)
        check("two" in p.stdout and digest in p.stdout, f"info: {p.stdout}")
        got = json.loads(weft("info", "--json", server=w.url).stdout)
        same((got["version"], got["sequence"], got["digest"]), ("two", 2, digest), "info --json")
        p = weft("info", "--tensors", server=w.url)
        for name in model("a"):
            check(name in p.stdout, f"info --tensors lists {name}")
        p = weft("status", server=w.url)
        for pid in w.pids().values():
            check(str(pid) in p.stdout, f"status names every worker: {p.stdout}")
        same(json.loads(weft("status", "--json", server=w.url).stdout)["version"], "two", "status --json")
        p = weft("checksum", server=w.url)
        same(sorted(p.stdout.splitlines()), sorted(f"{v}  {k}" for k, v in w.checksums().items()), "checksum")
        base = weft("checksum", "--json", server=w.url)
        (d / "base.json").write_text(base.stdout)
        same(weft("checksum", "--compare", "base.json", server=w.url).returncode, 0, "compare with itself")
        w.push(write_safetensors(d / "b.safetensors", {"scale": ("F32", [], b"wxyz")}), "three")
        p = weft("checksum", "--compare", "base.json", server=w.url)
        same((p.returncode, p.stdout.count("scale: differs")), (1, 2), f"compare: {p.stdout}")
        w.ok("/start_weight_update")
        p = weft("abort", server=w.url)
        same((p.returncode, p.stdout), (0, "session ended; nothing was changed: weights and version are as they were\n"),
             "abort")
        same(w.status()["session"], None, "no session")
        p = weft("abort", server=w.url)
        same((p.returncode, p.stdout), (0, "no session was open\n"), "abort of nothing")
        os.chdir("/")


def test_interrupted():
    """Ctrl-C in mid-push: the session is ended, nothing changed."""
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        big = write_safetensors(d / "big.safetensors",
                                {f"t{i}": ("F32", [16 << 20], noise(i, 1 << 16) * 1024) for i in range(8)})
        p = subprocess.Popen([str(BIN / "weft"), "push", "--server", w.url, "--version", "b", big],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: w.status()["session"] or p.poll() is not None, "the push has begun")
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=30 * SLOW)
        if p.returncode == 0:  # it was quicker than the signal
            same(w.version(), "b", "version")
        else:
            same(p.returncode, 1, f"interrupted: {out}{err}")
            until(lambda: w.status()["session"] is None, "no session is left")
            same(w.version(), "a", "version")
            check(holds(w, model("a")), "bytes")


def test_progress_on_a_terminal():
    with folder() as d, Daemon() as w:
        big = write_safetensors(d / "big.safetensors",
                                {f"t{i}": ("F32", [16 << 20], noise(i, 1 << 16) * 1024) for i in range(8)})
        master, slave = pty.openpty()
        p = subprocess.Popen([str(BIN / "weft"), "push", "--server", w.url, big], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=slave)
        os.close(slave)
        text = b""
        try:
            while piece := os.read(master, 65536):
                text += piece
        except OSError:
            pass  # the other end is closed
        os.close(master)
        p.stdout.read()
        p.stdout.close()
        same(p.wait(60 * SLOW), 0, f"push: {text!r}")
        check(b"%" in text and b"[" in text, f"a bar: {text!r}")
        plain = weft("push", big, server=w.url)
        same(plain.returncode, 0, plain.stderr)
        check("\r" not in plain.stderr + plain.stdout, "no bar where there is no terminal")


if __name__ == "__main__":
    main(globals())
