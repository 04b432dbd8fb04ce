"""Two clients at once, each on its own acceptor, on every pair of mutating routes, from an idle and from
an open session: every answer is 200 or a conflict, and what is visible afterwards is what the answers said.
(That histories have an order is checked in the simulator.)"""
import threading

from weft_scenario import (Background, Daemon, check, cut_names, folder, http_do, main, model, same, until,
                           write_safetensors)

ROUTES = ("init", "start", "update", "finish", "label", "abort", "pause", "cache")
SETS = ("old", "x", "y")


class Pairs:
    def __init__(self, d, w, front):
        self.w, self.front, self.n = w, front, 0
        self.tensors = {n: model(n, layers=1, width=8) for n in SETS}
        self.files = {n: write_safetensors(d / f"{n}.safetensors", t) for n, t in self.tensors.items()}

    def request(self, route, who):
        return {
            "init": ("/init_weight_transfer_engine", {"init_info": {}}),
            "start": ("/start_weight_update", None),
            "update": ("/update_weights", self.w.file_source(self.files["y"])),
            "finish": ("/finish_weight_update", {"weight_version": f"finish-{self.n}-{who}"}),
            "label": ("/update_weight_version", {"new_version": f"label-{self.n}-{who}"}),
            "abort": ("/abort_weight_update", {"reason": who}),
            "pause": ("/pause?mode=keep", None),
            "cache": ("/reset_prefix_cache", None),
        }[route]

    def both(self, a, b):
        """The answers of the two, asked at the same moment."""
        gate = threading.Barrier(2)

        def ask(address, route, who):
            path, body = self.request(route, who)
            gate.wait(20)
            return http_do(address, "POST", path, body)
        calls = [Background(ask, self.w.address, a, "a"), Background(ask, self.front.address, b, "b")]
        return [c.result() for c in calls]

    def holds(self):
        import hashlib
        got = cut_names(self.w.checksums())
        for name, tensors in self.tensors.items():
            want = {n: hashlib.sha256(data).hexdigest() for n, (_, _, data) in tensors.items()}
            if len(got) == 2 and all(g == want for g in got.values()):
                return name
        return None

    def to_start(self, is_open):
        """Old bytes and no session; or one that has x in it."""
        self.w.ok("/abort_weight_update")
        self.w.ok("/resume")
        if self.holds() != "old":
            self.w.push(self.files["old"], "old")
        if is_open:
            self.w.ok("/start_weight_update")
            self.w.ok("/update_weights", self.w.file_source(self.files["x"]))

    def check_pair(self, a, b, is_open):
        self.n += 1
        self.to_start(is_open)
        before = self.w.status()
        answers = self.both(a, b)
        what = f"{a} and {b}, {'open' if is_open else 'idle'}: {answers}"
        for r in answers:
            check(r.status in (200, 409), what)
            if r.status == 409 and b"\"outcome\"" in r.body:
                same(r.json["error"]["outcome"], "not_committed", what)
        until(lambda: self.w.status()["state"] in ("idle", "open"), what)
        done = [route for route, r in zip((a, b), answers) if r.status == 200]
        commits = [v for route, r, who in ((a, answers[0], "a"), (b, answers[1], "b"))
                   if r.status == 200 and (v := {"finish": f"finish-{self.n}-{who}",
                                                 "label": f"label-{self.n}-{who}"}.get(route))]
        after, there = self.w.status(), self.front.status()
        same((there["version"], there["sequence"], there["digest"]), (after["version"], after["sequence"],
                                                                      after["digest"]), what)
        same(after["sequence"], before["sequence"] + len(commits), f"one number for each commit; {what}")
        check(after["version"] in (commits or [before["version"]]), f"{after['version']}: {what}")
        check(done.count("finish") <= 1 and done.count("start") <= (0 if is_open and not
              {"finish", "abort", "init"} & set(done) else 1), what)
        want = "old" if "finish" not in done else "y" if "update" in done else "x" if is_open else "old"
        same(self.holds(), want, f"bytes; {what}")


def run_pairs(is_open):
    with folder() as d, Daemon() as w, Daemon(command=("acceptor", "--engine", w.ready["control"], "--listen",
                                                       "127.0.0.1:0", "--dev")) as front:
        pairs = Pairs(d, w, front)
        w.ok("/init_weight_transfer_engine", {"init_info": {}})
        for a in ROUTES:
            for b in ROUTES:
                pairs.check_pair(a, b, is_open)


def test_pairs_from_idle():
    run_pairs(False)


def test_pairs_from_open():
    run_pairs(True)


if __name__ == "__main__":
    main(globals())
