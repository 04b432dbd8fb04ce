"""What the field_*.py scenarios share: one daemon for all the cases of a file.

Each case is named after the report that it comes from (tests/field_reports.tsv lists them).
"""
import contextlib
import sys
import threading

from weft_scenario import Daemon, check, folder, main, same, until

here = {}  # w: the daemon; d: a folder


def fresh():
    """The daemon without a session and without a pause, whatever the case before left."""
    w = here["w"]
    w.ok("/abort_weight_update")
    until(lambda: w.status()["session"] is None, "no session", 20)
    w.ok("/resume")
    return w


def run(names, *args, **kw):
    code = 0
    with folder() as d, Daemon(*args, **kw) as w:
        here.update(w=w, d=d)
        try:
            main(names)
        except SystemExit as e:
            code = e.code
        if code:
            print(f"--- weftd's log:\n{w.log()[-6000:]}\n---", flush=True)
    sys.exit(code)


def refused(reply, status, *words):
    same(reply.status, status, f"{reply}")
    text = reply.body.decode()
    for word in words:
        check(word in text, f"{word!r} is not in {text}")
    return reply


def metrics(w):
    """name{labels} -> number, of GET /metrics."""
    r = w.get("/metrics")
    same((r.status, r.headers["content-type"]), (200, "text/plain; version=0.0.4; charset=utf-8"), "GET /metrics")
    out = {}
    for line in r.body.decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            check(name not in out, f"{name} is there twice")
            out[name] = float(value)
    return out


def together(count, fn):
    """fn(0..count-1), all at once; what they gave, in order."""
    gate, got, errors = threading.Barrier(count), [None] * count, []

    def one(i):
        try:
            gate.wait(20)
            got[i] = fn(i)
        except BaseException as e:  # raised below
            errors.append(e)
    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    if errors:
        raise errors[0]
    return got


@contextlib.contextmanager
def paused(w, mode="keep"):
    w.ok(f"/pause?mode={mode}")
    try:
        yield
    finally:
        w.ok("/resume")
