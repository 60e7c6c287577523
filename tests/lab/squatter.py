"""Another service on a port: `squatter.py PORT nothing|banner|garbage|flood` accepts everybody."""

import os
import socket
import socketserver
import sys
from contextlib import suppress

SAYS = {"nothing": b"", "banner": b"SSH-2.0-OpenSSH_9.2\r\n", "garbage": os.urandom(512), "flood": os.urandom(1 << 16)}


class Talk(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):  # who has heard enough hangs up
            self.request.sendall(SAYS[sys.argv[2]])
            while sys.argv[2] == "flood":
                self.request.sendall(SAYS["flood"])
            while self.request.recv(1 << 16):
                pass


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


with Server(("::", int(sys.argv[1])), Talk) as server:
    print("ready", flush=True)
    server.serve_forever()
