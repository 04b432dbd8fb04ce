"""torch's own TCPStore on the other side, in both directions: a trainer's, which weft's workers join, and
weft push's, which others' workers join.  The other side is a process with nothing of weft's in it
(torch_peer.py) and needs a Python with torch; without a GPU will do (tools/torch-venv)."""
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys

from nccl_trainer import CUDART, NCCL
from nccl_update import GPUS, daemon
from weft_scenario import CACHE, SLOW, Background, check, cut_names, folder, main, model, same, skip, weft, write_safetensors

PEER = pathlib.Path(__file__).with_name("torch_peer.py")


@functools.lru_cache(None)
def torch_python():
    """This Python, that of WEFT_TORCH_PYTHON, or what tools/torch-venv has left."""
    found = [os.environ.get("WEFT_TORCH_PYTHON"), *map(str, sorted(CACHE.glob("torch-*/torch-python"))), sys.executable]
    for python in filter(None, found):
        try:
            p = subprocess.run([python, "-c", "from torch.distributed import TCPStore"], stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=120 * SLOW)
        except OSError as e:
            why = str(e)
            continue
        if p.returncode == 0:
            return python
        why = (p.stderr.strip().splitlines() or ["?"])[-1]
    skip(f"no Python here has torch, tools/torch-venv fetches one: {why}")


def peer(*args):
    return subprocess.Popen([torch_python(), str(PEER), *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            text=True, env={**os.environ, **GPUS, "VLLM_NCCL_SO_PATH": NCCL})


def test_torch_trainer():
    tensors = [[n, d, list(s), len(b)] for n, (d, s, b) in model("a").items()]
    told = {"tensors": tensors, "workers": 2, "packed": 9000}
    torch_python()
    with daemon() as w:
        p = peer("trainer", json.dumps({"address": w.address, **told}))
        out = Background(p.communicate).result(120)[0]
        same(p.returncode, 0, f"the trainer's exit code: {out}{w.log()[-2000:]}")
        same(w.version(), "step-1", "the version")
        last = json.loads(out.splitlines()[-1])
        got = cut_names(w.checksums())
        same((len(out.splitlines()), len(got)), (2, 2), "updates, workers")
        check(all(g == last for g in got.values()), "every worker holds what was sent")


def test_torch_workers():
    p = peer("workers")
    try:
        url = Background(p.stdout.readline).result(120).strip()
        with folder() as d:
            for i, way in enumerate(((), ("--packed", "--packed-buffer-bytes", "9000"))):
                tensors = model(("torch", i))
                got = weft("push", "--source", "nccl", "--nccl", NCCL, "--cudart", CUDART, "--device", "3", "--quiet",
                           "--version", "x", *way, write_safetensors(d / "a", tensors), server=url, env=GPUS)
                same(got.returncode, 0, f"weft push: {got.stderr}")
                want = hashlib.sha256(b"".join(b for _, _, b in tensors.values())).hexdigest()
                same(json.loads(Background(p.stdout.readline).result(20)), [want, want], "what the workers received")
    finally:
        p.kill()
        p.communicate()


if __name__ == "__main__":
    main(globals())
