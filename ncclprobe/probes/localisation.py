"""What a tournament found out, in the words of the report."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ncclprobe.localise.pairs import suspects
from ncclprobe.localise.pairs.effects import Way
from ncclprobe.localise.pairs.rails import Seating
from ncclprobe.localise.pairs.samples import End, Lost, Rules
from ncclprobe.model.pair_results import Blamed, Localisation, LostPair


def told(
    found: suspects.Localisation, seats: Seating, names: Mapping[End, str], rules: Rules,
    *, lost_inside: tuple[Lost, ...] = (), inside_GBps: Mapping[str, float] | None = None, **more: Any,
) -> Localisation:  # fmt: skip
    """The report's nouns for what `found` says, ends called by `names`; `more` are fields taken as they are."""
    levels = {_way(key): round(rate, 6) for key, rate in (found.level or {}).items()}
    return Localisation(
        nodes=len(seats.rails),
        kind=found.kind,
        culprits=tuple(_blamed(each, seats) for each in found.culprits),
        suspects=tuple(_blamed(each, seats) for each in found.suspects),
        cleared=tuple(map(str, found.cleared)),
        lost=tuple(_lost(each, names) for each in (*lost_inside, *found.lost)),
        level_GBps={**levels, **(inside_GBps or {})},
        everything=found.everything,
        tests=found.tests,
        steps=found.steps,
        confidence=rules.confidence,
        **more,
    )


def _lost(each: Lost, names: Mapping[End, str]) -> LostPair:
    return LostPair(names[each.src], names[each.dst], each.why, each.step)


def _way(key: Way) -> str:
    near, both = key
    return ("below one leaf, " if near else "") + ("both ways at once" if both else "one way")


def _blamed(each: suspects.Culprit, seats: Seating) -> Blamed:
    cause = each.cause
    rank = {end: number for number, end in enumerate(seats.ends)}
    nodes = [seats.hosts[rank[end]] for node in cause.nodes for end in rank if end.node == node]
    blamed = Blamed(
        str(cause), cause.kind, cause.nodes, cause.rail, cause.direction,
        each.ratio, each.confidence, each.slow, each.tests, each.retests, each.partners, tuple(dict.fromkeys(nodes)),
    )  # fmt: skip
    if cause.kind != "rail" or cause.rail is None:
        return blamed
    end = End(cause.nodes[0], cause.rail)
    nic = seats.names[end].removeprefix(str(end))  # `` (mlx5_1)`` where it is known
    return replace(blamed, where=blamed.where + nic)
