#!/usr/bin/env python3
"""A trainer loop that needs nothing but `requests`.

    weftd --listen 127.0.0.1:8000 --workers 2 --dev
    tools/examples/trainer.py http://127.0.0.1:8000 [steps]

Each step writes a checkpoint, pushes it, and collects rollouts meanwhile, as an
asynchronous trainer does.  A rollout is tagged with the version that /weight_info showed
when it began; when the trainer takes it up, it sees how many versions old it is.
"""
import argparse
import json
import os
import random
import struct
import sys
import tempfile
import threading
import time

try:
    import requests
except ImportError:
    requests = None  # --help works without it


class Weft:
    """The six calls of a weight update."""

    def __init__(self, url, timeout_s=300):
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self.session = requests.Session()
        self.update_session = None

    def call(self, method, path, body=None):
        headers = {"Weft-Session": self.update_session} if self.update_session else {}
        r = self.session.request(method, self.url + path, json=body, headers=headers, timeout=self.timeout_s)
        if r.status_code != 200:
            raise RuntimeError(f"{path}: {r.status_code} {r.text}")
        return r

    def version(self):
        return self.call("GET", "/weight_info").json()["weight_version"]

    def push(self, path, version):
        """All or nothing: when this raises, the inference side still serves the old weights."""
        self.update_session = None
        start = self.call("POST", "/start_weight_update")
        self.update_session = start.headers.get("Weft-Session")
        try:
            self.call("POST", "/update_weights", {"update_info": {
                "source": {"kind": "safetensors", "path": os.path.abspath(path)}}})
            self.call("POST", "/finish_weight_update", {"weight_version": version})
        except Exception:
            self.session.post(self.url + "/abort_weight_update", timeout=10,
                              headers={"Weft-Session": self.update_session or ""})
            raise
        finally:
            self.update_session = None


def save(path, step):
    """A small model in safetensors form; a real trainer calls safetensors.torch.save_file."""
    rng = random.Random(step)
    data = struct.pack("<4096f", *(rng.gauss(0, 0.02) for _ in range(4096)))
    head = json.dumps({"layer.weight": {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, len(data)]}}).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + data)


def collect_rollouts(url, rollouts, stop):
    """Stands for the inference side's clients: each rollout takes a moment and is tagged."""
    weft = Weft(url)
    while not stop.is_set():
        tag = weft.version()  # before the first token: nothing older can be served after this
        time.sleep(random.uniform(0.01, 0.05))
        rollouts.append({"version": tag, "text": "..."})


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.error = lambda why: p.exit(2, f"trainer.py: {why}; see trainer.py --help\n")
    p.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    p.add_argument("steps", nargs="?", type=int, default=5, help="how many pushes (default: %(default)s)")
    a = p.parse_args()
    if requests is None:
        sys.exit("trainer.py needs requests (apt install python3-requests)")
    return a.url, a.steps


def main():
    url, steps = arguments()
    weft = Weft(url)
    weft.call("POST", "/init_weight_transfer_engine", {"init_info": {}})  # takes over what a dead run left
    order = {weft.version(): 0}
    rollouts, stop = [], threading.Event()
    collector = threading.Thread(target=collect_rollouts, args=(url, rollouts, stop))
    collector.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for step in range(1, steps + 1):
                path, version = os.path.join(folder, f"step-{step}.safetensors"), f"step-{step}"
                save(path, step)
                began = time.monotonic()
                weft.push(path, version)
                order[version] = step
                took, batch = time.monotonic() - began, rollouts[:]
                del rollouts[:len(batch)]
                ages = [step - order[r["version"]] for r in batch]
                print(f"{version}: pushed in {took * 1000:.0f} ms; {len(batch)} rollouts, "
                      f"{sum(a > 0 for a in ages)} stale, oldest {max(ages, default=0)} versions", flush=True)
                time.sleep(0.1)  # the optimiser's work
    finally:
        stop.set()
        collector.join()


if __name__ == "__main__":
    main()
