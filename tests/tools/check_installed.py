#!/usr/bin/env python3
"""Installs a build to a folder of its own, then builds and runs consumers against it: C and
C++ by find_package(weft) and by pkg-config; and every public header alone, as C and as C++."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def run(*argv, **kw):
    p = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, **kw)
    if p.returncode != 0:
        sys.exit(f"{' '.join(map(str, argv))}\nended with {p.returncode}:\n{p.stdout}")
    return p.stdout


def headers_alone(a, prefix, flags):
    headers = sorted((prefix / "include" / "weft").glob("*.h"))
    if len(headers) < 10:
        sys.exit(f"only {len(headers)} headers were installed")
    for h in headers:
        text = f'#include "weft/{h.name}"\nint main(void) {{ return 0; }}\n'
        for compiler, language, std in ((a.cc, "c", "c17"), (a.cxx, "c++", "c++17")):
            if not compiler:
                continue
            p = subprocess.run([compiler, "-x", language, f"-std={std}", "-Wall", "-Wextra", "-Werror",
                                "-fsyntax-only", f"-I{prefix}/include", *flags, "-"],
                               input=text, capture_output=True, text=True)
            if p.returncode != 0:
                sys.exit(f"weft/{h.name} does not compile alone as {language}:\n{p.stderr}")
    return len(headers)


def readme_programs(a, work, prefix, cflags):
    """The README's C programs are whole: each is built by pkg-config and does what is said."""
    text = a.readme.read_text()
    programs = [b for b in re.findall(r"^```c\n(.*?)^```", text, re.M | re.S) if "int main(" in b]
    if len(programs) != 2:
        sys.exit(f"README.md holds {len(programs)} C programs, 2 are known here")
    for i, source in enumerate(programs):
        if len(source.splitlines()) >= 60:
            sys.exit(f"README.md: program {i} has {len(source.splitlines())} lines, 59 at most")
        (work / f"readme{i}.c").write_text(source)
        run(a.cc, "-std=c17", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror",
            work / f"readme{i}.c", "-o", work / f"readme{i}", *cflags)

    checkpoint = work / "readme.safetensors"
    run(sys.executable, a.readme.parent / "tools" / "make_checkpoint.py", checkpoint, "--seed", "1")
    with subprocess.Popen([work / "readme0", "127.0.0.1:0"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True) as p:
        try:
            address = p.stdout.readline().removeprefix("listening on ").strip()
            run(prefix / "bin" / "weft", "push", "--server", f"http://{address}", "--version", "v1",
                checkpoint)
            line = p.stdout.readline()
        finally:
            p.terminate()
    if not re.fullmatch(r"version v1: \S+ = \S+ \S+ \.\.\.\n", line) or p.returncode != 0:
        sys.exit(f"README.md: the first program ended with {p.returncode} and said {line!r}")

    with subprocess.Popen([work / "readme1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as p:
        line = p.stdout.readline()
        p.stdin.close()
    if not re.fullmatch(r"version (default|labelled), sequence [01]\n", line) or p.returncode != 0:
        sys.exit(f"README.md: the second program ended with {p.returncode} and said {line!r}")
    print("the README's programs do what they say")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", type=pathlib.Path, required=True)
    p.add_argument("--consumer", type=pathlib.Path, required=True)
    p.add_argument("--readme", type=pathlib.Path, required=True)
    p.add_argument("--cc", required=True)
    p.add_argument("--cxx", default="")
    p.add_argument("--sanitize", default="")
    a = p.parse_args()
    if not a.cxx or a.cxx.endswith("NOTFOUND"):
        a.cxx = shutil.which("g++") or shutil.which("clang++") or ""
    # the sanitizers' run time must be of the compiler that built the libraries
    if a.sanitize and "clang" in a.cc:
        a.cxx = shutil.which("clang++") or ""
    if not a.cxx:
        print("SKIP: the C++ consumer: no C++ compiler")
    flags = [f"-fsanitize={a.sanitize}"] if a.sanitize else []

    work = pathlib.Path(tempfile.mkdtemp(prefix="weft-installed-"))
    try:
        prefix = work / "prefix"
        run("cmake", "--install", a.build, "--prefix", prefix)
        for tool in ("weft", "weftd"):
            if not os.access(prefix / "bin" / tool, os.X_OK):
                sys.exit(f"bin/{tool} was not installed")
        print(f"{headers_alone(a, prefix, flags)} headers compile alone")

        build = work / "build"
        options = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={a.cc}"]
        options += [f"-DCMAKE_CXX_COMPILER={a.cxx}"] if a.cxx else ["-DWITH_CXX=OFF"]
        if flags:
            options += [f"-DCMAKE_C_FLAGS={flags[0]}", f"-DCMAKE_CXX_FLAGS={flags[0]}"]
        run("cmake", "-S", a.consumer, "-B", build, "-G", "Ninja", *options)
        run("cmake", "--build", build)
        for name in ["consumer_c"] + (["consumer_cxx"] if a.cxx else []):
            print(f"find_package: {run(build / name).strip()}")

        found = [str(x) for x in prefix.rglob("weft.pc")]
        if len(found) != 1:
            sys.exit(f"weft.pc: {found}")
        env = {**os.environ, "PKG_CONFIG_PATH": os.path.dirname(found[0])}
        words = run("pkg-config", "--cflags", "--libs", "weft", env=env).split()
        for compiler, source, std in ((a.cc, "main.c", "c17"), (a.cxx, "main.cpp", "c++17")):
            if compiler:
                exe = work / f"by-pkg-config-{std}"
                run(compiler, f"-std={std}", *flags, a.consumer / source, "-o", exe, *words)
                print(f"pkg-config: {run(exe).strip()}")
        readme_programs(a, work, prefix, [*flags, *words])
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
