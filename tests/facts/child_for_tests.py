"""A child that does what its request says, to see that it cannot."""

import time
from pathlib import Path

from ncclprobe.host.limited_child import MAX_ANSWER_BYTES, serve_limited


def serve() -> None:
    """Be the child."""
    serve_limited(_work, 1 << 20, 256 << 20)


def _work(request: bytes) -> bytes:
    if request == b"sleep":
        time.sleep(60)
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
