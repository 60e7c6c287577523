"""The collectives of one training step, by strategy: how many bytes, over which groups, and when they can start.

A step is a list of :class:`Compute` and :class:`Call` in the order in which one rank comes to them. Bytes are those of
the table that `ncclprobe.bandwidth` prints, so that a call's time can be looked up there. Compute is counted in shares
of a step's whole: a forward pass is one third and a backward pass two thirds of it (two matrix products for one).
"""

from collections.abc import Callable, Iterator
from math import isqrt
from typing import Literal, get_args

from ncclprobe.model.values import Struct

Strategy = Literal["ddp", "fsdp", "zero3", "tp"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

FORWARD, BACKWARD = 1 / 3, 2 / 3
DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES = 25 << 20, 1 << 20
"""torch's DistributedDataParallel: bucket_cap_mb, and a first bucket of 1 MiB so that communication starts early
(torch/nn/parallel/distributed.py, dist._DEFAULT_FIRST_BUCKET_BYTES)."""
ZERO_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's reduce_bucket_size: gradients wait until so many are there (deepspeed/runtime/zero/config.py)."""


class Model(Struct, frozen=True):
    """What is trained: `params` of `dtype_bytes` each in `layers` equal layers, and what one micro-batch holds.

    `tokens`: of one micro-batch on one rank. `bucket_bytes`: of DDP and ZeRO, null: that framework's own default.
    """

    params: int
    layers: int
    dtype_bytes: int = 2
    tokens: int = 2048
    micro_batches: int = 1
    bucket_bytes: int | None = None

    @property
    def hidden(self) -> int:
        """Return the width of a transformer of this size: 12 h² parameters in a layer (4 h² attention, 8 h² MLP)."""
        return max(1, isqrt(self.params // (12 * self.layers)))

    @property
    def activation_bytes(self) -> int:
        """Return what one micro-batch hands from layer to layer."""
        return self.tokens * self.hidden * self.dtype_bytes

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """Return the bytes of each layer's parameters; the last has what does not divide."""
        each, rest = divmod(self.params, self.layers)
        return (*[each * self.dtype_bytes] * (self.layers - 1), (each + rest) * self.dtype_bytes)


class Compute(Struct, frozen=True):
    """Work for the processor: a share of the step's whole compute."""

    share: float


class Call(Struct, frozen=True):
    """One collective. `name` says what for.

    `needed`: which compute after it waits for its result, 0 being the next; null: only the end of the step does.
    Without overlap every call is waited for at once.
    """

    name: str
    op: str
    nbytes: int
    needed: int | None = None


Item = Compute | Call
Step = tuple[Item, ...]


def step(strategy: Strategy, model: Model) -> Step:
    """Return what one rank does in one step."""
    passes = {"ddp": _ddp, "fsdp": _sharded, "zero3": _zero3, "tp": _tensor}
    return tuple(passes[strategy](model))


def total_bytes(items: Step) -> dict[str, int]:
    """Return the bytes of all calls, by operation."""
    found: dict[str, int] = {}
    for item in items:
        if isinstance(item, Call):
            found[item.op] = found.get(item.op, 0) + item.nbytes
    return found


def buckets(model: Model) -> tuple[int, ...]:
    """Return the bytes of DDP's buckets in the order in which backward fills them: a small one, then full ones."""
    size = model.bucket_bytes or DDP_BUCKET_BYTES
    left = model.params * model.dtype_bytes
    first = min(left, size, DDP_FIRST_BUCKET_BYTES)
    found, left = [first], left - first
    while left > 0:
        found.append(min(size, left))
        left -= found[-1]
    return tuple(found)


def _ddp(model: Model) -> Iterator[Item]:
    """Yield DDP's items: all but the last micro-batch only compute (no_sync); the last one's buckets are summed."""
    share = 1 / model.micro_batches
    whole = model.params * model.dtype_bytes
    yield Compute(1 - share + FORWARD * share)
    for number, nbytes in enumerate(buckets(model)):
        yield Compute(BACKWARD * share * nbytes / whole)
        yield Call(f"bucket {number}", "all_reduce", nbytes)


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
    yield Call(f"gather layer {first}, {way}", "all_gather", sizes[first], needed=0)
    for layer, after in zip(order, [*others, None], strict=True):
        if after is not None:
            yield Call(f"gather layer {after}, {way}", "all_gather", sizes[after], needed=1)
        yield Compute(share)
        if backward:
            yield Call(f"scatter gradients of layer {layer}", "reduce_scatter", sizes[layer])


def _zero3(model: Model) -> Iterator[Item]:
    """Yield ZeRO-3's items: FSDP's, but gradients wait for a full bucket, or for the end of a backward pass."""
    limit = model.bucket_bytes or ZERO_BUCKET_ELEMENTS * model.dtype_bytes
    full = 0
    for item in _sharded(model):
        if not (isinstance(item, Call) and item.op == "reduce_scatter"):
            yield item
            continue
        full += item.nbytes
        if full >= limit or item.name.endswith("layer 0"):  # backward ends there
            yield Call(f"scatter a bucket, to {item.name.partition('of ')[2]}", "reduce_scatter", full)
            full = 0


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
                    yield Call(f"layer {layer} {part}, {way}", "all_reduce", model.activation_bytes, needed=0)


def memory_bytes(strategy: Strategy, model: Model) -> int:
    """Return what a rank of the replay must allocate: two buffers of its largest call, not the model."""
    return 2 * max(item.nbytes for item in step(strategy, model) if isinstance(item, Call))


TimeOf = Callable[[Call], float]
"""Seconds that one call takes alone."""


class Predicted(Struct, frozen=True):
    """Seconds of a step: `compute_s` of it is work, `calls_s` is all calls alone, `exposed_s` is what is not hidden."""

    step_s: float
    compute_s: float
    calls_s: float

    @property
    def efficiency(self) -> float:
        """Return the efficiency relative to a rank alone: 1 is no communication, or all of it hidden."""
        return self.compute_s / self.step_s if self.step_s else 1.0


def predict(items: Step, compute_s: float, time_of: TimeOf, overlap: bool = True) -> Predicted:
    """Return the time of one step: calls start in order, one after the other, each once the rank comes to it.

    With `overlap` compute goes on during a call until its result is needed; without, every call is waited for.
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


def needed_at(items: Step, place: int) -> int:
    """Return where in `items` the result of the call at `place` is needed; their number: at the end."""
    call = items[place]
    computes = [later for later in range(place + 1, len(items)) if isinstance(items[later], Compute)]
    if not isinstance(call, Call) or call.needed is None or call.needed >= len(computes):
        return len(items)
    return computes[call.needed]
