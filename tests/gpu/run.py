#!/usr/bin/env python3
"""What can be seen on a machine with one GPU, as a table in markdown.

    tests/gpu/run.py [--build DIR] [--mib N]

Builds weft there with cmake (build/gpu, or takes DIR as it is).  libcudart and libnccl: WEFT_CUDART and
WEFT_NCCL, else what pip's nvidia-cuda-runtime-* and nvidia-nccl-* have put beside this Python, else the
system's.  Exit code 77 where there is no GPU, 1 when a check fails.  Needs nothing but Python.
"""
import argparse
import ctypes
import glob
import hashlib
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CUDART = ("WEFT_CUDART", "cuda_runtime/lib/libcudart.so.*", "cu1?/lib/libcudart.so.*")
SHARED_SINCE = (2, 30)  # NCCL_MULTI_RANK_GPU_ENABLE


def library(variable, *patterns):
    if os.environ.get(variable):
        return os.environ[variable]
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}:
        for pattern in patterns:
            for path in sorted(glob.glob(f"{site}/nvidia/{pattern}"), reverse=True):
                return path
    return None


class Machine:
    def __init__(self, build):
        self.build = build
        self.where = []
        for option, variable, *patterns in (
                ("--cudart", *CUDART),
                ("--nccl", "WEFT_NCCL", "nccl/lib/libnccl.so.2")):
            path = library(variable, *patterns)
            self.where += [option, path] if path else []
        self.rows, self.failed = [], False

    def program(self, name):
        return str(next(p for p in sorted(self.build.rglob(name)) if p.is_file() and os.access(p, os.X_OK)))

    def check(self, *args):
        """The object that a check prints, and its exit code."""
        try:
            p = subprocess.run([self.program("weft_gpu_check"), *self.where, *map(str, args)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            return {"ok": False, "why": "did not come back within 300 s"}, 124
        lines = [json.loads(x) for x in p.stdout.splitlines() if x.startswith("{")]
        bad = [x for x in lines if not x["ok"]]  # of two processes the one that knows why says so first
        return (bad or lines or [{"ok": False, "why": f"ended with {p.returncode}"}])[0], p.returncode

    def row(self, what, result, extra=""):
        self.rows.append(f"| {what} | {result} | {extra} |")

    def wrong(self, what, why):
        self.failed = True
        self.row(what, "**failed**", why)

    # ---- the checks

    def ipc(self, mib):
        r, _ = self.check("ipc", mib, 64)
        if not r["ok"]:
            return self.wrong("IPC between two processes", r["why"])
        self.row("IPC between two processes: install", f"{r['install_gb_s']} GB/s",
                 f"{r['bytes'] >> 20} MiB in {r['tensors']} tensors; {r['digested_gb_s']} GB/s until the digests are there "
                 "too, by which every byte is compared")
        self.row("CUDA's calls alone: open, copy, close", f"{r['bare_ipc_gb_s']} GB/s",
                 f"install is {r['install_gb_s'] / r['bare_ipc_gb_s']:.2f} × of it")
        self.row("cudaMemcpy on the device, of the same", f"{r['device_copy_gb_s']} GB/s",
                 f"install is {r['install_gb_s'] / r['device_copy_gb_s']:.2f} × of it")
        self.row("digests of the same, alone", f"{r['digest_gb_s']} GB/s",
                 f"copied back and hashed by {r['hash_threads']} threads")

    def alone(self):
        r, _ = self.check("nccl-alone", 16, 64)
        if not r["ok"]:
            return self.wrong("NCCL, world size 1", r["why"])
        self.row("NCCL, world size 1: join, warm-up, broadcasts", f"joined in {r['join_ms']} ms", "one by one and packed")

    def pair(self, mib):
        r, _ = self.check("nccl-pair", mib, 64)
        if not r["ok"]:
            if "Duplicate GPU" in r["why"] or "nvalid" in r["why"]:
                return self.row("NCCL, two ranks on the GPU", "refused by NCCL", r["why"][:160])
            return self.wrong("NCCL, two ranks on the GPU", r["why"])
        for key, what in (("receive", "one by one"), ("receive_packed", "packed")):
            self.row(f"NCCL, two ranks on the GPU, {what}", f"{r[key + '_gb_s']} GB/s",
                     f"{r['bare_us'] / r[key + '_us']:.2f} × of a bare ncclBroadcast loop")
        r, _ = self.check("nccl-pair", 0, 400)
        if r["ok"]:
            self.row("NCCL, 400 tensors of 16 bytes", f"{r['receive_us'] / 1000:.1f} ms",
                     f"{(r['receive_us'] - r['bare_us']) / 1000:.1f} ms more than the bare loop")

    def abort(self, name, what):
        r, _ = self.check(name, 1, 4)
        if not r["ok"]:
            return self.wrong(what, r["why"])
        self.row(what, f"free after {r['free_after_ms']} ms", "from the cancel to the call's return, ncclCommAbort included")

    def push(self, backend, what, *args, inplace=False):
        """The programs themselves: weftd with one worker, weft push, what the worker holds.  In place a
        second update goes over the first."""
        with tempfile.TemporaryDirectory() as d:
            path, want = checkpoint(pathlib.Path(d) / "model.safetensors")
            env = {k: v for k, v in os.environ.items() if k != "WEFT_SERVER"}
            if backend == "nccl":
                env["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
            mine = [x for i in range(0, len(self.where), 2) for x in self.where[i:i + 2]
                    if backend == "nccl" or self.where[i] == "--cudart"]
            server = subprocess.Popen(
                [self.program("weftd"), "--listen", "127.0.0.1:0", "--workers", "1", "--dev", "--run-dir", d + "/run",
                 "--backend", backend, *mine, *(["--allow-ipc-pickle"] if backend == "ipc" else []),
                 "--staging", "inplace" if inplace else "shadow"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
            try:
                line = server.stdout.readline()
                if not line:
                    return self.wrong(what, "weftd did not start: " + server.stderr.read()[-300:])
                url = "http://" + json.loads(line)["http"]
                weft = [self.program("weft")]
                first, _ = checkpoint(pathlib.Path(d) / "first.safetensors", seed="first ")
                for version, path in [("first", first), ("one", path)] if inplace else [("one", path)]:
                    p = subprocess.run([*weft, "push", "--server", url, "--source", backend, *mine, "--device", "0",
                                        "--version", version, "--json", "--timeout", "60", *args, path],
                                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, env=env)
                    if p.returncode != 0:
                        return self.wrong(what, (p.stderr.strip().splitlines() or ["?"])[0][:300])
                sums = subprocess.run([*weft, "checksum", "--server", url, "--json"], stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=100, env=env)
                got = {k.split(":", 5)[5]: v for k, v in json.loads(sums.stdout)["checksums"].items()}
                if got != want:
                    return self.wrong(what, "the worker holds other bytes than were pushed")
                self.row(what, f"update {json.loads(p.stdout)['update_us'] / 1000:.1f} ms",
                         f"{sum(1 for _ in want)} tensors, SHA-256 of each compared")
            finally:
                server.send_signal(signal.SIGTERM)
                server.communicate(timeout=60)


def checkpoint(path, tensors=64, each=256 << 10, seed=""):
    """A safetensors file, and the SHA-256 of every tensor."""
    data = {f"layers.{i}.weight": hashlib.shake_128(f"{seed}{i}".encode()).digest(each) for i in range(tensors)}
    head = json.dumps({n: {"dtype": "BF16", "shape": [each // 2], "data_offsets": [i * each, (i + 1) * each]}
                       for i, n in enumerate(data)}).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(data.values()))
    return str(path), {n: hashlib.sha256(d).hexdigest() for n, d in data.items()}


def no_gpu():
    """Why there is nothing to be checked here, or None; so that nobody builds for that answer."""
    path, why = library(*CUDART), None
    for name in [path] if path else ["libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"]:
        try:
            count, lib = ctypes.c_int(0), ctypes.CDLL(name)
            code = lib.cudaGetDeviceCount(ctypes.byref(count))
            return None if code == 0 and count.value > 0 else f"no GPU: cudaGetDeviceCount of {name} gives {code}"
        except (OSError, AttributeError) as e:
            why = why or f"libcudart cannot be loaded: {e}"
    return why


def build():
    where = ROOT / "build" / "gpu"
    for argv in (["cmake", "-S", str(ROOT), "-B", str(where), "-DCMAKE_BUILD_TYPE=RelWithDebInfo"],
                 ["cmake", "--build", str(where), "--target", "weft", "weftd", "weft_gpu_check", "-j", str(os.cpu_count())]):
        p = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if p.returncode != 0:
            sys.exit(p.stdout[-3000:] + f"\ntests/gpu/run.py: {' '.join(argv[:2])} failed")
    return where


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, help="where weft is built already")
    p.add_argument("--mib", type=int, default=1024, help="how much a bandwidth is measured with")
    a = p.parse_args()
    why = None if a.build else no_gpu()
    if why:
        print(f"tests/gpu/run.py: nothing to be checked here: {why}")
        sys.exit(77)
    m = Machine((a.build or build()).resolve())
    info, code = m.check("info")
    if code == 77 or (not info["ok"] and "cannot be loaded" in info["why"]):
        print(f"tests/gpu/run.py: nothing to be checked here: {info['why']}")
        sys.exit(77)
    if not info["ok"]:
        sys.exit(f"tests/gpu/run.py: {info['why']}")
    version = tuple(map(int, re.match(r"(\d+)\.(\d+)", info["nccl"]).groups()))
    m.ipc(a.mib)
    m.push("ipc", "`weft push --source ipc` to one worker")
    m.push("ipc", "the same, packed", "--packed", "--packed-buffer-bytes", str(4 << 20))
    m.push("ipc", "the same, one by one, over live tensors", inplace=True)
    m.alone()
    m.abort("abort-join", "abort of a join that nobody else comes to")
    if version >= SHARED_SINCE:
        m.pair(a.mib)
        m.abort("abort-broadcast", "abort of a broadcast that never comes")
        m.push("nccl", "`weft push --source nccl` to one worker on the same GPU")
        m.push("nccl", "the same, over live tensors", inplace=True)
    else:
        m.row("two ranks on the GPU", "not run", f"NCCL {info['nccl']} lets no two ranks share one; 2.30 may")
    print(f"{info['gpu']}, CUDA {info['cuda']}, NCCL {info['nccl']}\n")
    print("| what | result | remarks |\n|---|---|---|")
    print("\n".join(m.rows))
    sys.exit(1 if m.failed else 0)


if __name__ == "__main__":
    main()
