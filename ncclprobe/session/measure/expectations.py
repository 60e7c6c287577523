"""What a run is judged by without a file: its machine type, its own links, or for gloo the slowest one.

Nothing is expected of gloo within one node: loopback depends on the processors, and no figures are published. No number
of a GPU is ever used for gloo. Of pairs something is expected over NCCL alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ncclprobe.expect import sockets
from ncclprobe.expect.expected_of_run import Expecting
from ncclprobe.expect.system import Shape
from ncclprobe.host import Host
from ncclprobe.model.measurement import Band, Expectation
from ncclprobe.model.pair_results import PAIRS
from ncclprobe.ops import DTYPES, OPS
from ncclprobe.session.measure.baseline import record_fingerprint
from ncclprobe.session.measure.look import Look
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.agreement import RunConfig
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange


def learn(
    options: Options,
    config: RunConfig,
    exchange: Exchange,
    identity: RankIdentity,
    host: Host,
    look: Look | None,
    hosts: Sequence[str],
    recorder: Recorder | None,
) -> Expecting:
    """Find what to judge the rows by, and record it on rank 0. Every rank of the run calls this at the same time.

    Raises UsageError for a baseline that cannot be read.
    """
    if recorder and look:
        record_fingerprint(recorder, options.baseline, look.snapshot())
    found = expecting(options, config, exchange, identity, host, look, hosts)
    if recorder:
        recorder.expect((*found.bands, *(found.node_bands if "ladder" in options.what else ())))
        if found.note:
            recorder.note(found.note)
    return found


def expecting(
    options: Options,
    config: RunConfig,
    exchange: Exchange,
    identity: RankIdentity,
    host: Host,
    look: Look | None,
    hosts: Sequence[str],
) -> Expecting:
    """Return the bands of this run, on rank 0. Every rank of the run calls this at the same time.

    Nothing where a file says what to expect, and where neither collectives nor pairs are measured.
    """
    if options.expect or not {"collectives", "pairs"} & {*options.what}:
        return Expecting()
    if config.backend == "nccl":
        return _of_nccl(options, exchange, look, hosts)
    if config.nodes < 2 or "collectives" not in options.what:
        return Expecting()
    from ncclprobe.session.measure.slowest_link import slowest_link

    link = slowest_link(exchange, identity, host, hosts[0] if hosts else "")
    if link is None:
        return Expecting()
    return Expecting(tuple(_bands(options, identity.ranks, lambda op, nbytes: sockets.gloo(op, nbytes, link))))


def _of_nccl(options: Options, exchange: Exchange, look: Look | None, hosts: Sequence[str]) -> Expecting:
    """Expect by what each node reports of itself; on rank 0, nothing elsewhere."""

    from ncclprobe.expect import expected_of_run

    mine = msgspec.to_builtins(expected_of_run.describe(look.snapshot().facts)) if look else None
    received = exchange.collect(mine)
    if received is None:
        return Expecting()
    nodes = {
        host: msgspec.convert(each, expected_of_run.Described, strict=False)
        for host, each in zip(hosts, received, strict=True)
        if each is not None
    }
    shape = Shape(tuple(Counter(hosts).values()))
    collectives, pairs = Expecting(), Expecting()
    if "collectives" in options.what:
        collectives = expected_of_run.expecting(options.ops, options.sizes_for("nccl"), options.itemsize, shape, nodes)
    if "pairs" in options.what:
        nbytes = options.pair_sizes[1] if len(options.pair_sizes) > 1 else USUAL_NBYTES["nccl"]
        pairs = expected_of_run.expecting_pairs(nbytes, shape, nodes)
    bands = (*collectives.bands, *pairs.bands)
    return Expecting(bands, collectives.note or pairs.note, collectives.node_bands)


def _bands(options: Options, ranks: int, expected: Callable[[str, int], Expectation | None]) -> Iterator[Band]:
    """Return one band per operation and printed size for which there is an expectation."""
    for op in options.ops:
        itemsize = DTYPES[options.dtype]
        printed = dict.fromkeys(OPS[op].shape(nbytes, ranks, itemsize).nbytes for nbytes in options.sizes_for("gloo"))
        for nbytes in printed:
            found = expected(op, nbytes) if nbytes else None
            if found:
                yield Band(op, nbytes, nbytes, found)


def judgeable(sizes: Sequence[int], bands: Sequence[Band], backend: str) -> tuple[int, ...]:
    """Return those of `sizes` that `bands` judge, or else the most telling two; and the smallest."""
    judged = [band for band in bands if band.op != PAIRS and band.expectation.worst != "unjudged"]
    chosen = {nbytes for nbytes in sizes if any(band.low_bytes <= nbytes <= band.high_bytes for band in judged)}
    return tuple(n for n in sizes if n in (chosen or {USUAL_NBYTES[backend], max(sizes)}) or n == min(sizes))


USUAL_NBYTES = {"nccl": 64 << 20, "gloo": 4 << 20}
"""Bytes of a message that is no longer bound by latency, by backend."""
