"""A bad body is refused before any message reaches the engine: its own counter of client
calls, read from /weight_status, must not move."""
import json

from weft_scenario import Daemon, check, main, raw_http, same

J = {"Content-Type": "application/json"}


def calls(w):
    """Client calls the engine has received, /weight_status and the like left out."""
    n = w.status()["calls"]
    check(isinstance(n, int), f"/weight_status must count calls: {n!r}")
    return n


BAD = [
    ("/init_weight_transfer_engine", b"", "body.init_info"),
    ("/init_weight_transfer_engine", b"{}", "body.init_info"),
    ("/init_weight_transfer_engine", b'{"init_info":null}', "body.init_info"),
    ("/init_weight_transfer_engine", b'{"init_info":[]}', "body.init_info"),
    ("/init_weight_transfer_engine", b'{"init_info":"x"}', "body.init_info"),
    ("/init_weight_transfer_engine", b'[{"init_info":{}}]', "body.init_info"),
    ("/init_weight_transfer_engine", b'{"init_info":{}', None),
    ("/update_weights", b"{}", "body.update_info"),
    ("/update_weights", b"", "body.update_info"),
    ("/update_weights", b'{"update_info":7}', "body.update_info"),
    ("/update_weights", b'{"update_info":[1]}', "body.update_info"),
    ("/update_weights", b'{"update_info":{}} trailing', None),
    ("/update_weights", b'{"update_info":{"a":"\\u0000"}}', None),
    ("/update_weights", b'{"update_info":{"a":"\xff"}}', None),
    ("/update_weights", b'{"update_info":' + b"[" * 500 + b"]" * 500 + b"}", None),
    ("/finish_weight_update", b'{"weight_version":7}', "body.weight_version"),
    ("/finish_weight_update", b'[]', "body.weight_version"),
    ("/finish_weight_update", b'{"weight_version":"a"', None),
    ("/finish_weight_update", b'{"weight_version":"a","weight_version":"b"}', None),
    ("/finish_weight_update", b'{"expected_version":1}', "body.expected_version"),
    ("/finish_weight_update", json.dumps({"weight_version": "x" * 1025}).encode(),
     "body.weight_version"),
    ("/update_weight_version", b"", "body.new_version"),
    ("/update_weight_version", b"{}", "body.new_version"),
    ("/update_weight_version", b'{"new_version":null}', "body.new_version"),
    ("/update_weight_version", b'{"new_version":1}', "body.new_version"),
    ("/update_weight_version", b"not json", None),
    ("/weight_checker", b"{}", "body.action"),
    ("/weight_checker", b'{"action":"destroy"}', "body.action"),
    ("/weight_checker", b'{"action":"compare"}', None),
    ("/weight_checker", b'{"action":"compare","baseline":[]}', "body.baseline"),
]


def test_bad_bodies_never_reach_the_engine():
    with Daemon() as w:
        w.ok("/start_weight_update")  # also with a session open, where an update would be taken
        before = calls(w)
        for path, body, param in BAD:
            r = w.post(path, body, headers=J)
            same(r.status, 400, f"POST {path} {body[:60]!r}: {r}")
            error = r.json["error"]
            same((error["type"], error["code"]), ("Bad Request", 400), f"{path} {body[:60]!r}")
            if param:
                same(error["param"], param, f"param of {path} {body[:60]!r}")
            check(error["message"], "an error must say something")
        for query in ("/get_world_size?include_dp=maybe", "/pause?mode=sideways"):
            r = w.get(query) if query.startswith("/get") else w.post(query)
            same(r.status, 400, f"{query}: {r}")
        same(calls(w), before, "calls that reached the engine")
        w.ok("/finish_weight_update", {"weight_version": "good"})
        same(calls(w), before + 1, "a good body does reach the engine")
        same(w.version(), "good", "the session outlived the bad bodies")


def test_what_is_no_http_never_reaches_the_engine():
    with Daemon() as w:
        before = calls(w)
        post = b"POST /update_weight_version HTTP/1.1\r\nHost: x\r\n"
        body = b'{"new_version":"smuggled"}'
        n = str(len(body)).encode()
        for what, data, want in (
                ("two lengths", post + b"Content-Length: 3\r\nContent-Length: " + n + b"\r\n\r\n" + body, b"400"),
                ("length and chunked", post + b"Content-Length: " + n + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + body, b"400"),
                ("obs-fold", post + b"X: a\r\n b\r\nContent-Length: " + n + b"\r\n\r\n" + body, b"400"),
                ("space before the colon", post + b"Content-Length : " + n + b"\r\n\r\n" + body, b"400"),
                ("no Host", post.replace(b"Host: x\r\n", b"") + b"Content-Length: " + n + b"\r\n\r\n" + body, b"400"),
                ("a head over 16 KiB", post + b"X: " + b"a" * 17000 + b"\r\n\r\n", b"431"),
                ("a body over 32 MiB", post + b"Content-Length: 33554433\r\n\r\n", b"413"),
                ("NUL in a header", post + b"X: a\x00b\r\nContent-Length: " + n + b"\r\n\r\n" + body, b"400"),
        ):
            got = raw_http(w.address, data)
            check(got.startswith(b"HTTP/1.1 " + want + b" "), f"{what}: {got[:200]!r}")
            same(got.count(b"HTTP/1.1 "), 1, f"{what}: one answer only")
        same(calls(w), before, "calls that reached the engine")
        same(w.version(), "default", "version")


if __name__ == "__main__":
    main(globals())
