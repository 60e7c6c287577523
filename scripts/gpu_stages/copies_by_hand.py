"""``python -m gpu_stages.copies_by_hand``: GB/s of the plainest copies there are, by kind, as one line of JSON.

With a GPU, cudaMemcpyAsync between pinned memory and the device on one stream, called through ctypes; else memmove.
"""

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

NBYTES = 256 << 20
_SAMPLES = 7
_CALLS = 4
_KINDS = {"h2d": 1, "d2h": 2, "d2d": 3}
"""cudaMemcpyKind."""


def rate(call: Callable[[], object], synchronise: Callable[[], object]) -> float:
    """GB/s, the median of some samples after an untimed one."""
    found = []
    for _ in range(_SAMPLES + 1):
        started = time.perf_counter()
        for _ in range(_CALLS):
            call()
        synchronise()
        found.append(NBYTES * _CALLS / (time.perf_counter() - started) / 1e9)
    return statistics.median(found[1:])


def of_host() -> dict[str, float]:
    """memmove within the host's memory."""
    source, target = torch.ones(NBYTES, dtype=torch.uint8), torch.ones(NBYTES, dtype=torch.uint8)
    return {"host memcpy": rate(lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), NBYTES), lambda: None)}


def of_gpu() -> dict[str, float]:
    """cudaMemcpyAsync, by kind."""
    device = [torch.zeros(NBYTES, dtype=torch.uint8, device="cuda") for _ in range(2)]
    host = [torch.zeros(NBYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    ends: dict[str, tuple[Any, Any]] = {
        "h2d": (device[0], host[0]),
        "d2h": (host[0], device[0]),
        "d2d": (device[0], device[1]),
    }
    runtime = ctypes.CDLL(_loaded("libcudart"))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    found = {}
    for kind, (to, of) in ends.items():
        to_address, of_address = ctypes.c_void_p(to.data_ptr()), ctypes.c_void_p(of.data_ptr())
        size, number = ctypes.c_size_t(NBYTES), ctypes.c_int(_KINDS[kind])

        def call(to: Any = to_address, of: Any = of_address, size: Any = size, number: Any = number) -> None:
            if code := runtime.cudaMemcpyAsync(to, of, size, number, stream):
                raise RuntimeError(f"cudaMemcpyAsync: {code}")

        found[kind] = rate(call, torch.cuda.synchronize)
    return found


def _loaded(name: str) -> str:
    """The path of a library of this process. Raises StopIteration where it is not loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if f"/{name}" in line)


def main() -> None:
    """Print them."""
    print(json.dumps(of_gpu() if torch.cuda.is_available() else of_host()))


if __name__ == "__main__":
    main()
