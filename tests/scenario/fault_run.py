"""One case of the table of faults: what the caller is told, what is visible, how it goes on."""
import os
import signal
import time

from fault_world import HOLDER, VICTIM, World, go_on, told
from weft_scenario import SLOW, alive, check, processes_with, same, state_of, stop_process, until

KILL, TERM, STOP, CONT = "kill -9", "SIGTERM", "SIGSTOP", "SIGSTOP, SIGCONT"
DEADLINE_S = 2 * min(SLOW, 2)  # of the call that a stopped worker holds up


def strike(pid, fault, w):
    """The fault itself; returns when it has certainly happened."""
    if fault in (KILL, TERM):
        os.kill(pid, signal.SIGKILL if fault == KILL else signal.SIGTERM)
        until(lambda: not alive(pid), f"process {pid} has ended", 10)
        return
    stop_process(pid)
    if fault == CONT:
        if pid != w.w.process.pid:
            same(w.w.get("/health").status, 200, "/health meanwhile")
        go_on(pid)


def visible(w, after):
    """The version that is shown; its bytes are what every rank holds that holds any."""
    version, ranks = w.w.version(), w.bytes_of()
    held = [r for r in ranks if r is not None]
    check(held and all(r == version for r in held), f"version {version!r}, bytes {ranks}")
    check(after != "ready" or len(held) == 2, f"ready with bytes {ranks}")
    return version


def calls_over(w):
    until(lambda: not (w.w.status()["session"] or {}).get("call"), "no call is under way", 30)


# ---- workers

def worker(w, state, fault):
    pid = w.pids[VICTIM]
    # One that is to be stopped is what holds the state: the call waits for its answer.
    stops = fault in (STOP, CONT)
    began = time.monotonic()
    # PUBLISH and ABORT have deadlines of their own, of two seconds.
    late = fault == STOP and state not in ("recording", "publishing", "aborting")
    w.enter(state, DEADLINE_S if late else None, hold=VICTIM if stops else HOLDER)
    strike(pid, fault, w)
    if fault in (KILL, TERM):
        def noticed():
            x = w.w.status()["workers"][VICTIM]
            return x["pid"] != pid or x["state"] in ("lost", "absent")
        until(noticed, "the end of the worker is noticed", 10)
        if state == "open":
            until(lambda: w.state()[0] == "idle", "the session is over", 10)
    if fault != STOP or state in ("transferring", "recording"):
        w.release()
    if w.call:
        answer = told(w.call.result())
    elif state == "idle" and fault != STOP:
        answer = "no call"
    else:
        answer = told(w.next_call(state))
    took = time.monotonic() - began
    if fault == STOP:
        check(took < DEADLINE_S + 2 * SLOW, f"answered after {took:.1f} s, deadline was {DEADLINE_S} s")
        if not w.joined:
            until(lambda: not alive(pid), "the hung worker is replaced", DEADLINE_S + 3 - min(took, DEADLINE_S))
        go_on(pid)
    elif fault in (KILL, TERM) and w.joined:
        w.joined[VICTIM].end()
        w.join(VICTIM)  # what a launcher does
    after = w.settled()
    return answer, visible(w, after), after


# ---- the engine

def history(daemon):
    """What the journal knows: the last commit, and whether a session was cut off after it."""
    kept = daemon.get("/weight_versions").json["versions"]
    last = next(v["version"] for v in kept if v["kind"] == "weights")
    return f"last commit {last}" + ("; session aborted" if kept[0]["kind"] == "aborted" else "")


def next_life(w):
    """Starts the engine again on what the last one left, as an operator does."""
    w.disk(full=False)
    old = w.w
    w.w = w.daemon("joined" if w.joined else "children")
    w.stack.callback(w.w.kill)
    if w.joined:
        w.w.read_door()
        w.w.ready = w.w.read_ready(40)
    after = w.settled(60)
    old_left = processes_with(old.mark)
    same(old_left, [], "processes of the earlier life")
    s = w.w.status()
    same((s["version"], s["weights_sequence"]), ("default", 0), "no weights are loaded, and it says so")
    return f"none loaded; {history(w.w)}", after


def engine(w, state, fault):
    w.enter(state)
    pid, mark = w.w.process.pid, w.w.mark
    if fault in (STOP, CONT):
        stop_process(pid)
        w.release()  # what comes meanwhile is heard before any timer is believed
        if fault == STOP:
            time.sleep(2.5)  # longer than a grant and than PUBLISH may take
        go_on(pid)
        answer = told(w.call.result() if w.call else w.next_call(state))
        after = w.settled()
        return answer, visible(w, after), after
    if fault == TERM:
        took = w.w.stop(5)
        print(f"      SIGTERM in {state}: {took:.2f} s", flush=True)
    else:
        w.w.process.kill()
        w.w.process.wait()
    w.release()
    until(lambda: not processes_with(mark), "its workers end by themselves", 10)
    answer = told(w.call.result()) if w.call else "no call"
    return (answer, *next_life(w))


# ---- those who call, and those who watch

def front(w, state, fault):
    """The acceptor, or the trainer, that the call came through."""
    process = (w.trainer or w.front).process
    w.enter(state)
    strike(process.pid, fault, w)
    if fault in (KILL, TERM):
        process.wait(10)
    w.release()
    if fault == CONT:
        answer = told(w.call.result() if w.call else w.next_call(state))
    elif fault == STOP:
        answer = "nothing while it is stopped" if w.call else "no call"
    else:
        answer = told(w.call.result()) if w.call else "no call"
    calls_over(w)
    after = w.settled()
    out = answer, visible(w, after), after
    w.works_again()  # also while it is stopped
    if fault == STOP:
        same(state_of(process.pid) in "Tt", True, "still stopped")
        go_on(process.pid)
        if w.call:
            out = (f"{told(w.call.result())} after SIGCONT", *out[1:])
    return out


def watcher(w, state, fault):
    pid = w.watch.process.pid
    w.enter(state)
    strike(pid, fault, w)
    w.release()
    answer = told(w.call.result() if w.call else w.next_call(state))
    calls_over(w)
    after = w.settled()
    out = answer, visible(w, after), after
    w.works_again()
    go_on(pid)
    if fault in (STOP, CONT):
        last = w.w.status()["sequence"]
        until(lambda: w.watch.sequences()[-1:] == [last], "the watcher saw the last commit", 20)
        got = w.watch.sequences()
        same(got, list(range(got[0], last + 1)), "no gap, no duplicate")
    return out


PROCESSES = {
    "worker": (worker, {}),
    "joined worker": (worker, {"kind": "joined"}),
    "engine": (engine, {}),
    "engine of joined workers": (engine, {"kind": "joined"}),
    "acceptor": (front, {"front": True}),
    "trainer": (front, {"trainer": True}),
    "watcher": (watcher, {"watcher": True}),
}


def run(process, state, fault):
    """(told, visible, workers afterwards).  That a fresh update then works is asserted."""
    fn, kind = PROCESSES[process]
    with World(**kind) as w:
        out = fn(w, state, fault)
        w.works_again()
        return out
