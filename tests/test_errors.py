"""What an error says in one line."""

from ncclprobe.model.errors import reason
from tests.each_row import each_row

KIND = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.30.7"
)
WHY = "P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their connectivity"


@each_row(
    ("text", "said"),
    [
        (  # torch 2.12 with NCCL 2.30.7
            f"{KIND}\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{WHY}",
            f"{KIND}; last error: {WHY}",
        ),
        (f"{KIND}\nncclSystemError: System call failed.\nLast error:\n\n", KIND),
        (f"{KIND}\nLast error:\nException raised from getNCCLComm at x.cpp:1 (most recent call first):", KIND),
        (f"{KIND}\nncclInternalError: Internal check failed.\nLast error:", KIND),
        ("Connection closed by peer [10.0.0.1]:77\nmore", "Connection closed by peer [10.0.0.1]:77"),
        (  # torch 2.12
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.19 GiB "
            "is free. Process 4711 has 40.00 GiB memory in use. Including non-PyTorch memory, this process has 37.90 "
            "GiB memory in use. Of the allocated memory 36.00 GiB is allocated by PyTorch, and 1 GiB is reserved",
            "out of memory: 2.00 GiB were requested, but only 1.19 GiB of the 79.11 GiB of GPU 1 are free; process "
            "4711 uses 40.00 GiB, this rank uses 37.90 GiB",
        ),
        (
            f"{KIND}\nncclUnhandledCudaError: x\nLast error:\nCuda failure 2 'out of memory'",
            f"out of memory: {KIND}; last error: Cuda failure 2 'out of memory'",
        ),
        ("DefaultCPUAllocator: can't allocate memory", "out of memory: DefaultCPUAllocator: can't allocate memory"),
        ("  \n ", "RuntimeError"),
        ("Last error:\nall of it", "Last error:"),
        ("x" * 5000, "x" * 600),
    ],
)
def test_an_error_of_torch_is_one_line_with_the_reason_that_nccl_gave(text: str, said: str) -> None:
    assert reason(RuntimeError(text)) == said


def test_what_was_said_in_short_is_not_shortened_again() -> None:
    once = f"rank 1: allocating 2 x 256 MiB: {reason(RuntimeError('CUDA out of memory. Tried to allocate 9 MiB.'))}"
    assert reason(RuntimeError(once)) == once
