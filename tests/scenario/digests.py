"""A-B-A gives A's digest again; a label-only change touches no worker; partial updates."""
from weft_scenario import Daemon, check, folder, holds, main, model, noise, same, write_safetensors


def test_a_b_a():
    with folder() as d, Daemon() as w:
        a = write_safetensors(d / "a.safetensors", model("a"))
        b = write_safetensors(d / "b.safetensors", model("b"))
        seen = []
        for path, version in ((a, "one"), (b, "two"), (a, "three")):
            w.push(path, version)
            s = w.status()
            check(s["digest"].startswith("xxh3-128:"), f"digest: {s['digest']}")
            for worker in s["workers"]:
                same(worker["digest"], s["digest"], f"digest of worker {worker['rank']}")
                same(worker["sequence"], s["weights_sequence"], f"sequence of worker {worker['rank']}")
            seen.append((s["digest"], s["sequence"]))
        same(seen[0][0], seen[2][0], "A's digest comes back")
        check(seen[0][0] != seen[1][0], "B's digest is another")
        same([s for _, s in seen], [1, 2, 3], "sequences")
        check(holds(w, model("a")), "A's bytes come back")


def test_order_in_the_file_does_not_matter():
    with folder() as d, Daemon() as w:
        tensors = model("a")
        w.push(write_safetensors(d / "a.safetensors", tensors), "a")
        first = w.status()["digest"]
        w.push(write_safetensors(d / "b.safetensors", dict(reversed(tensors.items()))), "b")
        same(w.status()["digest"], first, "the digest is over names in order")


def test_label_only():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        before = w.status()
        w.ok("/update_weight_version", {"new_version": "renamed"})
        after = w.status()
        same(after["version"], "renamed", "version")
        same(after["sequence"], before["sequence"] + 1, "a label takes a number")
        same(after["weights_sequence"], before["weights_sequence"], "weights keep theirs")
        same(after["digest"], before["digest"], "digest")
        same([x["sequence"] for x in after["workers"]], [x["sequence"] for x in before["workers"]],
             "workers know nothing of labels")
        check(holds(w, model("a")), "bytes")


def test_partial_update_keeps_the_rest():
    with folder() as d, Daemon() as w:
        tensors = model("a")
        w.push(write_safetensors(d / "a.safetensors", tensors), "a")
        part = {"layers.1.weight": ("BF16", [64, 64], noise("new", 64 * 64 * 2))}
        w.push(write_safetensors(d / "part.safetensors", part), "b")
        tensors.update(part)
        check(holds(w, tensors), "the one tensor is new, the others are as they were")
        # several update calls make one version
        w.ok("/start_weight_update")
        for i in (0, 2):
            one = {f"layers.{i}.bias": ("F32", [64], noise(("n", i), 256))}
            w.ok("/update_weights", w.file_source(write_safetensors(d / f"{i}.safetensors", one)))
            tensors.update(one)
        same(w.version(), "b", "not yet visible")
        w.ok("/finish_weight_update", {"weight_version": "c"})
        check(holds(w, tensors), "both calls' tensors")
        same({t["name"]: (t["dtype"], t["shape"]) for t in w.get("/weights").json["tensors"]}["scale"],
             ("float32", []), "GET /weights")


def test_compare():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        base = w.checksums()
        same(w.ok("/weight_checker", {"action": "compare", "baseline": base}).json,
             {"match": True, "mismatches": []}, "compare with itself")
        w.push(write_safetensors(d / "b.safetensors", {"scale": ("F32", [], b"abcd")}), "b")
        got = w.ok("/weight_checker", {"action": "compare", "baseline": base}).json
        same((got["match"], [k.split(":", 5)[5] for k in got["mismatches"]]), (False, ["scale"] * 2),
             "one tensor differs on both workers")
        r = w.post("/weight_checker", {"action": "reset"})
        same(r.status, 403, f"reset needs a switch of its own: {r}")


if __name__ == "__main__":
    main(globals())
