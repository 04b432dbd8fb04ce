"""Workers that a launcher starts and that join by URL, with a token; ranks also from the
environment of torchrun, Open MPI and Slurm."""
import os
import pathlib
import signal
import subprocess

from weft_scenario import (BIN, MARK, SLOW, Background, Daemon, check, folder, holds, main, model, same, until,
                           write_safetensors)


class Worker:
    def __init__(self, w, url, *args, env=None):
        environment = {k: v for k, v in os.environ.items()
                       if k not in ("RANK", "WORLD_SIZE") and not k.startswith(("OMPI_", "SLURM_"))}
        environment.update(env or {})
        environment.pop(MARK, None)  # nobody's child: it outlives its engine and joins the next one
        self.log = open(w.dir / f"worker-{os.urandom(4).hex()}", "wb+")
        self.process = subprocess.Popen([str(BIN / "weftd"), "worker", "--join", url, *args],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=self.log, env=environment)

    def text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def quit(self):
        """An orderly end on SIGTERM, also of one whose engine is gone."""
        self.process.send_signal(signal.SIGTERM)
        same(self.process.wait(5 * SLOW), 0, f"exit code of a worker after SIGTERM: {self.text()}")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def waiting_daemon(d, *args, **kw):
    """A daemon whose two workers come from outside; --join says where they announce themselves."""
    url = f"ipc://{d}/join"
    return url, Daemon("--workers-join", "--join", url, *args, ready=False, **kw)


def test_two_workers_join():
    with folder() as d:
        url, daemon = waiting_daemon(d)
        with daemon as w:
            same(w.read_door(), url, "the door")
            first = Worker(w, url, "--rank", "0", "--world-size", "2")
            second = Worker(w, url, env={"RANK": "1", "WORLD_SIZE": "2"})
            try:
                w.ready = w.read_ready()
                same(w.ready["workers"], 2, "workers in the ready line")
                w.wait_ready()
                w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
                check(holds(w, model("a")), "both joined workers hold the push")
                same(sorted(w.pids().values()), sorted([first.process.pid, second.process.pid]), "their pids")
                # a duplicate rank is refused, and who was started otherwise than the engine
                for args, why in ((("--rank", "1", "--world-size", "2"), "rank 1 is taken"),
                                  (("--rank", "0", "--world-size", "3"), "rank 0 of 3"),
                                  (("--rank", "0", "--world-size", "2", "--staging", "inplace"),
                                   "rank 0 was started with --staging inplace, its engine with --staging shadow"),
                                  (("--rank", "0", "--world-size", "2", "--pp", "2"),
                                   "rank 0 was started with --tp 1 --pp 2, its engine with --tp 2 --pp 1")):
                    extra = Worker(w, url, *args)
                    code = extra.process.wait(30 * SLOW)
                    check(code != 0 and why in extra.text(), f"{args} beside the others: {code}, {extra.text()}")
                    extra.end()
                check(holds(w, model("a")), "the refused ones changed nothing")
                w.stop()
                # the engine's next life finds them at the door again
                with Daemon("--workers-join", "--join", url, ready=False) as again:
                    again.read_door()
                    again.ready = Background(again.read_ready, 40).result(60)
                    check(not again.is_ready() or again.version() == "default", "nothing is known of its weights")
                    again.push_again(write_safetensors(d / "b.safetensors", model("b")), "b")
                    check(holds(again, model("b")), "the same workers hold the push")
                    same(sorted(again.pids().values()), sorted([first.process.pid, second.process.pid]), "pids")
                    first.quit()
                    second.quit()
            finally:
                first.end()
                second.end()


def test_a_joined_worker_dies_and_another_takes_its_rank():
    with folder() as d:
        url, daemon = waiting_daemon(d)
        with daemon as w:
            same(w.read_door(), url, "the door")
            a = Worker(w, url, env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
            b = Worker(w, url, env={"SLURM_PROCID": "1", "SLURM_NTASKS": "2"})
            c = None
            try:
                w.ready = w.read_ready()
                w.wait_ready()
                w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
                b.process.send_signal(signal.SIGKILL)
                b.process.wait()
                c = Worker(w, url, "--rank", "1", "--world-size", "2")  # before anybody has noticed
                until(lambda: w.pids().get(1) == c.process.pid, "the new one is in", 30)
                w.push_again(write_safetensors(d / "b.safetensors", model("b")), "b")
                check(holds(w, model("b")), "both hold the push")
            finally:
                for x in (a, b, c):
                    if x:
                        x.end()


def test_token():
    with folder() as d:
        (d / "token").write_text("the join token\n")
        (d / "wrong").write_text("another\n")
        for f in ("token", "wrong"):
            (d / f).chmod(0o600)
        daemon = Daemon("--workers-join", "--join", "tcp://127.0.0.1:0", "--join-token-file", d / "token", workers=1,
                        ready=False)
        with daemon as w:
            url = w.read_door()
            check(url.startswith("tcp://127.0.0.1:") and not url.endswith(":0"), f"the door: {url}")
            args = ("--rank", "0", "--world-size", "1", "--join-token-file")
            bad = Worker(w, url, *args, str(d / "wrong"))
            check(bad.process.wait(40 * SLOW) != 0, f"a wrong token was let in: {bad.text()}")
            bad.end()
            good = Worker(w, url, *args, str(d / "token"))
            try:
                w.ready = w.read_ready()
                w.wait_ready()
                w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
                check(holds(w, model("a"), workers=1), "the joined worker holds the push")
            finally:
                good.end()


if __name__ == "__main__":
    main(globals())
