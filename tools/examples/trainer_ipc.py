#!/usr/bin/env python3
"""A trainer loop that shares its GPU memory with vLLM's own trainer classes, unchanged: trainer and
workers are on the same GPUs, and nothing is copied but by the workers.

    weftd --listen 127.0.0.1:8000 --workers 1 --dev --backend ipc --allow-ipc-pickle   # weft, or
    VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_INSECURE_SERIALIZATION=1 \\
        vllm serve MODEL --weight-transfer-config '{"backend":"ipc"}'

    tools/examples/trainer_ipc.py --server http://127.0.0.1:8000

Needs `vllm` and `torch` (PyPI).  For one GPU; a trainer with more runs one process for each, under
torch.distributed, and vLLM's engine merges their handles.  expandable_segments must be off.
"""
import argparse
import os
import sys

PACKAGES = "vllm, torch and requests (pip install vllm)"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--server", default="http://127.0.0.1:8000", metavar="URL")
    p.add_argument("--steps", type=int, default=3, metavar="N")
    p.add_argument("--device", type=int, default=0, metavar="N", help="the GPU of the server's worker")
    p.add_argument("--packed", action="store_true", help="through one buffer, many tensors a call")
    p.add_argument("--pause", action="store_true", help="pause the server around each update")
    p.add_argument("--layers", type=int, default=4, metavar="N")
    p.add_argument("--width", type=int, default=512, metavar="N")
    return p.parse_args()


def packages():
    """Late, so that --help works without them."""
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # vLLM's sender asks for it too
    try:
        import requests
        import torch
        from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    except ImportError as why:
        sys.exit(f"trainer_ipc.py needs {PACKAGES}: {why}")
    if not torch.cuda.is_available():
        sys.exit("trainer_ipc.py needs a GPU: torch.cuda.is_available() is False")
    return requests, torch, HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory, IPCTrainerInitInfo


def main():
    a = arguments()
    requests, torch, Client, ModuleSource, Factory, InitInfo = packages()
    torch.cuda.set_device(a.device)
    model = torch.nn.Sequential(*(torch.nn.Linear(a.width, a.width) for _ in range(a.layers)))
    model.to(device="cuda", dtype=torch.bfloat16).requires_grad_(False)

    def call(method, path, **kw):
        r = requests.request(method, a.server.rstrip("/") + path, timeout=300, **kw)
        r.raise_for_status()
        return r

    engine = Factory.trainer_init(init_info=InitInfo(rank=0, packed=a.packed), client=Client(a.server),
                                  source=ModuleSource(model))
    for step in range(1, a.steps + 1):
        for w in model.parameters():  # the optimiser's work
            w.normal_(0, 0.02)
        if a.pause:
            call("POST", "/pause")
        engine.send_weights()  # start, update, finish; the memory may be written again when it returns
        call("POST", "/update_weight_version", json={"new_version": f"step-{step}"})
        if a.pause:
            call("POST", "/resume")
        print(f"step {step}: {call('GET', '/weight_info').json()['weight_version']} is current", flush=True)


if __name__ == "__main__":
    main()
