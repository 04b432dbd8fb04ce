#!/usr/bin/env python3
"""A trainer loop that pushes over NCCL with vLLM's own trainer classes, unchanged.

    weftd --listen 127.0.0.1:8000 --workers 2 --dev --backend nccl --nccl LIBNCCL   # weft, or
    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend":"nccl"}'

    tools/examples/trainer_nccl.py --server http://127.0.0.1:8000 --device 2

Needs `vllm` and `torch` (PyPI), and a GPU that no worker has.  LIBNCCL must be the very library that
torch loads here: `python3 -c "import nvidia.nccl; print(*nvidia.nccl.__path__)"` tells its folder.
"""
import argparse
import socket
import sys

PACKAGES = "vllm, torch and requests (pip install vllm)"


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--server", default="http://127.0.0.1:8000", metavar="URL")
    p.add_argument("--steps", type=int, default=3, metavar="N")
    p.add_argument("--device", type=int, default=0, metavar="N", help="this process's GPU")
    p.add_argument("--master-address", default="127.0.0.1", metavar="HOST", help="where the workers reach this machine")
    p.add_argument("--master-port", type=int, default=0, metavar="PORT", help="default: a free one")
    p.add_argument("--one-by-one", action="store_true", help="a broadcast for each tensor, not packed")
    p.add_argument("--pause", action="store_true", help="pause the server around each update")
    p.add_argument("--layers", type=int, default=4, metavar="N")
    p.add_argument("--width", type=int, default=512, metavar="N")
    return p.parse_args()


def packages():
    """Late, so that --help works without them."""
    try:
        import requests
        import torch
        from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    except ImportError as why:
        sys.exit(f"trainer_nccl.py needs {PACKAGES}: {why}")
    if not torch.cuda.is_available():
        sys.exit("trainer_nccl.py needs a GPU: torch.cuda.is_available() is False")
    return requests, torch, HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory, NCCLTrainerInitInfo


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

    workers = call("GET", "/get_world_size").json()["world_size"]
    engine = Factory.trainer_init(  # the init call, and rank 0's side of the rendezvous beside it
        init_info=InitInfo(master_address=a.master_address, master_port=a.master_port or free_port(),
                           world_size=workers + 1, rank=0, packed=not a.one_by_one),
        client=Client(a.server), source=ModuleSource(model))
    for step in range(1, a.steps + 1):
        for w in model.parameters():  # the optimiser's work
            w.normal_(0, 0.02)
        if a.pause:
            call("POST", "/pause")
        engine.send_weights()  # start, update with the broadcasts beside it, finish
        call("POST", "/update_weight_version", json={"new_version": f"step-{step}"})
        if a.pause:
            call("POST", "/resume")
        print(f"step {step}: {call('GET', '/weight_info').json()['weight_version']} is current", flush=True)


if __name__ == "__main__":
    main()
