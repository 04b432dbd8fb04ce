"""What becomes of a fleet when an engine of it, or its coordinator for a while, is killed or
stopped: nothing is committed anywhere, or everywhere; who is cut off serves nothing."""
import os
import signal

from weft_fleet import Fleet, die
from weft_scenario import Background, Silent, check, folder, main, model, same, stop_process, until


def names_replica_1(r):
    check(r.status >= 400 and b"replica 1" in r.body, f"the call fails and names the replica: {r}")


def test_miles_1724_who_lacks_the_fleets_version_is_not_ready():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        die(f.members[1])
        until(lambda: b"replica 1" in f.coordinator.get("/ready").body, "the coordinator says who is missing")
        same(f.coordinator.version(), "a", "the version")
        same(f.members[0].get("/ready").status, 200, "the other one serves")
        m = f.restart_member(1)
        until(lambda: f.replica(1)["state"] == "behind", "it is in again, and behind")
        same(m.get("/ready").status, 503, "it is not ready by itself")
        check(b"replica 1" in f.coordinator.get("/ready").body, "nor is the fleet, which names it")
        f.push_again("b")


def test_a_member_dies_in_a_transfer():
    with folder() as d, Fleet(d) as f, Silent() as trainer:
        f.push("a")
        f.coordinator.ok("/start_weight_update")
        update = Background(f.coordinator.post, "/update_weights", trainer.source())
        trainer.wait_for(4)
        die(f.members[1])
        names_replica_1(update.result())
        trainer.close()
        same(f.coordinator.version(), "a", "the version")
        until(lambda: f.members[0].status()["session"] is None, "the other one has dropped its part")
        same(f.members[0].version(), "a", "replica 0")
        f.restart_member(1)
        f.push_again("b")


def test_a_member_dies_in_finish():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        f.coordinator.ok("/start_weight_update")
        f.coordinator.ok("/update_weights", f.coordinator.file_source(f.file("b")))
        stop_process(f.members[1].process.pid)
        finish = Background(f.coordinator.post, "/finish_weight_update", {"weight_version": "b"})
        until(lambda: f.doubt(0) is not None, "replica 0 has voted")
        die(f.members[1])
        names_replica_1(finish.result())
        until(lambda: f.doubt(0) is None, "replica 0 has heard how it ended")
        same([f.coordinator.version(), f.members[0].version()], ["a", "a"], "nothing was committed")
        f.restart_member(1)
        f.push_again("b")


def test_a_members_worker_dies():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        pid = f.members[1].pids()[0]
        os.kill(pid, signal.SIGKILL)
        until(lambda: f.members[1].pids()[0] not in (0, pid), "the member has another one")
        f.wait_ready()
        f.agree("a", model("a"))
        f.push("b")
        f.coordinator.ok("/start_weight_update")
        os.kill(f.members[1].pids()[1], signal.SIGKILL)
        until(lambda: f.members[1].status()["session"] is None, "the member has dropped the session")
        r = f.coordinator.post("/update_weights", f.coordinator.file_source(f.file("c")))
        names_replica_1(r)
        check(b"has given this update up: rank 1 is down" in r.body, f"and says why: {r}")
        f.push_again("c")


def test_a_stopped_member_is_named_and_comes_back():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        stop_process(f.members[1].process.pid)
        until(lambda: b"replica 1" in f.coordinator.get("/ready").body, "named")
        f.coordinator.ok("/update_weight_version", {"new_version": "a2"})  # replica 1 is fenced: it serves nothing
        same(f.coordinator.version(), "a2", "a label does not need it")
        os.kill(f.members[1].process.pid, signal.SIGCONT)
        f.wait_ready()
        f.agree("a2", model("a"))


def test_cut_off_members_serve_nothing():
    with folder() as d, Fleet(d) as f, Silent() as trainer:
        f.push("a")
        f.coordinator.ok("/start_weight_update")
        update = Background(f.coordinator.post, "/update_weights", trainer.source())
        trainer.wait_for(4)
        stop_process(f.coordinator.process.pid)
        for m in f.members:
            until(lambda m=m: m.get("/ready").status == 503, "/ready", 10)
            check(b"cut off from its coordinator" in m.get("/ready").body, f"{m.get('/ready')}")
            r = m.get("/weight_info")
            check(r.status == 503 and b"cut off" in r.body, f"/weight_info: {r}")
            same(m.get("/health").status, 200, "it lives")
            same(m.status()["fleet"]["granted"], False, "its status says so")
            until(lambda m=m: m.status()["session"] is None, "its part of the update is dropped", 10)
        os.kill(f.coordinator.process.pid, signal.SIGCONT)
        r = update.result()
        same((r.status, r.json["error"]["outcome"]), (500, "not_committed"), f"that is not the trainer's doing: {r}")
        check(b"the coordinator's grant has run out" in r.body, f"says what happened: {r}")
        f.wait_ready()
        f.agree("a", model("a"))


def test_a_coordinator_dies_idle_and_comes_back():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        die(f.coordinator)
        for m in f.members:
            until(lambda m=m: m.get("/ready").status == 503, "cut off", 10)
        f.restart_coordinator()
        f.wait_ready()
        same(f.coordinator.version(), "a", "the coordinator knows from its record; the engines kept their weights")
        f.agree("a", model("a"))
        f.push("b")


def test_all_die_and_come_back():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        for w in f.all():
            die(w)
        for i in range(2):
            f.start_member(i)
        f.restart_coordinator()
        until(lambda: all(f.replica(i)["state"] == "behind" for i in range(2)), "both are in, without weights")
        check(b"replica 0" in f.coordinator.get("/ready").body, "not ready, says who")
        f.push_again("b")


def test_all_die_and_restore():
    with folder() as d, Fleet(d) as f:
        f.push("a")
        for w in f.all():
            die(w)
        for i in range(2):
            f.start_member(i, "--restore")
        f.restart_coordinator()
        f.wait_ready()
        f.agree("a", model("a"))
        f.push("b")


main(globals())
