"""run.py on the stand-ins of tests/doubles, so that it does not rot, and where there is no GPU.
usage: test_run.py doubles|nothing BUILD CUDART NCCL"""
import os
import pathlib
import subprocess
import sys

RUN = pathlib.Path(__file__).with_name("run.py")
ROWS = ("IPC between two processes: install", "open, copy, close", "cudaMemcpy on the device", "digests of the same", "weft push --source ipc",
        "the same, packed", "world size 1", "abort of a join", "two ranks on the GPU, one by one",
        "two ranks on the GPU, packed", "400 tensors of 16 bytes", "abort of a broadcast", "weft push --source nccl")


def run(build, **env):
    where = ["--build", build] if build else []
    p = subprocess.run([sys.executable, str(RUN), *where, "--mib", "4"], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, text=True, timeout=280, env={**os.environ, **env})
    print(p.stdout, flush=True)
    return p.returncode, p.stdout


def doubles(build, cudart, nccl):
    env = {"WEFT_CUDART": cudart, "WEFT_NCCL": nccl, "WEFT_FAKE_GPUS": "1"}
    code, out = run(build, **env, WEFT_FAKE_NCCL_MULTI_RANK="1", WEFT_FAKE_NCCL_VERSION="23007")
    assert code == 0 and "weft test double 0" in out and "NCCL 2.30.7" in out, code
    for row in ROWS:
        assert row in out, row
    assert "failed" not in out and "refused" not in out
    # An older NCCL, and a machine on which something does not work.
    code, out = run(build, **env, WEFT_FAKE_NCCL_VERSION="22809", WEFT_FAKE_FAIL="cudaIpcGetMemHandle:1:1")
    assert code == 1 and "lets no two ranks share one" in out, code
    assert "| IPC between two processes | **failed** | export: cudaIpcGetMemHandle: CUDA error 1" in out


def nothing(build, cudart, nccl):
    for env, word in (({"WEFT_CUDART": cudart, "WEFT_NCCL": nccl, "WEFT_FAKE_NO_DRIVER": "1"}, "no NVIDIA driver"),
                      ({"WEFT_CUDART": cudart, "WEFT_NCCL": nccl, "CUDA_VISIBLE_DEVICES": ""}, "no GPU here"),
                      ({"WEFT_CUDART": "/no/such.so", "WEFT_NCCL": nccl}, "cannot be loaded")):
        code, out = run(build, **env)
        assert code == 77 and word in out and "nothing to be checked here" in out, (code, out)
    # Before it builds anything, for which it would not find cmake.
    for env, word in (({"WEFT_CUDART": cudart, "WEFT_FAKE_NO_DRIVER": "1"}, "gives 35"),
                      ({"WEFT_CUDART": cudart, "CUDA_VISIBLE_DEVICES": ""}, "gives 100"),
                      ({"WEFT_CUDART": "/no/such.so"}, "cannot be loaded")):
        code, out = run(None, **env, PATH="/nowhere")
        assert code == 77 and word in out and "nothing to be checked here" in out, (code, out)


if __name__ == "__main__":
    {"doubles": doubles, "nothing": nothing}[sys.argv[1]](*sys.argv[2:])
