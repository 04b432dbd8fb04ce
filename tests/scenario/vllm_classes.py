"""vLLM's own trainer classes against weft: HTTPVLLMWeightSyncClient, the NCCL trainer engine with
its StatelessProcessGroup and PyNcclCommunicator, the sparse one, and the IPC one with several ranks.

The other side is a process with nothing of weft's in it (vllm_peer.py).  It runs vLLM's modules as
they are in vLLM's wheel, torch, and requests; vLLM's packages are not initialised, and as there is
no GPU, tensors and streams of torch's are on the stand-in libcudart (torch_doubles.py), and the
NCCL that vLLM loads is the stand-in.  Skipped without torch (tools/torch-venv) or those modules
(tools/vllm-files, else WEFT_VLLM_PATH: a folder with vllm/ and what it imports)."""
import contextlib
import functools
import json
import os
import pathlib
import subprocess

import ipc_export
import nccl_update
import sparse_update
from nccl_torch import torch_python
from nccl_trainer import NCCL
from weft_scenario import CACHE, SLOW, Background, Daemon, check, cut_names, folder, holds, main, model, same, skip, write_safetensors

PEER = pathlib.Path(__file__).with_name("vllm_peer.py")


@functools.lru_cache(None)
def vllm_path():
    found = [os.environ.get("WEFT_VLLM_PATH"), *map(str, sorted(CACHE.glob("vllm-*")))]
    why = "there are none"
    for path in filter(None, found):
        if not os.path.isfile(os.path.join(path, "vllm/distributed/weight_transfer/clients.py")):
            why = f"{path} has no vllm/distributed/weight_transfer/clients.py"
            continue
        p = subprocess.run([torch_python(), "-c", "import numpy, pybase64, pydantic, regex, requests, zmq"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120 * SLOW,
                           env={**os.environ, "PYTHONPATH": path})
        if p.returncode == 0:
            return path
        why = (p.stderr.strip().splitlines() or ["?"])[-1]
    skip(f"no files of vLLM's, tools/vllm-files fetches them: {why}")


class Peer:
    def __init__(self, what, **told):
        self.p = subprocess.Popen(
            [torch_python(), str(PEER), what, json.dumps(told)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "WEFT_FAKE_GPUS": "4", "VLLM_NCCL_SO_PATH": NCCL, "PYTHONPATH": vllm_path(),
                            "WEFT_VLLM_PATH": vllm_path(), "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_DO_NOT_TRACK": "1"})

    def line(self):
        text = Background(self.p.stdout.readline).result(120)
        if not text:
            raise AssertionError(f"vllm_peer ended with {self.p.wait()}")
        return json.loads(text)

    def go_on(self):
        self.p.stdin.write("\n")
        self.p.stdin.flush()

    def ends(self):
        self.p.stdin.close()
        same(Background(self.p.wait).result(60), 0, "the trainer's exit code")


@contextlib.contextmanager
def peer(what, **told):
    p = Peer(what, **told)
    try:
        yield p
        p.ends()
    finally:
        p.p.kill()
        p.p.wait()


def listed(tensors):
    return [[n, ipc_export.TORCH[d], list(s), len(b)] for n, (d, s, b) in tensors.items()]


def everywhere(w, want):
    got = cut_names(w.checksums())
    same(len(got), 2, "workers")
    check(all(want.items() <= g.items() for g in got.values()), "every worker holds what was sent")


def test_the_http_client():
    vllm_path()
    with folder() as d, Daemon() as w:
        path = write_safetensors(d / "a.safetensors", model("a"))
        with peer("client", url=w.url, update_info=w.file_source(path)["update_info"], workers=2) as p:
            for what in ("finish first", "start twice", "shutdown in a session"):
                same(p.line(), [what, ["HTTPError", 409]], "what it gets")
            p.go_on()
            same(p.line(), ["update without start", ["HTTPError", 409]], "what it gets")
        same(w.version(), "step-1", "the version")
        check(holds(w, model("a")), "the bytes")


SAME = listed(model("a"))
MORE = listed(model("b", layers=5))


def test_the_nccl_trainer():
    """Packed, in several chunks and in one; one by one.  Its second round has the first one's names
    and shapes, which it does not tell again."""
    hows = [{"packed": True, "packed_buffer_size_bytes": 9000, "packed_num_buffers": 3}, {"packed": True},
            {"packed": False}]
    rounds = [SAME, SAME, MORE, MORE, SAME]
    vllm_path()
    with nccl_update.daemon() as w:
        with peer("nccl", url=w.url, gpu=3, workers=2, tensors=SAME, hows=hows, rounds=rounds) as p:
            for _ in range(len(hows) * len(rounds)):
                everywhere(w, p.line())
                p.go_on()
        same(w.status()["sequence"], len(hows) * len(rounds), "commits")


def test_the_sparse_trainer():
    vllm_path()
    with sparse_update.daemon() as w:
        with peer("sparse", url=w.url, gpu=3, workers=2, tensors=SAME) as p:
            for _ in range(3):
                everywhere(w, p.line())
                p.go_on()


def test_the_ipc_trainer():
    """Two ranks, each with a GPU of a worker's; torch's gloo gathers their handles."""
    vllm_path()
    hows, rounds = [{"packed": False}, {"packed": True, "packed_buffer_size_bytes": 20000}], [SAME, SAME, MORE]
    with folder() as d, Daemon("--backend", "ipc", "--cudart", ipc_export.CUDART, env={
            "WEFT_FAKE_GPUS": "4", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}) as w:
        told = {"url": w.url, "workers": 2, "tensors": SAME, "hows": hows, "rounds": rounds, "store": str(d / "store")}
        with peer("ipc", gpu=0, **told) as p, peer("ipc", gpu=1, **told) as q:
            for _ in hows:
                for _ in rounds:
                    sent = p.line()
                    same(q.line(), sent, "what the other rank has")
                    everywhere(w, sent)
                    p.go_on()
                    q.go_on()
            for rank in (p, q):
                left = rank.line()
                check(left and not any(left), f"every export was counted down once: {left}")
                rank.go_on()


if __name__ == "__main__":
    alone = "test_the_nccl_trainer" if os.environ.get("WEFT_SANITIZE") else ""  # torch takes seconds to load
    main({n: v for n, v in globals().items() if not n.startswith("test_") or n.startswith(alone)})
