"""Tests of rails, pairs and ranks whose parts are drawn by number: what is concluded of each is kept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, permutations, product
from random import Random
from typing import Any

from ncclprobe.checks.rail.fixtures import World
from ncclprobe.facts.reach import RailRow, Rails
from ncclprobe.facts.run.samples import MeasuredPairs
from ncclprobe.localise import rails, reach
from ncclprobe.localise.pairs.samples import End, Lost
from ncclprobe.localise.slow_ranks import localise
from ncclprobe.model.errors import NcclprobeError, Unlearned
from ncclprobe.model.measurement import Mismatch
from ncclprobe.model.pair_results import Aside, LostTransfer, Nic, PairRow, RankNics
from ncclprobe.model.rails import RailArrival, RailFailure, RailOutcome, RailPort, RailStream
from ncclprobe.model.snapshot import Every
from ncclprobe.model.values import replace
from tests.drawn import word
from tests.localise import slow_pairs

Rows = Iterator[tuple[str, object]]
_GIDS = ("0" * 20 + "ffff0a000001", "0" * 32, "fe80" + "0" * 27 + "1", "20010db8" + "0" * 23 + "1", "no gid",
         "0" * 20 + "ffff0a000002" + "77")  # fmt: skip
_WORLD = World(tuple(f"n{number}" for number in range(5)))
_STEPS: Any = ("start", "open", "connect", "latency", "prepare", "write", "verify")
_KINDS: Any = ("completion", "refused", "hangs", "died", "late", "event", "missing", "peer", "channel")
_WAYS: Any = ("out", "in", "both")


def _address(draw: Random, end: End, odd: float) -> Any:
    changes: dict[str, Any] = {
        "gid": draw.choice(_GIDS), "gid_type": draw.choice(("RoCE v2", "IB/RoCE v1", "")),
        "pkey": draw.choice((0xFFFF, 0x7FFF, 0x8001, 0x0001)), "link_layer": draw.choice(("InfiniBand", "unknown")),
    }  # fmt: skip
    return replace(_WORLD.address(end), **{name: value for name, value in changes.items() if draw.random() < odd})


def _failure(draw: Random) -> RailFailure:
    step, call = draw.choice((*_STEPS, "write", "write")), draw.choice(("", "ibv_modify_qp", "ibv_create_qp"))
    text, status = draw.choice("xyz"), draw.choice((0, 5, 12, 12, 4))
    direction = draw.choice(_WAYS) if step in ("write", "verify") else None
    return RailFailure(step=step, kind=draw.choice(_KINDS), text=text, direction=direction, call=call, status=status)


def _outcome(draw: Random, end: End, odd: float) -> RailOutcome:
    port = RailPort(device=f"mlx5_{end.rail}", memory="cuda" if draw.random() < odd / 4 else "host")
    failures = tuple(_failure(draw) for _ in range(3) if draw.random() < odd)
    streams = [RailStream(direction=way, nbytes=1 << 30, seconds=draw.choice((0.0, 0.1, 0.2, 0.4)), work_s=0.01)
               for way in _WAYS if draw.random() > odd]  # fmt: skip
    arrivals = [RailArrival(direction=way, checked_bytes=8, arrived_bytes=draw.choice((0, 1, 8)))
                for way in _WAYS if draw.random() > odd / 2]  # fmt: skip
    return RailOutcome(
        asked=port, own=_address(draw, end, odd) if draw.random() > odd / 4 else None, failures=failures,
        half_round_trip_us=(2.0, 3.0)[: draw.randrange(3)], streams=tuple(streams), arrivals=tuple(arrivals),
    )  # fmt: skip


def _fleet(draw: Random, odd: float) -> dict[str, list[RailRow]]:
    rows: dict[str, list[RailRow]] = {node: [] for node in _WORLD.nodes}
    for number, (one, other) in enumerate(draw.choices([*permutations(range(5), 2), (1, 1)], k=30)):
        rail, theirs = draw.choice(((0, 0), (1, 1), (2, 2), (0, 1)))
        limit = draw.choice((0.0, 0.0005, 0.25))
        for leads, node, mine, to, its in ((True, one, rail, other, theirs), (False, other, theirs, one, rail)):
            if draw.random() > 0.1:
                row = _outcome(draw, End(f"n{node}", mine), odd if draw.random() < 0.7 else 0.0)
                rows[f"n{node}"].append(RailRow(number, to, mine, its, leads, row, 2, number // 20, 1 << 20, limit))
    return rows


def _way(way: rails.Way) -> str:
    return "-".join(f"{end.node}.{end.rail}" for end in way)


def _told(each: rails.Tried) -> str:
    ways = [word(_way(way), both, rate) for way, both, rate in each.ways()]
    own = [failure and word(failure.step, failure.kind) for failure in map(each.own_failure, each.seen)]
    states = [each.gpu, each.met, each.usable, each.comparable, *each.unmet_why, *own, each.why, each.most_GBps]
    late, dead = [*map(_way, each.late())], [*map(_way, each.dead())]
    return word(each.number, _way(each.both[0]), *states, "late", *late, "dead", *dead, "ways", *ways)


def tests_of_rails() -> Rows:
    """Yield what each drawn test shows, and what explains the dead ways of all of them."""
    names = {rank: f"n{rank}" for rank in range(4)}
    for number in range(24):
        draw = Random(number)
        tried = rails.tried(_fleet(draw, odd=(0.05, 0.2, 0.4, 0.1)[number % 4]), names)
        yield f"tests {number}", [[_told(each)] for each in tried[:: 1 + number // 6]]
        every, failed = rails.faltering(tried)
        bad = [way for way in every if draw.random() < (0.2, 0.9, 1.0)[number % 3]]
        told: dict[str, object] = {
            "unmet": [each.number for each in rails.unmet(tried)],
            "broken": [[word(e.suspect.kind, e.suspect.nodes, e.suspect.tests, e.reason, e.at_times, e.rails,
                             [test.number for test in e.tests], *map(_way, e.suspect.pairs))]
                       for e in rails.broken(tried)],
            "by rail": [[word(e.kind, e.nodes, e.tests, *map(_way, e.pairs))] for e in rails.by_rail(every, bad)],
            "results": [word(_way((e.src, e.dst)), e.step, (e.why,) if isinstance(e, Lost) else (e.GBps, e.both))
                        for e in rails.results(tried)],
            "at times": [word(_way(way), len(every[way]), [e.number for e in those]) for way, those in failed.items()],
            "own": [word(end, [e.step + e.kind for e in those]) for end, those in rails.own_failures(tried).items()],
        }  # fmt: skip
        yield f"conclusions {number}", told
    addresses = [_address(Random(number), End("n1", number % 3), 0.6) for number in range(60)]
    yield "GIDs", [word(*rails.gid_problem(one, other)) for one, other in pairwise(addresses)]
    yield "keys", [word(rails.pkey_problem(one, other)) for one, other in pairwise(addresses)]
    for number in range(16):
        draw, own = Random(number), dict[str, Rails]()
        for rank, (node, rows) in enumerate(_fleet(draw, 0.2).items()):
            why, untested = draw.choice(("", f"none on {node}")), draw.choice(("", "", f"not asked of {node}"))
            ports = (RailPort(device="mlx5_0"),)[: draw.randrange(2)]
            own[node] = Rails(rank, names, ports, why, untested, rows=tuple(rows[: number // 4]))
        try:
            yield f"a run {number}", [each.number for each in rails.tests(Every(own))]
        except Unlearned as gap:
            yield f"a run {number}", word(gap)


def tests_of_paths() -> Rows:
    """Yield what explains drawn bad paths between nodes, and which paths lose too much at each limit."""
    for number in range(160):
        draw, nodes = Random(number), 2 + number % 8
        tested = [pair for pair in permutations(range(nodes), 2) if draw.random() < (1.0, 0.7, 0.9)[number % 3]]
        odd = {node: draw.choice((0.3, 0.7, 0.8, 1.0)) for node in draw.sample(range(nodes), draw.randrange(nodes))}
        way = draw.choice(((0,), (1,), (0, 1)))
        bad = [pair for pair in tested if draw.random() < max(odd.get(pair[end], 0.02) for end in way)]
        told = [word(e.kind, e.nodes, e.tests, e.at_one_node, e.one_way, e.pairs) for e in reach.blame(tested, bad)]
        yield f"{nodes} nodes {number}", told
    counts = {pair: pair for pair in product((0, 4, 5, 6, 10, 11), (99, 100, 101, 499, 500, 501, 1000, 1100))}
    yield "lossy", [word(*pair) for pair in sorted(reach.lossy(counts))]


def _nics(number: int) -> tuple[Nic | None, ...]:
    one, two, three, four = every = [Nic(f"mlx5_{place}", place) for place in range(4)]
    kinds: tuple[Sequence[Nic | None], ...] = (
        *((), (*every, *every), (*every, *every[::-1]), (one, two, three, one, two, three, three, four)),
        *((*every, None, two, three, four), (one,) * 8),
    )
    return tuple(kinds[number % 6])


def tests_of_ranks() -> Rows:
    """Yield what is concluded of drawn pairs of ranks, on one node and on several, and which rows are refused."""
    for number in range(110):
        draw, per_node = Random(number), (4, 1, 2, 8, 4)[number % 5]
        hosts = tuple(f"h{rank // per_node}" for rank in range(8))
        slow = {rank: draw.choice((0.5, 0.8, 0.93)) for rank in draw.sample(range(8), draw.randrange(4))}
        ends, part = draw.sample(range(8), 4), draw.choice((0.5, 0.8))
        pairs = [(ends[0], other) for other in ends[1 : draw.randint(2, 4)]] if number % 4 == 3 else []
        group = {*ends} if number % 8 == 6 else set()
        slow = {} if pairs or group else slow
        rows, lost = list[PairRow](), list[LostTransfer]()
        for step, (src, dst), both in product(range(4), permutations(range(8), 2), (False, True)):
            inside = hosts[src] == hosts[dst] and per_node < 8
            if step and not inside and draw.random() < 0.6:
                continue
            share = min(slow.get(src, 1.0), slow.get(dst, 1.0) if number % 2 else 1.0)
            share *= part if (src, dst) in pairs or (dst, src) in pairs or (src in group) != (dst in group) else 1.0
            if draw.random() < 0.01:
                lost.append(LostTransfer(src, dst, f"timed out at {step}", step, inside))
                continue
            wrong = draw.choice((None, 0, 7)) if draw.random() < 0.05 else None
            mismatch = draw.choice((None, Mismatch(dst, 3, src, "1", "2", "0x1", "0x2")))
            rows.append(slow_pairs.row(src, dst, draw.gauss(40, 1) * share, both=both, step=step,
                                       inside=inside, wrong=wrong, mismatch=mismatch))  # fmt: skip
        apart = draw.choices(range(8), k=number % 3)
        asides = [Aside(rank, f"rank {rank}", "it did not answer", rank % 2 == 0) for rank in apart]
        found = MeasuredPairs(RankNics(hosts, _nics(number)), tuple(rows), tuple(lost), tuple(asides), number % 7 > 0)
        yield f"ranks {number}", localise(found, (None, 30.0, 45.0)[number % 3])
    few, end = MeasuredPairs(RankNics(("a", "b"), ()), (), (), (), True), LostTransfer(0, 1, "x")
    for src, dst, inside in ((0, 1, True), (0, 2, False), (0, 2, True), (-1, 1, False), (2, 0, True)):
        row, lost_ = slow_pairs.row(src, dst, 1.0, inside=inside), replace(end, src=src, dst=dst, inside=inside)
        odd = {"row": replace(few, rows=(row,)), "lost": replace(few, lost=(lost_,))}
        for name, each in {**odd, "gone": replace(few, excluded=(Aside(dst, "x", "y", True),))}.items():
            try:
                yield f"{name} {src} {dst} {inside}", localise(each)
            except NcclprobeError as refused:
                yield f"{name} {src} {dst} {inside}", word(refused)


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    "drawn-rails": tests_of_rails, "drawn-paths": tests_of_paths, "drawn-ranks": tests_of_ranks,
}  # fmt: skip
