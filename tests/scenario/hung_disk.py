"""A disk that does not come back from a sync: nobody else waits for it, SIGTERM neither, and
what may not be written is named."""
import os
import pathlib
import re

from weft_fleet import Fleet
from weft_scenario import (SANITIZED, Background, Daemon, check, folder, holds, main, model, same, skip, until,
                           write_safetensors)


class HungDisk:
    """A daemon whose syncs hang while self.file is there."""

    def __init__(self, d):
        shim = os.environ.get("WEFT_HUNG_SYNC_SO", "")
        if SANITIZED or not pathlib.Path(shim).is_file():
            skip("needs the library hung_sync of tests/support, and no sanitizer")
        self.file, self.state = d / "hung", d / "state"
        self.env = {"LD_PRELOAD": shim, "WEFT_HUNG_SYNC": str(self.file)}
        self.a = write_safetensors(d / "a.safetensors", model("a"))
        self.b = write_safetensors(d / "b.safetensors", model("b"))

    def daemon(self):
        return Daemon("--state-dir", self.state, env=self.env)

    def finish(self, w):
        """Brings a finish to its record, which hangs."""
        w.ok("/start_weight_update")
        w.ok("/update_weights", w.file_source(self.b))
        self.file.touch()
        call = Background(w.post, "/finish_weight_update?timeout_s=3", {"weight_version": "b"})
        until(lambda: w.status()["state"] == "committing", "the record is under way", 20)
        return call


def test_an_answer_in_time_and_all_by_itself_later():
    with folder() as d:
        disk = HungDisk(d)
        with disk.daemon() as w:
            w.push(disk.a, "a")
            r = disk.finish(w).result(20)
            same(r.status, 500, f"{r}")
            same(r.json["error"]["outcome"], "unknown", f"{r}")
            same(r.json["error"]["phase"], "record", f"{r}")
            same(w.version(), "a", "not visible before it is durable")
            disk.file.unlink()
            until(lambda: w.version() == "b", "it becomes visible by itself")
            check(holds(w, model("b")), "its bytes")
            w.push(disk.a, "c")
            same(w.status()["sequence"], 3, "numbers go on")


def test_sigterm_does_not_wait_for_it():
    with folder() as d:
        disk = HungDisk(d)
        with disk.daemon() as w:
            w.push(disk.a, "a")
            call = disk.finish(w)
            took = w.stop(5)  # exit 0, and nothing left
            print(f"      SIGTERM: {took:.2f} s", flush=True)
            check("the commit record of change 2 may not be written" in w.log(), "it says what")
            r = call.result(10)
            check(r.status in (500, 503), f"{r}")
            same(r.json["error"]["outcome"], "unknown", f"{r}")
        disk.file.unlink()
        with disk.daemon() as w:
            same(w.version(), "default", "nothing is loaded")
            kept = [v["version"] for v in w.get("/weight_versions").json["versions"] if v["kind"] == "weights"]
            check(kept in (["b", "a"], ["a"]), f"the record is there or not: {kept}")
            w.push(disk.a, "c")
            same(w.status()["sequence"], 3, "the number is not used again")


def test_votes_that_do_not_become_durable():
    with folder() as d:
        disk = HungDisk(d)
        with Fleet(d, env=disk.env) as f:
            f.push("a")
            f.coordinator.ok("/start_weight_update")
            f.coordinator.ok("/update_weights", f.coordinator.file_source(disk.b))
            disk.file.touch()
            r = f.coordinator.post("/finish_weight_update?timeout_s=3", {"weight_version": "b"})
            same((r.status, r.json["error"]["outcome"]), (500, "not_committed"), f"{r}")
            check(b"replica 0: its vote could not be made durable in time" in r.body, f"says what hangs, and whose: {r}")
            same([w.version() for w in f.all()], ["a"] * 3, "versions")
            r = f.coordinator.post("/start_weight_update")
            same(r.status, 503, f"no update is begun that could not end: {r}")
            check(re.search(rb"replica [01]: the state directory takes no records: the last vote is not written yet",
                            r.body), f"says why, and whose: {r}")
            check(all(w.is_ready() for w in f.members), "they serve what they have")
            disk.file.unlink()
            f.push_again("b")


if __name__ == "__main__":
    main(globals())
