"""A TCPStore as torchrun has one, in a process of its own: prints its port and serves until it is killed."""

import datetime
import sys
import time

import torch.distributed as dist

store = dist.TCPStore(
    "127.0.0.1",
    0,
    world_size=None,
    is_master=True,
    timeout=datetime.timedelta(seconds=30),
    wait_for_workers=False,
)
if len(sys.argv) > 1:
    store.set(sys.argv[1], sys.argv[2])
print(store.port, flush=True)
time.sleep(600)
