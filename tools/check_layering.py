#!/usr/bin/env python3
"""Fails if a folder includes a header that its layer may not see."""
import pathlib, re, sys

MAY_USE = {  # folder: folders whose public headers it may include
    "runtime": set(),
    "transport": {"runtime"},
    "http": {"runtime"},
    "actors": {"runtime", "transport", "http"},
    "tools": {"runtime", "transport", "http", "actors"},
    "tests": {"runtime", "transport", "http", "actors"},
}
# third-party headers and the only files that may include them
OWNED = {"ev.h": {"runtime/loop_ev.c"}, "nng/": {"transport/", "tests/bench/bench_link.c"}, "llhttp.h": {"http/"},
         "cuda_runtime_api.h": {"transport/device_abi.c"}, "nccl.h": {"transport/device_abi.c"},
         "xxhash.h": {"transport/digest.c"}, "curl/": {"tools/cli_http.c"},
         "cjson/": {"runtime/json_tree.c", "tests/fuzz/fuzz_json.c"}, "cmocka.h": {"tests/support/"}}
INC = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

def main(root):
    root, bad = pathlib.Path(root), []
    public = {}
    for folder in MAY_USE:
        for h in (root / folder / "include").rglob("*.*"):
            public[str(h.relative_to(root / folder / "include"))] = folder
    for folder, allowed in MAY_USE.items():
        for src in sorted((root / folder).rglob("*.[ch]")):
            rel = str(src.relative_to(root))
            for _, name in INC.findall(src.read_text()):
                owner = public.get(name)
                if owner and owner != folder and owner not in allowed:
                    bad.append(f"{rel}: {folder}/ may not include {name} ({owner}/)")
                for pre, where in OWNED.items():
                    if name.startswith(pre) and not any(rel.startswith(w) for w in where):
                        bad.append(f"{rel}: only {sorted(where)} may include <{name}>")
    print("\n".join(bad) or "layering ok")
    return bool(bad)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
