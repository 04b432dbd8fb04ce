#!/usr/bin/env python3
"""A watcher that needs nothing but `pynng` (pip install pynng): every commit once, in order.

    tools/examples/subscriber.py http://127.0.0.1:8000 [commits]

nng's pub/sub drops messages in silence when a subscriber is slow.  So: compare `sequence`
with the last one seen, and ask the snapshot socket for what is missing.  When the engine
was restarted (another `boot_id`), or no longer has what was missed, begin from its status.
"""
import argparse
import json
import sys
import urllib.request

try:
    import pynng
except ImportError:
    pynng = None  # --help works without it


class Watcher:
    def __init__(self, url):
        with urllib.request.urlopen(url.rstrip("/") + "/weight_status", timeout=10) as r:
            status = json.load(r)
        self.sub = pynng.Sub0(dial=status["events"], topics=b"weights.commit ", recv_timeout=1000)
        self.ask = pynng.Req0(dial=status["snapshot"], recv_timeout=5000, send_timeout=5000,
                              resend_time=-1)  # a question is never asked twice by the library
        self.boot, self.last = None, 0

    def question(self, what):
        self.ask.send(json.dumps(what).encode())
        return json.loads(self.ask.recv())

    def start_over(self):
        status = self.question({"get": "status"})
        status = status.get("status", status)
        self.boot, self.last = status["boot_id"], status["sequence"]
        return status

    def missed(self):
        """Events after the last one seen, or None when they are gone for good."""
        answer = self.question({"get": "events", "after": self.last})
        if answer.get("resync"):
            return None
        return [e for e in answer["events"] if e["sequence"] > self.last]

    def commits(self):
        """Yields ("status", …) at the start and after a loss for good, else ("commit", …)."""
        yield "status", self.start_over()
        while True:
            try:
                event = json.loads(self.sub.recv().split(b" ", 1)[1])
            except pynng.Timeout:
                continue
            if event["boot_id"] != self.boot:
                yield "status", self.start_over()
                continue
            if event["sequence"] <= self.last:
                continue  # seen already: it came while we asked
            if event["sequence"] > self.last + 1:
                events = self.missed()
                if events is None:
                    yield "status", self.start_over()
                    continue
            else:
                events = [event]
            for e in events:
                self.last = e["sequence"]
                yield "commit", e


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.error = lambda why: p.exit(2, f"subscriber.py: {why}; see subscriber.py --help\n")
    p.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    p.add_argument("commits", nargs="?", type=int, help="end after so many (default: never)")
    a = p.parse_args()
    if pynng is None:
        sys.exit("subscriber.py needs pynng (pip install pynng)")
    return a.url, a.commits


def main():
    url, left = arguments()
    for kind, what in Watcher(url).commits():
        print(kind, what["sequence"], what["version"], what.get("digest"), flush=True)
        if kind == "commit" and left is not None:
            left -= 1
            if left == 0:
                return


if __name__ == "__main__":
    main()
