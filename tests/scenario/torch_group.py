"""Trainers whose group is a process group of torch's (SGLang, verl, slime, OpenRLHF): the
id's key, ids that come late, no warm-up.  On the stand-ins of tests/doubles."""
import datetime
import os
import subprocess
import time

from nccl_faults import aborted, comes_back, failed
from nccl_torch import torch_python
from nccl_update import daemon, fine, push, trainer
from weft_scenario import check, holds, main, model, same


def test_the_id_comes_with_the_first_broadcast():
    with daemon() as w:
        t = trainer(w)
        for n, more in enumerate(({}, {"lazy": True}, {"name": "actors", "lazy": True},
                                  {"key": "/default_pg/0//cuda//0"},
                                  {"key": "/mine", "id_key": "/mine"})):
            fine(t.init_torch(**more))
            fine(t.start())
            fine(t.update({}))  # for nothing no group is made
            tensors = model(n)
            fine(t.update(tensors))
            w.ok("/finish_weight_update", {"weight_version": str(n)})
            check(holds(w, tensors), "every worker holds what was sent")
            same(t.store.joined, 2, "each worker joined once")
            push(w, t, model(("again", n)), f"{n} again")
        t.close()


def test_the_id_is_made_at_once():
    with daemon() as w:
        t = trainer(w)
        for lazy in ({}, {"lazy": False}):
            fine(t.init_torch(eager=True, **lazy))
            push(w, t, model("a"), "one")
        t.close()


def test_a_group_that_is_never_made():
    with daemon() as w:
        t = trainer(w)
        fine(t.init_torch(lazy=True))
        fine(t.start())
        t.publish = lambda group: time.sleep(4)  # longer than the update may take
        t.group.join = lambda warm_up: None
        began = time.monotonic()
        got = t.update({}, info={"names": ["w"], "dtype_names": ["uint8"], "shapes": [[9]]},
                       query="?timeout_s=2")
        failed(got, "update")
        check(time.monotonic() - began < 20, "in time")
        aborted(w)
        comes_back(w, model("b"), "one")


def test_what_cannot_be_joined():
    with daemon() as w:
        t = trainer(w)
        failed(t.init_torch(backend="cpu:gloo,cuda:nccl"), "only a group of backend 'nccl' alone")
        failed(t.init_torch(profile="gossip"), "profile 'gossip' is not known")
        failed(t.init_torch(nccl_unique_id_b64=t.group.id_text()), "not both")
        comes_back(w, model("a"), "one")


def test_torchs_own_stores():
    """The id goes through torch's nested stores, as init_custom_process_group makes them."""
    try:
        from torch.distributed import PrefixStore, TCPStore
    except Exception:
        python = torch_python()  # skips when there is none
        p = subprocess.run([python, __file__, "test_torchs_own_stores"], env=os.environ, timeout=100)
        same(p.returncode, 0, "with torch")
        return
    with daemon() as w:
        for eager in (True, False):
            t = trainer(w)
            store = TCPStore("127.0.0.1", 0, world_size=3, is_master=True, wait_for_workers=False,
                             timeout=datetime.timedelta(seconds=60))

            def publish(group):
                named = PrefixStore("actors/", PrefixStore("actors", store))
                PrefixStore("cuda/", named).set("0", bytes(group.id))

            fine(t.init_torch("actors", eager=eager, publish=publish, master_port=store.port))
            push(w, t, model(("torch", eager)), f"eager {eager}")
            t.close()


if __name__ == "__main__":
    main(globals())
