"""Every curl line of the README is run, against a fresh daemon on a free port.

The README's ```sh blocks speak of http://127.0.0.1:8000; blocks with curl are run in the
order they stand in, each with `set -e`, its address replaced.  A file called
model.safetensors is there, at the path /models/model.safetensors of the README replaced too.
"""
import re
import subprocess

from weft_scenario import BIN, ROOT, SLOW, Daemon, check, folder, main, model, same, write_safetensors

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


if __name__ == "__main__":
    main(globals())
