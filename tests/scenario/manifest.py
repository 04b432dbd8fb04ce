"""A manifest: what is not in it is refused by name on all workers, tied tensors are one, a
wrong file is no start, a restarted worker knows the list although the file has gone."""
import json
import os
import signal

from weft_scenario import (TORCH, Daemon, check, folder, holds, main, model, noise, same, until,
                           write_safetensors)


def lists(tensors, **more):
    return {"names": list(tensors), "dtype_names": [TORCH[t[0]] for t in tensors.values()],
            "shapes": [list(t[1]) for t in tensors.values()], **more}


def write_json(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def refused(w, body, *said):
    """One update that fails; the session goes with it and nothing changes."""
    before = w.status()
    w.ok("/start_weight_update")
    r = w.post("/update_weights", body)
    check(400 <= r.status < 500, f"refused: {r}")
    for text in said:
        check(text in r.body.decode(), f"{text!r} in {r}")
    after = w.status()
    for key in ("sequence", "digest", "version", "tensors"):
        same(after[key], before[key], key)
    same(sum(x["received"] for x in after["workers"]), 0, "bytes that moved")
    w.post("/abort_weight_update", {})
    until(lambda: w.status()["state"] in ("idle", "init"), "the session is over")


def test_a_manifest_is_in_force():
    with folder() as d:
        tensors = model("a")
        for path in (write_json(d / "m.json", lists(tensors)), write_safetensors(d / "m.safetensors", tensors)):
            with Daemon("--manifest", path) as w:
                same(w.status()["manifest"], {"file": path, "tensors": len(tensors)}, "status")
                stranger = {"layers.0.bias": tensors["layers.0.bias"], "other": ("F32", [2], b"12345678")}
                refused(w, w.file_source(write_safetensors(d / "x.safetensors", stranger)),
                        "not in the manifest: other")
                w.push(write_safetensors(d / "a.safetensors", tensors), "a")
                check(holds(w, tensors), "a full update")
                refused(w, w.file_source(write_safetensors(d / "x.safetensors", stranger)),
                        "not in the manifest: other")
                wrong = {"layers.0.bias": ("F32", [8, 8], bytes(256))}
                refused(w, w.file_source(write_safetensors(d / "y.safetensors", wrong)),
                        "layers.0.bias", "float32 [64]", "float32 [8,8]")
                check(holds(w, tensors), "nothing has changed")
                part = {"scale": ("F32", [], b"abcd")}
                w.push(write_safetensors(d / "p.safetensors", part), "b")
                check(holds(w, {**tensors, **part}), "a partial update")


def test_without_one_names_are_added():
    with folder() as d, Daemon() as w:
        same(w.status()["manifest"], None, "status")
        w.push(write_safetensors(d / "a.safetensors", {"new": ("F32", [1], b"1234")}), "a")
        same(w.status()["tensors"], 1, "tensors")


def test_impossible_lists_are_refused_before_bytes_move():
    source = {"kind": "tcp", "address": "127.0.0.1:1", "token": "t"}
    with folder() as d:
        path = write_json(d / "m.json", lists(model("a")))
        for args in ((), ("--manifest", path)):
            with Daemon(*args) as w:
                for names, dtypes, shapes, said in (
                        (["a", "a"], ["int8"] * 2, [[1], [1]], "'a' is named twice"),
                        (["a", "b"], ["int8"], [[1], [1]], "dtype_names"),
                        (["a"], ["int8"], [[1], [1]], "shapes"),
                        (["a"], ["int8"], [[-1]], "'a' is negative"),
                        (["a"], ["int8"], [[1 << 32, 1 << 32]], "'a' is too large")):
                    refused(w, {"update_info": {"source": source, "names": names, "dtype_names": dtypes,
                                                "shapes": shapes}}, said)


def test_tied_tensors():
    with folder() as d:
        head, other = noise("h", 512), noise("o", 512)
        tensors = {"embed": ("F32", [128], head), "head": ("F32", [128], head), "norm": ("F32", [], b"abcd")}
        path = write_json(d / "m.json", lists(tensors, tied=[["head", "embed"]]))
        with Daemon("--manifest", path, "--strict-coverage") as w:
            once = {k: tensors[k] for k in ("norm", "embed")}  # as trainers send them
            w.push(write_safetensors(d / "a.safetensors", once), "a")
            check(holds(w, tensors), "the one that did not come is there too")
            digest = w.status()["digest"]
            w.push(write_safetensors(d / "b.safetensors", tensors), "b")
            same(w.status()["digest"], digest, "both came, with equal bytes")
            w.push(write_safetensors(d / "c.safetensors", {"head": ("F32", [128], other), "norm": tensors["norm"]}), "c")
            changed = {"embed": ("F32", [128], other), "head": ("F32", [128], other), "norm": tensors["norm"]}
            check(holds(w, changed), "updated by its other name")
            w.ok("/start_weight_update")
            w.ok("/update_weights", w.file_source(write_safetensors(
                d / "d.safetensors", {"head": ("F32", [128], head), "embed": ("F32", [128], other), "norm": tensors["norm"]})))
            r = w.post("/finish_weight_update", {"weight_version": "d"})
            same(r.status, 409, f"different bytes: {r}")
            check("'embed' and 'head' are tied" in r.body.decode(), f"by name: {r}")
            check(holds(w, changed), "nothing has changed")
            w.ok("/update_weights", w.file_source(write_safetensors(
                d / "e.safetensors", {"embed": ("F32", [128], head)})))
            w.ok("/finish_weight_update", {"weight_version": "e"})
            check(holds(w, tensors), "mended in the same session")


def test_coverage():
    with folder() as d:
        tensors = model("a")
        path = write_json(d / "m.json", lists(tensors))
        with Daemon("--manifest", path) as w:
            w.ok("/start_weight_update")
            part = {k: v for k, v in tensors.items() if k != "scale"}
            w.ok("/update_weights", w.file_source(write_safetensors(d / "p.safetensors", part)))
            r = w.post("/finish_weight_update", {"weight_version": "a", "strict": True})
            same(r.status, 409, f"strict: {r}")
            check("1 tensors of the manifest did not come: scale" in r.body.decode(), f"the list: {r}")
            w.ok("/finish_weight_update", {"weight_version": "a"})
            last = w.status()["last_update"]
            same((last["missing"], last["missing_names"]), (1, ["scale"]), "counted and listed")
            w.ok("/start_weight_update")
            w.ok("/update_weights", w.file_source(write_safetensors(d / "s.safetensors",
                                                                    {"scale": tensors["scale"]})))
            r = w.post("/finish_weight_update", {"weight_version": "b", "strict": True})
            same(r.status, 409, f"strict, and the others are live only: {r}")
            check(f"{len(tensors) - 1} tensors of the manifest did not come: " in r.body.decode(), f"the list: {r}")
            same(w.version(), "a", "nothing changed")
            w.ok("/update_weights", w.file_source(write_safetensors(d / "all.safetensors", tensors)))
            w.ok("/finish_weight_update", {"weight_version": "b", "strict": True})
            check(holds(w, tensors), "complete")


def test_a_restarted_worker_has_the_same_list():
    with folder() as d:
        tensors = model("a")
        path = d / "m.json"
        write_json(path, lists(tensors))
        with Daemon("--manifest", str(path)) as w:
            w.push(write_safetensors(d / "a.safetensors", tensors), "a")
            path.unlink()
            victim = w.status()["workers"][1]["pid"]
            os.kill(victim, signal.SIGKILL)
            until(lambda: w.status()["workers"][1]["pid"] not in (0, victim), "another worker")
            w.push_again(write_safetensors(d / "b.safetensors", model("b")), "b")
            check(holds(w, model("b")), "b's bytes")
            refused(w, w.file_source(write_safetensors(d / "x.safetensors", {"other": ("F32", [], b"abcd")})),
                    "not in the manifest: other")


def test_mistakes_are_no_start():
    def ends(path, *said, command=()):
        w = Daemon("--manifest", path, ready=False, command=command)
        try:
            same(w.process.wait(20), 2, f"exit code: {w.log()}")
            for text in said:
                check(text in w.log(), f"{text!r} in {w.log()}")
        finally:
            w.kill()

    with folder() as d:
        ends(str(d / "none"), str(d / "none"), "cannot be opened")
        for text, said in (("", "m.json: "), ("{", "m.json: "), ("[]", "not an object"),
                           ({"names": ["a"]}, "missing key 'dtype_names'"),
                           ({"names": ["a"], "dtype_names": ["int8"], "shapes": [[-2]]}, "'a' is negative"),
                           (lists(model("a"), tied=[["scale", "no"]]), "tied 'no'")):
            ends(write_json(d / "m.json", text), "manifest: ", said)
        cut = write_safetensors(d / "m.safetensors", model("a"))
        os.truncate(cut, os.path.getsize(cut) - 1)
        ends(cut, "m.safetensors")
        # a joined worker reads its own
        ends(write_json(d / "m.json", "[]"), "not an object",
             command=("worker", "--rank", "0", "--world-size", "1", "--join", f"ipc://{d}/join"))
        w = Daemon("--manifest", write_json(d / "m.json", lists(model("a"))), "--workers-join", ready=False)
        try:
            same(w.process.wait(20), 2, "exit code")
            check("give it to each of them" in w.log(), w.log())
        finally:
            w.kill()


if __name__ == "__main__":
    main(globals())
