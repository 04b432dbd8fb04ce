"""The lifecycle with its exact bytes: what stock trainers send, what they rely on in answers."""
from weft_scenario import Daemon, check, folder, holds, main, model, raw_http, same, write_safetensors


def exact(reply, status, body, what):
    same((reply.status, reply.body), (status, body), what)
    if body:
        same(reply.headers.get("content-type"), "application/json", f"{what}: Content-Type")


def test_every_success_body():
    with folder() as d, Daemon() as w:
        path = write_safetensors(d / "a.safetensors", model("a"))
        exact(w.get("/weight_info"), 200, b'{"weight_version":"default"}', "version at start")
        exact(w.post("/init_weight_transfer_engine", {"init_info": {}}), 200,
              b'{"message":"Weight transfer initialized"}', "init")
        exact(w.post("/start_weight_update"), 200, b'{"message":"Weight update started"}', "start")
        exact(w.post("/update_weights", w.file_source(path)), 200,
              b'{"message":"Weights updated"}', "update")
        exact(w.get("/weight_info"), 200, b'{"weight_version":"default"}', "version before finish")
        exact(w.post("/finish_weight_update", {"weight_version": "step-1"}), 200,
              b'{"message":"Weight update finished"}', "finish")
        exact(w.get("/weight_info"), 200, b'{"weight_version":"step-1"}', "version after finish")
        check(holds(w, model("a")), "both workers hold the file's bytes")

        exact(w.post("/update_weight_version", {"new_version": "relabel \u00e9"}), 200,
              '{"success":true,"new_version":"relabel \u00e9"}'.encode(), "label")
        exact(w.get("/weight_info"), 200, '{"weight_version":"relabel \u00e9"}'.encode(), "label seen")
        exact(w.get("/get_world_size"), 200, b'{"world_size":2}', "world size")
        exact(w.get("/get_world_size?include_dp=false"), 200, b'{"world_size":2}', "without dp")
        exact(w.get("/get_world_size?include_dp=True"), 200, b'{"world_size":2}', "pydantic's True")
        exact(w.get("/is_paused"), 200, b'{"is_paused":false}', "not paused")
        exact(w.post("/pause"), 200, b'{"status":"paused"}', "pause")
        exact(w.post("/pause?mode=wait&clear_cache=false"), 200, b'{"status":"paused"}', "again")
        exact(w.get("/is_paused"), 200, b'{"is_paused":true}', "paused")
        exact(w.post("/resume"), 200, b'{"status":"resumed"}', "resume")
        exact(w.post("/reset_prefix_cache"), 200, b'{"success":true}', "prefix cache")
        exact(w.get("/health"), 200, b"", "health")
        same(w.get("/ready").status, 200, "ready")
        same(sorted(w.get("/version").json), ["version"], "version's keys")


def test_what_old_clients_send():
    with folder() as d, Daemon() as w:
        path = write_safetensors(d / "a.safetensors", model("a"))
        # start ignores any body, also a broken one; finish needs none
        for body in (b'{"is_checkpoint_format": true}', b"{broken", b"\xff\x00", None):
            w.ok("/start_weight_update", body)
            w.ok("/update_weights", w.file_source(path))
            w.ok("/finish_weight_update")
            same(w.version(), "default", "no version string given: it stays")
        for body in (b"", b"{}", b'{"weight_version":null}', b"null"):
            w.ok("/start_weight_update")
            w.ok("/finish_weight_update", body)  # start then finish with nothing is legal
            same(w.version(), "default", f"finish with {body!r} keeps the version")
        # the empty string is a version; unknown keys are ignored; no Content-Type needed
        w.ok("/start_weight_update")
        w.ok("/finish_weight_update", b'{"weight_version":"","extra":1}', headers={})
        same(w.version(), "", "the empty version")
        for kind in ("text/plain", "application/json; charset=utf-8", "application/octet-stream"):
            w.ok("/update_weight_version", b'{"new_version":"v"}', headers={"Content-Type": kind})
        check(holds(w, model("a")), "updates without tensors keep the bytes")


def test_versions_travel_verbatim():
    with Daemon() as w:
        for version in ("a/b c", "\"quoted\\", "\u65e5\u672c\U0001f600", "tab\there", "x" * 1024):
            w.ok("/update_weight_version", {"new_version": version})
            same(w.version(), version, "version verbatim")
        r = w.post("/update_weight_version", {"new_version": "x" * 1025})
        same(r.status, 400, f"a version over 1,024 bytes: {r}")
        same(w.version(), "x" * 1024, "refused: version as it was")


def test_http_forms():
    """HEAD, pipelining, chunked bodies and Expect, through the daemon's real routes."""
    with Daemon() as w:
        head = w.do("HEAD", "/weight_info")
        same((head.status, head.body, head.headers["content-length"]), (200, b"", "28"), "HEAD")
        one = b"GET /weight_info HTTP/1.1\r\nHost: x\r\n\r\n"
        got = raw_http(w.address, one * 20 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        same(got.count(b'{"weight_version":"default"}'), 20, "20 pipelined answers")
        body = b'{"new_version":"chunked"}'
        got = raw_http(w.address,
                       b"POST /update_weight_version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                       b"Connection: close\r\n\r\n"
                       + b"5\r\n" + body[:5] + b"\r\n" + b"%x\r\n" % len(body[5:]) + body[5:]
                       + b"\r\n0\r\n\r\n")
        check(got.startswith(b"HTTP/1.1 200 "), f"chunked body: {got!r}")
        same(w.version(), "chunked", "chunked body taken")


if __name__ == "__main__":
    main(globals())
