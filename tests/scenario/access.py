"""Who may do what: --weights-root, tokens, addresses beyond loopback, unix sockets, IPv6."""
import base64
import http.client
import socket
import subprocess

from weft_scenario import (BIN, SLOW, Daemon, check, folder, holds, main, model, same, weft,
                           write_safetensors)


def refuses_to_start(*args):
    p = subprocess.run([str(BIN / "weftd"), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=20 * SLOW)
    check(p.returncode != 0, f"weftd {args} started")
    same(p.stdout, "", f"weftd {args}: nothing on stdout")
    check(p.stderr.strip(), f"weftd {args} must say why")
    return p


def test_weights_root():
    with folder() as d:
        inside, outside = d / "models", d / "elsewhere"
        inside.mkdir()
        outside.mkdir()
        good = write_safetensors(inside / "a.safetensors", model("a"))
        other = write_safetensors(outside / "b.safetensors", model("b"))
        (inside / "link").symlink_to(other)
        (inside / "within").symlink_to(good)  # model caches are full of these
        (d / "models-not").mkdir()
        near = write_safetensors(d / "models-not" / "c.safetensors", model("c"))
        with Daemon("--weights-root", inside) as w:
            w.push(good, "a")
            w.push(inside / "within", "a again")
            for what, path in (("a file outside", other), ("a link that leads outside", inside / "link"),
                               ("a path with dots", inside / ".." / "elsewhere" / "b.safetensors"),
                               ("a folder with the same beginning", near), ("no such file", inside / "none")):
                w.ok("/start_weight_update")
                r = w.post("/update_weights", w.file_source(path))
                check(r.status >= 400, f"{what} was read: {r}")
            same(w.version(), "a again", "version")
            check(holds(w, model("a")), "nothing of it was applied")
            # whether something is there outside of the root is not told
            (inside / "door").symlink_to(outside)

            def said(path):
                w.ok("/start_weight_update")
                r = w.post("/update_weights", w.file_source(path))
                # which rank is first to say so is chance
                return r.status, r.json["error"]["message"].split(str(path), 1)[1]
            for there, missing in ((other, outside / "none"), (inside / "door" / "b.safetensors", inside / "door" / "none"),
                                   (other, d / "nowhere" / "none"), (inside / "door", inside / "door" / "no" / "none")):
                same(said(missing), said(there), f"{missing} is answered as {there}")
                same(said(missing)[0], 403, f"{missing}")
            same(said(inside / "none" / ".." / ".." / "elsewhere" / "b.safetensors")[0], 400, "nothing inside is called that")


def basic(user, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_token():
    with folder() as d:
        token = d / "token"
        token.write_text("s3cret token\n")
        token.chmod(0o600)
        with Daemon("--token-file", token) as w:
            for what, headers in (("none", {}), ("a wrong one", {"Authorization": "Bearer nope"}),
                                  ("a longer one", {"Authorization": "Bearer s3cret tokenx"}),
                                  ("an empty one", {"Authorization": "Bearer "}),
                                  ("a wrong password", basic("u", "nope")),
                                  ("the token as the user", basic("s3cret token", ""))):
                r = w.do("GET", "/weight_info", headers=headers)
                same(r.status, 401, f"with {what}: {r}")
                r = w.do("POST", "/update_weight_version", {"new_version": "x"}, headers=headers)
                same(r.status, 401, f"POST with {what}: {r}")
            for headers in ({"Authorization": "Bearer s3cret token"}, {"authorization": "bearer s3cret token"},
                            basic("anybody", "s3cret token")):
                same(w.do("GET", "/weight_info", headers=headers).status, 200, f"with {headers}")
            same(w.get("/health").status, 200, "/health needs none")
            p = weft("info", server=w.url)
            same(p.returncode, 1, f"weft info without token: {p.stderr}")
            check("token" in p.stderr, f"says what to do: {p.stderr}")
            same(weft("info", "--token-file", token, server=w.url).returncode, 0, "with --token-file")
            url = f"http://user:s3cret%20token@{w.address}"
            same(weft("info", server=url).returncode, 0, "with user:token@host")
            check("s3cret" not in w.log(), "the token is not logged")


def test_beyond_loopback():
    with folder() as d:
        token = d / "token"
        token.write_text("a token of some length\n")
        token.chmod(0o600)
        for args in (("--listen", "0.0.0.0:0"), ("--listen", "[::]:0"),
                     ("--listen", "0.0.0.0:0", "--token-file", token),  # weights root is missing
                     ("--listen", "0.0.0.0:0", "--insecure")):
            refuses_to_start(*args, "--workers", "1", "--run-dir", d / "run")
        for args in (("--token-file", token), ("--insecure",)):
            with Daemon(*args, "--weights-root", d, listen="0.0.0.0:0", workers=1) as w:
                w.ready["http"] = "127.0.0.1:" + w.ready["http"].rsplit(":", 1)[1]
                headers = {"Authorization": "Bearer a token of some length"}
                same(w.do("GET", "/weight_info", headers=headers).status, 200, f"with {args}")
                same(w.get("/weight_info").status, 200 if "--insecure" in args else 401, f"{args}, no token")


def test_unix_socket():
    with folder() as d:
        path = d / "weft.sock"
        with Daemon(listen=f"unix:{path}") as w:
            p = weft("push", "--version", "u", write_safetensors(d / "a.safetensors", model("a")),
                     server=f"unix:{path}")
            same(p.returncode, 0, f"weft push over a unix socket: {p.stderr}")
            c = http.client.HTTPConnection("localhost")
            c.sock = socket.socket(socket.AF_UNIX)
            c.sock.connect(str(path))
            c.request("GET", "/weight_info")
            same(c.getresponse().read(), b'{"weight_version":"u"}', "over the socket")
            c.close()
            w.stop()
            check(not path.exists(), "the socket file is removed")


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as e:
        from weft_scenario import skip
        skip(f"no IPv6 on this machine: {e}")
    with Daemon(listen="[::1]:0") as w:
        same(w.version(), "default", "over IPv6")
        same(weft("info", server=w.url).returncode, 0, "weft info over IPv6")


def test_usage():
    with folder() as d:
        for args in (("--listen", "nonsense"), ("--workers", "0"), ("--workers", "many"), ("--no-such-option",),
                     ("--workers", "3", "--tp", "2"), ("--dp-size", "2", "--dp-index", "2"),
                     ("--backend", "carrier-pigeon"), ("--token-file", d / "none"),
                     ("--weights-root", d / "none"), ("--log-level", "shout"), ("stray",)):
            p = refuses_to_start(*args)
            check(args[0].lstrip("-").split("-")[0] in p.stderr or args[-1] in map(str, p.stderr.split()),
                  f"weftd {args} names the option: {p.stderr}")
        for args in (("--tp-plan", d / "plan", "--tp", "2"), ("--tp-plan", d / "plan", "--backend", "ipc"),
                     ("--draft", "--backend", "sparse_nccl")):
            p = refuses_to_start(*args)
            backend = args[args.index("--backend") + 1] if "--backend" in args else "host"
            check(args[0] in p.stderr and f"--backend {backend}" in p.stderr, f"weftd {args} names both: {p.stderr}")
        p = subprocess.run([str(BIN / "weftd"), "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        same(p.returncode, 0, "weftd --help")
        for option in ("--listen", "--workers", "--dev", "--token-file", "--weights-root", "--run-dir"):
            check(option in p.stdout, f"--help tells of {option}")


def test_world_size():
    for args, size, local in ((("--tp", 2, "--pp", 2), 4, 4), (("--tp", 2, "--dp-size", 3, "--dp-index", 1), 6, 2)):
        with Daemon(*args, workers=None) as w:
            same(w.get("/get_world_size").body, b'{"world_size":%d}' % size, f"world size with {args}")
            same(w.get("/get_world_size?include_dp=false").body, b'{"world_size":%d}' % local, "without dp")
            with folder() as d:
                w.push(write_safetensors(d / "a.safetensors", model("a")), "a")
            index = 1 if "--dp-index" in args else 0
            ranks = {k.rsplit(":", 2)[0] for k in w.checksums() if k.endswith(":scale")}
            want = {f"dp{index}:pp{p}:pcp0:tp{t}" for p in range(local // 2) for t in range(2)}
            same(ranks, want, "checker keys name every worker")


if __name__ == "__main__":
    main(globals())
