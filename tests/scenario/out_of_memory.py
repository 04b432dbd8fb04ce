"""A worker that runs out of memory (RLIMIT_AS) in a large update says so; nothing is changed, and the
next update works when there is memory again, without a restart."""
import json
import os
import pathlib
import resource
import struct

from weft_scenario import (SANITIZED, Daemon, Silent, check, folder, holds, main, model, noise, same, skip,
                           write_safetensors)

BIG = 96 << 20
INF = resource.RLIM_INFINITY


def limit(pid, more):
    """Leaves the process this much address space, or any."""
    size = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (size + more if more is not None else INF, INF))


def out_of_memory(update_of):
    if SANITIZED:
        skip("sanitizers need address space of their own")
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        pids = w.pids()
        limit(pids[1], 16 << 20)
        before = w.status()["sequence"]
        w.ok("/start_weight_update")
        r = w.post("/update_weights?timeout_s=60", update_of(d, w))
        if r.status == 200:  # what does not fit may be noticed only when all is put together
            r = w.post("/finish_weight_update", {"weight_version": "big"})
        check(r.status in (500, 503), f"{r}")
        error = r.json["error"]
        same(error.get("outcome"), "not_committed", f"{error}")
        check("rank 1" in error["workers"] and "rank 0" not in error["workers"], f"names the worker: {error}")
        check("memory" in error["message"], f"says what is short: {error}")
        same((w.version(), w.status()["sequence"]), ("a", before), "version")
        check(holds(w, model("a")), "bytes")
        same(w.pids(), pids, "nobody had to be replaced")
        limit(pids[1], None)
        w.wait_ready()
        w.push(write_safetensors(d / "b.safetensors", model("b")), "b")
        check(holds(w, model("b")), "a push that fits")
        big = {"big": ("F32", [BIG // 4], noise("big", 1 << 20) * (BIG >> 20))}
        w.push(write_safetensors(d / "big.safetensors", big), "big")
        check(holds(w, {**model("b"), **big}), "and the one that did not")


def test_from_a_file():
    def update(d, w):
        big = {"big": ("F32", [BIG // 4], bytes(BIG))}
        return w.file_source(write_safetensors(d / "big.safetensors", big))
    out_of_memory(update)


def test_of_many_tensors():
    def update(d, w):
        many = {f"t{i}": ("F32", [1 << 18], bytes(1 << 20)) for i in range(BIG >> 20)}
        return w.file_source(write_safetensors(d / "many.safetensors", many))
    out_of_memory(update)


def test_more_than_the_machine_has():
    """Said of a stream before its first byte, or by the header of a file with a hole: pages would be
    taken until the kernel kills somebody, so it is refused before."""
    count = 1 << 41
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        pids = w.pids()
        text = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
        hole = d / "hole.safetensors"
        hole.write_bytes(struct.pack("<Q", len(text)) + text)
        sources = []
        try:
            os.truncate(hole, 8 + len(text) + 4 * count)
            sources.append(w.file_source(hole))
        except OSError as e:
            print(f"no file of 8 TiB here: {e}")
        with Silent() as stream:
            sources.append(stream.source(shapes=((count,),)))
            for source in sources:
                w.ok("/start_weight_update")
                r = w.post("/update_weights?timeout_s=30", source)
                check(r.status in (500, 503), f"{r}")
                error = r.json["error"]
                same((error["phase"], error["outcome"]), ("accept", "not_committed"), f"{error}")
                check("this machine has" in error["message"], f"says what is short: {error}")
        same(w.pids(), pids, "nobody had to be replaced")
        check(holds(w, model("a")), "bytes")
        w.push(write_safetensors(d / "b.safetensors", model("b")), "b")


if __name__ == "__main__":
    main(globals())
