"""A trainer made of vLLM's own classes; a process of its own, with nothing of weft's in it.

vLLM's modules run as they are, from WEFT_VLLM_PATH.  Only the packages around them are not
initialised (their __init__ would import the inference engine and its CUDA extensions): BARE
below are packages that have a path and nothing else.  There is no GPU: torch_doubles.py says what
stands for one, and NCCL is what VLLM_NCCL_SO_PATH names, loaded by vLLM.

    vllm_peer.py client JSON     HTTPVLLMWeightSyncClient alone
    vllm_peer.py nccl JSON       NCCLTrainerWeightTransferEngine
    vllm_peer.py sparse JSON     SparseNCCLTrainerWeightTransferEngine
    vllm_peer.py ipc JSON        IPCTrainerWeightTransferEngine, one of several ranks

Each round that is sent prints a line, and the next one begins with a line of stdin."""
import hashlib
import importlib
import json
import os
import socket
import sys
import types

BARE = ("vllm", "vllm.distributed", "vllm.config", "vllm.model_executor", "vllm.model_executor.model_loader")
TOLD = json.loads(sys.argv[2])


def vllm(name):
    if "vllm" not in sys.modules:
        for package in BARE:
            m = sys.modules[package] = types.ModuleType(package)
            m.__path__ = [os.path.join(os.environ["WEFT_VLLM_PATH"], *package.split("."))]
            parent, _, child = package.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, m)
    return importlib.import_module("vllm." + name)


def say(what):
    print(json.dumps(what), flush=True)


def wait():
    if not sys.stdin.readline():
        sys.exit(3)


def client():
    return vllm("distributed.weight_transfer.clients").HTTPVLLMWeightSyncClient(TOLD["url"] + "/")


def run_client():
    c = client()

    def refused(call, *args):
        try:
            call(*args)
        except Exception as e:
            return type(e).__name__, e.response.status_code
        return None
    c.init_weight_transfer_engine({})
    say(["finish first", refused(c.finish_weight_update)])
    c.start_weight_update()
    say(["start twice", refused(c.start_weight_update)])
    say(["shutdown in a session", refused(c.shutdown_weight_transfer_engine)])
    c.update_weights(TOLD["update_info"])
    c.finish_weight_update("step-1")
    wait()
    c.start_weight_update()
    c.update_weights([TOLD["update_info"]] * TOLD["workers"])
    c.finish_weight_update()
    c.shutdown_weight_transfer_engine()
    say(["update without start", refused(c.update_weights, TOLD["update_info"])])


# ---- weights

def module_of(torch, on_gpu, tensors, step):
    """A module with these parameters, and what they hold."""
    root, holds = torch.nn.Module(), {}
    for name, dtype, shape, size in tensors:
        data = hashlib.shake_128(f"{step} {name}".encode()).digest(size)
        at, *_ = parts = name.split(".")
        m = root
        for at in parts[:-1]:
            if not hasattr(m, at):
                m.add_module(at, torch.nn.Module())
            m = getattr(m, at)
        t = torch.frombuffer(bytearray(data) or bytearray(8), dtype=torch.uint8)[:size]
        t = t.view(getattr(torch, dtype)).reshape(shape)
        m.register_parameter(parts[-1], torch.nn.Parameter(on_gpu(t), requires_grad=False))
        holds[name] = hashlib.sha256(data).hexdigest()
    return root, holds


def set_up():
    import torch_doubles
    torch_doubles.install(TOLD["gpu"])
    import torch
    base = vllm("distributed.weight_transfer.base")
    vllm("utils.torch_utils")  # keeps a memory of its own of the current stream
    torch.cuda.set_stream(torch.cuda.current_stream())

    class Trained(base.ModuleSource):
        """vLLM's source over a module; train() is what a trainer's optimiser does."""

        def train(self, tensors, step):
            self._module, self.holds = module_of(torch, torch_doubles.on_gpu, tensors, step)
            self.__dict__.pop("metadata", None)
    source = Trained(None)
    source.train(TOLD["tensors"], 0)
    return torch, source


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rounds(engine, source):
    for step, tensors in enumerate(TOLD["rounds"]):
        source.train(tensors, step)
        engine.send_weights()
        say(source.holds)
        wait()


def nccl_engine(source, **how):
    m = vllm("distributed.weight_transfer.nccl_engine")
    info = m.NCCLTrainerInitInfo("127.0.0.1", free_port(), TOLD["workers"] + 1, rank=0, **how)
    return m.NCCLTrainerWeightTransferEngine.trainer_init(info, client=client(), source=source)


def run_nccl():
    _, source = set_up()
    for how in TOLD["hows"]:
        engine = nccl_engine(source, **how)
        rounds(engine, source)
        engine.client.shutdown_weight_transfer_engine()
        engine.shutdown()


def run_sparse():
    torch, source = set_up()
    from torch_doubles import on_gpu
    whole = nccl_engine(source, packed=False)
    whole.send_weights()
    whole.shutdown()
    say(source.holds)
    wait()
    m = vllm("distributed.weight_transfer.sparse_nccl_engine")
    info = m.SparseNCCLTrainerInitInfo("127.0.0.1", free_port(), TOLD["workers"] + 1, rank=0)
    engine = m.SparseNCCLTrainerWeightTransferEngine.trainer_init(info, client=client())
    now = {n: p.detach().clone() for n, p in source.iter_full()}
    for step in range(2):
        patches = []
        for name, t in now.items():
            if t.numel() < 4:
                continue
            indices = torch.arange(step, t.numel(), 3, dtype=torch.int32)
            raw = hashlib.shake_128(f"patch {step} {name}".encode()).digest(indices.numel() * t.itemsize)
            values = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(t.dtype)
            t.view(-1)[indices.long()] = values
            patches.append(m.SparseWeightPatch(name, on_gpu(indices), on_gpu(values), tuple(t.shape)))
        engine.send_weights(patches)
        say({n: hashlib.sha256(t.host_bytes()).hexdigest() for n, t in now.items()})
        wait()
    engine.shutdown()


def run_ipc():
    torch, source = set_up()
    import torch_doubles
    store = torch.distributed.FileStore(TOLD["store"], TOLD["workers"])
    torch.distributed.init_process_group("gloo", store=store, rank=TOLD["gpu"], world_size=TOLD["workers"])
    m = vllm("distributed.weight_transfer.ipc_engine")
    for how in TOLD["hows"]:
        info = m.IPCTrainerInitInfo(rank=TOLD["gpu"], **how)
        rounds(m.IPCTrainerWeightTransferEngine.trainer_init(info, client=client(), source=source), source)
    say(torch_doubles.GPU.counters())
    wait()


if __name__ == "__main__":
    {"client": run_client, "nccl": run_nccl, "sparse": run_sparse, "ipc": run_ipc}[sys.argv[1]]()
