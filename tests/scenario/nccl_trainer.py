"""A trainer that speaks NCCL: rank 0, on the stand-in libraries of tests/doubles (ctypes).

Only Python's standard library, and nothing of weft's: what it sends and in which order is
written down here a second time, from the contract.  Run as a program it makes one whole
update, told by a JSON object in argv[1].
"""
import base64
import ctypes
import http.client
import json
import os
import pickle
import socket
import struct
import sys
import threading
import time
import types

os.environ.setdefault("WEFT_FAKE_GPUS", "4")
CUDART = os.environ.get("WEFT_FAKE_CUDART", "")
NCCL = os.environ.get("VLLM_NCCL_SO_PATH") or os.environ.get("WEFT_FAKE_NCCL", "")
GPU = 3  # the workers have 0 and 1
MODULE = "vllm.distributed.device_communicators.pynccl_wrapper"


class ncclUniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def as_vllm(cls):
    """pickle must write the name that vLLM's class has."""
    parts = MODULE.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    cls.__module__ = MODULE
    setattr(sys.modules[MODULE], cls.__name__, cls)


as_vllm(ncclUniqueId)


class NcclError(Exception):
    pass


class Group:
    """Rank 0 of a communicator, or another rank of the trainer's beside it."""

    def __init__(self, ranks, gpu=GPU, rank=0, beside=None):
        self.cuda = ctypes.CDLL(CUDART)
        self.nccl = ctypes.CDLL(NCCL)
        self.cuda.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
        self.cuda.cudaFree.argtypes = [ctypes.c_void_p]
        self.cuda.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
                                         ctypes.c_int]
        self.cuda.cudaStreamQuery.argtypes = [ctypes.c_void_p]
        self.nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int,
                                               ncclUniqueId, ctypes.c_int]
        self.nccl.ncclBroadcast.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                            ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
                                            ctypes.c_void_p]
        self.nccl.ncclAllReduce.argtypes = self.nccl.ncclBroadcast.argtypes
        self.nccl.ncclCommAbort.argtypes = [ctypes.c_void_p]
        self.nccl.ncclCommGetAsyncError.argtypes = [ctypes.c_void_p,
                                                    ctypes.POINTER(ctypes.c_int)]
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.nccl.ncclGetLastError.argtypes = [ctypes.c_void_p]
        self.ranks, self.gpu, self.rank, self.comm = ranks, gpu, rank, ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        self.id = beside.id if beside else ncclUniqueId()
        if not beside:
            self.check(self.nccl.ncclGetUniqueId(ctypes.byref(self.id)), "ncclGetUniqueId")

    def check(self, code, what):
        if code != 0:
            text = self.nccl.ncclGetLastError(self.comm).decode()
            raise NcclError(f"{what}: {code} {text}")

    def id_text(self):
        return base64.b64encode(bytes(self.id)).decode()

    def use(self):  # CUDA's device is the thread's
        self.check(self.cuda.cudaSetDevice(self.gpu), "cudaSetDevice")

    def join(self, warm_up=True):
        self.use()
        self.check(self.cuda.cudaStreamCreate(ctypes.byref(self.stream)), "cudaStreamCreate")
        self.check(self.nccl.ncclCommInitRank(ctypes.byref(self.comm), self.ranks, self.id, self.rank),
                   "ncclCommInitRank")
        if not warm_up:
            return
        a, b = self.memory(struct.pack("f", 0.0)), self.memory(struct.pack("f", 0.0))
        self.check(self.nccl.ncclAllReduce(a, b, 1, 7, 0, self.comm, self.stream), "warm-up")
        self.wait("warm-up")
        self.cuda.cudaFree(a)
        self.cuda.cudaFree(b)

    def memory(self, data):
        at = ctypes.c_void_p()
        self.check(self.cuda.cudaMalloc(ctypes.byref(at), max(len(data), 1)), "cudaMalloc")
        self.check(self.cuda.cudaMemcpy(at, data, len(data), 1), "cudaMemcpy")
        return at

    def wait(self, what):
        state = ctypes.c_int()
        while self.cuda.cudaStreamQuery(self.stream) != 0:
            self.check(self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state)), what)
            self.check(state.value, what)
            time.sleep(0.0005)

    def broadcast(self, data, count, kind):
        at = self.memory(data)
        self.check(self.nccl.ncclBroadcast(at, at, count, kind, 0, self.comm, self.stream),
                   "ncclBroadcast")
        self.wait("ncclBroadcast")
        self.cuda.cudaFree(at)

    def abort(self):
        if self.comm:
            self.nccl.ncclCommAbort(self.comm)
            self.comm = ctypes.c_void_p()


# dtype of the scenarios' models: bytes, ncclDataType_t
KINDS = {"F32": (4, 7), "BF16": (2, 9), "F16": (2, 6), "U8": (1, 1), "F8_E4M3": (1, 10),
         "I64": (8, 4)}


def send_unpacked(group, tensors):
    for dtype, _, data in tensors.values():
        size, kind = KINDS[dtype]
        group.broadcast(data, len(data) // size, kind)


def send_packed(group, tensors, buffer_bytes):
    chunk, held = [], 0
    for _, _, data in tensors.values():
        chunk.append(data)
        held += len(data)
        if held > buffer_bytes:
            group.broadcast(b"".join(chunk), held, 1)
            chunk, held = [], 0
    if chunk:
        group.broadcast(b"".join(chunk), held, 1)


def send_patches(group, patches):
    """patches: name -> (dtype, shape, indices, values): of each the indices, then the values."""
    for dtype, _, indices, values in patches.values():
        group.broadcast(struct.pack(f"<{len(indices)}i", *indices), len(indices), 2)
        group.broadcast(values, len(indices), KINDS[dtype][1])


def patched(tensors, patches):
    """What tensors are like with the patches."""
    out = dict(tensors)
    for name, (dtype, shape, indices, values) in patches.items():
        size, data = KINDS[dtype][0], bytearray(out[name][2])
        for n, i in enumerate(indices):
            data[i * size:(i + 1) * size] = values[n * size:(n + 1) * size]
        out[name] = (dtype, shape, bytes(data))
    return out


def patch_info(patches, **more):
    return {**update_info({n: (d, s, b"") for n, (d, s, _, _) in patches.items()}),
            "num_updates_list": [len(i) for _, _, i, _ in patches.values()], **more}


class Store(threading.Thread):
    """As much of a TCPStore server as two joining workers need; answers as torch's does."""

    def __init__(self, key, value):
        super().__init__(daemon=True)
        self.key, self.value, self.joined = key, value, 0  # value None: not there yet
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        with c, c.makefile("rb") as f:
            def text():
                return f.read(struct.unpack("<Q", f.read(8))[0])
            while op := f.read(1):
                if op == b"\0":
                    assert f.read(4) == struct.pack("<I", 0x3C85F7CE)
                elif op == b"\x0d":
                    c.sendall(f.read(4))
                elif op == b"\4":
                    assert text() == b"init/"
                    with self.lock:
                        self.joined += struct.unpack("<q", f.read(8))[0]
                        c.sendall(struct.pack("<q", self.joined))
                elif op == b"\6":
                    count = struct.unpack("<Q", f.read(8))[0]
                    assert [text() for _ in range(count)] == [self.key]
                    while self.value is None:
                        time.sleep(0.001)
                    c.sendall(b"\0")
                elif op == b"\5":
                    count = struct.unpack("<Q", f.read(8))[0]
                    asked = [text() for _ in range(count)]
                    c.sendall(b"\0" if asked == [self.key] and self.value is not None else b"\1")
                elif op == b"\3":
                    assert text() == self.key
                    c.sendall(struct.pack("<Q", len(self.value)) + self.value)
                else:
                    raise AssertionError(f"opcode {op!r}")

    def close(self):
        self.listener.close()


TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "U8": "uint8",
         "F8_E4M3": "float8_e4m3fn", "I64": "int64"}


def update_info(tensors, **more):
    return {"names": list(tensors), "dtype_names": [TORCH[d] for d, _, _ in tensors.values()],
            "shapes": [list(s) for _, s, _ in tensors.values()], **more}


class Trainer:
    """vLLM's order of calls: what is collective runs beside the request that asks for it."""

    def __init__(self, address, workers=2, gpu=GPU, world_size=None):
        self.address, self.ranks, self.group = address, world_size or workers + 1, None
        self.gpu, self.packed, self.store, self.publish = gpu, None, None, None

    def post(self, path, body=None, query=""):
        host, port = self.address.rsplit(":", 1)
        c = http.client.HTTPConnection(host, int(port), timeout=300)
        try:
            c.request("POST", "/" + path + query, body=None if body is None else json.dumps(body))
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def beside(self, path, body, query, work):
        """Status and text of the request, and what became of work()."""
        answer, error = [], None
        call = threading.Thread(target=lambda: answer.append(self.post(path, body, query)))
        call.start()
        try:
            work()
        except NcclError as e:
            error = str(e)
            self.group.abort()
        call.join()
        return answer[0][0], answer[0][1], error

    def init(self, packed=None, store=False, query="", come=True, publish=None, beside=None, **more):
        """store: True for one of ours, or the port where publish(group) puts the id."""
        self.close()
        self.group, self.packed = Group(self.ranks, self.gpu), packed
        info = {"rank_offset": 1, "world_size": self.ranks, **more}
        if publish:
            info.update(master_address="127.0.0.1", master_port=store)
        elif store:
            self.store = Store(b"/broadcast_from/0/0", pickle.dumps(self.group.id))
            info.update(master_address="127.0.0.1", master_port=self.store.port)
        else:
            info["nccl_unique_id_b64"] = self.group.id_text()
        if packed is not None:
            info.update(packed=True, packed_buffer_size_bytes=packed)

        def work():
            if publish:
                publish(self.group)
            if beside:
                beside(self.group)
            if come:
                self.group.join()
        return self.beside("init_weight_transfer_engine", {"init_info": info}, query, work)

    def init_torch(self, name="weight_update_group", key=None, eager=False, publish=None, **more):
        """As a process group of torch's: the id is made by the first collective, or at once
        (eager).  publish(group): puts it into the store at the port that the caller names."""
        self.close()
        self.group, self.packed = Group(self.ranks, self.gpu), None
        if publish:
            self.publish = publish
        else:
            key = key or f"/{name}/{name}//cuda//0"
            self.store = Store(key.encode(), None)
            more["master_port"] = self.store.port
            self.publish = lambda group: setattr(self.store, "value", bytes(group.id))
        info = {"profile": "torch-group", "rank_offset": 1, "world_size": self.ranks,
                "group_name": name, "backend": "nccl", "master_address": "127.0.0.1", **more}

        def work():
            if eager:
                self.make_group()
        return self.beside("init_weight_transfer_engine", {"init_info": info}, "", work)

    def make_group(self):
        self.publish(self.group)
        self.group.join(warm_up=False)
        self.publish = None

    def update(self, tensors, send=None, info=None, query=""):
        """send: what goes over NCCL when that is not what was announced."""
        begins = bool(self.publish and (tensors or info))

        def work():
            if begins:
                self.make_group()
            self.group.use()
            if self.packed is None:
                send_unpacked(self.group, tensors if send is None else send)
            else:
                send_packed(self.group, tensors if send is None else send, self.packed)
        info = update_info(tensors) if info is None else info
        return self.beside("update_weights", {"update_info": info}, query, work)

    def patch(self, patches, info=None, query="", **more):
        def work():
            self.group.use()
            send_patches(self.group, patches)
        return self.beside("update_weights",
                           {"update_info": info or patch_info(patches, **more)}, query, work)

    def close(self):
        if self.group:
            self.group.abort()
        if self.store:
            self.store.close()


def program():
    """A trainer of its own that makes one update: for being killed."""
    import hashlib

    told = json.loads(sys.argv[1])
    tensors = {n: (d, s, hashlib.shake_128(n.encode()).digest(size))
               for n, d, s, size in told["tensors"]}
    t = Trainer(told["address"])
    status, text, error = t.init()
    assert (status, error) == (200, None), (status, text, error)
    assert t.post("start_weight_update")[0] == 200
    print("started", flush=True)
    print(t.update(tensors), flush=True)


if __name__ == "__main__":
    program()
