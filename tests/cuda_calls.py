"""Judge the order of a rank's calls to CUDA and NCCL, as the stand-ins trace them (FAKE_CUDA_TRACE)."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

BARRIER_BYTES = 4
"""torch's barrier is an all_reduce of one number."""

IN_PLACE = {
    "AllReduce": lambda send, recv, share: send == recv,
    "Broadcast": lambda send, recv, share: send == recv,
    "Reduce": lambda send, recv, share: send == recv,
    "AllGather": lambda send, recv, share: send == recv + share,
    "ReduceScatter": lambda send, recv, share: recv == send + share,
}
"""Where NCCL takes two buffers for one (nccl.h, at each function). `share`: of the ranks before this one, in bytes."""


def batches(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield each timed batch: what was called before its first mark, and all from there to its second mark."""
    marks = {words[1]: at for at, words in enumerate(map(str.split, lines)) if words[0] == "mark"}
    for words in map(str.split, lines):
        if words[0] == "elapsed":
            yield lines[marks[words[1]] - 2 : marks[words[2]] + 1]


def wrong_order(lines: Sequence[str]) -> list[str]:
    """Return what is wrong in the order of a rank's calls; nothing: all is right."""
    found = []
    for call, kernel, mark, *rest in batches(lines):
        if not mark.endswith("idle"):
            found.append(f"{mark}: a batch begins before the device is idle")
        if not (kernel == "kernel" and call.startswith("call AllReduce") and call.split()[4] == str(BARRIER_BYTES)):
            found.append(f"{mark}: a batch begins without a barrier")
        found += [f"{line}: within a timed batch" for line in rest if line.startswith(("memory", "captured", "init"))]
    open_graphs: set[str] = set()
    for line in lines:
        if line.startswith("captured"):
            open_graphs.add(line.split()[1])
        elif line.startswith("destroy graph"):
            open_graphs.discard(line.split()[2])
        elif line in ("destroy", "abort") and open_graphs:
            found.append(f"{line}: the communicator goes before {len(open_graphs)} graphs that use it")
    return found + [f"graph {graph} is never destroyed" for graph in sorted(open_graphs)]


def layouts(lines: Sequence[str]) -> set[tuple[str, int, bool]]:
    """Return each operation, the bytes that a rank gives or gets, and whether it is in place by NCCL's layout.

    Raises ValueError where two buffers overlap in any other way: NCCL says nothing, and the data is wrong.
    """
    found = set()
    for words in map(str.split, lines):
        if words[0] != "call" or words[1] not in IN_PLACE:
            continue
        name, (send, recv, nbytes, rank, ranks) = words[1], map(int, words[2:])
        inside = IN_PLACE[name](send, recv, rank * nbytes)
        sent, received = (nbytes * (ranks if name == wide else 1) for wide in ("ReduceScatter", "AllGather"))
        if not inside and send < recv + received and recv < send + sent:
            raise ValueError(f"{' '.join(words)}: the buffers overlap, and not as NCCL lays them out")
        found.add((name, nbytes, inside))
    return found


def waits_between(lines: Sequence[str], calls: int) -> int:
    """Count the batches of so many calls each of which is waited for before the next, with nothing else between."""
    wanted = ["kernel", "synchronise"] * calls
    plain = [line for line in lines if not line.startswith("call")]
    ends = [at for at, (one, other) in enumerate(pairwise(plain)) if (one, other) == ("kernel", "kernel")]
    return sum(plain[at + 1 : at + 1 + len(wanted)] == wanted for at in ends)
