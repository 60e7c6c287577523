"""What one collective should reach on one machine: the best evidence there is, how sure it is, and why in a sentence.

In the order of trust: what the user or the site's baseline says (:mod:`.bands`), what was published for this very
machine type, NCCL's own cost model with a correction and the limits of the network (:mod:`.predict`), and last the
datasheet. Without any of these there is no expectation, and so no FAIL. What passes, and whether a row is judged at
all, is :mod:`.evidence`'s to say.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, cast

from ncclprobe.expect import evidence, network, published, sockets
from ncclprobe.expect.pinned import NOTHING, Pinned
from ncclprobe.expect.predict import LATEST, Prediction, predict
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables.machine_types import Latency, MachineType
from ncclprobe.expect.tuner.graphs import Graphs
from ncclprobe.model.measurement import Band, Expectation
from ncclprobe.model.values import Struct, replace
from ncclprobe.ops import OPS


def expectation(
    op: str,
    nbytes: int,
    shape: Shape,
    system: NodeSystem | None,
    *,
    machine: MachineType | None = None,
    version: NcclVersion = LATEST,
    given: Sequence[Band] = (),
    graphs: Graphs | None = None,
    settings: Pinned = NOTHING,
) -> Expectation | None:
    """What `op` of `nbytes` bytes (as printed) should reach on `shape`; None where nothing is known.

    `given` are the user's and the site's bands, in that order; `system` are the links there are, `machine` the type
    that was recognised, for what was published of it. `settings` are the job's: where it is not known what is reached
    with them, the number judges nothing.
    """
    stated = next((b.expectation for b in given if b.op == op and b.low_bytes <= nbytes <= b.high_bytes), None)
    if stated or shape.ranks < 2 or op not in OPS or nbytes < 1:
        return stated
    if system is None and machine is None:
        return None
    whole = system or cast(MachineType, machine).system()
    call = Call(settings.applied(whole), shape, op, nbytes, version, settings, graphs)
    call = replace(call, start=_wait(machine, call.system, shape, version)) if machine else call
    own = call.predicted()
    same = not settings or _same(own, predict(whole, shape, op, nbytes, version, graphs=graphs))
    chosen = own.algorithm if own else None
    printed = published.at_size(machine, op, nbytes, shape, chosen, same=same) if machine else None
    of_it = _weighed(printed, call)
    modelled = _by_model(own, call, machine if same and not printed else None) or _over_tcp(call)
    if of_it is None and modelled is None:
        return None
    found = combined(of_it, modelled)
    unknown = _unknown(call, whole, own, same=same)
    return replace(evidence.unjudged(found, unknown), gross=None) if unknown else found


class Call(Struct, frozen=True):
    """One call on `system`, which has no links but those that `settings` leave it."""

    system: NodeSystem
    shape: Shape
    op: str
    nbytes: int
    version: NcclVersion
    settings: Pinned = NOTHING
    graphs: Graphs | None = None
    start: float | None = None

    def predicted(self) -> Prediction | None:
        """What the model makes of it."""
        left = self.settings.left(self.op)
        args = self.system, self.shape, self.op, self.nbytes, self.version
        return predict(*args, graphs=self.graphs, left=left, start=self.start)

    def time_us(self, nbytes: int) -> float | None:
        """The same for another size, as a time."""
        found = replace(self, nbytes=nbytes).predicted()
        return found.time_us if found else None


@lru_cache(maxsize=256)
def _wait(machine: MachineType, system: NodeSystem, shape: Shape, version: NcclVersion) -> float | None:
    """What a call of `machine` waits for on top of its hops, by its own published small calls."""

    def hops(row: Latency) -> float | None:
        few = Shape((row.gpus,) * row.nodes)
        found = predict(system, few, row.op, OPS[row.op].shape(256, few.ranks, 4).nbytes, version)
        return found.time_us - found.start_us if found else None

    return published.start_us(machine, shape, hops)


def _same(own: Prediction | None, default: Prediction | None) -> bool:
    """Whether settings leave NCCL the choice that it makes without them, over the same links."""
    if own is None or default is None:
        return own is default
    return (own.algorithm, own.protocol, own.place, own.wire_GBps) == (
        default.algorithm,
        default.protocol,
        default.place,
        default.wire_GBps,
    )


def _unknown(call: Call, whole: NodeSystem, own: Prediction | None, *, same: bool) -> str:
    """Which setting makes of this call something that is not published; empty: none."""
    settings, what = call.settings, ""
    if settings.refused:
        return f"not judged: {settings.refused}"
    if settings.p2p and (whole.nvlinks or whole.p2p):
        what = settings.p2p
    elif settings.proto and not same and own and not _own_choice(call, own):
        what = settings.proto
    elif settings.algo and not same and own and own.algorithm != "Ring":
        what = settings.algo
    else:
        used = own.channels if own else None
        what = next((each.text for each in settings.channels if each.changes(used)), "")
    return f"not judged: {what} is set, and what {call.op} of this size reaches with it is not known" if what else ""


def _own_choice(call: Call, own: Prediction) -> bool:
    """Whether the protocol is what NCCL takes for the algorithm anyway."""
    free = predict(call.system, call.shape, call.op, call.nbytes, call.version, own.algorithm, call.graphs)
    return free is not None and free.protocol == own.protocol


def combined(published: Expectation | None, modelled: Expectation | None) -> Expectation:
    """What was published of a machine, and what the model makes of it: a row fails below the thresholds of both.

    Where one of them is too loosely known, the other's threshold counts. Either may be missing, not both.
    """
    if published is None or modelled is None:
        return cast(Expectation, published or modelled)
    marks = [each.gross for each in (published, modelled) if each.gross is not None]
    published = replace(published, gross=min(marks, default=None))
    if modelled.worst == "unjudged":
        return published
    known = f"the model expects {modelled.value:.4g} GB/s: {modelled.known}"
    if published.worst == "unjudged":
        return replace(published, threshold=min(modelled.threshold, published.value), worst=modelled.worst, known=known)
    low = min(published.threshold, modelled.threshold)
    worst: Literal["fail", "warn"] = "warn" if "warn" in (published.worst, modelled.worst) else "fail"
    return replace(published, threshold=low, worst=worst, known=f"{published.known}; {known}")


def _weighed(found: tuple[Expectation, bool] | None, call: Call) -> Expectation | None:
    """`found`, a number and whether it is of a time, with what the evidence lets it decide."""
    if found is None:
        return None
    return evidence.weighed(found[0], call.system, call.shape, call.op, call.nbytes, by_time=found[1])


def _by_model(own: Prediction | None, call: Call, machine: MachineType | None) -> Expectation | None:
    """The model's number, drawn to what is published of `machine` at other sizes."""
    if own is None:
        return None
    found = as_expectation(own, call.settings)
    if machine:
        factor, words = published.drawn(machine, call.op, call.nbytes, call.shape, call.time_us)
        found = replace(found, value=found.value / factor, why="; ".join(filter(None, (found.why, words))))
    return _weighed((found, own.latency_decides), call)


def as_expectation(found: Prediction, settings: Pinned = NOTHING) -> Expectation:
    """The model's number, before the evidence says what it may decide."""
    why = found.why + ("; corrected" if found.corrected else "") + (f"; with {settings}" if settings else "")
    return Expectation(found.busbw_GBps, 0.0, "GB/s", "model", why, found.source, found.confidence)


def _over_tcp(call: Call) -> Expectation | None:
    """NCCL between nodes without RDMA: only what is large, because nothing is known of the latency."""
    system = call.system
    tcp = system.network == "sockets" and network.domains(system, call.shape).count > 1
    if not tcp or not system.nic_gbps or call.nbytes < sockets.LARGE_NBYTES:
        return None
    link = sockets.SocketLink(system.nic_gbps * max(1, system.nics), "the NICs of a node", "reported")
    found = sockets.nccl(call.op, link)
    return _weighed((found, False), call) if found else None
