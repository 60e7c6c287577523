"""A child that does what its request says, to see that it cannot."""

import os
import resource
import select
from array import array
from pathlib import Path

from ncclprobe.host.limited_child import MAX_ANSWER_BYTES, serve_limited


def serve() -> None:
    """Be the child."""
    serve_limited(_work, 1 << 20, 256 << 20)


def _work(request: bytes) -> bytes:
    if request == b"sleep":
        select.select([], [], [], 60)  # time.sleep is an event that ends it since Python 3.13
    if request == b"closes":
        os.closerange(1, 100)
        select.select([], [], [], 60)
    if request == b"open":
        Path("/dev/null").read_bytes()
    if request == b"exec":
        exec("1")
    if request == b"import":
        import wave  # noqa: F401
    if request == b"limits":
        limits = (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_AS)
        return " ".join(str(each) for limit in limits for each in resource.getrlimit(limit)).encode()
    sizes = {b"memory": 1 << 30, b"some": 64 << 20, b"long": MAX_ANSWER_BYTES + 1}
    if request == b"array":
        return array("B", [0, 0, 0]).tobytes()
    return bytes(sizes[request])[: None if request == b"long" else 1] if request in sizes else request
