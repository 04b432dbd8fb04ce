"""Watchers see every commit once and in order: a late one, a slow one, one over a restart,
several at once; and server-sent events."""
import http.client
import json
import os
import signal
import subprocess

from weft_scenario import (BIN, SLOW, Background, Daemon, check, folder, main, model, same, state_of,
                           until, write_safetensors)


class Watch:
    """weft watch --json, its lines collected as they come."""

    def __init__(self, w, *args):
        self.process = subprocess.Popen([str(BIN / "weft"), "watch", "--json", "--server", w.url, *args],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.seen = []
        self.reader = Background(self.read)

    def read(self):
        for line in self.process.stdout:
            self.seen.append(json.loads(line))

    def commits(self):
        return [x["event"] for x in self.seen if x["is"] == "event" and x["topic"] == "weights.commit"]

    def sequences(self):
        return [c["sequence"] for c in self.commits()]

    def wait_status(self):
        return until(lambda: next((x for x in self.seen if x["is"] in ("status", "resync")), None),
                     "weft watch says where things stand")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(10 * SLOW)
        self.reader.join(5)
        self.process.stdout.close()
        same(code, 0, "exit code of weft watch after SIGTERM")


def label(w, n, start=0):
    for i in range(start, start + n):
        w.ok("/update_weight_version", {"new_version": f"v{i}"})


def test_early_and_late():
    with folder() as d, Daemon() as w, Watch(w) as early:
        early.wait_status()
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        label(w, 3)
        until(lambda: len(early.commits()) >= 4, "the early watcher saw four commits")
        with Watch(w) as late:
            now = late.wait_status()["status"]
            same((now["version"], now["sequence"]), ("v2", 4), "the late watcher starts with the truth")
            w.push(write_safetensors(d / "b.safetensors", model("b")), "b")
            until(lambda: late.sequences()[-1:] == [5], "the late watcher saw the next commit")
            check(late.sequences() == [5], f"only what came after its status: {late.sequences()}")
        until(lambda: early.sequences() == [1, 2, 3, 4, 5], f"early saw all: {early.sequences()}")
        first = early.commits()[0]
        s = w.status()
        same((first["type"], first["kind"], first["version"], first["previous"], first["boot_id"],
              first["engine_id"], first["workers"]),
             ("commit", "weights", "a", "default", s["boot_id"], s["engine_id"], 2), "the first event")
        same([c["kind"] for c in early.commits()], ["weights", "label", "label", "label", "weights"], "kinds")
        same(early.commits()[-1]["digest"], s["digest"], "digest of the last event")
        check(first["committed_at"].endswith("Z"), "RFC 3339 in UTC")


def test_slow():
    """Stopped while far more happens than any socket buffers: nothing is missing afterwards."""
    with Daemon() as w, Watch(w) as slow:
        slow.wait_status()
        label(w, 1)
        until(lambda: slow.sequences() == [1], "it follows")
        os.kill(slow.process.pid, signal.SIGSTOP)
        until(lambda: state_of(slow.process.pid) in "Tt", "it is stopped")
        label(w, 900, 1)
        os.kill(slow.process.pid, signal.SIGCONT)
        until(lambda: slow.sequences()[-1:] == [901] or any(x["is"] == "resync" for x in slow.seen),
              "it caught up", 30)
        label(w, 1, 901)
        until(lambda: slow.sequences()[-1:] == [902], "and follows again")
        check(not any(x["is"] == "resync" for x in slow.seen), "900 are within what is replayed")
        same(slow.sequences(), list(range(1, 903)), "each once, in order")


def test_missed_more_than_is_kept():
    with Daemon() as w, Watch(w) as slow:
        slow.wait_status()
        label(w, 1)
        until(lambda: slow.sequences() == [1], "it follows")
        os.kill(slow.process.pid, signal.SIGSTOP)
        until(lambda: state_of(slow.process.pid) in "Tt", "it is stopped")
        label(w, 5000, 1)
        os.kill(slow.process.pid, signal.SIGCONT)
        until(lambda: slow.seen[-1]["is"] == "resync" or slow.sequences()[-1:] == [5001], "it caught up", 30)
        label(w, 1, 5001)
        until(lambda: slow.sequences()[-1:] == [5002], "and follows again")
        order = slow.sequences()
        same(order, sorted(set(order)), "no commit twice, none out of order")
        if len(order) != 5002:
            check(any(x["is"] == "resync" for x in slow.seen), "what is missing is said to be missing")


def test_restart():
    """A new life of the daemon on the same address: the watcher finds it and starts anew."""
    with folder() as d:
        socket = d / "http.sock"
        events, control = f"ipc://{d}/events", f"ipc://{d}/control"
        args = ("--events", events, "--control", control)
        first = Daemon(*args, listen=f"unix:{socket}")
        with first:
            watch = subprocess.Popen([str(BIN / "weft"), "watch", "--json", "--server", f"unix:{socket}"],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True)
            seen = []
            reader = Background(lambda: seen.extend(json.loads(x) for x in iter(watch.stdout.readline, "")))
            lines = []
            reader2 = Background(lambda: [lines.append(x) for x in watch.stderr])
            reader_wait = lambda n: until(lambda: watch.poll() is None and len(lines) >= n, "said so", 20)
            until(lambda: seen, "watch says where things stand")
            boot = first.ready["boot_id"]
            check(boot, "a boot id")
        reader_wait(1)  # it says that the server is gone
        with Daemon(*args, listen=f"unix:{socket}") as second:
            check(second.ready["boot_id"] != boot, "another life")
            reader_wait(2)  # and that it is back
            watch.send_signal(signal.SIGTERM)
            same(watch.wait(10 * SLOW), 0, "exit code of weft watch")
        reader.join(5)
        reader2.join(5)
        watch.stdout.close()
        watch.stderr.close()
        boots = [x["status"]["boot_id"] for x in seen if x["is"] == "status"]
        same(boots[-1], second.ready["boot_id"], f"the last status is of the new life: {boots}")


def test_session_and_worker_events():
    with Daemon() as w, Watch(w) as watch:
        watch.wait_status()

        def told():  # only commits are told to who connects afterwards
            w.ok("/start_weight_update")
            w.ok("/abort_weight_update", {"reason": "scenario"})
            return any(x["is"] == "event" and x["topic"] == "weights.session" and
                       "abort" in json.dumps(x["event"]) for x in watch.seen)
        until(told, "the abort is told")
        os.kill(w.pids()[1], signal.SIGKILL)
        until(lambda: any(x["is"] == "event" and x["topic"] == "weights.worker" and
                          x["event"].get("rank") == 1 for x in watch.seen), "the death is told")


def test_server_sent_events():
    with Daemon() as w:
        host, port = w.address.rsplit(":", 1)
        c = http.client.HTTPConnection(host, int(port), timeout=20 * SLOW)
        c.request("GET", "/weight_events")
        r = c.getresponse()
        same((r.status, r.headers["content-type"].split(";")[0]), (200, "text/event-stream"), "SSE")
        label(w, 2)
        got = []
        while len(got) < 2:
            line = r.readline().decode().strip()
            if line.startswith("data:"):
                event = json.loads(line[5:])
                if event.get("type") == "commit":
                    got.append(event["sequence"])
        same(got, [1, 2], "commits as server-sent events")
        c.close()


if __name__ == "__main__":
    main(globals())
