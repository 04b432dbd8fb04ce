#!/usr/bin/env python3
"""weft's TCPStore against torch's own, in both directions.  Needs torch >= 2.5 (CPU is
enough) in this Python, in that of WEFT_TORCH_PYTHON, or as tools/torch-venv leaves it; prints
"SKIP: ..." and succeeds without it.  usage: interop_torch.py STORE_PEER"""
import ctypes, datetime, glob, os, pickle, subprocess, sys, threading, types

try:
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore, PrefixStore
except Exception as e:  # a torch that cannot be loaded is as good as none
    tried = os.environ.get("WEFT_TORCH_TRIED", "").split(":")
    cache = os.environ.get("WEFT_CACHE", os.path.expanduser("~/.cache/weft-tests"))
    others = [os.environ.get("WEFT_TORCH_PYTHON"), *sorted(glob.glob(f"{cache}/torch-*/torch-python"))]
    for other in others:
        if other and other not in tried and os.access(other, os.X_OK):
            os.environ["WEFT_TORCH_TRIED"] = ":".join([*tried, other])
            os.execv(other, [other, *sys.argv])
    print(f"SKIP: torch is not importable, tools/torch-venv fetches one: {e}")
    sys.exit(0)

PEER = sys.argv[1]
SHORT = datetime.timedelta(milliseconds=200)
LONG = datetime.timedelta(seconds=20)
MODULE = "vllm.distributed.device_communicators.pynccl_wrapper"


def vllm_class():
    """ncclUniqueId under the import path that vLLM gives it."""
    name = ""
    for part in MODULE.split("."):
        name = f"{name}.{part}" if name else part
        sys.modules.setdefault(name, types.ModuleType(name))
    cls = type("ncclUniqueId", (ctypes.Structure,),
               {"_fields_": [("internal", ctypes.c_byte * 128)], "__module__": MODULE})
    sys.modules[MODULE].ncclUniqueId = cls
    return cls


UniqueId = vllm_class()


def check(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


def raises(fn, *args):
    try:
        fn(*args)
    except Exception:
        return True
    return False


def torch_serves(libuv):
    """weft joins torch's store, as a worker joins a trainer's."""
    store = TCPStore("127.0.0.1", 0, world_size=2, is_master=True, timeout=LONG,
                     wait_for_workers=False, use_libuv=libuv)
    raw = bytes(range(128))
    peer = subprocess.Popen([PEER, "join", "localhost", str(store.port)],
                            stdout=subprocess.PIPE, text=True)
    store.set("to_be_removed", "x")
    store.set("broadcast_from/0/0", pickle.dumps(UniqueId.from_buffer_copy(raw)))
    check(store.get("from_weft"), b"hello", "what weft set")
    out, _ = peer.communicate(timeout=60)
    check(peer.returncode, 0, "weft's exit status")
    check(out.splitlines(), [f"step 0 {1}", f"id 1 {raw.hex()}", "step 2 0", "step 3 5",
                             "step 4 0", "step 5 1", "done"], "what weft saw")
    check(store.get("n"), b"5", "what weft added to")
    check(store.check(["to_be_removed"]), False, "what weft removed")


def torch_waits_for_weft():
    """torch's constructor returns once weft has joined."""
    result = {}

    def make():
        try:
            result["store"] = TCPStore("127.0.0.1", result["port"], 2, True, LONG,
                                       use_libuv=False)
        except Exception as e:
            result["error"] = e

    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        result["port"] = s.getsockname()[1]
    # weft first: the listener comes late
    peer = subprocess.Popen([PEER, "join", "127.0.0.1", str(result["port"])],
                            stdout=subprocess.PIPE, text=True)
    t = threading.Thread(target=make)
    t.start()
    t.join(60)
    if "store" not in result:
        raise AssertionError(f"torch's store: {result.get('error', 'hangs')}")
    store = result["store"]
    store.set("to_be_removed", "x")
    store.set("broadcast_from/0/0", bytes(128))
    out, _ = peer.communicate(timeout=60)
    check((peer.returncode, out.splitlines()[0]), (0, "step 0 2"), "weft's join")


def use(a, b):
    """What torch's client can do, on two connections."""
    a.set("k", "v")
    check(b.get("k"), b"v", "get")
    check(a.add("n", 3), 3, "add")
    check(b.add("n", -5), -2, "add")
    check(b.get("n"), b"-2", "a number as text")
    check(a.check(["k", "n"]), True, "check")
    check(a.check(["k", "x"]), False, "check")
    check(a.compare_set("c", "", "1"), b"1", "compare_set, absent")
    check(a.compare_set("c", "1", "2"), b"2", "compare_set, equal")
    check(a.compare_set("c", "1", "3"), b"2", "compare_set, different")
    a.append("c", "34")
    check(b.get("c"), b"234", "append")
    a.multi_set(["m1", "m2"], ["1", "2"])
    check(b.multi_get(["m2", "m1", "k"]), [b"2", b"1", b"v"], "multi_get")
    check(b.delete_key("m1"), True, "delete_key")
    check(b.delete_key("m1"), False, "delete_key")
    before = a.num_keys()
    a.set("one more", "")
    check(a.num_keys(), before + 1, "num_keys")
    check(b.get("one more"), b"", "an empty value")
    check(raises(a.wait, ["never"], SHORT), True, "a wait that ends in vain")
    check(a.get("k"), b"v", "the connection after that")
    t = threading.Timer(0.2, lambda: b.set("later", "now"))
    t.start()
    a.wait(["later", "k"], LONG)
    check(a.get("later"), b"now", "what was waited for")
    t.join()
    big = bytes(range(256)) * 4096
    a.set("big", big)
    check(b.get("big"), big, "a value of 1 MiB")
    check(PrefixStore("p", a).num_keys(), before + 3, "a prefix store")
    PrefixStore("p/", PrefixStore("q", a)).set("x", "y")
    check(b.get("q/p//x"), b"y", "nested prefixes")
    if hasattr(a, "queue_push"):
        a.queue_push("q", "1")
        a.queue_push("q", "2")
        check(a.queue_len("q"), 2, "queue_len")  # of the one that pushed: torch waits for no answer to a push
        check([b.queue_pop("q"), b.queue_pop("q")], [b"1", b"2"], "queue_pop")
    if hasattr(a, "list_keys"):
        check("k" in a.list_keys(), True, "list_keys")
    if hasattr(a, "barrier"):
        check(raises(a.barrier, "bar", 2, SHORT), True, "a barrier that nobody else comes to")
        t = threading.Thread(target=b.barrier, args=("bar2", 2, LONG))
        t.start()
        a.barrier("bar2", 2, LONG)
        t.join(60)
        check((t.is_alive(), a.get("bar2")), (False, b"2"), "a barrier")


def gloo(port):
    """A process group through weft's store."""
    code = ("import sys, datetime, torch, torch.distributed as d\n"
            "r = int(sys.argv[1])\n"
            "s = d.TCPStore('127.0.0.1', int(sys.argv[2]), 2, False,"
            " datetime.timedelta(seconds=20))\n"
            "d.init_process_group('gloo', store=s, rank=r, world_size=2)\n"
            "t = torch.full((4,), float(r + 1)); d.all_reduce(t); d.barrier()\n"
            "assert t.tolist() == [3.0] * 4, t\n"
            "d.destroy_process_group()\n")
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(r), str(port)])
             for r in range(2)]
    check([p.wait(120) for p in ranks], [0, 0], "gloo's ranks")


def weft_serves():
    """torch's clients at weft's store, as at TRL's worker rank 0."""
    peer = subprocess.Popen([PEER, "serve", "2"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
    try:
        port = int(peer.stdout.readline().split()[1])
        a, b = (TCPStore("127.0.0.1", port, 2, False, LONG) for _ in range(2))
        uid = pickle.loads(b.get("broadcast_from/0/0"))
        check(type(uid), UniqueId, "the class of weft's id")
        check(bytes(uid), bytes(255 - i for i in range(128)), "weft's id")
        use(a, b)
        if dist.is_gloo_available():
            gloo(port)
        del a, b
    finally:
        peer.stdin.close()
        peer.wait(60)
    check(peer.returncode, 0, "weft's exit status")


def main():
    print(f"torch {torch.__version__}")
    for libuv in (False, True):
        torch_serves(libuv)
        print(f"ok torch serves, libuv={libuv}")
    torch_waits_for_weft()
    print("ok torch waits for weft to join")
    weft_serves()
    print("ok weft serves")


if __name__ == "__main__":
    main()
