"""Where bytes come from: every dtype, scalars, empty tensors, 10,000 tensors, shared memory,
TCP by `weft push`, several files, and files that lie."""
import json
import os
import struct

from weft_scenario import (ITEM, TORCH, Daemon, check, folder, holds, main, model, noise, same, size_of,
                           weft, write_safetensors)


def every_dtype():
    out = {}
    for i, dtype in enumerate(ITEM):
        for shape in ([], [0], [3], [2, 0, 5], [7, 5], [1, 2, 3, 2]):
            name = f"{dtype}.{'x'.join(map(str, shape)) or 'scalar'}"
            out[name] = (dtype, shape, noise((dtype, i, shape), size_of(dtype, shape)))
            if dtype == "BOOL":
                out[name] = (dtype, shape, bytes(b & 1 for b in out[name][2]))
    return out


def test_every_dtype_and_shape():
    with folder() as d, Daemon() as w:
        tensors = every_dtype()
        w.push(write_safetensors(d / "a.safetensors", tensors), "a")
        check(holds(w, tensors), "every tensor, byte for byte")
        got = {t["name"]: (t["dtype"], t["shape"]) for t in w.get("/weights").json["tensors"]}
        same(got, {n: (TORCH[t], s) for n, (t, s, _) in tensors.items()}, "GET /weights")


def test_ten_thousand_tensors():
    with folder() as d, Daemon() as w:
        tensors = {f"t.{i:05d}": ("BF16", [4, 4], noise(i, 32)) for i in range(10000)}
        w.push(write_safetensors(d / "a.safetensors", tensors), "many")
        same(w.status()["workers"][0]["tensors"], 10000, "tensors")
        check(holds(w, tensors), "each of them")


def test_lists_select_and_are_checked():
    with folder() as d, Daemon() as w:
        tensors = model("a")
        path = write_safetensors(d / "a.safetensors", tensors)
        w.push(path, "a")
        newer = model("b")
        path = write_safetensors(d / "b.safetensors", newer)
        w.ok("/start_weight_update")
        w.ok("/update_weights", w.file_source(path, names=["scale", "layers.0.bias"],
                                              dtype_names=["float32", "float32"], shapes=[[], [64]]))
        w.ok("/finish_weight_update", {"weight_version": "b"})
        tensors["scale"], tensors["layers.0.bias"] = newer["scale"], newer["layers.0.bias"]
        check(holds(w, tensors), "only what the lists name")
        for what, lists in (
                ("a name that is not in the file", dict(names=["nope"], dtype_names=["float32"], shapes=[[1]])),
                ("another dtype", dict(names=["scale"], dtype_names=["float16"], shapes=[[]])),
                ("another shape", dict(names=["scale"], dtype_names=["float32"], shapes=[[1]])),
                ("lists of different lengths", dict(names=["scale"], dtype_names=[], shapes=[[]])),
                ("an unknown dtype", dict(names=["scale"], dtype_names=["float7"], shapes=[[]])),
                ("a negative dimension", dict(names=["scale"], dtype_names=["float32"], shapes=[[-1]]))):
            w.ok("/start_weight_update")
            r = w.post("/update_weights", w.file_source(path, **lists))
            check(r.status >= 400, f"{what}: {r}")
            same(w.version(), "b", f"version after {what}")
        check(holds(w, tensors), "nothing of it was applied")


def test_shared_memory():
    with Daemon() as w:
        tensors = model("shm")
        name = f"/weft-test-{os.getpid()}"
        path = "/dev/shm" + name
        try:
            offsets, at = [], 0
            with open(path, "wb") as f:
                for _, _, data in tensors.values():
                    offsets.append(at)
                    f.write(data + b"\xee" * 64)
                    at += len(data) + 64
            info = {"source": {"kind": "shm", "name": name, "offsets": offsets},
                    "names": list(tensors), "dtype_names": [TORCH[t] for t, _, _ in tensors.values()],
                    "shapes": [s for _, s, _ in tensors.values()]}
            w.ok("/start_weight_update")
            w.ok("/update_weights", {"update_info": info})
            w.ok("/finish_weight_update", {"weight_version": "shm"})
            check(holds(w, tensors), "bytes from shared memory")
            info["source"]["offsets"] = [at] * len(offsets)  # beyond its end
            w.ok("/start_weight_update")
            r = w.post("/update_weights", {"update_info": info})
            check(r.status >= 400, f"offsets beyond the segment: {r}")
            check(holds(w, tensors), "nothing of it was applied")
        finally:
            os.unlink(path)


def test_tcp():
    with folder() as d, Daemon() as w:
        tensors = {**every_dtype(), "big": ("F32", [1 << 20], noise("big", 4 << 20))}
        p = weft("push", "--source", "tcp", "--version", "tcp", "--json",
                 write_safetensors(d / "a.safetensors", tensors), server=w.url)
        same(p.returncode, 0, f"weft push --source tcp: {p.stdout}{p.stderr}")
        same(w.version(), "tcp", "version")
        check(holds(w, tensors), "bytes over TCP")


def test_tcp_beyond_loopback_needs_the_list():
    with Daemon() as w:
        w.ok("/start_weight_update")
        r = w.post("/update_weights?timeout_s=5", {"update_info": {
            "source": {"kind": "tcp", "address": "192.0.2.1:9", "token": "a-scenario-token-1"},
            "names": ["a"], "dtype_names": ["float32"], "shapes": [[1]]}})
        check(r.status in (400, 403, 500), f"an address beyond loopback: {r}")
        check("192.0.2.1" in r.json["error"]["message"], f"says which address: {r}")


def test_several_files_in_one_update():
    with folder() as d, Daemon() as w:
        a, b = model("a"), {"other": ("I32", [5], noise("o", 20))}
        p = weft("push", "--version", "two files", "--json",
                 write_safetensors(d / "1.safetensors", a), write_safetensors(d / "2.safetensors", b),
                 server=w.url)
        same(p.returncode, 0, f"weft push A B: {p.stdout}{p.stderr}")
        check(holds(w, {**a, **b}), "both files' tensors")
        same(w.status()["sequence"], 1, "one change")


def liars(raw):
    (n,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8:8 + n])
    body = raw[8 + n:]

    def build(h, tail=body, length=None):
        text = json.dumps(h).encode() if isinstance(h, dict) else h
        return struct.pack("<Q", len(text) if length is None else length) + text + tail

    def but(**change):
        h = json.loads(json.dumps(head))
        h["b"].update(change)
        return build(h)
    a, b = head["a"]["data_offsets"], head["b"]["data_offsets"]
    return {
        "empty": b"", "seven bytes": b"\x08" * 7, "header only": raw[:8 + n],
        "cut in the header": raw[:8 + n // 2], "cut in the data": raw[:-1],
        "header length over the file": build(head, length=1 << 40),
        "header length 2^64-1": build(head, length=(1 << 64) - 1),
        "no JSON": build(b"{nonsense}"), "a list": build(b"[]"),
        "overlap": but(data_offsets=a), "end before begin": but(data_offsets=[b[1], b[0]]),
        "beyond the end": but(data_offsets=[b[0], b[1] + 4]),
        "negative": but(data_offsets=[-4, 0]), "2^64": but(data_offsets=[0, 1 << 64]),
        "shape does not fit": but(shape=[3]), "shape overflows": but(shape=[1 << 62, 1 << 62]),
        "unknown dtype": but(dtype="F7"), "no offsets": build({**head, "b": {"dtype": "F32", "shape": [4]}}),
        "trailing bytes": raw + b"x",
    }


def test_files_that_lie_are_refused():
    with folder() as d, Daemon() as w:
        good = {"a": ("F32", [4], noise("a", 16)), "b": ("F32", [4], noise("b", 16))}
        path = write_safetensors(d / "good.safetensors", good)
        w.push(path, "good")
        with open(path, "rb") as f:
            raw = f.read()
        for what, data in liars(raw).items():
            bad = d / "bad.safetensors"
            bad.write_bytes(data)
            w.ok("/start_weight_update")
            r = w.post("/update_weights", w.file_source(bad))
            check(r.status >= 400, f"a file that is '{what}' was taken: {r}")
            check("bad.safetensors" in r.json["error"]["message"], f"{what}: names the file: {r}")
            same(w.post("/finish_weight_update", {"weight_version": what}).status, 409,
                 f"{what}: the session is over")
        for path in ("/nonexistent/file", str(d), "relative.safetensors", "/dev/zero", ""):
            w.ok("/start_weight_update")
            r = w.post("/update_weights", w.file_source(path))
            check(r.status >= 400, f"path {path!r}: {r}")
        same(w.version(), "good", "version")
        check(holds(w, good), "nothing of it was applied")


if __name__ == "__main__":
    main(globals())
