"""The state directory: what outlives the daemon, what a fault leaves, and --restore."""
import contextlib
import os
import pathlib
import resource
import signal
import subprocess

from weft_scenario import (BIN, Background, Daemon, check, folder, holds, main, model, same, skip,
                           until, write_safetensors)

INF = resource.RLIM_INFINITY


def crash(w):
    """kill -9 of the engine; its workers must end by themselves."""
    w.process.send_signal(signal.SIGKILL)
    w.process.wait(10)


def versions(w, limit=None):
    r = w.get("/weight_versions" + (f"?limit={limit}" if limit is not None else ""))
    same(r.status, 200, f"GET /weight_versions: {r}")
    return r.json["versions"]


def newest_segment(state):
    logs = pathlib.Path(state).glob("journal-*.log")
    return max(logs, key=lambda p: int(p.name[8:-4]))


def refused_start(state, *args, setup=None, env=None):
    """weftd must end by itself; its last line of stderr."""
    r = subprocess.run([str(BIN / "weftd"), "--listen", "127.0.0.1:0", "--workers", "1", "--dev",
                        "--state-dir", str(state), *args], capture_output=True, text=True,
                       stdin=subprocess.DEVNULL, preexec_fn=setup, timeout=30, check=False)
    check(r.returncode in (1, 2), f"weftd ended with {r.returncode}: {r.stderr}")
    return r.stderr


def test_numbers_go_on_after_kill_9():
    with folder() as d:
        state = d / "state"
        a = write_safetensors(d / "a.safetensors", model("a"))
        with Daemon("--state-dir", state) as w:
            w.push(a, "step-1")
            w.push(a, "step-2")
            w.ok("/update_weight_version", {"new_version": "named"})
            w.ok("/start_weight_update")
            w.ok("/abort_weight_update", {"reason": "changed my mind"})
            first = w.status()
            before = versions(w)
            same([(v["sequence"], v["kind"], v["version"]) for v in before],
                 [(None, "aborted", None), (3, "label", "named"), (2, "weights", "step-2"),
                  (1, "weights", "step-1")], "history, newest first")
            same(before[0]["reason"], "changed my mind", "reason of the abort")
            same(before[0]["operation"], "abort_weight_update", "operation of the abort")
            same(before[2]["operation"], "finish_weight_update", "operation of a commit")
            same(before[2]["digest"], first["digest"], "digest in the history")
            check(before[2]["committed_at"].endswith("Z"), "when")
            same(len(versions(w, 2)), 2, "limit")
            for bad in ("0", "10001", "x", "-1"):
                same(w.get(f"/weight_versions?limit={bad}").status, 400, f"limit={bad}")
            # History is written without a wait: see that it is before the crash.
            log = newest_segment(state)
            until(lambda: b"changed my mind" in log.read_bytes(), "the abort is written", 10)
            size = log.stat().st_size
            lost = w.ok("/start_weight_update").headers["weft-session"]  # and its end is not recorded
            until(lambda: log.stat().st_size > size, "the start is written", 10)
            crash(w)
        with Daemon("--state-dir", state) as w:
            s = w.status()
            same((s["version"], s["declared"], s["weights_sequence"], s["sequence"], s["digest"]),
                 ("default", False, 0, 3, None), "an honest status: no weights are loaded")
            same(s["engine_id"], first["engine_id"], "engine_id is kept")
            check(s["boot_id"] != first["boot_id"], "boot_id is new")
            after = versions(w)
            same(after[1:], before, "history is kept")
            same((after[0]["kind"], after[0]["reason"]), ("aborted", "engine restarted"),
                 "a session whose end is not recorded")
            same(after[0]["session"], lost, "it was the first life's")
            for headers in ({"Weft-Session": lost}, {}):
                r = w.post("/finish_weight_update", headers=headers)
                same(r.status, 409, "its trainer goes on")
                check(f"(session {lost} was aborted: engine restarted)" in r.body.decode(), r.body)
            w.push(a, "step-4")
            same(w.status()["sequence"], 4, "numbers go on")
            same(versions(w, 1)[0]["sequence"], 4, "in the history, too")


def test_history_without_a_state_directory_is_of_this_boot():
    with folder() as d:
        a = write_safetensors(d / "a.safetensors", model("a"))
        with Daemon(workers=1) as w:
            same(versions(w), [], "nothing yet")
            w.push(a, "x")
            same([v["version"] for v in versions(w)], ["x"], "this boot's")
        with Daemon(workers=1) as w:
            same(versions(w), [], "nothing is kept")


def test_a_torn_tail_is_cut():
    with folder() as d:
        state = d / "state"
        a = write_safetensors(d / "a.safetensors", model("a"))
        with Daemon("--state-dir", state, workers=1) as w:
            w.push(a, "step-1")
            w.push(a, "step-2")
            crash(w)
        log = newest_segment(state)
        raw = log.read_bytes()
        log.write_bytes(raw[:-7])
        with Daemon("--state-dir", state, workers=1) as w:
            s = w.status()
            same(s["sequence"], 2, "the torn record's number is not given out again")
            same([v["sequence"] for v in versions(w) if v["kind"] == "weights"], [1],
                 "what is whole")
            check("torn tail" in w.log(), "it is logged")
            w.push(a, "step-3")
            same(w.status()["sequence"], 3, "numbers go on")


def test_damage_is_an_error_by_name():
    with folder() as d:
        state = d / "state"
        a = write_safetensors(d / "a.safetensors", model("a"))
        with Daemon("--state-dir", state, workers=1) as w:
            w.push(a, "step-1")
            w.push(a, "step-2")
        log = newest_segment(state)
        raw = bytearray(log.read_bytes())
        raw[200] ^= 1
        log.write_bytes(raw)
        text = refused_start(state)
        check(str(log) in text and "offset" in text and "damaged" in text, text)
        log.rename(d / "damaged")
        with Daemon("--state-dir", state, workers=1) as w:
            same(versions(w), [], "it was moved away")


def test_a_second_engine_is_refused_by_name():
    with folder() as d:
        state = d / "state"
        with Daemon("--state-dir", state, "--engine-id", "alpha", workers=1) as w:
            text = refused_start(state)
            check("in use by a living engine" in text and "alpha" in text and
                  f"pid {w.process.pid}" in text, text)
        text = refused_start(state, "--engine-id", "beta")
        check("alpha" in text and "beta" in text, text)
        os.chmod(state, 0o755)
        check("0700" in refused_start(state), "a directory that others may read")
        check("state directory" in refused_start("/proc/weft-state"), "one that cannot be made")


def restored(w):
    def ended():
        r = w.status()["restore"]
        return r if r and r["state"] in ("done", "push needed") else None
    return until(ended, "the restore has an end", 30)


def test_restore_loads_the_files_again():
    with folder() as d:
        state = d / "state"
        base = model("base")
        part = {"scale": model("part")["scale"]}
        a = write_safetensors(d / "a.safetensors", base)
        b = write_safetensors(d / "b \"part\", [1].safetensors", part)
        with Daemon("--state-dir", state) as w:
            w.push(a, "step-1")
            w.push(b, "step-2")  # a part: what is live came from both files
            w.ok("/update_weight_version", {"new_version": "release"})
            digest = w.status()["digest"]
            crash(w)
        for sequence in (4, 5):  # a restored commit can be restored
            with Daemon("--state-dir", state, "--restore") as w:
                r = restored(w)
                same(r["state"], "done", f"{r}")
                s = w.status()
                same((s["version"], s["digest"], s["sequence"], s["weights_sequence"]),
                     ("release", digest, sequence, sequence), "the same weights, a new number")
                check(holds(w, {**base, **part}), "bytes of both files")
                same(versions(w, 1)[0]["kind"], "weights", "kind")
                crash(w)
        with Daemon("--state-dir", state) as w:
            same(w.status()["restore"], None, "only when asked for")
            same(w.version(), "default", "nothing is loaded")


def test_restore_of_changed_or_missing_files():
    with folder() as d:
        state = d / "state"
        a = write_safetensors(d / "a.safetensors", model("a"))
        with Daemon("--state-dir", state, workers=1) as w:
            w.push(a, "step-1")
        write_safetensors(a, model("other"))
        with Daemon("--state-dir", state, "--restore", workers=1) as w:
            r = restored(w)
            same(r["state"], "push needed", "changed file")
            check("digest" in r["text"] and "push the weights again" in r["text"], f"{r}")
            same((w.version(), w.status()["weights_sequence"]), ("default", 0), "nothing changed")
        os.unlink(a)
        with Daemon("--state-dir", state, "--restore", workers=1) as w:
            r = restored(w)
            same(r["state"], "push needed", "missing file")
            check(str(a) in r["text"], f"the file is named: {r}")
            write_safetensors(a, model("a"))
            w.push(a, "step-2")  # and a push works at once
            same(w.version(), "step-2", "pushed")
        check("state directory" in subprocess.run(
            [str(BIN / "weftd"), "--restore", "--listen", "127.0.0.1:0"], capture_output=True,
            text=True, check=False, timeout=30).stderr, "--restore without --state-dir")


def test_a_restore_leaves_an_open_session_alone():
    """A trainer that is quicker than the restore goes on undisturbed, however slowly; what it has begun and
    dropped does not keep the restore away."""
    with folder() as d:
        state = d / "state"
        a, b = (write_safetensors(d / f"{s}.safetensors", model(s)) for s in ("a", "b"))
        with Daemon("--state-dir", state) as w:
            w.push(a, "a")
            crash(w)
        before = 0
        for n in range(20):
            with Daemon("--state-dir", state, "--restore") as w:
                until(lambda w=w: w.post("/start_weight_update").status == 200, "a start is taken", 30)
                quicker = w.status()["weights_sequence"] == 0
                before += quicker
                until(lambda w=w: restored(w) if not quicker else
                      w.status()["session"]["started_ms_ago"] > 250, "the restore has looked")
                if n % 2:
                    w.ok("/abort_weight_update")
                    same(restored(w)["state"], "done", "the restore")
                    same(w.version(), "a", "restored")
                else:
                    w.ok("/update_weights", w.file_source(b))
                    w.ok("/finish_weight_update", {"weight_version": "b"})
                    same(w.version(), "b", "pushed")
                    check(holds(w, model("b")), "bytes")
                    w.push(a, "a")
                crash(w)
            if before >= 2 and n >= 3:
                break
        print(f"quicker than the restore: {before} of {n + 1}")


def test_restore_after_a_push_without_files():
    with folder() as d:
        state = d / "state"
        a = write_safetensors(d / "a.safetensors", model("a"))
        with Daemon("--state-dir", state, workers=1) as w:
            w.push(a, "step-1")
            r = subprocess.run([str(BIN / "weft"), "push", "--server", w.url, "--source", "tcp",
                                str(a), "--version", "step-2"], capture_output=True, text=True,
                               check=False, timeout=60)
            same(r.returncode, 0, f"weft push over tcp: {r.stderr}")
            same(w.version(), "step-2", "pushed over tcp")
        with Daemon("--state-dir", state, "--restore", workers=1) as w:
            r = restored(w)
            same(r["state"], "push needed", "no files")
            check("step-2" in r["text"], f"{r}")


def fill_and_free(w, a, full, free):
    """While the disk is full a finish waits and calls get 503; then all goes on by itself."""
    w.push(a, "step-1")
    w.ok("/start_weight_update")
    w.ok("/update_weights", w.file_source(a))
    full()
    finish = Background(w.post, "/finish_weight_update?timeout_s=60", {"weight_version": "step-2"})
    until(lambda: w.status()["state"] == "committing", "the finish has come to its record", 20)
    r = until(lambda: (lambda x: x if x.status == 503 else None)(
        w.post("/update_weight_version?timeout_s=1", {"new_version": "no"})),
        "mutating calls get 503", 20)
    check("state directory" in r.json["error"]["message"], f"{r}")
    same(w.version(), "step-1", "not visible before it is on the disk")
    same(w.get("/health").status, 200, "alive")
    free()
    same(finish.result().status, 200, "it becomes visible by itself")
    same(w.version(), "step-2", "visible")
    w.push(a, "step-3")
    same([v["sequence"] for v in versions(w)], [3, 2, 1], "no gap")


def test_a_full_disk_by_limit():
    """RLIMIT_FSIZE: to the daemon each write fails as on a full disk."""
    def limit(n):
        resource.setrlimit(resource.RLIMIT_FSIZE, (n, INF))
    with folder() as d:
        state = d / "state"
        a = write_safetensors(d / "a.safetensors", model("a"))
        with Daemon("--state-dir", state, workers=1) as w:
            pid = w.process.pid
            fill_and_free(w, a, lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, (16, INF)),
                          lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, (INF, INF)))
            crash(w)
        with Daemon("--state-dir", state, workers=1) as w:
            same(w.status()["sequence"], 3, "all three are kept")
            same([v["sequence"] for v in versions(w)], [3, 2, 1], "each once")
        text = refused_start(state, setup=lambda: limit(16))
        check("cannot write" in text and str(state) in text, text)


def test_a_full_disk():
    if os.geteuid() != 0:
        skip("mounting a small file system needs root")
    with folder() as d:
        small = d / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k,mode=0755", "tmpfs", str(small)],
                          capture_output=True, check=False).returncode != 0:
            skip("mount is not permitted here")
        try:
            state = small / "state"
            a = write_safetensors(d / "a.safetensors", model("a"))

            def full():
                with contextlib.suppress(OSError), open(small / "filler", "wb", buffering=0) as f:
                    while True:
                        f.write(b"x" * 4096)

            with Daemon("--state-dir", state, workers=1) as w:
                def fuller():  # the page that is there already has room for a record: not for it
                    full()
                    size = newest_segment(state).stat().st_size
                    resource.prlimit(w.process.pid, resource.RLIMIT_FSIZE, (size, INF))

                def free():
                    (small / "filler").unlink()
                    resource.prlimit(w.process.pid, resource.RLIMIT_FSIZE, (INF, INF))
                fill_and_free(w, a, fuller, free)
            full()
            check("no space is left" in refused_start(state), "a full disk at the start")
            (small / "filler").unlink()
            subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
            check("read-only" in refused_start(state), "a read-only disk at the start")
        finally:
            subprocess.run(["umount", str(small)], check=False)


if __name__ == "__main__":
    main(globals())
