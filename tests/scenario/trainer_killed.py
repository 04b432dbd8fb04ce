"""A trainer that is killed in mid-update and comes back with init gets in, as stock ones do."""
import signal
import subprocess
import sys
import time

from weft_scenario import Daemon, Silent, check, folder, holds, main, model, same, until, write_safetensors

TRAINER = """
import http.client, json, sys
address, source = sys.argv[1], sys.argv[2]
host, port = address.rsplit(":", 1)
def post(path, body):
    c = http.client.HTTPConnection(host, int(port), timeout=300)
    c.request("POST", path, body=body)
    r = c.getresponse()
    text = r.read()
    assert r.status == 200, (path, r.status, text)
post("/init_weight_transfer_engine", b'{"init_info":{}}')
post("/start_weight_update", None)
print("started", flush=True)
if source:
    post("/update_weights", source.encode())
else:
    input()
"""


def trainer(w, source=""):
    p = subprocess.Popen([sys.executable, "-c", TRAINER, w.address, source], text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    same(p.stdout.readline(), "started\n", "the trainer started its update")
    return p


def kill(p):
    p.send_signal(signal.SIGKILL)
    p.wait()
    p.stdin.close()
    p.stdout.close()


def come_back(w, path, version):
    """What a stock trainer does after a restart, retrying the init for a moment: the server
    learns of the closed connection on its own time."""
    until(lambda: w.post("/init_weight_transfer_engine", {"init_info": {}}).status == 200,
          "the new trainer's init", 10)
    w.push(path, version)


def test_killed_between_calls():
    with folder() as d, Daemon() as w:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        kill(trainer(w))
        check(w.status()["session"], "the dead trainer's session is still open")
        same(w.post("/start_weight_update").status, 409, "another start is refused meanwhile")
        come_back(w, write_safetensors(d / "b.safetensors", model("b")), "b")
        check(holds(w, model("b")), "the new trainer's bytes")


def test_killed_while_bytes_move():
    import json
    with folder() as d, Daemon() as w, Silent() as stream:
        w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
        p = trainer(w, json.dumps(stream.source()))
        stream.wait_for(2)
        began = time.monotonic()
        kill(p)
        come_back(w, write_safetensors(d / "b.safetensors", model("b")), "b")
        check(time.monotonic() - began < 60, "long before any deadline")
        same(w.version(), "b", "version")
        check(holds(w, model("b")), "the new trainer's bytes")


if __name__ == "__main__":
    main(globals())
