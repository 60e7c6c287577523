"""Something that calls a port and is not of this run: `caller.py ADDRESS PORT nothing|garbage|flood`, until killed."""

import os
import socket
import sys
import time
from contextlib import suppress

while True:
    with suppress(OSError), socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60.0) as wire:
        if sys.argv[3] != "nothing":
            wire.sendall(os.urandom(512))
        while sys.argv[3] == "flood":
            wire.sendall(os.urandom(1 << 16))
        while wire.recv(1 << 16):
            pass
    time.sleep(0.2)
