"""Every dev route is 404 with dev mode off; the list comes from the daemon's own route table."""
import subprocess

from weft_scenario import BIN, Daemon, check, main, same

NOT_FOUND = b'{"detail":"Not Found"}'
# Contract 1.1 and the issue's own: each of these must be in the table, and need dev mode.
DEV = {"POST /init_weight_transfer_engine", "POST /shutdown_weight_transfer_engine", "POST /start_weight_update",
       "POST /start_draft_weight_update", "POST /update_weights", "POST /finish_weight_update",
       "POST /update_weight_version", "GET /weight_info", "POST /pause", "POST /resume",
       "GET /is_paused", "GET /get_world_size", "POST /weight_checker",
       "POST /reset_prefix_cache", "GET /weight_status", "POST /abort_weight_update",
       "GET /weights", "GET /weight_versions",
       "POST /resolve_weight_update"}
OPEN = {"GET /health", "GET /ready", "GET /version", "GET /metrics"}


def table():
    out = subprocess.run([str(BIN / "weftd"), "--print-routes"], capture_output=True, text=True,
                         check=True, stdin=subprocess.DEVNULL).stdout
    rows = [line.split() for line in out.splitlines() if line.strip()]
    return [(r[0], r[1], set(r[2:])) for r in rows]


def is_dev(flags):
    return any("dev" in f.lower().split(",") for f in flags)


def test_table_is_complete():
    rows = table()
    got = {f"{m} {p}": is_dev(f) for m, p, f in rows}
    for route in sorted(DEV):
        check(route in got, f"{route} is not in the route table")
        check(got[route], f"{route} must need dev mode")
    for route in sorted(OPEN):
        check(route in got and not got[route], f"{route} must be there without dev mode")


def test_dev_off():
    rows = table()
    with Daemon(dev=False) as w:
        refused = 0
        for method, path, flags in rows:
            r = w.do(method, path, b"{}" if method == "POST" else None)
            if is_dev(flags):
                same((r.status, r.body), (404, NOT_FOUND), f"{method} {path} with dev mode off")
                refused += 1
            else:
                check(r.status != 404, f"{method} {path} must be there: {r}")
        check(refused >= len(DEV), f"only {refused} dev routes were tried")
        for query in ("/weight_info?x=1", "/weight%5Finfo", "//weight_info", "/weight_info/"):
            same(w.get(query).status, 404, f"GET {query} with dev mode off")


def test_dev_by_environment():
    for value, status in (("1", 200), ("2", 200), ("0", 404)):
        with Daemon(dev=False, env={"VLLM_SERVER_DEV_MODE": value}) as w:
            same(w.get("/weight_info").status, status, f"VLLM_SERVER_DEV_MODE={value}")


def test_wrong_method_and_unknown_path():
    with Daemon() as w:
        r = w.get("/update_weights")
        same((r.status, r.body), (405, b'{"detail":"Method Not Allowed"}'), "GET /update_weights")
        check("POST" in r.headers.get("allow", ""), f"Allow: {r.headers}")
        r = w.get("/nowhere")
        same((r.status, r.body), (404, NOT_FOUND), "unknown path")


if __name__ == "__main__":
    main(globals())
