"""What a run is judged by where nobody gave it a file: the machine type, the links that are there, or the slowest one.

Nothing is expected of gloo within one node: what loopback carries is the processors' affair, and nobody has published
it. No number of a GPU is ever used for gloo.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ncclprobe.expect import sockets
from ncclprobe.expect.system import Shape, Version
from ncclprobe.host import Host
from ncclprobe.model.measurement import Band, Expectation
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.ops import DTYPES, OPS
from ncclprobe.session.measure.look import Look
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.agreement import Terms
from ncclprobe.session.ranks.identity import Seat
from ncclprobe.session.ranks.store import Exchange


@dataclass(frozen=True, slots=True)
class Expecting:
    """Bands for the rows of a run, and what the reader must know of where they come from (empty: nothing)."""

    bands: tuple[Band, ...] = ()
    remark: str = ""


def expecting(
    options: Options, terms: Terms, exchange: Exchange, seat: Seat, host: Host, look: Look | None, hosts: Sequence[str]
) -> Expecting:
    """The bands of this run, on rank 0. Every rank of the run calls this at the same time.

    Nothing where a file says what to expect, and for pairs.
    """
    if options.expect or options.pairs is not None:
        return Expecting()
    if terms.backend == "nccl":
        return _of_nccl(options, hosts, look.snapshot()) if look and seat.rank == 0 else Expecting()
    if terms.nodes < 2:
        return Expecting()
    from ncclprobe.session.measure.slowest_link import slowest_link

    link = slowest_link(exchange, seat, host, hosts[0] if hosts else "")
    if link is None:
        return Expecting()
    return Expecting(tuple(_bands(options, seat.ranks, lambda op, nbytes: sockets.gloo(op, nbytes, link))))


def _of_nccl(options: Options, hosts: Sequence[str], snapshot: Snapshot) -> Expecting:
    """By this node's own links, to which the others are taken to be alike."""
    from ncclprobe.expect.context import situation
    from ncclprobe.expect.pinned import pinned
    from ncclprobe.expect.predict import LATEST, expectation

    here = situation(snapshot.facts)
    if isinstance(here.system, Absent):
        return Expecting(remark=f"nothing is expected of this machine: {here.system.why}")
    system, shape = here.system, Shape(tuple(Counter(hosts).values()))
    if max(shape.gpus) > system.gpus:
        return Expecting(
            remark=f"{max(shape.gpus)} ranks on a machine of {system.gpus} GPUs: nothing is expected of it"
        )
    version: Version = here.nccl or LATEST
    settings = pinned(here.settings, version)

    def expected(op: str, nbytes: int) -> Expectation | None:
        return expectation(op, nbytes, shape, system, machine=here.machine, version=version, settings=settings)

    found = tuple(_bands(options, shape.ranks, expected))
    judged = any(band.expectation.worst != "unjudged" for band in found)
    how = "judged without --expect" if judged else "expected without --expect, and too loosely known to judge by"
    return Expecting(found, f"{how}: {here.why}" + (f"; with {settings}" if settings else "") if found else "")


def _bands(options: Options, ranks: int, expected: Callable[[str, int], Expectation | None]) -> Iterator[Band]:
    """One band per operation and printed size of which anything is expected."""
    for op in options.ops:
        itemsize = DTYPES[options.dtype]
        printed = dict.fromkeys(OPS[op].shape(nbytes, ranks, itemsize).nbytes for nbytes in options.sizes)
        for nbytes in printed:
            found = expected(op, nbytes) if nbytes else None
            if found:
                yield Band(op, nbytes, nbytes, found)
