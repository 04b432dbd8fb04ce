"""--draft: a second set of weights for the speculative draft model, in the same snapshots."""
import json
import os
import signal
import subprocess

from joined_worker import Worker, waiting_daemon
from weft_scenario import (BIN, Daemon, check, checksums_of, folder, main, model, same, until, weft, write_safetensors)


def files(d, *seeds):
    return [write_safetensors(d / f"{s}.safetensors", model(s, layers=2)) for s in seeds]


def push_draft(w, path, version=None):
    r = w.ok("/start_draft_weight_update")
    same(r.json, {"message": "Draft weight update started"}, "the draft route's body")
    session = {"Weft-Session": r.headers["weft-session"]}
    w.ok("/update_weights", w.file_source(path), headers=session)
    w.ok("/finish_weight_update", {"weight_version": version} if version is not None else None, headers=session)


def holds(w, main_set, draft, ranks=2):
    want = {}
    for r in range(ranks):
        key = f"dp0:pp0:pcp0:tp{r}:ep0"
        want.update(checksums_of(main_set, key))
        want.update(checksums_of(draft, key + ":draft"))
    same(w.checksums(), want, "checksums of both sets on all ranks")


def refused(r, status, *texts):
    same(r.status, status, f"{r}")
    for text in texts:
        check(text in r.json["error"]["message"], f"no {text!r} in {r}")


def test_each_session_writes_its_own_set():
    with folder() as d:
        a, b, c = files(d, "a", "b", "c")
        with Daemon("--draft") as w:
            s = w.status()
            same(s["draft"], {"digest": None, "tensors": 0, "bytes": 0, "lost": False, "manifest": None},
                 "an empty draft set")
            w.push(a, "main-1")
            main_digest = w.status()["digest"]
            push_draft(w, b)
            s = w.status()
            same((s["version"], s["sequence"], s["digest"]), ("main-1", 2, main_digest),
                 "a draft push without a version")
            same((s["tensors"], s["draft"]["tensors"]), (len(model("a", 2)), len(model("b", 2))), "tensors")
            check(s["snapshot_digest"] not in (main_digest, s["draft"]["digest"]), "digest of both")
            holds(w, model("a", 2), model("b", 2))
            # The digest of a draft set is what the same file has as a main one.
            w.push(b, "main-2")
            same(w.status()["digest"], s["draft"]["digest"], "one file, one digest")
            same(w.status()["draft"], s["draft"], "the draft set stays")
            push_draft(w, c, "draft-2")
            same(w.version(), "draft-2", "a draft session's version is the version")
            holds(w, model("b", 2), model("c", 2))
            versions = w.get("/weight_versions").json["versions"]
            same([v["set"] for v in versions], ["draft", "main", "draft", "main"], "history names the set")
            same(versions[0]["digest"], w.status()["draft"]["digest"], "digest of the set in the history")
            names = [t["name"] for t in w.get("/weights").json["tensors"]]
            check("draft:scale" in names and "scale" in names, f"{names}")


def test_aborted_and_refused_sessions_leave_both():
    with folder() as d:
        a, b = files(d, "a", "b")
        part = write_safetensors(d / "part.safetensors", {"scale": model("p")["scale"]})
        taken = write_safetensors(d / "taken.safetensors", {"draft:scale": model("p")["scale"]})
        with Daemon("--draft") as w:
            w.push(a, "one")
            push_draft(w, b)
            for start in ("/start_weight_update", "/start_draft_weight_update"):
                w.ok(start)
                w.ok("/update_weights", w.file_source(b if "draft" not in start else a))
                refused(w.post("/start_draft_weight_update"), 409, "already active")
                same(w.status()["session"]["set"], "draft" if "draft" in start else "main", "whose session")
                w.ok("/abort_weight_update")
                holds(w, model("a", 2), model("b", 2))
            # strict: of the session's own set
            w.ok("/start_draft_weight_update")
            w.ok("/update_weights", w.file_source(part))
            refused(w.post("/finish_weight_update", {"strict": True}), 409, "strict coverage of the draft model",
                    f"{len(model('b', 2)) - 1} live tensors did not come", "empty, ")
            w.ok("/update_weights", w.file_source(b))
            w.ok("/finish_weight_update", {"strict": True})
            same(w.status()["last_update"]["missing"], 0, "all of the draft set came")
            # and the prefix is the draft model's
            w.ok("/start_weight_update")
            refused(w.post("/update_weights", w.file_source(taken)), 400, "draft:scale", "start_draft_weight_update")
            holds(w, model("a", 2), model("b", 2))


def test_a_manifest_for_each_set():
    with folder() as d:
        a, b = files(d, "a", "b")
        other = write_safetensors(d / "other.safetensors", {"head": model("h")["scale"]})
        with Daemon("--draft", "--manifest", a, "--draft-manifest", other, workers=1) as w:
            s = w.status()
            same((s["manifest"]["file"], s["draft"]["manifest"]), (a, {"file": other, "tensors": 1}), "both are named")
            w.push(b, "one")
            w.ok("/start_draft_weight_update")
            refused(w.post("/update_weights", w.file_source(b)), 400, "not in the draft manifest: empty, ")
            push_draft(w, other)
            w.ok("/start_weight_update")
            refused(w.post("/update_weights", w.file_source(other)), 400, "not in the manifest: head")
        r = subprocess.run([str(BIN / "weftd"), "--draft-manifest", other, "--listen", "127.0.0.1:0"],
                           capture_output=True, text=True, check=False, timeout=30)
        check(r.returncode != 0 and "--draft" in r.stderr, f"--draft-manifest without --draft: {r}")


def restored(w):
    def ended():
        r = w.status()["restore"]
        return r if r and r["state"] in ("done", "push needed") else None
    return until(ended, "the restore has an end", 30)


def crash(w):
    w.process.send_signal(signal.SIGKILL)
    w.process.wait(10)
    w.kill()


def test_restore_brings_both_sets_back():
    with folder() as d:
        a, b = files(d, "a", "b")
        part = write_safetensors(d / "part.safetensors", {"scale": model("p")["scale"]})
        state = d / "state"
        draft = {**model("b", 2), "scale": model("p")["scale"]}
        with Daemon("--draft", "--state-dir", state) as w:
            push_draft(w, b, "draft-1")
            w.push(a, "main-1")
            push_draft(w, part)  # a part: the draft set came from two files
            before = w.status()
            crash(w)
        for more in ([], ["--require-pause"]):
            with Daemon("--draft", "--state-dir", state, "--restore", *more) as w:
                r = restored(w)
                same(r["state"], "done", f"{r}")
                s = w.status()
                same([s[k] for k in ("version", "digest", "draft", "snapshot_digest")],
                     [before[k] for k in ("version", "digest", "draft", "snapshot_digest")], "as before")
                holds(w, model("a", 2), draft)
                crash(w)
        os.unlink(part)
        with Daemon("--draft", "--state-dir", state, "--restore") as w:
            r = restored(w)
            same(r["state"], "push needed", f"{r}")
            check("draft change" in r["text"] and part in r["text"] and "is back" in r["text"],
                  f"says what is back and what is not: {r}")
            holds(w, model("a", 2), {})
            push_draft(w, b)
            holds(w, model("a", 2), model("b", 2))
            crash(w)
        with Daemon("--state-dir", state, "--restore") as w:  # without a draft model
            same(restored(w)["state"], "done", "the main set")
            holds(w, model("a", 2), {})


def test_a_push_beside_a_restore():
    """Somebody pushes the main set as soon as a start is taken, be it before the restore, between its two
    sets or behind it: that push stays, its version too, and the draft set is back all the same."""
    with folder() as d:
        a, b, c = files(d, "a", "b", "c")
        for first in ("main", "draft"):
            state = d / first
            with Daemon("--draft", "--state-dir", state) as w:
                if first == "main":
                    w.push(a, "main-1")
                push_draft(w, b, "draft-1")
                if first == "draft":
                    w.push(a, "main-1")
                crash(w)
            for _ in range(5):
                with Daemon("--draft", "--state-dir", state, "--restore") as w:
                    until(lambda w=w: w.post("/start_weight_update").status == 200, "a start is taken", 30)
                    w.ok("/update_weights", w.file_source(c))
                    w.ok("/finish_weight_update", {"weight_version": "pushed"})
                    same(restored(w)["state"], "done", "the restore")
                    same(w.version(), "pushed", "the newest version")
                    holds(w, model("c", 2), model("b", 2))
                    crash(w)


def test_a_label_beside_a_restore():
    with folder() as d:
        a, b = files(d, "a", "b")
        state = d / "state"
        with Daemon("--draft", "--state-dir", state) as w:
            w.push(a, "main-1")
            push_draft(w, b, "draft-1")
            crash(w)
        for _ in range(5):
            with Daemon("--draft", "--state-dir", state, "--restore") as w:
                w.ok("/update_weight_version", {"new_version": "a label is no push"})
                same(restored(w)["state"], "done", "the restore")
                holds(w, model("a", 2), model("b", 2))
                crash(w)


def test_a_restarted_worker_has_both_sets():
    with folder() as d:
        a, b = files(d, "a", "b")
        with Daemon("--draft") as w:
            w.push(a, "one")
            push_draft(w, b)
            before = w.status()
            dead = w.pids()[1]
            os.kill(dead, signal.SIGKILL)
            until(lambda: w.pids()[1] not in (0, dead) and w.is_ready(), "another process is ready", 30)
            s = w.status()
            same([s[k] for k in ("sequence", "digest", "draft")], [before[k] for k in ("sequence", "digest", "draft")],
                 "nothing has changed")
            holds(w, model("a", 2), model("b", 2))


def test_a_set_that_a_rank_has_lost():
    """Successors of all joined workers have neither set: a full main push heals, and the draft set
    ends on all ranks with it, shown as lost until it is pushed again; never mixed."""
    with folder() as d:
        a, b = files(d, "a", "b")
        part = write_safetensors(d / "part.safetensors", {"scale": model("p")["scale"]})
        url, daemon = waiting_daemon(d, "--draft")
        with daemon as w:
            w.read_door()
            ranks = [Worker(w, url, "--rank", str(r), "--world-size", "2", "--draft") for r in range(2)]
            try:
                w.ready = w.read_ready()
                w.wait_ready()
                w.push(a, "one")
                push_draft(w, b)
                holds(w, model("a", 2), model("b", 2))
                for r in ranks:
                    r.end()
                ranks = [Worker(w, url, "--rank", str(r), "--world-size", "2", "--draft") for r in range(2)]
                until(lambda: [r["state"] for r in w.status()["workers"]] == ["behind"] * 2, "nobody lends", 40)
                refused(w.post("/start_draft_weight_update"), 409, "push all of those first")
                w.ok("/start_weight_update")
                w.ok("/update_weights", w.file_source(part))
                refused(w.post("/finish_weight_update"), 500, "rank 0 has no weights and got 1 of "
                        f"{len(model('a', 2))} tensors of the main set")
                until(lambda: w.status()["state"] == "idle", "the session is over", 10)
                w.push(a, "two")
                w.wait_ready()
                same((w.status()["draft"]["lost"], w.status()["draft"]["tensors"]), (True, 0), "shown as lost")
                holds(w, model("a", 2), {})
                push_draft(w, b)
                same(w.status()["draft"]["lost"], False, "there again")
                holds(w, model("a", 2), model("b", 2))
                # one that was not told of the draft model
                ranks[1].end()
                ranks[1] = Worker(w, url, "--rank", "1", "--world-size", "2")
                check(ranks[1].process.wait(30) != 0, "it was let in")
                check("rank 1 is without a draft model" in ranks[1].text() and "--draft" in ranks[1].text(),
                      f"it says what to do: {ranks[1].text()}")
                ranks[1].end()
                ranks[1] = Worker(w, url, "--rank", "1", "--world-size", "2", "--draft")
                until(lambda: w.pids().get(1) == ranks[1].process.pid and w.is_ready(), "its successor is in", 30)
                holds(w, model("a", 2), model("b", 2))
            finally:
                for r in ranks:
                    r.end()


def test_a_start_waits_for_a_rank_that_gets_both_sets_back():
    """Else the draft set would end on all ranks because one of them was a moment late."""
    with folder() as d:
        b = files(d, "b")[0]
        big = [write_safetensors(d / f"{fill}.safetensors", {"w": ("U8", [96 << 20], bytes([fill]) * (96 << 20))})
               for fill in (1, 2)]
        with Daemon("--draft") as w:
            w.push(big[0], "one")
            push_draft(w, b)
            for start in "/start_weight_update", "/start_draft_weight_update":
                old = w.status()["workers"][0]["pid"]
                os.kill(old, signal.SIGKILL)
                until(lambda: w.status()["workers"][0]["pid"] not in (0, old) and
                      w.status()["workers"][0]["state"] in ("behind", "ready"), "its successor is in", 40)
                w.ok(start)
                same([r["state"] for r in w.status()["workers"]], ["ready"] * 2, "both have both sets")
                w.ok("/update_weights", w.file_source(big[1] if "draft" not in start else b))
                w.ok("/finish_weight_update")
                same((w.status()["draft"]["lost"], w.status()["draft"]["tensors"]), (False, len(model("b", 2))), start)


def test_in_place_a_spoilt_session_costs_both():
    with folder() as d:
        a, b, c = files(d, "a", "b", "c")
        with Daemon("--draft", "--staging", "inplace") as w:
            w.push(a, "one")
            push_draft(w, b)
            push_draft(w, c)
            holds(w, model("a", 2), model("c", 2))
            w.push(b, "two")
            holds(w, model("b", 2), model("c", 2))
            w.ok("/start_draft_weight_update")
            w.ok("/update_weights", w.file_source(a))
            w.ok("/abort_weight_update")  # it had written over the draft model's tensors
            s = w.status()
            same((s["tensors"], s["draft"]["tensors"], s["snapshot_digest"]), (0, 0, None), "poisoned")
            refused(w.post("/start_draft_weight_update"), 409, "push all of those first")
            w.push(a, "three")
            w.wait_ready()
            same((w.status()["draft"]["lost"], w.status()["draft"]["tensors"]), (True, 0), "the draft set ended")
            holds(w, model("a", 2), {})
            push_draft(w, b)
            holds(w, model("a", 2), model("b", 2))


def test_a_reset_destroys_both():
    with folder() as d:
        a, b = files(d, "a", "b")
        with Daemon("--draft", "--allow-weight-reset", workers=1) as w:
            w.push(a, "one")
            push_draft(w, b)
            w.ok("/weight_checker", {"action": "reset"})
            refused(w.post("/start_draft_weight_update"), 409, "push all of those first")
            w.push(a, "two")
            push_draft(w, b)
            holds(w, model("a", 2), model("b", 2), ranks=1)


def test_weft_push_draft():
    with folder() as d:
        a, b = files(d, "a", "b")
        with Daemon("--draft", workers=1) as w:
            for source in ("file", "tcp"):
                for name, extra in ((a, []), (b, ["--draft"])):
                    r = subprocess.run([str(BIN / "weft"), "push", "--server", w.url, "--json", "--source", source,
                                        *extra, name], capture_output=True, text=True, check=False, timeout=60)
                    same(r.returncode, 0, r.stderr)
                    got = json.loads(r.stdout)
                    s = w.status()
                    want = s["draft"] if extra else s
                    same((got["set"], got["digest"]), ("draft" if extra else "main", want["digest"]), "report")
                d = w.status()["draft"]
                for command in ("info", "status"):
                    line = [x for x in weft(command, server=w.url).stdout.splitlines() if x.startswith("draft ")]
                    check(len(line) == 1 and line[0].endswith(d["digest"]) and f" {d['tensors']} tensors" in line[0],
                          f"weft {command} shows the draft set: {line}")
                same(json.loads(weft("info", "--json", server=w.url).stdout)["draft"],
                     {k: d[k] for k in ("digest", "tensors", "bytes", "lost")}, "weft info --json")
                holds(w, model("a", 2), model("b", 2), ranks=1)


if __name__ == "__main__":
    main(globals())
