"""A coordinator and its engines, each a real weftd, for the fleet*.py scenarios."""
import contextlib
import os
import signal

from weft_scenario import (Background, Daemon, check, holds, model, same, stop_process, until, weft,
                           write_safetensors)

GRANT_S = 2.25  # what a heartbeat lets an engine serve, and the margin


def die(daemon):
    """kill -9 of the daemon itself; its workers see that it is gone and end."""
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()


class Fleet:
    """Use in a with statement: leaving it stops every daemon and looks for what they left.
    count members of two workers each; scheme: how they and the coordinator reach each other."""

    def __init__(self, folder, count=2, scheme="ipc", workers=2, member_args=None, env=None):
        self.dir, self.scheme, self.workers = folder, scheme, workers
        self.member_args, self.env = member_args or {}, env
        self.urls, self.members, self.coordinator, self.left = [None] * count, [None] * count, None, []
        self.token = folder / "token"
        if scheme == "tcp":
            self.token.write_text("a token that all of the fleet know\n")
            self.token.chmod(0o600)

    def home(self, name):
        home = self.dir / name
        home.mkdir(0o700, exist_ok=True)
        return home

    def start(self, name, *args, workers=None, engine_id=None, **kw):
        daemon = Daemon("--state-dir", self.home(name) / "state", "--engine-id", engine_id or name, *args, ready=False,
                        workers=workers or self.workers, env=self.env, **kw)
        try:
            daemon.ready = daemon.read_line()
            same(daemon.ready["ready"], False, f"the first line of {name}")
        except BaseException:
            print(f"--- {name}:\n{daemon.log()[-3000:]}")
            daemon.kill()
            raise
        self.left.append(daemon)
        return daemon

    def start_member(self, i, *args):
        url = self.urls[i] or (f"ipc://{self.home(f'm{i}')}/door" if self.scheme == "ipc" else "tcp://127.0.0.1:0")
        token = ("--member-token-file", self.token) if self.scheme == "tcp" else ()
        m = self.start(f"m{i}", "--member", url, *token, *self.member_args.get(i, ()), *args)
        self.urls[i], self.members[i] = m.ready["member"], m
        return m

    def start_coordinator(self, name="c", urls=None, **kw):
        token = ("--replica-token-file", self.token) if self.scheme == "tcp" else ()
        replicas = [x for url in urls or self.urls for x in ("--replica", url)]
        return self.start(name, *replicas, *token, **kw)

    def __enter__(self):
        try:
            for i in range(len(self.urls)):
                self.start_member(i)
            self.coordinator = self.start_coordinator()
            self.wait_ready()
        except BaseException:
            self.end(False)
            raise
        return self

    def __exit__(self, kind, error, trace):
        self.end(kind is None)
        return False

    def end(self, well):
        if not well:
            for daemon in self.left:
                print(f"--- {daemon.process.args[:8]}:\n{daemon.log()[-5000:]}\n---", flush=True)
        stops = []
        for daemon in self.left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon.process.pid, signal.SIGCONT)
        if well:
            alive = [d for d in self.left if d.process.poll() is None]
            stops = [Background(d.stop) for d in alive]
        try:
            for s in stops:
                s.result(30)
        finally:
            for daemon in self.left:
                daemon.kill()

    # ---- what the tests ask

    def wait_ready(self, seconds=40):
        self.coordinator.wait_ready(seconds)
        for m in self.members:
            m.wait_ready(seconds)

    def all(self):
        return [self.coordinator, *self.members]

    def agree(self, version, tensors=None):
        """All show this version, with the same digest; the engines hold these bytes.  A member
        shows a change when the coordinator's next heartbeat says that it is visible."""
        same(self.coordinator.version(), version, "the coordinator's version")
        until(lambda: all(m.get("/weight_info").body == self.coordinator.get("/weight_info").body
                          for m in self.members), f"every member shows {version!r}")
        digests = [w.status()["digest"] for w in self.all()]
        same(digests, digests[:1] * len(digests), "digests of coordinator and members")
        for i, m in enumerate(self.members):
            check(tensors is None or holds(m, tensors, self.workers), f"replica {i} holds the bytes")

    def push(self, seed, version=None):
        self.coordinator.push(self.file(seed), version or seed)
        self.agree(version or seed, model(seed))

    def push_again(self, seed):
        """After a fault: as soon as start is taken; everything is well then."""
        self.coordinator.push_again(self.file(seed), seed)
        self.wait_ready()
        self.agree(seed, model(seed))

    def file(self, seed):
        path = self.dir / f"{seed}.safetensors"
        return str(path) if path.exists() else write_safetensors(path, model(seed))

    def restart_member(self, i, *args):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.members[i].process.pid, signal.SIGCONT)
        if self.members[i].process.poll() is None:
            die(self.members[i])
        return self.start_member(i, *args)

    def restart_coordinator(self):
        if self.coordinator.process.poll() is None:
            die(self.coordinator)
        self.coordinator = self.start_coordinator()

    def replica(self, i):
        return next(r for r in self.coordinator.status()["replicas"] if r["replica"] == i)

    def doubt(self, i):
        return self.members[i].status()["fleet"]["doubt"]


def begin_finish_with_one_stopped(fleet, i, version):
    """A finish under way in which replica i says nothing and all others have voted; the
    background call that waits for it."""
    stop_process(fleet.members[i].process.pid)
    call = Background(fleet.coordinator.post, "/finish_weight_update", {"weight_version": version})
    for j in range(len(fleet.members)):
        if j != i:
            until(lambda j=j: fleet.doubt(j) is not None, f"replica {j} has voted")
    return call


def resolve(member, word):
    return weft("resolve", word, server=member.url)
