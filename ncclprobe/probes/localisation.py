"""Turn what a round-robin found out into the report's nouns."""

from collections.abc import Mapping
from typing import Any

from ncclprobe.localise.pairs import suspects
from ncclprobe.localise.pairs.effects import Way
from ncclprobe.localise.pairs.rails import Placement
from ncclprobe.localise.pairs.samples import End, Layout, Lost, Rules
from ncclprobe.model.pair_results import Blamed, Localisation, LostPair
from ncclprobe.model.values import replace


def to_report(
    found: suspects.Localisation, placement: Placement, names: Mapping[End, str], rules: Rules,
    *, lost_intra_node: tuple[Lost, ...] = (), intra_node_GBps: Mapping[str, float] | None = None, **fields: Any,
) -> Localisation:  # fmt: skip
    """Return the report's nouns for `found`, with ends called by `names`; `fields` are taken as they are."""
    levels = {_way(key): round(rate, 6) for key, rate in (found.level or {}).items()}
    return Localisation(
        nodes=len(placement.rails),
        kind=found.kind,
        culprits=tuple(_blamed(each, placement) for each in found.confirmed),
        suspects=tuple(_blamed(each, placement) for each in found.suspects),
        cleared=tuple(map(str, found.cleared)),
        lost=tuple(_lost(each, names) for each in (*lost_intra_node, *found.lost)),
        level_GBps={**levels, **(intra_node_GBps or {})},
        all_slow=found.all_slow,
        tests=found.tests,
        steps=found.steps,
        confidence=rules.confidence,
        equally_slow=tuple(_blamed(each, placement) for each in found.equally_slow),
        leaves=_leaves(found.layout),
        **fields,
    )


def _leaves(layout: Layout) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each leaf that was measured."""
    names = sorted(set(layout.leaf.values())) if layout.measured else ()
    return {name: tuple(sorted(node for node, leaf in layout.leaf.items() if leaf == name)) for name in names}


def _lost(each: Lost, names: Mapping[End, str]) -> LostPair:
    return LostPair(names[each.src], names[each.dst], each.why, each.step)


def _way(key: Way) -> str:
    near, both = key
    return ("below one leaf, " if near else "") + ("both ways at once" if both else "one way")


def _blamed(each: suspects.Suspect, placement: Placement) -> Blamed:
    cause = each.cause
    rank = {end: number for number, end in enumerate(placement.ends)}
    nodes = [placement.hosts[rank[end]] for node in cause.nodes for end in rank if end.node == node]
    blamed = Blamed(
        str(cause), cause.kind, cause.nodes, cause.rail, cause.direction,
        each.ratio, each.confidence, each.slow, each.tests, each.retests, each.partners, tuple(dict.fromkeys(nodes)),
        cause.several,
    )  # fmt: skip
    if cause.kind != "rail" or cause.rail is None:
        return blamed
    end = End(cause.nodes[0], cause.rail)
    nic = placement.names[end].removeprefix(str(end))  # `` (mlx5_1)`` where it is known
    return replace(blamed, where=blamed.where + nic)
