"""What a GPU trainer needs of torch beyond a CPU, on the stand-in libcudart of tests/doubles.

torch cannot put tensors onto a device that only the stand-ins know.  So a tensor here lives in
the host's memory, says that it is on the GPU, and has its bytes copied to the stand-in's device
memory when its address is asked for; streams are the stand-in's.  What is replaced of torch is
the list at the end of install(); everything else, and everything above torch, is as it is."""
import atexit
import contextlib
import ctypes
import types

import torch
import torch.multiprocessing.reductions as reductions

import ipc_export

KIND = {getattr(torch, name): kind for kind, name in ipc_export.TORCH.items()}


class Torch:
    Tensor, Size, TypedStorage = torch.Tensor, torch.Size, torch.storage.TypedStorage
    DTYPES = {kind: dtype for dtype, kind in KIND.items()}


class Gpu(ipc_export.Exporter):
    def __init__(self, index):
        super().__init__(Torch)
        self.index, self.current, self.shared = index, None, {}

    def use(self, *_):
        self.ok(self.cuda.cudaSetDevice(self.index))

    def upload(self, data):
        """Where data lies in device memory from now on; it is never freed."""
        at = self.allocate(self.index, len(data))
        self.ok(self.cuda.cudaMemcpy(at, data, ctypes.c_size_t(len(data)), 1))
        return at.value


GPU = None


class OnGpu(torch.Tensor):
    @property
    def device(self):
        return torch.device("cuda", GPU.index)

    def host_bytes(self):
        at = torch._C.TensorBase.data_ptr(self)
        return ctypes.string_at(at, self.numel() * self.itemsize) if self.numel() else b""

    def data_ptr(self):
        assert self.is_contiguous()
        return GPU.upload(self.host_bytes())


def on_gpu(tensor):
    return tensor.as_subclass(OnGpu)


class Stream:
    def __init__(self, device=None):
        GPU.use()
        handle = ctypes.c_void_p()
        GPU.ok(GPU.cuda.cudaStreamCreate(ctypes.byref(handle)))
        self.cuda_stream = handle.value

    def synchronize(self):
        GPU.ok(GPU.cuda.cudaStreamSynchronize(ctypes.c_void_p(self.cuda_stream)))


@contextlib.contextmanager
def device_index(index):
    GPU.use()
    yield


@contextlib.contextmanager
def stream(s):
    before = GPU.current
    torch.cuda.set_stream(s)
    yield
    torch.cuda.set_stream(before)


def reduce_tensor(tensor):
    """torch's answer for a tensor on the GPU: exported, as its own cudaMalloc.  Of one that is
    written later (torch shares memory, not a copy) share_again() brings the bytes."""
    data = tensor.host_bytes()
    base = GPU.allocate(GPU.index, len(data))
    GPU.ok(GPU.cuda.cudaMemcpy(base, data, ctypes.c_size_t(len(data)), 1))
    GPU.shared[id(tensor)] = (tensor, base)
    return reductions.rebuild_cuda_tensor, GPU.args(base, 0, KIND[tensor.dtype], list(tensor.shape), size=len(data))


def share_again():
    """What synchronizing a stream means for shared memory: the last writes are there."""
    for tensor, base in GPU.shared.values():
        data = tensor.host_bytes()
        GPU.ok(GPU.cuda.cudaMemcpy(base, data, ctypes.c_size_t(len(data)), 1))


class MainStream(Stream):
    def synchronize(self):
        super().synchronize()
        share_again()


def made_by(make):
    def made(*args, device=None, **kw):
        there = device is not None and torch.device(device).type == "cuda"
        out = make(*args, **kw) if there or device is None else make(*args, device=device, **kw)
        return on_gpu(out) if there else out
    return made


def install(index):
    """This process has GPU index.  Before the import of what uses torch."""
    global GPU
    GPU = Gpu(index)
    GPU.use()
    atexit.register(GPU.close)  # its counters are a file

    def set_stream(s):
        GPU.current = s

    def current_stream(*_, **__):
        return GPU.current
    GPU.current = MainStream()
    a, c = torch.accelerator, torch.cuda
    a.is_available, a.current_device_index = lambda: True, lambda: index
    a.device_index, a.current_stream, a.synchronize = device_index, current_stream, lambda *_: share_again()
    c.Stream, c.stream, c.set_stream, c.current_stream = Stream, stream, set_stream, current_stream
    c.get_device_properties = lambda _: types.SimpleNamespace(uuid=GPU.uuid(index))
    c.ipc_collect = lambda: None
    torch.zeros, torch.empty = made_by(torch.zeros), made_by(torch.empty)
    reductions.reduce_tensor = reduce_tensor
