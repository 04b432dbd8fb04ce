#!/usr/bin/env python3
"""Writes safetensors files for tools/demo and benchmarks; Python's standard library only.

    make_checkpoint.py OUT [--seed N] [--mib M]      a small transformer's worth of tensors
    make_checkpoint.py OUT --change FILE             FILE's first tensors, other bytes in them
"""
import argparse
import hashlib
import json
import struct

PIECE = 1 << 20


def header(tensors):
    """tensors: (name, dtype, shape, bytes) in file order."""
    head, at = {}, 0
    for name, dtype, shape, size in tensors:
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def noise(seed, name, size):
    """Pieces of bytes that depend on seed and name; quick rather than random."""
    block = hashlib.shake_128(f"{seed} {name}".encode()).digest(min(size, 1 << 16))
    while size > 0:
        piece = (block * (PIECE // max(len(block), 1) + 1))[:min(size, PIECE)]
        yield piece
        size -= len(piece)


def generate(out, seed, mib):
    width, tensors = 1024, []
    layers = max(1, mib // 8)  # 4 matrices of 2 MiB each
    for i in range(layers):
        for part in ("attn.qkv", "attn.out", "mlp.up", "mlp.down"):
            tensors.append((f"layers.{i}.{part}.weight", "BF16", [width, width], width * width * 2))
        tensors.append((f"layers.{i}.norm.weight", "F32", [width], width * 4))
    tensors.append(("final_norm.weight", "F32", [width], width * 4))
    out.write(header(tensors))
    for name, _, _, size in tensors:
        for piece in noise(seed, name, size):
            out.write(piece)


def change(out, path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(n))
        head.pop("__metadata__", None)
        rows = sorted(head.items(), key=lambda kv: kv[1]["data_offsets"])
        rows = [r for r in rows if r[1]["data_offsets"][1] > r[1]["data_offsets"][0]][:4]
        if not rows:
            raise SystemExit(f"{path}: holds no tensor with bytes")
        out.write(header([(k, t["dtype"], t["shape"], t["data_offsets"][1] - t["data_offsets"][0])
                          for k, t in rows]))
        flip = bytes(b ^ 1 for b in range(256))
        for _, t in rows:
            begin, end = t["data_offsets"]
            f.seek(8 + n + begin)
            while begin < end:
                piece = f.read(min(PIECE, end - begin))
                if not piece:
                    raise SystemExit(f"{path}: is shorter than its header says")
                out.write(piece.translate(flip))
                begin += len(piece)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--mib", type=int, default=64)
    p.add_argument("--change", metavar="FILE")
    a = p.parse_args()
    with open(a.out, "wb") as out:
        if a.change:
            change(out, a.change)
        else:
            generate(out, a.seed, a.mib)


if __name__ == "__main__":
    main()
