"""The trainer's store is torch's own TCPStore, made as vLLM's StatelessProcessGroup makes it.
Needs torch (CPU is enough) in this Python or in the one that WEFT_TORCH_PYTHON names."""
import datetime
import os
import pickle
import socket
import sys

from nccl_update import daemon, fine, push, trainer
from weft_scenario import main, model, skip

try:
    from torch.distributed import TCPStore
except Exception as why:  # a torch that cannot be loaded is as good as none
    TCPStore, REASON = None, why
    other = os.environ.get("WEFT_TORCH_PYTHON")
    if other and "WEFT_TORCH_TRIED" not in os.environ:
        os.environ["WEFT_TORCH_TRIED"] = "1"
        os.execv(other, [other, *sys.argv])


def test_torchs_store():
    if TCPStore is None:
        skip(f"torch is not importable: {REASON}")
    with daemon() as w:
        t = trainer(w)
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def publish(group):  # returns when all have joined, as vLLM's does
            t.kept = TCPStore(host_name="127.0.0.1", port=port, world_size=3, is_master=True,
                              timeout=datetime.timedelta(seconds=60), use_libuv=False,
                              master_listen_fd=listener.detach())
            t.kept.set("broadcast_from/0/0", pickle.dumps(group.id))

        fine(t.init(store=port, publish=publish))
        push(w, t, model("a"), "one")
        push(w, t, model("b"), "two")
        t.close()


if __name__ == "__main__":
    main(globals())
