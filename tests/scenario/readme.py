"""Every curl line of the README is run, against a fresh daemon on a free port.

The README's ```sh blocks speak of http://127.0.0.1:8000; blocks with curl are run in the
order they stand in, each with `set -e`, its address replaced.  A file called
model.safetensors is there, at the path /models/model.safetensors of the README replaced too.
"""
import contextlib
import re
import subprocess

from weft_scenario import (BIN, ROOT, SLOW, Daemon, check, folder, holds, main, model, same, until,
                           write_safetensors)

ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):8000")


def blocks():
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"^```(?:sh|bash|shell)\n(.*?)^```", text, re.M | re.S)
    return [b for b in found if re.search(r"\bcurl\b", b)]


def lines_with_curl(text):
    return len(re.findall(r"^\s*(?:\$ )?(?:[a-z_]+=\$\()?curl\b", text, re.M))


def test_every_curl_line():
    everything = (ROOT / "README.md").read_text()
    found = blocks()
    check(found, "README.md must show the HTTP lifecycle with curl")
    same(sum(map(lines_with_curl, found)), lines_with_curl(everything),
         "every curl line of the README stands in a ```sh block")
    with folder() as d, Daemon() as w:
        path = write_safetensors(d / "model.safetensors", model("readme"))
        for block in found:
            script = ADDRESS.sub(w.address, block).replace("/models/model.safetensors", path)
            script = re.sub(r"^\$ ", "", script, flags=re.M)
            script = re.sub(r"\bcurl\b(?! -)", "curl -sS --fail-with-body", script)
            script = re.sub(r"\bcurl -(?!sS --fail)", "curl -sS --fail-with-body -", script)
            p = subprocess.run(["bash", "-euo", "pipefail", "-c", f'PATH="{BIN}:$PATH"\n' + script],
                               cwd=d, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                               timeout=60 * SLOW)
            same(p.returncode, 0, f"README block:\n{script}\n{p.stdout}\n{p.stderr}\n{w.log()[-2000:]}")
            print(p.stdout.strip())
        check(w.status()["sequence"] > 0, "the README's lines pushed something")


def test_the_fleet():
    """The lines under Fleet, on free ports and in a folder of the test."""
    text = (ROOT / "README.md").read_text().split("\n## Fleet\n")[1].split("```")[1]
    lines = [x.split() for x in text.strip().splitlines()]
    same([x[0] for x in lines], ["mkdir", "weftd", "weftd", "weftd"], "the lines")
    with folder() as d, contextlib.ExitStack() as stack:
        (d / "fleet").mkdir(0o700)
        daemons = []
        for line in lines[1:]:
            args = [x.replace("/srv/fleet", str(d / "fleet")) for x in line[1:]]
            check(args[0] == "--listen", "each says where it listens")
            daemons.append(stack.enter_context(Daemon(*args[2:], workers=None, dev=False, ready=False)))
            daemons[-1].ready = daemons[-1].read_line()
        for w in daemons:
            w.wait_ready()
        daemons[2].push(write_safetensors(d / "a.safetensors", model("a")), "a")
        for w in daemons[:2]:
            until(lambda w=w: w.version() == "a", "the member shows the version")
            check(holds(w, model("a")), "and holds the weights")


if __name__ == "__main__":
    main(globals())
