"""100 updates: memory and descriptors of daemon and workers stay where they were."""
import os
import pathlib

from weft_scenario import SANITIZED, Daemon, check, folder, holds, main, model, same, until, write_safetensors

UPDATES = 100


def rss_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} is gone")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_flat():
    with folder() as d, Daemon() as w:
        paths = [write_safetensors(d / f"{i}.safetensors", model(i, layers=8, width=128))
                 for i in range(2)]
        pids = [w.process.pid, *w.pids().values()]
        for i in range(20):  # warm: pools, slabs and the allocator reach their size
            w.push(paths[i % 2], f"warm-{i}")
        before = {p: (rss_kib(p), descriptors(p)) for p in pids}
        first = w.status()["sequence"]
        for i in range(UPDATES):
            w.push(paths[i % 2], f"step-{i}")
        after = {p: (rss_kib(p), descriptors(p)) for p in pids}
        same(w.status()["sequence"], first + UPDATES, "one number for each update")
        same([w.process.pid, *w.pids().values()], pids, "the same processes")
        for p in pids:
            until(lambda: descriptors(p) <= before[p][1],  # a closed connection is noticed soon
                  f"{before[p][1]} descriptors in process {p}, were {after[p][1]}", 5)
            if not SANITIZED:  # they keep freed memory in quarantine
                grown = after[p][0] - before[p][0]
                check(grown <= 1024, f"process {p} grew by {grown} KiB in {UPDATES} updates: {before[p]} {after[p]}")
        check(holds(w, model(1, layers=8, width=128)), "the last update's bytes")


def test_flat_over_failed_updates():
    with folder() as d, Daemon() as w:
        good = write_safetensors(d / "a.safetensors", model("a"))
        bad = d / "bad.safetensors"
        raw = (d / "a.safetensors").read_bytes()
        bad.write_bytes(raw[:-5])
        w.push(good, "a")
        pids = [w.process.pid, *w.pids().values()]

        def fail():
            w.ok("/start_weight_update")
            r = w.post("/update_weights", w.file_source(bad))
            check(r.status >= 400, f"a truncated file: {r}")

        for _ in range(20):
            fail()
        before = {p: (rss_kib(p), descriptors(p)) for p in pids}
        for _ in range(UPDATES):
            fail()
        for p in pids:
            until(lambda: descriptors(p) <= before[p][1], f"{before[p][1]} descriptors in process {p}", 5)
            if not SANITIZED:
                grown = rss_kib(p) - before[p][0]
                check(grown <= 1024, f"process {p} grew by {grown} KiB over failed updates")
        same(w.version(), "a", "version")
        check(holds(w, model("a")), "bytes")


if __name__ == "__main__":
    main(globals())
