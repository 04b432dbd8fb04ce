"""Weights come over NCCL (on the stand-ins of tests/doubles): both rendezvous forms, packed
and not, several updates in a session, another init."""
import threading

from nccl_trainer import CUDART, KINDS, NCCL, Group, Trainer, update_info
from weft_scenario import Daemon, check, holds, main, model, noise, same

GPUS = {"WEFT_FAKE_GPUS": "4"}


def daemon(*args, env=None, **kw):
    return Daemon("--backend", "nccl", "--cudart", CUDART, "--nccl", NCCL, *args,
                  env={**GPUS, **(env or {})}, **kw)


def fine(got):
    same((got[0], got[2]), (200, None), got[1])


def push(w, t, tensors, version):
    fine(t.start())
    fine(t.update(tensors))
    w.ok("/finish_weight_update", {"weight_version": version})
    same(w.version(), version, "the version")
    check(holds(w, tensors), "every worker holds what was sent")


def trainer(w, **kw):
    t = Trainer(w.address, **kw)
    t.start = lambda: (*t.post("start_weight_update"), None)
    return t


def test_one_by_one():
    with daemon() as w:
        t = trainer(w)
        fine(t.init())
        push(w, t, model("a"), "one")
        push(w, t, model("b"), "two")
        status = w.status()
        same(status["backend"], "nccl", "backend")
        for worker in status["workers"]:
            check("NCCL 2.28.9 (libfakenccl.so)" in worker["device"] and
                  f"GPU {worker['rank']} weft test double" in worker["device"] and
                  "CUDA 13.0 (libfakecudart.so)" in worker["device"], worker["device"])
        check("NCCL 2.28.9" in w.log(), "the log names the libraries")
        t.close()


def test_packed_and_a_new_group():
    with daemon() as w:
        t = trainer(w)
        fine(t.init(packed=5000, packed_num_buffers=3))
        push(w, t, model("a"), "one")
        fine(t.init(packed=1 << 30))
        push(w, t, model("b", layers=9), "two")
        fine(t.init(store=True))
        push(w, t, model("c", layers=9), "three")
        t.close()


def test_the_same_again():
    """An update that lists nothing: as before; before there was one, nothing."""
    with daemon(env={"WEFT_FAKE_NCCL_LAUNCH_US": "1000"}) as w:
        t = trainer(w)
        fine(t.init(packed=9000))
        fine(t.start())
        fine(t.update({}))
        fine(t.update(model("a")))
        w.ok("/finish_weight_update", {"weight_version": "one"})
        for seed, nothing in (("b", update_info({})), ("c", {})):
            fine(t.start())
            fine(t.update(model(seed), info=nothing))
            w.ok("/finish_weight_update", {"weight_version": seed})
            check(holds(w, model(seed)), "every worker holds what was sent")
        t.close()


def test_shutdown():
    with daemon() as w:
        t = trainer(w)
        fine(t.init())
        push(w, t, model("a"), "one")
        w.ok("/shutdown_weight_transfer_engine")
        fine(t.start())
        r = w.post("/update_weights", {"update_info": update_info(model("b"))})
        check(r.status >= 400 and b"NCCL weight transfer not initialized" in r.body and
              b"the trainer was let go" in r.body, f"an update without a trainer: {r}")
        fine(t.init())
        push(w, t, model("c"), "two")
        t.close()


def test_pieces_and_unchanged_tensors():
    with daemon(env={"WEFT_FAKE_STREAM_DELAY_US": "1000", "WEFT_FAKE_NCCL_LAUNCH_US": "1000"}) as w:
        t = trainer(w)
        fine(t.init())
        first = model("a")
        push(w, t, first, "one")
        names = list(first)
        changed = model("b")
        fine(t.start())
        fine(t.update({names[0]: changed[names[0]]}))
        fine(t.update({n: changed[n] for n in names[2:4]}))
        w.ok("/finish_weight_update", {"weight_version": "pieces"})
        want = {n: changed[n] if i in (0, 2, 3) else first[n] for i, n in enumerate(names)}
        check(holds(w, want), "what came is new, the rest as it was")
        t.close()


def test_another_world_size():
    """A second rank of the trainer's joins at the next init, and leaves at the one after."""
    with daemon() as w:
        t = trainer(w)
        fine(t.init())
        push(w, t, model("a"), "one")
        t.ranks = 4
        alone = t.group
        other = []

        def second(group):
            other.append(Group(4, gpu=2, rank=3, beside=group))
            threading.Thread(target=other[0].join).start()
        fine(t.init(beside=second))
        check(t.group is not alone, "another group")
        other_gets = threading.Thread(target=receive, args=(other[0], model("b")))
        fine(t.start())
        other_gets.start()
        fine(t.update(model("b")))
        other_gets.join()
        w.ok("/finish_weight_update", {"weight_version": "two"})
        check(holds(w, model("b")), "every worker holds what was sent")
        other[0].abort()
        t.ranks = 3
        fine(t.init())
        push(w, t, model("c"), "three")
        t.close()


def receive(group, tensors):
    """A rank beside the workers: takes part in every broadcast."""
    group.use()
    for dtype, _, data in tensors.values():
        size, kind = KINDS[dtype]
        group.broadcast(data, len(data) // size, kind)


def test_each_worker_its_own_entry():
    with daemon() as w:
        t = trainer(w)
        fine(t.init())
        tensors = model("a")
        one = update_info(tensors)
        fine(t.start())
        fine(t.update(tensors, info=[one, one]))
        w.ok("/finish_weight_update")
        check(holds(w, tensors), "every worker holds what was sent")
        t.close()


def test_older_clients():
    with daemon() as w:
        t = trainer(w)
        fine(t.init())
        tensors = model("a")
        same(t.post("start_weight_update", {"is_checkpoint_format": True})[0], 200, "start")
        t.packed = 3000
        fine(t.update(tensors, info=update_info(tensors, packed=True, packed_num_buffers=2,
                                                packed_buffer_size_bytes=3000)))
        w.ok("/finish_weight_update")
        check(holds(w, tensors), "every worker holds what was sent")
        t.close()


def test_the_checkers_reset():
    with daemon("--allow-weight-reset") as w:
        t = trainer(w)
        fine(t.init())
        tensors = {"w": ("U8", [5000], noise("r", 5000))}
        push(w, t, tensors, "one")
        w.ok("/weight_checker", {"action": "reset"})
        inverted = {"w": ("U8", [5000], bytes(255 - b for b in tensors["w"][2]))}
        check(holds(w, inverted), "every byte is inverted")
        t.close()


if __name__ == "__main__":
    main(globals())
