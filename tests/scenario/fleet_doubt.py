"""A coordinator that is killed in each phase of an update leaves engines that ask its next
life how it ended, or are told by an operator when there is none."""
import time

from weft_fleet import Fleet, begin_finish_with_one_stopped, die, resolve
from weft_scenario import Background, Silent, check, folder, main, model, same, until

import os
import signal


def nothing_open(f):
    until(lambda: all(m.status()["session"] is None and m.status()["fleet"]["doubt"] is None for m in f.members),
          "every member has ended its part, and is in doubt about nothing")


def back_again(f, version, seed):
    f.restart_coordinator()
    f.wait_ready()
    nothing_open(f)
    f.agree(version, model(seed))


def test_killed_with_an_open_session():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        f.coordinator.ok("/start_weight_update")
        die(f.coordinator)
        nothing_open(f)
        back_again(f, "a", "a")
        f.push("b")


def test_killed_while_bytes_move():
    with folder() as d, Fleet(d) as f, Silent() as trainer:
        f.push("a")
        f.coordinator.ok("/start_weight_update")
        Background(f.coordinator.post, "/update_weights", trainer.source())
        trainer.wait_for(4)
        die(f.coordinator)
        trainer.close()
        nothing_open(f)
        back_again(f, "a", "a")
        f.push("b")


def in_doubt(f):
    """Replica 0 has voted for b and its coordinator is gone; replica 1 was stopped meanwhile."""
    f.push("a")
    f.coordinator.ok("/start_weight_update")
    f.coordinator.ok("/update_weights", f.coordinator.file_source(f.file("b")))
    begin_finish_with_one_stopped(f, 1, "b")
    die(f.coordinator)
    os.kill(f.members[1].process.pid, signal.SIGCONT)


def test_killed_when_some_have_voted():
    with folder() as d, Fleet(d) as f:
        in_doubt(f)
        same(f.doubt(0)["version"], "b", "what replica 0 is in doubt about")
        until(lambda: f.members[0].get("/ready").status == 503, "cut off, and it does not decide", 10)
        r = f.members[0].post("/abort_weight_update")
        check(r.status == 409 and b"in doubt" in r.body, f"nor does a client: {r}")
        back_again(f, "a", "a")
        f.push("b")


def test_killed_when_some_have_voted_and_the_voter_dies_too():
    with folder() as d, Fleet(d) as f:
        in_doubt(f)
        die(f.members[0])
        m = f.restart_member(0)
        check(m.status()["fleet"]["doubt"]["lost"], "its vote outlived it, what it voted for did not")
        f.restart_coordinator()
        until(lambda: f.replica(0)["state"] == "behind", "it has no weights")
        nothing_open(f)
        f.push_again("b")


def test_killed_at_any_moment_of_a_finish():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        before, seed = "a", "a"
        outcomes = []
        for i, wait in enumerate((0.0, 0.002, 0.004, 0.008, 0.016, 0.03)):
            after = f"b{i}"
            f.coordinator.ok("/start_weight_update")
            f.coordinator.ok("/update_weights", f.coordinator.file_source(f.file(after)))
            Background(f.coordinator.post, "/finish_weight_update", {"weight_version": after})
            time.sleep(wait)  # any moment will do
            die(f.coordinator)
            f.restart_coordinator()
            f.wait_ready()
            got = f.coordinator.version()
            check(got in (before, after), f"the old or the new one: {got}")
            outcomes.append(got == after)
            before, seed = got, after if got == after else seed
            f.agree(before, model(seed))
            nothing_open(f)
        print(f"      committed: {outcomes}", flush=True)
        f.push("c")


def test_a_doubt_is_resolved_by_an_operator():
    for word in ("--abort", "--commit"):
        with folder() as d, Fleet(d) as f:
            r = f.members[0].post("/resolve_weight_update", {"commit": True})
            same(r.status, 409, f"no doubt: {r}")
            in_doubt(f)
            until(lambda: not any(m.status()["fleet"]["granted"] for m in f.members), "both are cut off", 10)
            until(lambda: f.members[1].status()["session"] is None or f.doubt(1) is not None,
                  "replica 1 has aborted, or voted too", 20)
            for i in range(2):
                had = f.doubt(i) is not None
                p = resolve(f.members[i], word)
                same(p.returncode, 0 if had else 1, f"weft resolve {word}, replica {i}: {p.stdout}{p.stderr}")
                check(not had or "serves nobody until a coordinator" in p.stdout, f"says what is left to do: {p.stdout}")
                until(lambda i=i: f.doubt(i) is None, "the doubt is gone")
                check(not f.members[i].is_ready(), "and it serves nobody yet")
            history = [v["version"] for v in f.members[0].get("/weight_versions").json["versions"]
                       if v["kind"] == "weights"]
            same(history[0], "b" if word == "--commit" else "a", f"newest commit in replica 0's history: {history}")
            r = resolve(f.members[0], word)
            same(r.returncode, 1, "a second time there is nothing to resolve")
            # another coordinator, with a record of its own, can have them now
            f.coordinator = f.start_coordinator("another")
            until(lambda: [f.replica(i)["state"] for i in range(2)] == ["behind"] * 2,
                  "it gets them, and knows nothing of their weights", 40)
            info = f.coordinator.get("/weight_info").json
            same((info["weight_version"], info["mixed"]), ("default", True), "it does not hide that")
            f.push_again("c")


def test_a_connected_coordinator_decides_itself():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        f.coordinator.ok("/start_weight_update")
        f.coordinator.ok("/update_weights", f.coordinator.file_source(f.file("b")))
        finish = begin_finish_with_one_stopped(f, 1, "b")
        p = resolve(f.members[0], "--commit")
        check(p.returncode == 1 and "coordinator" in p.stderr, f"refused: {p.stdout}{p.stderr}")
        os.kill(f.members[1].process.pid, signal.SIGCONT)
        r = finish.result()
        if r.status != 200:  # it was stopped for longer than its grant
            until(lambda: f.doubt(0) is None, "the end is heard")
            f.push_again("b")
        f.agree("b", model("b"))


main(globals())
