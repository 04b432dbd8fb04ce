"""A killed worker gets the committed weights back by itself: from what its last life left in
the daemon's keeping, or from another rank that holds the same; only where neither is whole a
push is needed, and /ready says so.

WEFT_RECOVERY_MIB is the size of the model whose recovery is timed (64)."""
import os
import pathlib
import signal
import time

from many_updates import descriptors, rss_kib
from weft_scenario import (SANITIZED, Background, Daemon, Silent, Skip, check, folder, holds, main, model, noise, same,
                           until, write_safetensors)

MIB = int(os.environ.get("WEFT_RECOVERY_MIB", "64"))


def kill(w, *ranks):
    """Kills these workers at once; waits until each has a new process."""
    old = {r: w.pids()[r] for r in ranks}
    for pid in old.values():
        os.kill(pid, signal.SIGKILL)
    for r in ranks:
        until(lambda: w.pids().get(r, 0) not in (0, old[r]), f"a new process for rank {r}", 30)


def come_back(w, *ranks):
    kill(w, *ranks)
    w.wait_ready(30)


def slab_maps(pid):
    """Places of the slabs in the process, largest first."""
    found = []
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:weft-slab" in line:
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            found.append((low, high))
    return sorted(found, key=lambda r: r[0] - r[1])


def damage(pid, needle):
    """Inverts a byte of the tensor that starts with needle, where the worker has it."""
    try:
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as mem:
            for low, high in slab_maps(pid):
                mem.seek(low)
                at = mem.read(high - low).find(needle)
                if at >= 0:
                    mem.seek(low + at)
                    mem.write(bytes([needle[0] ^ 255]))
                    return
    except PermissionError as error:
        raise Skip(f"this machine lets nobody write into another process: {error}") from error
    raise AssertionError("the tensor is not in the worker's slabs")


def test_each_worker_killed_while_idle():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        before = w.status()
        for rank in (0, 1):
            come_back(w, rank)
            after = w.status()
            same(after["version"], "a", "version")
            same(after["weights_sequence"], before["weights_sequence"], "no new change")
            for worker in after["workers"]:
                same((worker["state"], worker["sequence"], worker["digest"]),
                     ("ready", before["weights_sequence"], before["digest"]), f"rank {worker['rank']}")
            check(holds(w, model("a")), "the same bytes")
        come_back(w, 0, 1)
        check(holds(w, model("a")), "the same bytes after the death of all")
        w.push(write_safetensors(d / "b.safetensors", model("b")), "b")
        check(holds(w, model("b")), "the next push")


def test_killed_in_mid_transfer():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        for rank in (1, 0):
            with Silent() as stream:
                w.ok("/start_weight_update")
                update = Background(w.post, "/update_weights", stream.source())
                stream.wait_for(2)
                kill(w, rank)
                same(update.result(30).json["error"].get("outcome"), "not_committed", "outcome")
            w.wait_ready(30)
            same(w.version(), "a", "version")
            check(holds(w, model("a")), "the bytes from before")


def test_killed_right_after_a_finish():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        for i, rank in enumerate((0, 1)):
            w.push(write_safetensors(d / "n.safetensors", model(i)), f"n{i}")
            come_back(w, rank)
            same(w.version(), f"n{i}", "version")
            check(holds(w, model(i)), "the newest bytes")


def test_partial_updates_and_deaths_in_turn():
    """Each life's set shares the tensors that did not change with the lives before."""
    with folder() as d, Daemon() as w:
        now = model("a")
        w.push(write_safetensors(d / "a.safetensors", now), "a")
        for i in range(4):
            come_back(w, i % 2)
            part = {f"layers.{i % 3}.weight": model(i)[f"layers.{i % 3}.weight"]}
            now.update(part)
            w.push(write_safetensors(d / "p.safetensors", part), f"p{i}")
            check(holds(w, now), f"all bytes after the partial update {i}")
        come_back(w, 0, 1)
        check(holds(w, now), "all bytes at the end")


def test_in_place_too():
    """What came back is written over like anything else, and comes back again."""
    with folder() as d, Daemon("--staging", "inplace") as w:
        now = model("a")
        w.push(write_safetensors(d / "a.safetensors", now), "a")
        for i in range(3):
            come_back(w, *((0,), (1,), (0, 1))[i])
            check(holds(w, now), f"the bytes from before death {i}")
            now.update({"layers.1.weight": model(i)["layers.1.weight"]})
            w.push(write_safetensors(d / "p.safetensors", {"layers.1.weight": now["layers.1.weight"]}), f"p{i}")
            check(holds(w, now), f"the bytes after partial update {i}")


def test_killed_again_while_it_comes_back():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        for _ in range(4):
            kill(w, 0)
        w.wait_ready(30)
        same(w.version(), "a", "version")
        check(holds(w, model("a")), "the same bytes")


def test_damaged_weights_are_replaced_by_a_replicas():
    with folder() as d, Daemon() as w:
        a = model("a")
        w.push(write_safetensors(d / "a.safetensors", a), "a")
        damage(w.pids()[0], a["layers.1.weight"][2])
        come_back(w, 0)
        check("damaged" in w.log(), "the log says what was found")
        check(holds(w, a), "the bytes of the other rank")
        w.push(write_safetensors(d / "b.safetensors", model("b")), "b")
        check(holds(w, model("b")), "the next push")


def test_where_nothing_is_whole_a_push_is_asked_for():
    with folder() as d, Daemon(workers=1) as w:
        a = model("a")
        w.push(write_safetensors(d / "a.safetensors", a), "a")
        damage(w.pids()[0], a["layers.1.weight"][2])
        kill(w, 0)
        until(lambda: w.status()["workers"][0]["state"] == "behind" and
              w.status()["workers"][0]["phase"] == "idle", "rank 0 is behind")
        r = w.get("/ready")
        same(r.status, 503, "/ready")
        check("rank 0 is behind" in r.json["reason"] and "full update" in r.json["reason"], f"{r}")
        w.push(write_safetensors(d / "b.safetensors", model("b")), "b")
        w.wait_ready()
        check(holds(w, model("b"), 1), "a full push heals it")


def test_a_start_waits_for_a_worker_that_maps():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        part = {"scale": model("b")["scale"]}
        source = write_safetensors(d / "p.safetensors", part)
        kill(w, 1)  # its process is there, more is not waited for
        w.push_again(source, "p")
        w.wait_ready()
        check(holds(w, {**model("a"), **part}), "what it had, and the part that came")


def test_time_to_come_back():
    with folder() as d, Daemon() as w:
        block = noise("block", 1 << 20)
        big = {f"t{i}": ("U8", [1 << 20], i.to_bytes(4, "little") + block[4:]) for i in range(MIB)}
        path = write_safetensors(d / "big.safetensors", big)
        w.push(path, "big")
        digests = {x["rank"]: x["digest"] for x in w.status()["workers"]}
        for rank in (0, 1):
            began = time.monotonic()
            old = w.pids()[rank]
            os.kill(old, signal.SIGKILL)
            until(lambda: w.pids().get(rank, 0) not in (0, old) and w.is_ready(), "ready again", 30)
            took = time.monotonic() - began
            print(f"rank {rank}: ready {took:.2f} s after kill -9, {MIB} MiB", flush=True)
            check(took < 10, f"{took:.2f} s to come back")
            same({x["rank"]: x["digest"] for x in w.status()["workers"]}, digests, "digests")
        check(holds(w, big), "every byte")


def slab_bytes(pid):
    """Bytes of pages in the slabs that the process holds, each slab once."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if "memfd:weft-slab" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                st = os.stat(f"/proc/{pid}/fd/{fd}")
                found[st.st_ino] = st.st_blocks * 512
        except FileNotFoundError:  # closed meanwhile
            pass
    return sum(found.values())


def test_what_the_last_life_had_beside_goes_back():
    """Old and new weights live side by side; of a dead worker's slabs only the visible ones stay."""
    size = 16 << 20
    with folder() as d, Daemon(workers=1) as w:
        paths = [write_safetensors(d / f"{i}.safetensors", {"t": ("U8", [size], noise(i, size))}) for i in range(2)]
        for i in range(4):
            w.push(paths[i % 2], f"v{i}")
        check(slab_bytes(w.pids()[0]) >= 2 * size, "two sets side by side")
        come_back(w, 0)
        until(lambda: slab_bytes(w.pids()[0]) <= size * 5 // 4, "one set's pages after the death", 10)
        until(lambda: slab_bytes(w.process.pid) <= size * 5 // 4, "the daemon holds no more", 10)
        check(holds(w, {"t": ("U8", [size], noise(1, size))}, 1), "the visible bytes")
        w.push(paths[0], "next")
        until(lambda: slab_bytes(w.pids()[0]) <= size * 9 // 4, "no more than two sets again", 10)


def test_nothing_grows_over_deaths():
    workers, rounds = 4, 13
    with folder() as d, Daemon(workers=workers) as w:
        w.push(write_safetensors(d / "a.safetensors", model("a", layers=8, width=128)), "a")
        for _ in range(2):
            come_back(w, *range(workers))
        before = (rss_kib(w.process.pid), descriptors(w.process.pid))
        kept = len(slab_maps(w.process.pid))
        for _ in range(rounds):
            come_back(w, *range(workers))
        after = (rss_kib(w.process.pid), descriptors(w.process.pid))
        until(lambda: descriptors(w.process.pid) <= before[1], f"{before[1]} descriptors, were {after[1]}", 5)
        until(lambda: len(slab_maps(w.process.pid)) <= kept, f"{kept} slabs in the daemon", 5)
        if not SANITIZED:
            check(after[0] - before[0] <= 1024, f"the daemon grew by {after[0] - before[0]} KiB in "
                  f"{workers * rounds} deaths")
        for pid in w.pids().values():
            same(len(slab_maps(pid)), 1, "slabs of a worker")
        check(holds(w, model("a", layers=8, width=128), workers), "the bytes of the first push")


if __name__ == "__main__":
    main(globals())
