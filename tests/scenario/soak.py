"""1,000 update cycles, one in ten aborted and one in fifty failing: memory, descriptors, threads and
shared memory of daemon and workers stay where they were after the first hundred."""
import json
import os
import pathlib

from weft_scenario import (SANITIZED, Daemon, check, folder, holds, main, model, same, until, write_safetensors)
from http.client import HTTPConnection

CYCLES, WARM = (150, 50) if SANITIZED else (1000, 100)


def look(pid):
    """RSS and shared memory in KiB, descriptors, threads, mappings of slabs."""
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                  if ":" in line)
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return {"rss": int(status["VmRSS"].split()[0]), "shared": int(status["RssShmem"].split()[0]),
            "threads": int(status["Threads"]), "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "slabs": maps.count("memfd:")}


class Client:
    """One connection, kept: what is measured is the server."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.c = HTTPConnection(host, int(port), timeout=60)

    def post(self, path, body=None):
        self.c.request("POST", path, body=None if body is None else json.dumps(body))
        r = self.c.getresponse()
        return r.status, r.read()

    def ok(self, path, body=None):
        status, text = self.post(path, body)
        check(status == 200, f"POST {path}: {status} {text}")


def cycle(client, w, i, files, bad):
    """How it ended."""
    client.ok("/start_weight_update")
    if i % 50 == 49:
        status, text = client.post("/update_weights", w.file_source(bad))
        check(status == 400, f"a truncated file: {status} {text}")
        return "failed"
    client.ok("/update_weights", w.file_source(files[i % 2]))
    if i % 10 == 9:
        client.ok("/abort_weight_update", {"reason": "every tenth"})
        return "aborted"
    client.ok("/finish_weight_update", {"weight_version": f"cycle-{i}"})
    return "done"


def test_flat():
    with folder() as d, Daemon("--state-dir", d / "state") as w:
        models = [model(i, layers=4, width=64) for i in range(2)]
        files = [write_safetensors(d / f"{i}.safetensors", m) for i, m in enumerate(models)]
        bad = d / "bad.safetensors"
        bad.write_bytes(pathlib.Path(files[0]).read_bytes()[:-5])
        client = Client(w.address)
        client.ok("/init_weight_transfer_engine", {"init_info": {}})
        pids = [w.process.pid, *w.pids().values()]
        before, ends = {}, {"done": 0, "failed": 0, "aborted": 0}
        for i in range(CYCLES):
            if i == WARM:
                before = {p: look(p) for p in pids}
            ends[cycle(client, w, i, files, bad)] += 1
        same(ends["failed"], CYCLES // 50, "failed cycles")
        same(w.status()["sequence"], ends["done"], "one number for each commit")
        same([w.process.pid, *w.pids().values()], pids, "the same processes")
        for p in pids:
            allowed = {"rss": before[p]["rss"] + 1024, "shared": before[p]["shared"] + 64,
                       "threads": before[p]["threads"], "descriptors": before[p]["descriptors"] + 1,
                       "slabs": before[p]["slabs"] + 1}
            if SANITIZED:  # they keep freed memory in quarantine
                del allowed["rss"]

            def over(p=p, allowed=allowed):
                now = look(p)
                return {k: (before[p][k], now[k]) for k, most in allowed.items() if now[k] > most}
            until(lambda: not over(), f"process {p} has grown: {over()}", 5)
        check(holds(w, models[(CYCLES - 2) % 2]), "the last update's bytes")


if __name__ == "__main__":
    main(globals())
