"""Pairs as text: two matrices if they fit, otherwise the slowest, and a description of the slow parts."""

from collections.abc import Callable, Iterator, Sequence

from ncclprobe.model.layout import wrap
from ncclprobe.model.pair_results import Blamed, Localisation, PairRow
from ncclprobe.model.units import certain, plural, size, three_digits

MOST_RANKS = 16
"""A matrix of more ranks is wider than a terminal."""
_WORST = 10


def blocks(rows: Sequence[PairRow], found: Localisation | None, width: int) -> Iterator[list[str]]:
    """Yield the round-robin's matrices (retests are in the JSON), then the localisation."""
    first = [row for row in rows if not row.step]
    one_way = [row for row in first if not row.both]
    ranks = sorted({rank for row in one_way for rank in (row.src, row.dst)})
    if one_way and len(ranks) <= MOST_RANKS:
        about = f"of {size(one_way[0].latency_nbytes)}, us"
        yield _matrix(f"one-way latency {about}", one_way, ranks, lambda row: f"{row.latency_us:.1f}")
        sized = f"of {size(one_way[0].nbytes)}, GB/s, from the row's rank to the column's"
        yield _matrix(f"bandwidth {sized}", one_way, ranks, lambda row: three_digits(row.GBps))
        both = [row for row in first if row.both]
        if both:
            yield _matrix("the same, both ways at once", both, ranks, lambda row: three_digits(row.GBps))
        rows_of_ends = sorted(one_way, key=lambda row: not row.inside)  # of a rank that has both, its end in the fabric
        ends = {row.src: row.src_end for row in rows_of_ends} | {row.dst: row.dst_end for row in rows_of_ends}
        if any(ends[rank] != f"rank {rank}" for rank in ranks):
            yield wrap("ranks: ", ", ".join(f"{rank} is {ends[rank]}" for rank in ranks), width)
    elif one_way:
        yield from (_worst(chosen, len(ranks)) for chosen in (_split(one_way, False), _split(one_way, True)) if chosen)
    if found:
        yield [line for _, text in words(found) for line in wrap("pairs: ", text, width)]


def _matrix(title: str, rows: Sequence[PairRow], ranks: Sequence[int], shown: Callable[[PairRow], str]) -> list[str]:
    cells = {(row.src, row.dst): shown(row) for row in rows}
    wide = max(map(len, cells.values())) + 1
    wide = max(wide, 5)
    lines = [title, "from\\to" + "".join(f"{rank:>{wide}}" for rank in ranks)]
    for src in ranks:
        lines.append(f"{src:>7}" + "".join(f"{cells.get((src, dst), '-'):>{wide}}" for dst in ranks))
    return lines


def _split(rows: Sequence[PairRow], inside: bool) -> list[PairRow]:
    return [row for row in rows if row.inside is inside]


def _worst(rows: Sequence[PairRow], ranks: int) -> list[str]:
    slowest = sorted(rows, key=lambda row: row.GBps)[:_WORST]
    within = ", inside nodes" if rows[0].inside else ""
    lines = [f"the slowest of {plural(len(rows), 'direction')} between {ranks} ranks{within}, {size(rows[0].nbytes)}:"]
    for row in slowest:
        rate = f"{three_digits(row.GBps)} GB/s, latency {row.latency_us:.1f} us"
        lines.append(f"  {row.src_end} to {row.dst_end}: {rate}")
    return lines


def words(found: Localisation) -> Iterator[tuple[str, str]]:
    """Describe the slow parts and the certainty: one sentence each, after fail, warn, pass or note."""
    tests = f"{plural(found.tests, 'test')}, {plural(found.steps, 'round')} of retests"
    yield from _local_rates(found)
    yield "note", f"usual bandwidth: {found.usual or 'nothing arrived'}"
    if found.all_slow:
        yield "fail", f"everything is slower than expected ({tests})"
    elif not found.culprits:
        yield "pass", f"nothing is confirmed as slow ({tests})"
    for each in found.culprits:
        yield "fail", f"confirmed: {_description(each)}"
    for each in found.suspects:
        if each.confidence > 0.5:
            yield "warn", f"suspected, not confirmed: {_description(each)}"
    for rail, share in found.slow_rails.items():
        yield "fail", f"rail {rail} on all nodes reaches {100 * share:.0f} % of the usual bandwidth"
    if found.cleared:
        yield "note", f"slow once, but not when retested: {', '.join(found.cleared)}"
    for src, dst in dict.fromkeys((lost.src, lost.dst) for lost in found.lost):
        yield "fail", f"lost: {src} to {dst}"
    if found.excluded_ranks:
        aside = ", ".join(
            each.end
            + (f" (rank {each.rank})" if each.end != f"rank {each.rank}" else "")
            + (", which is gone" if each.gone else "")
            for each in found.excluded_ranks
        )
        yield "note", f"set aside: {aside}"
    for bad in dict.fromkeys((each.src_end, each.dst_end) for each in found.wrong):
        yield "fail", f"wrong bytes: {bad[0]} to {bad[1]}"
    if not found.complete:
        yield "note", "the run ended before all pairs were measured"


def _local_rates(found: Localisation) -> Iterator[tuple[str, str]]:
    """Describe what is slow within nodes, without any network."""
    for each in found.intra_node:
        yield (
            "fail",
            f"confirmed: {each.where} ({each.kind}): {100 * each.ratio:.0f} % of its peers' bandwidth, {each.tests} of "
            f"{each.tests} times; no network is in it",
        )


def _description(each: Blamed) -> str:
    """Describe one cause with its evidence."""
    left = "nothing arrives" if not each.ratio else f"{100 * each.ratio:.0f} % of the usual bandwidth"
    tests = plural(each.tests, "test")
    return (
        f"{each.where} ({each.kind}): {left}; {each.slow} of {tests} show it, {each.retests} of them "
        f"retests, with {each.partners} partners, {certain(each.confidence)}"
    )
