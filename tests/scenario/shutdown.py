"""SIGTERM: an orderly end within five seconds, exit 0, nothing left, whatever is under way.
SIGKILL: the workers end by themselves."""
import contextlib
import http.client
import json
import os
import signal
import stat

from weft_scenario import (SLOW, Background, Daemon, Silent, alive, check, folder, main, model, same,
                           stop_process, until, write_safetensors)


def test_idle():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        took = w.stop()
        check(took < 5 * SLOW, f"{took:.1f} s")


def test_at_once_after_start():
    for _ in range(3):
        with Daemon() as w:
            w.stop()


def test_with_everything_under_way():
    """An update that waits for bytes, an event stream, idle and half-sent connections."""
    with Daemon() as w, Silent() as stream, contextlib.ExitStack() as stack:
        host, port = w.address.rsplit(":", 1)
        idle = [http.client.HTTPConnection(host, int(port), timeout=20) for _ in range(20)]
        for c in idle:
            stack.callback(c.close)
            c.request("GET", "/health")
            c.getresponse().read()
        idle[0].putrequest("POST", "/update_weight_version")
        idle[0].putheader("Content-Length", "100")
        idle[0].endheaders()
        idle[0].send(b'{"new')
        events = http.client.HTTPConnection(host, int(port), timeout=20)
        stack.callback(events.close)
        events.request("GET", "/weight_events")
        same(events.getresponse().status, 200, "event stream")
        w.ok("/start_weight_update")
        update = Background(w.post, "/update_weights", stream.source())
        stream.wait_for(2)
        w.stop()
        with contextlib.suppress(OSError, http.client.HTTPException):
            r = update.result(10)
            check(r.status >= 400, f"the update cannot have succeeded: {r}")


def test_a_stopped_worker_does_not_hold_it_up():
    with Daemon() as w:
        stop_process(w.pids()[1])
        w.stop()


def test_with_a_dead_trainer():
    """Its connection and its sending end are gone in mid-update; nobody has taken over."""
    with Daemon() as w:
        with Silent() as stream:
            w.ok("/start_weight_update")
            host, port = w.address.rsplit(":", 1)
            c = http.client.HTTPConnection(host, int(port), timeout=20)
            c.request("POST", "/update_weights", body=json.dumps(stream.source()))
            stream.wait_for(2)
            c.close()
            w.stop()


def test_sigint_too():
    with Daemon() as w:
        w.process.send_signal(signal.SIGINT)
        same(w.process.wait(5 * SLOW), 0, "exit code after SIGINT")
        same(w.left_behind(), [], "left behind")


def test_sigkill_ends_the_workers():
    with folder() as d, Daemon(check_left=False) as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        pids = list(w.pids().values())
        w.process.send_signal(signal.SIGKILL)
        w.process.wait()
        until(lambda: not any(alive(p) for p in pids), "workers end by themselves", 10)


def test_sigkill_in_mid_update_ends_the_workers():
    with Daemon(check_left=False) as w, Silent() as stream:
        w.ok("/start_weight_update")
        Background(w.post, "/update_weights", stream.source())
        stream.wait_for(2)
        pids = list(w.pids().values())
        w.process.send_signal(signal.SIGKILL)
        w.process.wait()
        until(lambda: not any(alive(p) for p in pids), "workers end by themselves", 10)


def test_comes_back_in_the_same_run_directory():
    """What a killed daemon left there does not stop the next one, which cleans up after both."""
    with folder() as d:
        run = d / "run"
        with Daemon(run_dir=run, check_left=False) as w:
            pids = list(w.pids().values())
            w.process.send_signal(signal.SIGKILL)
            w.process.wait()
            until(lambda: not any(alive(p) for p in pids), "workers end by themselves", 10)
        with Daemon(run_dir=run) as w:
            w.push(write_safetensors(d / "a.safetensors", model("a")), "a")


def test_what_is_private_is_private():
    with Daemon() as w:
        same(stat.S_IMODE(os.stat(w.run_dir).st_mode), 0o700, "mode of the run directory")
        for p in w.run_dir.rglob("*"):
            want = 0o700 if p.is_dir() else 0o600
            same(oct(stat.S_IMODE(p.lstat().st_mode)), oct(want), f"mode of {p.name}")


def test_logs_go_to_stderr_only():
    with Daemon() as w:
        w.ok("/update_weight_version", {"new_version": "x"})
        w.stop()
        same(w.process.stdout.read(), b"", "stdout after the ready line")


if __name__ == "__main__":
    main(globals())
