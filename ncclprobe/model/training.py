"""The communication of real training: the groups of a hybrid-parallel job, and the collectives of one step.

Plans only: which ranks, how many bytes, in which order, and the expected times. :mod:`ncclprobe.probes` runs them.

The communicators of a hybrid-parallel job: ranks are numbered as Megatron-LM numbers them
(megatron/core/parallel_state.py, order "tp-cp-ep-dp-pp" without cp and ep). Neighbours in tensor parallelism are
neighbours in rank, pipeline stages are the farthest apart. So a launcher that fills one node after the other keeps
tensor-parallel groups, which communicate most, inside nodes.

The collectives of one training step, by strategy: how many bytes, over which groups, and when they can start. A step is
a list of :class:`Compute` and :class:`Call` in the order in which one rank reaches them. Bytes are those of the table
that `ncclprobe.bandwidth` prints, so that a call's time can be looked up there. Compute is a share of the whole step: a
forward pass is one third and a backward pass two thirds of it (two matrix products for one).

The ladder of a job: one rank, its node, all nodes; the gain of more ranks, and whether one node is slow. Every rung is
the same step of data-parallel training: a rank's own work, and the gradients summed over its group. On the lowest rung
a group is one rank, so nothing is sent; all others are compared with it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import isqrt, prod
from statistics import median
from typing import Literal, get_args

from ncclprobe.model import bounds, stats
from ncclprobe.model.errors import UsageError, unknown
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import Band
from ncclprobe.model.traffic import LadderRow, RungName
from ncclprobe.model.values import Struct, grouped, replace

Axis = Literal["tp", "dp", "pp"]
AXES: tuple[Axis, ...] = get_args(Axis)
"""Tensor, data and pipeline parallelism, from the innermost to the outermost."""

OPERATION: Mapping[Axis, str] = {"tp": "all_reduce", "dp": "all_reduce", "pp": "sendrecv"}
"""The main operation of each kind of group: sum activations, sum gradients, pass activations to the next stage."""


class Grid(Struct, frozen=True):
    """The number of ranks along each axis; ``tp=8,dp=4`` has 32 ranks."""

    tp: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        """Return the total number of ranks."""
        return prod(self.along(kind) for kind in AXES)

    def along(self, kind: Axis) -> int:
        """Return the length of one axis."""
        return int(getattr(self, kind))

    def groups(self, kind: Axis) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that differ only along `kind`, in the order of their first rank."""
        strides = _strides(self)
        others = [[place * strides[axis] for place in range(self.along(axis))] for axis in AXES if axis != kind]
        starts = sorted(sum(place) for place in product(*others))
        own = [place * strides[kind] for place in range(self.along(kind))]
        return tuple(tuple(start + offset for offset in own) for start in starts)

    def __str__(self) -> str:
        """Return the grid as it is written: ``tp=2,dp=2``."""
        return ",".join(f"{kind}={self.along(kind)}" for kind in AXES if self.along(kind) > 1) or "dp=1"


def _strides(grid: Grid) -> dict[Axis, int]:
    """Return the distance in rank between neighbours along each axis."""
    strides: dict[Axis, int] = {}
    step = 1
    for kind in AXES:
        strides[kind] = step
        step *= grid.along(kind)
    return strides


def parse(text: str) -> Grid:
    """Parse ``tp=8,pp=2,dp=4``, in any order. Raises UsageError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        kind, _, number = (word.strip() for word in part.partition("="))
        if kind not in AXES:
            raise UsageError(f"--groups {text}: {unknown(kind or part, 'kind of group', AXES)}")
        if kind in sizes:
            raise UsageError(f"--groups {text}: {kind} is given twice")
        if not (number.isascii() and number.isdecimal() and len(number) < 8 and int(number) > 0):
            raise UsageError(f"--groups {text}: {kind}={number} must be a whole number above zero, such as {kind}=2")
        sizes[kind] = int(number)
    grid = Grid(**sizes)
    if grid.ranks > bounds.JOB_RANKS:
        raise UsageError(f"--groups {text}: {grid.ranks} ranks are too many")
    return grid


def fit(grid: Grid, ranks: int) -> Grid:
    """Return `grid` if it has exactly `ranks` ranks. Raises UsageError with a grid that fits."""
    if grid.ranks == ranks:
        return grid
    others = grid.ranks // grid.dp
    hint = f"; dp={ranks // others} would" if ranks % others == 0 else f"; {ranks} is not a multiple of {others}"
    raise UsageError(
        f"--groups {grid} is {grid.ranks} ranks, but this job has {ranks}; the groups must use all ranks{hint}"
    )


def crossing(groups: Sequence[Sequence[int]], hosts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the `groups` whose ranks are on more than one of the `hosts` (by rank)."""
    return tuple(tuple(group) for group in groups if len({hosts[rank] for rank in group}) > 1)


def advice(grid: Grid, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return warnings about `grid` on these `hosts` (by rank), one sentence each; empty: none."""
    across = crossing(grid.groups("tp"), hosts) if grid.tp > 1 else ()
    if not across:
        return ()
    most = max(hosts.count(host) for host in set(hosts))
    larger = f": a group of {grid.tp} is larger than a node of {most}" if grid.tp > most else ""
    return (
        f"{len(across)} of {len(grid.groups('tp'))} tensor-parallel groups cross nodes (ranks {first_of(across[0], 8)} "
        f"first){larger}; every layer then waits for the network. Keep tp within a node, and number ranks node by node",
    )


Strategy = Literal["ddp", "fsdp", "tp"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

FORWARD, BACKWARD = 1 / 3, 2 / 3
DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES = 25 << 20, 1 << 20
"""torch's DistributedDataParallel: bucket_cap_mb, and a first bucket of 1 MiB so that communication starts early
(torch/nn/parallel/distributed.py, dist._DEFAULT_FIRST_BUCKET_BYTES)."""


class Model(Struct, frozen=True):
    """The trained model: `params` of `dtype_bytes` each in `layers` equal layers, and the micro-batches.

    `tokens`: tokens of one micro-batch on one rank.
    """

    params: int
    layers: int
    dtype_bytes: int = 2
    tokens: int = 2048
    micro_batches: int = 1

    @property
    def hidden(self) -> int:
        """Return the width of a transformer of this size: 12 h² parameters in a layer (4 h² attention, 8 h² MLP)."""
        return max(1, isqrt(self.params // (12 * self.layers)))

    @property
    def activation_bytes(self) -> int:
        """Return the bytes that one micro-batch passes from layer to layer."""
        return self.tokens * self.hidden * self.dtype_bytes

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """Return the bytes of each layer's parameters; the last one also has the remainder."""
        each, rest = divmod(self.params, self.layers)
        return (*[each * self.dtype_bytes] * (self.layers - 1), (each + rest) * self.dtype_bytes)


class Compute(Struct, frozen=True):
    """Compute time, as a share of the step's total."""

    share: float


class Collective(Struct, frozen=True):
    """One collective. `name` is its purpose.

    `needed`: how many compute items later the result is needed, 0 being the next; None: only at the end of the step.
    Without overlap every call is waited for immediately.
    """

    name: str
    op: str
    nbytes: int
    needed: int | None = None


Item = Compute | Collective
StepPlan = tuple[Item, ...]


def step(strategy: Strategy, model: Model) -> StepPlan:
    """Return the items of one rank's step."""
    passes = {"ddp": _ddp, "fsdp": _sharded, "tp": _tensor}
    return tuple(passes[strategy](model))


def buckets(model: Model) -> tuple[int, ...]:
    """Return the sizes of DDP's buckets in the order in which backward fills them: a small one, then full ones."""
    left = model.params * model.dtype_bytes
    first = min(left, DDP_FIRST_BUCKET_BYTES)
    found, left = [first], left - first
    while left > 0:
        found.append(min(DDP_BUCKET_BYTES, left))
        left -= found[-1]
    return tuple(found)


def _ddp(model: Model) -> Iterator[Item]:
    """Yield DDP's items: all but the last micro-batch only compute (no_sync); the last one's buckets are summed."""
    share = 1 / model.micro_batches
    whole = model.params * model.dtype_bytes
    yield Compute(1 - share + FORWARD * share)
    for number, nbytes in enumerate(buckets(model)):
        yield Compute(BACKWARD * share * nbytes / whole)
        yield Collective(f"bucket {number}", "all_reduce", nbytes)


def _sharded(model: Model) -> Iterator[Item]:
    """Yield FSDP's items: each layer is gathered before its forward and its backward; its gradients scatter."""
    share = 1 / model.micro_batches / model.layers
    for _ in range(model.micro_batches):
        yield from _gathered(model, FORWARD * share, backward=False)
        yield from _gathered(model, BACKWARD * share, backward=True)


def _gathered(model: Model, share: float, backward: bool) -> Iterator[Item]:
    order = range(model.layers)[::-1] if backward else range(model.layers)
    way, sizes = ("backward" if backward else "forward"), model.layer_bytes
    first, *others = order
    yield Collective(f"gather layer {first}, {way}", "all_gather", sizes[first], needed=0)
    for layer, after in zip(order, [*others, None], strict=True):
        if after is not None:
            yield Collective(f"gather layer {after}, {way}", "all_gather", sizes[after], needed=1)
        yield Compute(share)
        if backward:
            yield Collective(f"scatter gradients of layer {layer}", "reduce_scatter", sizes[layer])


def _tensor(model: Model) -> Iterator[Item]:
    """Yield the items of Megatron's layers: activations are summed after attention and MLP, both ways."""
    half = 1 / model.micro_batches / model.layers / 2
    for _ in range(model.micro_batches):
        for way, weight, order in (
            ("forward", FORWARD, range(model.layers)),
            ("backward", BACKWARD, range(model.layers)[::-1]),
        ):
            for layer in order:
                for part in ("attention", "MLP")[:: 1 if way == "forward" else -1]:
                    yield Compute(half * weight)
                    yield Collective(f"layer {layer} {part}, {way}", "all_reduce", model.activation_bytes, needed=0)


def memory_bytes(strategy: Strategy, model: Model) -> int:
    """Return the bytes that a rank of the replay allocates: two buffers of its largest call, not the model."""
    return 2 * max(item.nbytes for item in step(strategy, model) if isinstance(item, Collective))


TimeOf = Callable[[Collective], float]
"""Seconds of one call by itself."""


class Predicted(Struct, frozen=True):
    """Seconds of a step: `compute_s` of it is compute; `calls_s` is the sum of all calls by themselves."""

    step_s: float
    compute_s: float
    calls_s: float

    @property
    def efficiency(self) -> float:
        """Return the efficiency relative to a single rank: 1 means that communication is absent or fully hidden."""
        return self.compute_s / self.step_s if self.step_s else 1.0


def predict(items: StepPlan, compute_s: float, time_of: TimeOf, overlap: bool = True) -> Predicted:
    """Predict the time of one step: calls run in order, one at a time, each once the rank reaches it.

    With `overlap`, compute continues during a call until its result is needed; without, every call is waited for.
    """
    now = network_free = calls_s = 0.0
    pending: list[tuple[int, float]] = []
    for place, item in enumerate(items):
        for wanted, done in pending:
            if wanted <= place:
                now = max(now, done)
        pending = [each for each in pending if each[0] > place]
        if isinstance(item, Compute):
            now += item.share * compute_s
            continue
        took = time_of(item)
        calls_s += took
        network_free = max(now, network_free) + took
        if not overlap:
            now = network_free
        else:
            pending.append((needed_at(items, place), network_free))
    return Predicted(max(now, network_free), compute_s, calls_s)


def needed_at(items: StepPlan, place: int) -> int:
    """Return the index in `items` at which the result of the call at `place` is needed; ``len(items)``: at the end."""
    call = items[place]
    computes = [later for later in range(place + 1, len(items)) if isinstance(items[later], Compute)]
    if not isinstance(call, Collective) or call.needed is None or call.needed >= len(computes):
        return len(items)
    return computes[call.needed]


class Rung(Struct, frozen=True):
    """The ranks of each group; groups run at the same time, as they would in a job."""

    name: RungName
    groups: tuple[tuple[int, ...], ...]

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the group that `rank` is in, or a group of only this rank."""
        return next((group for group in self.groups if rank in group), (rank,))


def plan(hosts: Sequence[str], *, pairs: bool) -> tuple[Rung, ...]:
    """Return the rungs of ranks on `hosts`, from one rank to all, without those as large as the one below.

    `pairs`: add a rung of two ranks each, for a backend without GPUs, whose nodes are only as wide as they were
    started.
    """
    nodes = grouped((host, rank) for rank, host in enumerate(hosts))
    by_two = tuple(two for ranks in nodes.values() for two in zip(ranks[::2], ranks[1::2], strict=False))
    wanted = [
        Rung("rank", tuple((rank,) for rank in range(len(hosts)))),
        *([Rung("pair", by_two)] if pairs else []),
        Rung("node", tuple(tuple(ranks) for ranks in nodes.values())),
        Rung("job", (tuple(range(len(hosts))),)),
    ]
    found: list[Rung] = []
    for rung in wanted:
        width = max((len(group) for group in rung.groups), default=0)
        if not found or width > max(map(len, found[-1].groups)):
            found.append(rung)
    return tuple(found)


def climbed(rows: Sequence[LadderRow], bands: Sequence[Band]) -> tuple[LadderRow, ...]:
    """Add speed-up, efficiency and verdict to `rows`, from the rows themselves and from `bands` of one node."""
    alone = next((row for row in rows if row.rung == "rank"), None)
    return tuple(_judge(_compared(row, alone), bands) for row in rows)


def _compared(row: LadderRow, alone: LadderRow | None) -> LadderRow:
    pairs = zip(alone.samples_us if alone else (), row.samples_us, strict=False)
    ratios = [one_us / step_us for one_us, step_us in pairs if step_us > 0]
    if not ratios:
        return row
    efficiency = median(ratios)
    interval = stats.median_interval(ratios) if len(ratios) >= stats.MIN_SAMPLES else None
    return replace(row, speedup=row.ranks * efficiency, efficiency=efficiency, interval=interval)


def _judge(row: LadderRow, bands: Sequence[Band]) -> LadderRow:
    """Judge a node's all_reduce by the expectation for this many ranks; the job's is judged as an ordinary row."""
    found = next(_node_bands(row, bands), None)
    usual, best = row.busbw_GBps, row.best_GBps
    if found is None or usual is None or best is None:
        return row
    expected = found.expectation
    row = replace(row, expectation=expected)
    if expected.below_gross(best):
        return replace(row, status="fail")
    if expected.worst == "unjudged":
        return row
    if usual >= expected.threshold:
        return replace(row, status="pass")
    return replace(row, status=expected.worst if best < expected.threshold else "inconclusive")


def _node_bands(row: LadderRow, bands: Sequence[Band]) -> Iterator[Band]:
    for band in bands:
        same = band.like is not None and (band.like.ranks, band.like.nodes) == (row.ranks, 1)
        if row.rung == "node" and same and band.op == row.op and band.low_bytes <= row.nbytes <= band.high_bytes:
            yield band
