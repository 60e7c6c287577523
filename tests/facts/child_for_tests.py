"""A child that does what its request says, to see that it cannot."""

import select
from pathlib import Path

from ncclprobe.host.limited_child import MAX_ANSWER_BYTES, serve_limited


def serve() -> None:
    """Be the child."""
    serve_limited(_work, 1 << 20, 256 << 20)


def _work(request: bytes) -> bytes:
    if request == b"sleep":
        select.select([], [], [], 60)  # time.sleep is an event that ends it since Python 3.13
    if request == b"open":
        Path("/dev/null").read_bytes()
    if request == b"exec":
        exec("1")
    if request == b"import":
        import wave  # noqa: F401
    if request == b"memory":
        return bytes(1 << 30)[:1]
    if request == b"long":
        return bytes(MAX_ANSWER_BYTES + 1)
    return request
