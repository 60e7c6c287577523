"""Small facts for the examples of ``log.``."""

from array import array
from collections.abc import Mapping
from typing import Any

from ncclprobe.facts.files.flight_records import (
    COMPLETED,
    RETIRED,
    STARTED,
    FlightCall,
    FlightDump,
    FlightFrame,
    FlightGroup,
    FlightRecords,
)

_STATES = {"?": 0, "*": STARTED, "!": STARTED | RETIRED, "": STARTED | COMPLETED | RETIRED}


def recorded(
    ranks: Mapping[int, str], world: int = 0, backend: str = "nccl", timeout_s: float = 600.0, first: int = 0
) -> FlightRecords:
    """Return flight records from what each rank called, such as ``all_reduce:8 all_gather:8:Half* 1/barrier?``.

    A word is the operation, its elements and their type; ``1/`` before it is the group (with its ranks: ``1=0,1/``),
    ``@12.5`` after it the second at which it was called. It is completed, but for ``*`` started, ``?`` scheduled, and
    ``!`` started and given up.
    """
    everyone = tuple(range(world or len(ranks)))
    return FlightRecords(
        tuple(_dump(rank, text.split(), everyone, backend, timeout_s, first) for rank, text in ranks.items())
    )


def _dump(
    rank: int, words: list[str], everyone: tuple[int, ...], backend: str, timeout_s: float, first: int
) -> FlightDump:
    groups: dict[str, FlightGroup] = {}
    calls: list[FlightCall] = []
    seqs: dict[str, int] = {}
    columns = {name: array(code) for name, code in zip(_NAMES, "HIIqBqq", strict=True)}
    for at, word in enumerate(words):
        group, _, rest = word.rpartition("/")
        name, _, members = (group or "0").partition("=")
        ranks = tuple(map(int, members.split(","))) if members else everyone
        groups.setdefault(
            name, FlightGroup(backend, name, "default_pg" if name == "0" else "", ranks, None, None, None, timeout_s)
        )
        rest, _, second = rest.partition("@")
        mark = rest[-1] if rest[-1] in "?*!" else ""
        call = _call(rest.rstrip("?*!"))
        seqs[name] = seqs.get(name, first) + (not call.p2p)
        row = (
            list(groups).index(name),
            at,
            at,
            seqs[name],
            _state(mark, backend),
            int(float(second or at + 1) * 1e9),
            0,
        )
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
        calls.append(call)
    written: dict[str, Any] = {name: column.tobytes() for name, column in columns.items()}
    stacks = tuple((FlightFrame("step", "train.py", 10 + at),) for at in range(len(words)))
    return FlightDump(
        version="2.10",
        library="",
        groups=tuple(groups.values()),
        calls=tuple(calls),
        stacks=stacks,
        first_record=first,
        **written,
        source=f"nccl_trace_rank_{rank}",
        rank=rank,
    )


def _state(mark: str, backend: str) -> int:
    """Return the state of an entry; gloo never records more than that torch looks after it no longer."""
    return _STATES[mark] & RETIRED if backend == "gloo" else _STATES[mark]


_NAMES = ("group", "call", "stack", "seq", "state", "created_ns", "completed_ns")


def _call(word: str) -> FlightCall:
    op, _, rest = word.partition(":")
    numel, _, dtype = rest.partition(":")
    size, dtype = int(numel or 8), dtype or "Float"
    p2p = op.startswith(("send", "recv"))
    return FlightCall(
        op.replace("_0", " 0").replace("_1", " 1") if p2p else op,
        p2p,
        f"[{size}]",
        f"[{size}]",
        size,
        size,
        dtype,
        dtype,
    )
