"""The examples do what they say: the trainer pushes and shows stale rollouts, the plain
subscriber sees each commit once."""
import re
import subprocess
import sys

from weft_scenario import BIN, ROOT, SLOW, Background, Daemon, check, main, python_package, same, skip, weft

# Debian's python3-requests belongs to /usr/bin/python3; take whichever interpreter has it.


def python_with(module):
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            if subprocess.run([python, "-c", f"import {module}"], stdin=subprocess.DEVNULL,
                              capture_output=True).returncode == 0:
                return python
        except OSError:
            pass
    skip(f"Python's {module} is not installed")


def test_trainer():
    python = python_with("requests")
    with Daemon() as w:
        p = subprocess.run([python, str(ROOT / "tools/examples/trainer.py"), w.url, "4"], text=True,
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * SLOW)
        same(p.returncode, 0, f"trainer.py: {p.stdout}{p.stderr}")
        lines = p.stdout.splitlines()
        same([x.split(":")[0] for x in lines], [f"step-{i}" for i in range(1, 5)], "steps")
        check(all("stale" in x for x in lines), f"stale rollouts are counted: {p.stdout}")
        check(any(" 0 stale" not in x for x in lines), f"some rollouts were stale: {p.stdout}")
        same((w.version(), w.status()["session"]), ("step-4", None), "where it ended")


def test_subscriber():
    env = python_package("pynng")
    with Daemon() as w:
        p = subprocess.Popen([sys.executable, str(ROOT / "tools/examples/subscriber.py"), w.url, "50"], text=True, env=env,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        first = Background(p.stdout.readline).result(20)
        check(first.startswith("status 0 default"), f"it begins with the truth: {first}")
        for i in range(50):
            w.ok("/update_weight_version", {"new_version": f"v{i}"})
        out = Background(p.stdout.read).result(30)
        same(p.wait(10), 0, "subscriber.py")
        p.stdout.close()
        same([int(x.split()[1]) for x in out.splitlines()], list(range(1, 51)), "each once, in order")


def run(python, *args):
    args = [str(ROOT / "tools/examples" / a) if a.endswith(".py") else a for a in args]
    return subprocess.run([python, *args], text=True, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=120 * SLOW)


def test_gpu_trainers_say_what_they_need():
    """They need vLLM and a GPU to do more; where both are, tests/gpu is the place."""
    for name in ("trainer_nccl.py", "trainer_ipc.py"):
        p = run(sys.executable, name, "--help")
        same((p.returncode, p.stderr), (0, ""), f"{name} --help")
        check("--server URL" in p.stdout and "weftd --listen" in p.stdout, p.stdout)
        same(run(sys.executable, name, "--nonsense").returncode, 2, f"{name} --nonsense")
        p = run(sys.executable, "-S", name)  # no packages
        same((p.returncode, p.stdout), (1, ""), f"{name} without packages: {p.stderr}")
        check(p.stderr.startswith(f"{name} needs ") and len(p.stderr.splitlines()) == 1, p.stderr)


def test_the_plain_ones_say_how_they_are_called():
    """Also where the package that they need is not installed (-S: no packages)."""
    for name, package in (("trainer.py", "requests"), ("subscriber.py", "pynng")):
        p = run(sys.executable, "-S", name, "--help")
        same((p.returncode, p.stderr), (0, ""), f"{name} --help")
        check("usage:" in p.stdout and f"tools/examples/{name} http://" in p.stdout, p.stdout)
        for wrong in (["--nonsense"], ["http://127.0.0.1:1", "many"], ["http://127.0.0.1:1", "1", "2"]):
            p = run(sys.executable, "-S", name, *wrong)
            same((p.returncode, p.stdout, len(p.stderr.splitlines())), (2, "", 1), f"{name} {wrong}: {p.stderr}")
        p = run(sys.executable, "-S", name)
        same((p.returncode, p.stdout), (1, ""), f"{name} without packages: {p.stderr}")
        check(p.stderr.startswith(f"{name} needs {package}") and len(p.stderr.splitlines()) == 1, p.stderr)


def test_the_page_about_moving_names_what_there_is():
    page = (ROOT / "tools/examples/README.md").read_text()
    for name in re.findall(r"`(\w+\.py)`", page):
        check((ROOT / "tools/examples" / name).exists(), f"{name} is not there")
    for readme, anchor in re.findall(r"\((\.\./\.\./README\.md)#([\w-]+)\)", page):
        heads = re.findall(r"^#+ (.*)$", (ROOT / "README.md").read_text(), re.M)
        check(anchor in [re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in heads], f"#{anchor}")
    options = weft("push", "--help").stdout + subprocess.run([str(BIN / "weftd"), "--help"], capture_output=True,
                                                             text=True).stdout
    theirs = {"--weight-transfer-config", "--tensor-parallel-size", "--pipeline-parallel-size", "--server"}
    for o in set(re.findall(r"(--[a-z][a-z-]+)", page)) - theirs:
        check(o in options, f"{o} is no option of weftd or weft push")


if __name__ == "__main__":
    main(globals())
