"""A trainer, or a pair of inference workers, with torch's own TCPStore; a process of its own, with
nothing of weft's in it.  NCCL is what VLLM_NCCL_SO_PATH names, loaded by ctypes (nccl_trainer.py).

    torch_peer.py trainer JSON      one update: init, start, update, finish, in vLLM's order
    torch_peer.py workers           two of vLLM's workers behind the HTTP routes that a push calls
"""
import ctypes
import datetime
import hashlib
import http.server
import json
import pickle
import socket
import sys
import threading

from nccl_trainer import Group, Trainer, ncclUniqueId  # its ncclUniqueId pickles under vLLM's name
from torch.distributed import TCPStore

MINUTE = datetime.timedelta(seconds=60)
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}


def listen():
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    s.listen()
    return s


def trainer():
    """As vLLM's StatelessProcessGroup and its trainer engine do it."""
    told = json.loads(sys.argv[2])
    t = Trainer(told["address"], workers=told["workers"])
    for step, packed in enumerate((None, told["packed"])):
        listener = listen()

        def publish(group):  # the constructor returns when all have joined
            t.kept = TCPStore(host_name="127.0.0.1", port=port, world_size=t.ranks, is_master=True, timeout=MINUTE,
                              use_libuv=False, master_listen_fd=listener.detach())
            t.kept.set("broadcast_from/0/0", pickle.dumps(group.id))

        port = listener.getsockname()[1]
        got = t.init(store=port, publish=publish, packed=packed)
        assert (got[0], got[2]) == (200, None), got
        tensors = {n: (d, s, hashlib.shake_128(f"{step} {n}".encode()).digest(size))
                   for n, d, s, size in told["tensors"]}
        assert t.post("start_weight_update")[0] == 200
        got = t.update(tensors)
        assert (got[0], got[2]) == (200, None), got
        got = t.post("finish_weight_update", {"weight_version": f"step-{step}"})
        assert got[0] == 200, got
        print(json.dumps({n: hashlib.sha256(d).hexdigest() for n, (_, _, d) in tensors.items()}), flush=True)
    t.close()


# ---- the other direction

class Worker:
    def __init__(self, rank, info):
        store = TCPStore(host_name=info["master_address"], port=info["master_port"], world_size=info["world_size"],
                         is_master=False, timeout=MINUTE, use_libuv=False)
        self.id = pickle.loads(store.get("broadcast_from/0/0"))
        assert type(self.id) is ncclUniqueId, type(self.id)
        self.group = Group(info["world_size"], gpu=rank, rank=info["rank_offset"] + rank, beside=self)
        self.group.join()

    def receive(self, size):
        g, out = self.group, ctypes.create_string_buffer(size + 1)
        g.use()
        at = g.memory(bytes(size))
        g.check(g.nccl.ncclBroadcast(at, at, size, 1, 0, g.comm, g.stream), "ncclBroadcast")
        g.wait("ncclBroadcast")
        g.cuda.cudaMemcpy.argtypes = None
        g.check(g.cuda.cudaMemcpy(out, at, ctypes.c_size_t(size), 2), "cudaMemcpy")
        return out.raw[:size]


def chunks(info, sizes):
    """Of how many bytes the broadcasts are."""
    if not info.get("packed"):
        return sizes
    out, held = [], 0
    for i, n in enumerate(sizes):
        held += n
        if held > info["packed_buffer_size_bytes"] or i + 1 == len(sizes):
            out.append(held)
            held = 0
    return out


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"world_size": 2} if self.path.startswith("/get_world_size") else {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(body) if body else {}
        if "init_info" in body:
            self.server.info = body["init_info"]
            self.server.workers = self.each(lambda rank: Worker(rank, self.server.info))
        if "update_info" in body:
            u = body["update_info"]
            sizes = []
            for dtype, shape in zip(u["dtype_names"], u["shapes"]):
                n = ITEM[dtype]
                for d in shape:
                    n *= d
                sizes.append(n)
            parts = chunks(self.server.info, sizes)
            all_of = self.each(lambda rank: b"".join(self.server.workers[rank].receive(n) for n in parts))
            print(json.dumps([hashlib.sha256(d).hexdigest() for d in all_of]), flush=True)
        self.answer({})

    def each(self, work):
        """As two processes would, at the same time."""
        out, threads = [None, None], []
        for rank in range(2):
            threads.append(threading.Thread(target=lambda r=rank: out.__setitem__(r, work(r))))
            threads[-1].start()
        for t in threads:
            t.join()
        assert None not in out, out
        return out

    def answer(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def workers():
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    print("http://127.0.0.1:%d" % s.server_address[1], flush=True)
    s.serve_forever()


if __name__ == "__main__":
    {"trainer": trainer, "workers": workers}[sys.argv[1]]()
