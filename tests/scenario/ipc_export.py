"""Exports of GPU memory by CUDA IPC, on the stand-in libcudart of tests/doubles (ctypes), with
torch's fifteen arguments of rebuild_cuda_tensor, event and counter.

Only Python's standard library, and nothing of weft's."""
import ctypes
import os
import struct

os.environ.setdefault("WEFT_FAKE_GPUS", "4")
CUDART = os.environ.get("WEFT_FAKE_CUDART", "")
ITEM = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "F8_E4M3": 1, "I64": 8}
TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "U8": "uint8",
         "F8_E4M3": "float8_e4m3fn", "I64": "int64"}


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 64)]


class Exporter:
    """One process of a trainer, with memory on each of the workers' GPUs.  torch: Tensor, Size,
    TypedStorage and DTYPES, torch's own or stand-ins."""

    def __init__(self, torch):
        self.torch = torch
        c = self.cuda = ctypes.CDLL(CUDART)
        c.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
        c.cudaFree.argtypes = [ctypes.c_void_p]
        c.cudaMemcpyAsync.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
                                      ctypes.c_int, ctypes.c_void_p]
        c.cudaEventRecord.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        c.cudaIpcGetMemHandle.argtypes = [ctypes.POINTER(Handle), ctypes.c_void_p]
        c.cudaIpcGetEventHandle.argtypes = [ctypes.POINTER(Handle), ctypes.c_void_p]
        c.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]
        self.memory, self.kept, self.exports = [], [], 0
        self.stream = ctypes.c_void_p()
        self.ok(c.cudaStreamCreate(ctypes.byref(self.stream)))
        self.counter = f"/torch_{os.getpid()}_1_{id(self) % 1000000}"
        with open("/dev/shm" + self.counter, "wb") as f:
            f.truncate(64 + 8 * 10000)

    def ok(self, code):
        assert code == 0, f"CUDA error {code}"

    def uuid(self, gpu):
        prop = ctypes.create_string_buffer(4096)
        self.ok(self.cuda.cudaGetDeviceProperties(prop, gpu))
        h = prop.raw[256:272].hex()
        return "-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:]))

    def allocate(self, gpu, size):
        self.ok(self.cuda.cudaSetDevice(gpu))
        at = ctypes.c_void_p()
        self.ok(self.cuda.cudaMalloc(ctypes.byref(at), max(size, 1)))
        self.memory.append(at)
        return at

    def write(self, at, data):
        """Not there yet when it returns: the stream comes to it later."""
        self.kept.append(data)
        if data:
            self.ok(self.cuda.cudaMemcpyAsync(at, data, len(data), 1, self.stream))

    def counters(self):
        raw = open("/dev/shm" + self.counter, "rb").read()
        return struct.unpack("<10000q", raw[64:])[:self.exports]

    def args(self, base, at, dtype, shape, *, size, stride=None, event=True, record=True, head=b"\2c",
             base_at=0):
        """The fifteen of rebuild_cuda_tensor.  at: bytes into the storage, which begins
        base_at bytes into the cudaMalloc."""
        h, e = Handle(), Handle()
        self.ok(self.cuda.cudaIpcGetMemHandle(ctypes.byref(h), base))
        if event:
            ev = ctypes.c_void_p()
            self.ok(self.cuda.cudaEventCreateWithFlags(ctypes.byref(ev), 2 | 4))
            self.ok(self.cuda.cudaIpcGetEventHandle(ctypes.byref(e), ev))
            if record:
                self.ok(self.cuda.cudaEventRecord(ev, self.stream))
            self.last_event = ev
        else:
            self.ok(self.cuda.cudaStreamSynchronize(self.stream))
        if stride is None:
            stride, n = [], 1
            for d in reversed(shape):
                stride.insert(0, n)
                n *= d
        slot, self.exports = self.exports, self.exports + 1
        with open("/dev/shm" + self.counter, "r+b") as f:
            f.seek(64 + 8 * slot)
            f.write(struct.pack("<q", 1))
        t = self.torch
        return (t.Tensor, t.Size(shape), tuple(stride), at // ITEM[dtype], t.TypedStorage, t.DTYPES[dtype], 0,
                head + bytes(h), size, base_at, False, self.counter.encode(), slot, bytes(e), event)

    def close(self):
        self.cuda.cudaStreamSynchronize(self.stream)
        for at in self.memory:
            self.cuda.cudaFree(at)
        os.unlink("/dev/shm" + self.counter)
