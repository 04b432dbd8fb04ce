"""A joined worker that was killed and is started again gets the committed weights from another
rank that holds the same set, by itself; where nobody has them it stays behind, /ready says so, and
a push brings it back.

WEFT_RECOVERY_MIB is the size of the model whose copy is disturbed (256)."""
import os
import pathlib
import signal
import time

from joined_worker import Worker
from weft_scenario import (Background, Daemon, check, folder, holds, main, model, noise, same, until, write_safetensors)

MIB = int(os.environ.get("WEFT_RECOVERY_MIB", "256"))


class World:
    """A daemon and its joined workers."""

    def __init__(self, d, join, ranks, *args, worker_args=()):
        self.ranks = ranks
        self.worker_args = worker_args
        self.daemon = Daemon("--workers-join", "--join", join, *args, workers=ranks, ready=False)
        self.workers = {}
        self.all = []

    def __enter__(self):
        self.w = self.daemon.__enter__()
        try:
            self.url = self.w.read_door()
            for rank in range(self.ranks):
                self.begin(rank)
            self.w.ready = self.w.read_ready()
            self.w.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error):
        for worker in self.all:
            worker.end()
        return self.daemon.__exit__(*error)

    def begin(self, rank):
        worker = Worker(self.w, self.url, "--rank", str(rank), "--world-size", str(self.ranks), *self.worker_args)
        self.workers[rank] = worker
        self.all.append(worker)
        return worker

    def kill(self, *ranks):
        for rank in ranks:
            self.workers[rank].process.send_signal(signal.SIGKILL)
            self.workers[rank].process.wait()
        until(lambda: not self.w.is_ready(), "the death is noticed")

    def is_in(self, rank):
        return self.w.pids().get(rank) == self.workers[rank].process.pid

    def reason(self):
        return self.w.get("/ready").json["reason"]


def all_have(w, before):
    after = w.status()
    same(after["version"], before["version"], "version")
    same(after["weights_sequence"], before["weights_sequence"], "no new change")
    for worker in after["workers"]:
        same((worker["state"], worker["sequence"], worker["digest"]),
             ("ready", before["weights_sequence"], before["digest"]), f"rank {worker['rank']}")


def come_back_one_by_one(world, d):
    w = world.w
    w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
    before = w.status()
    for rank in (1, 0):
        world.kill(rank)
        world.begin(rank)
        w.wait_ready(30)
        all_have(w, before)
        check(holds(w, model("a")), "the same bytes")
    w.push(write_safetensors(d / "b.safetensors", model("b")), "b")
    check(holds(w, model("b")), "the next push")


def test_each_killed_and_started_again():
    with folder() as d, World(d, f"ipc://{d}/join", 2) as world:
        come_back_one_by_one(world, d)


def test_joined_over_tcp():
    with folder() as d:
        (d / "token").write_text("the join token\n")
        (d / "token").chmod(0o600)
        args = ("--join-token-file", str(d / "token"))
        with World(d, "tcp://127.0.0.1:0", 2, *args, worker_args=args) as world:
            come_back_one_by_one(world, d)


def test_in_place_too():
    with folder() as d:
        args = ("--staging", "inplace")
        with World(d, f"ipc://{d}/join", 2, *args, worker_args=args) as world:
            come_back_one_by_one(world, d)


def test_both_killed():
    with folder() as d, World(d, f"ipc://{d}/join", 2) as world:
        w = world.w
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        world.kill(0, 1)
        for rank in (0, 1):
            world.begin(rank)
        until(lambda: world.is_in(0) and world.is_in(1), "both are in", 30)
        until(lambda: "rank 0 is behind" in world.reason(), "it says that it is behind")
        check("it has no weights; a full update brings it back" in world.reason(), world.reason())
        same(w.version(), "a", "version")
        w.push_again(write_safetensors(d / "b.safetensors", model("b")), "b")
        check(holds(w, model("b")), "both hold the push")


def large():
    block = noise("block", 1 << 20)
    return {"t": ("U8", [MIB << 20], block * MIB)}


def disturbed(world, rank, lender):
    """Starts rank again and stops it when lender has begun to lend: it does not have all bytes then."""
    said = pathlib.Path(world.workers[lender].log.name)
    before = said.read_text().count("lends its weights")
    worker = world.begin(rank)
    end = time.monotonic() + 30
    while said.read_text().count("lends its weights") == before:
        check(time.monotonic() < end, f"rank {lender} does not lend")
    worker.process.send_signal(signal.SIGSTOP)
    check("has got its weights" not in worker.text(), "it was stopped before it had them")
    return worker


def test_the_lender_is_killed_meanwhile():
    with folder() as d, World(d, f"ipc://{d}/join", 3) as world:
        w = world.w
        w.push(write_safetensors(d / "a.safetensors", large()), "a")
        before = w.status()
        world.kill(2)
        worker = disturbed(world, 2, 0)
        world.workers[0].process.send_signal(signal.SIGKILL)
        world.workers[0].process.wait()
        worker.process.send_signal(signal.SIGCONT)
        until(lambda: "has got its weights" in worker.text(), "another rank lends them", 60)
        check("did not get its weights from rank 0" in w.log(), "what came of the first attempt is said")
        world.begin(0)
        w.wait_ready(60)
        all_have(w, before)


def test_a_session_ends_it_and_it_is_tried_again():
    with folder() as d, World(d, f"ipc://{d}/join", 2) as world:
        w = world.w
        w.push(write_safetensors(d / "a.safetensors", large()), "a")
        before = w.status()
        world.kill(1)
        worker = disturbed(world, 1, 0)
        start = Background(w.post, "/start_weight_update")
        worker.process.send_signal(signal.SIGCONT)
        same(start.result(20).status, 200, "start")
        w.ok("/update_weights", w.file_source(write_safetensors(d / "b.safetensors", model("b"))))
        finish = w.post("/finish_weight_update", {"weight_version": "b"})  # a part: rank 1 lacks the rest
        same(finish.json["error"]["outcome"], "not_committed", "outcome")
        w.wait_ready(60)
        all_have(w, before)


if __name__ == "__main__":
    main(globals())
