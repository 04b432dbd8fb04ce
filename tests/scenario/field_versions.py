"""Field reports about what a version string says and when it changes."""
import os

from field import fresh, here, refused, run
from weft_scenario import (TORCH, Sender, check, folder, holds, model, noise, same, write_safetensors, Daemon)


def file_of(seed):
    return write_safetensors(here["d"] / f"{seed}.safetensors", model(seed))


def test_vllm_49040_the_six_rules():
    with folder() as d, Daemon(workers=1) as w:
        a = write_safetensors(d / "a.safetensors", model("a"))
        same(w.version(), "default", "1: at the start")
        w.push(a, "step-42")
        same(w.version(), "step-42", "2: finish with a version")
        w.ok("/start_weight_update")
        check(w.post("/update_weights", w.file_source("/nowhere")).status >= 400, "no such file")
        check(w.post("/finish_weight_update", {"weight_version": "step-43"}).status >= 400, "it fails")
        same(w.version(), "step-42", "3: a failed finish keeps it")
        w.push(a)
        same(w.version(), "step-42", "4: finish without a version keeps it")
        w.ok("/start_weight_update")
        w.ok("/update_weights", w.file_source(a))
        same(w.version(), "step-42", "5: update_weights keeps it")
        w.ok("/abort_weight_update")
        w.ok("/update_weight_version", {"new_version": "manual"})
        same(w.version(), "manual", "6: set without a transfer")


def test_unirl_324_many_updates_change_it_once():
    w = fresh()
    w.push(file_of("a"), "one")
    before = w.status()["sequence"]
    w.ok("/start_weight_update")
    for i in range(10):
        w.ok("/update_weights", w.file_source(file_of(i)))
        same((w.version(), w.status()["sequence"]), ("one", before), f"after update {i}")
    w.ok("/finish_weight_update", {"weight_version": "two"})
    same((w.version(), w.status()["sequence"]), ("two", before + 1), "after finish")
    check(holds(w, model(9)), "the last bytes of each tensor")


def test_dynamo_13041_declared_or_not():
    with Daemon(workers=1) as w:
        same((w.version(), w.status()["declared"]), ("default", False), "never declared")
        w.ok("/update_weight_version", {"new_version": "default"})
        same((w.version(), w.status()["declared"]), ("default", True), "declared by that name")
        same(w.get("/weight_info").body, b'{"weight_version":"default"}', "vLLM's field is a string as ever")


def test_dynamo_14892_one_snapshot():
    w = fresh()
    w.ok("/pause?mode=keep")
    w.ok("/start_weight_update")
    s = w.status()
    same((s["paused"], s["session"]["state"], s["version"]), (True, "open", w.version()), "paused, session, version")
    w.ok("/finish_weight_update", {"weight_version": "snap"})
    s = w.status()
    same((s["paused"], s["session"], s["version"]), (True, None, "snap"), "afterwards")


def test_miles_2589_a_label_touches_nothing_else():
    w = fresh()
    w.push(file_of("a"), "a")
    w.ok("/pause?mode=keep")
    w.ok("/start_weight_update")
    before = w.status()
    w.ok("/update_weight_version", {"new_version": "label"})
    after = w.status()
    for key in ("paused", "digest", "weights_sequence", "tensors", "bytes", "state"):
        same(after[key], before[key], key)
    same((after["version"], after["session"]["id"]), ("label", before["session"]["id"]), "version, session")
    check(holds(w, model("a")), "bytes")


def test_miles_2835_any_string_and_a_guard_for_those_who_want_it():
    w = fresh()
    for version in ("10", "9", "9", "", "x", "step-2", "-1"):
        w.ok("/update_weight_version", {"new_version": version})
        same(w.version(), version, "as it was given")
    refused(w.post("/update_weight_version", {"new_version": "1", "expected_version": "step-2"}), 412)
    w.ok("/update_weight_version", {"new_version": "1", "expected_version": "-1"})
    same(w.version(), "1", "compare and set")


def test_sglang_14064_every_way_of_updating():
    """One and the same test for each way; field_gpu has those of the GPU backends."""
    w = fresh()
    tensors = model("ways")
    shm = f"/weft-test-{os.getpid()}"
    offsets, at = [], 0
    with open("/dev/shm" + shm, "wb") as f:
        for _, _, data in tensors.values():
            offsets.append(at)
            f.write(data)
            at += len(data)
    lists = {"names": list(tensors), "dtype_names": [TORCH[t] for t, _, _ in tensors.values()],
             "shapes": [s for _, s, _ in tensors.values()]}
    all_of_it = b"".join(data for _, _, data in tensors.values())
    try:
        for kind in ("safetensors", "shm", "tcp", "none", "label"):
            w.push(file_of("a"), "before")
            sequence = w.status()["sequence"]
            if kind == "label":
                w.ok("/update_weight_version", {"new_version": kind})
            else:
                w.ok("/start_weight_update")
                sender = Sender(tensors, lambda rank: all_of_it) if kind == "tcp" else None
                body = {"safetensors": lambda: w.file_source(file_of("ways")), "tcp": lambda: sender.update(),
                        "shm": lambda: {"update_info": {"source": {"kind": "shm", "name": shm, "offsets": offsets},
                                                        **lists}}}.get(kind)
                if body:
                    w.ok("/update_weights", body())
                if sender:
                    sender.done()
                same((w.version(), w.status()["sequence"]), ("before", sequence), f"{kind}: not before finish")
                w.ok("/finish_weight_update", {"weight_version": kind})
            same((w.version(), w.status()["sequence"]), (kind, sequence + 1), f"{kind}: version and number")
            check(holds(w, model("a") if kind in ("none", "label") else tensors), f"{kind}: bytes")
    finally:
        os.unlink("/dev/shm" + shm)


def test_vllm_32718_and_trl_3189_a_changed_file_gives_its_new_digest():
    w, seen = fresh(), []
    for i in range(3):
        tensors = {"w": ("U8", [5000], noise(("changed", i), 5000))}
        path = write_safetensors(here["d"] / "same-name.safetensors", {**model("a"), **tensors})
        w.push(path, f"file {i}")
        s = w.status()
        same((s["version"], {x["digest"] for x in s["workers"]}), (f"file {i}", {s["digest"]}), "version and digest")
        check(holds(w, {**model("a"), **tensors}), "the new bytes")
        seen.append(s["digest"])
    same(len(set(seen)), 3, "digests")


def test_nemo_rl_4129_several_versions_are_a_list():
    w = fresh()
    for version in ("v1", "v2", "v3"):
        w.ok("/update_weight_version", {"new_version": version})
    r = w.get("/weight_versions?limit=3")
    same((r.status, [x["version"] for x in r.json["versions"]]), (200, ["v3", "v2", "v1"]), "newest first")


if __name__ == "__main__":
    run(globals())
