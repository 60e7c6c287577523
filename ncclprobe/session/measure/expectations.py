"""The expectations of a run without a file: from its machine type, its own links, or for gloo the slowest link.

Nothing is expected of gloo within one node: loopback depends on the processors, and no figures are published. A GPU's
number is never used for gloo. Pairs have an expectation only over NCCL.

A short description of rank 0's node is the run's fingerprint. The run is compared with the site's baseline of such
machines.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ncclprobe.expect import baselines, sockets
from ncclprobe.expect.baselines import digest_of, load, same_machine, unknown_parts
from ncclprobe.expect.expected import Expecting
from ncclprobe.expect.system import Shape
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.run.samples import Participants
from ncclprobe.model.measurement import Band, Expectation, Fingerprint, changes
from ncclprobe.model.nccl_selection import NodeTopology
from ncclprobe.model.ops import DTYPES, OPS
from ncclprobe.model.pair_results import PAIRS
from ncclprobe.model.snapshot import Snapshot, learned
from ncclprobe.model.values import asdict
from ncclprobe.nccl.paths import layout
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options


def fingerprint_of(facts: Mapping[type, object], who: Participants) -> Fingerprint:
    """Return the fingerprint of a node with these `facts`, measured by `who`."""
    machine: dict[str, str] = {}
    firmware, gpus, cpus = learned(facts, Machine), learned(facts, Gpus), learned(facts, Cpus)
    if firmware and (firmware.dmi.product or firmware.instance_type):
        product = f"{firmware.dmi.vendor} {firmware.dmi.product}".strip()
        machine["product"] = firmware.instance_type or product
    if gpus:
        names = [gpu.name for gpu in gpus.all]
        machine["gpu"] = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    if cpus:
        machine["cpu"] = f"{len(cpus.online)} x {cpus.model}"
    built = layout(Snapshot("", facts))
    known = built.gpus or built.nics or built.numa
    used = {name: value for name, value in who.versions.items() if name != "nccl" or who.backend == "nccl"}
    software = {name: value for name, value in used.items() if value}
    if gpus and gpus.driver:
        software["driver"] = gpus.driver
    software["settings"] = ", ".join(f"{name}={value}" for name, value in sorted(who.settings.items())) or "none"
    software["backend"] = who.backend
    return Fingerprint(machine, digest_of(_named_devices(built)) if known else None, software)


def _named_devices(built: NodeTopology) -> dict[str, Any]:
    """Return the facts that distinguish topologies. A link that trained narrower is a fault, not another machine."""
    found = {name: value for name, value in asdict(built).items() if name != "why"}
    for row in (*(found["gpus"] or ()), *(found["nics"] or ())):
        del row["pcie_width"], row["pcie_max_width"]
    return found


_MOST_NAMED = 4


def record_fingerprint(recorder: Recorder, path: str | None, snapshot: Snapshot) -> None:
    """Record the machine of the run, and judge it by the baseline at `path`, if one matches.

    Raises UsageError for a baseline that cannot be read.
    """
    found = fingerprint_of(snapshot.facts, recorder.participants)
    recorder.record(found)
    if path:
        compare_with(recorder, load(path), path, found)


def compare_with(recorder: Recorder, sites: Mapping[str, baselines.Site], path: str, mine: Fingerprint) -> None:
    """Judge by the baseline in `sites` for this machine, or report why none matches: a run without one
    does not pass.
    """
    fits = {name: site for name, site in sites.items() if same_machine(site.print(), mine)}
    nameless = {name: site for name, site in sites.items() if site.fingerprint is None}
    if not fits and len(sites) == len(nameless) == 1:
        fits = nameless
        recorder.note(f"{path} does not name its machine, so a change of the machine cannot be seen")
    if not fits:
        differs = "; ".join(changes(next(iter(sites.values())).print(), mine)[:_MOST_NAMED])
        of = f": {differs} (baseline -> now)" if len(sites) == 1 and differs else ""
        recorder.note(f"no baseline: {path} holds none of this machine{of}")
        return
    newest = max(fits, key=lambda name: fits[name].written)
    site = fits[newest]
    changed = "; ".join(changes(site.print(), mine)[:_MOST_NAMED])
    recorder.expect(baselines.bands(site, newest, f"; changed since: {changed}" if changed else ""))
    if changed:
        recorder.note(f"changed since the baseline {newest} was taken: {changed}")
    silent = unknown_parts(site.print(), mine)
    if silent and site.fingerprint:
        recorder.note(f"the baseline {newest} and this run do not both report: {', '.join(silent[:_MOST_NAMED])}")


def learn(run: RankContext) -> Expecting:
    """Find what to judge the rows by, and record it on rank 0. Every rank of the run calls this at the same time.

    Raises UsageError for a baseline that cannot be read.
    """
    recorder = run.recorder
    if recorder and run.look:
        record_fingerprint(recorder, run.options.baseline, run.look.snapshot())
    found = expecting(run)
    if recorder:
        recorder.expect((*found.bands, *(found.node_bands if "ladder" in run.options.what else ())))
    run.note(found.note)
    return found


def expecting(run: RankContext) -> Expecting:
    """Return the bands of this run, on rank 0. Every rank of the run calls this at the same time.

    Empty if a file gives the expectations, or if neither collectives nor pairs are measured.
    """
    options, identity = run.options, run.identity
    if options.expect or not {"collectives", "pairs"} & {*options.what}:
        return Expecting()
    if run.config.backend == "nccl":
        return _expect_nccl(run)
    if run.config.nodes < 2 or "collectives" not in options.what:
        return Expecting()
    from ncclprobe.session.measure.rank_nics import slowest_link

    link = slowest_link(run.exchange, identity, run.host, run.hosts[0] if run.hosts else "")
    if link is None:
        return Expecting()
    return Expecting(tuple(_bands(options, identity.ranks, lambda op, nbytes: sockets.gloo(op, nbytes, link))))


def _expect_nccl(run: RankContext) -> Expecting:
    """Build expectations on rank 0 from each node's own report; return nothing elsewhere."""
    from ncclprobe.expect import expected

    options, look = run.options, run.look
    mine = msgspec.to_builtins(expected.describe(look.snapshot().facts)) if look else None
    received = run.exchange.collect(mine)
    if received is None:
        return Expecting()
    nodes = {
        host: msgspec.convert(each, expected.Described, strict=False)
        for host, each in zip(run.hosts, received, strict=True)
        if each is not None
    }
    shape = Shape(tuple(Counter(run.hosts).values()))
    collectives, pairs = Expecting(), Expecting()
    if "collectives" in options.what:
        collectives = expected.expecting(options.ops, options.sizes_for("nccl"), options.itemsize, shape, nodes)
    if "pairs" in options.what:
        nbytes = options.pair_sizes[1] if len(options.pair_sizes) > 1 else USUAL_NBYTES["nccl"]
        pairs = expected.expecting_pairs(nbytes, shape, nodes)
    bands = (*collectives.bands, *pairs.bands)
    return Expecting(bands, collectives.note or pairs.note, collectives.node_bands)


def _bands(options: Options, ranks: int, expected: Callable[[str, int], Expectation | None]) -> Iterator[Band]:
    """Yield one band per operation and printed size that has an expectation."""
    for op in options.ops:
        itemsize = DTYPES[options.dtype]
        printed = dict.fromkeys(OPS[op].shape(nbytes, ranks, itemsize).nbytes for nbytes in options.sizes_for("gloo"))
        for nbytes in printed:
            found = expected(op, nbytes) if nbytes else None
            if found:
                yield Band(op, nbytes, nbytes, found)


def judgeable(sizes: Sequence[int], bands: Sequence[Band], backend: str) -> tuple[int, ...]:
    """Return the `sizes` that `bands` judge, or else the two most meaningful; plus the smallest."""
    judged = [band for band in bands if band.op != PAIRS and band.expectation.worst != "unjudged"]
    chosen = {nbytes for nbytes in sizes if any(band.low_bytes <= nbytes <= band.high_bytes for band in judged)}
    return tuple(n for n in sizes if n in (chosen or {USUAL_NBYTES[backend], max(sizes)}) or n == min(sizes))


USUAL_NBYTES = {"nccl": 64 << 20, "gloo": 4 << 20}
"""Message sizes that are no longer latency-bound, by backend."""
