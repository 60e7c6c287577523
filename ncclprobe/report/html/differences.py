"""Versions and settings: one line where all nodes agree, and who differs where they do not."""

from collections import defaultdict
from collections.abc import Mapping

from ncclprobe.model.report import NodeEnvironment
from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import folded

_OWN = ("RANK", "_PROCID", "_LOCALID", "_NODEID", "_TASK_PID", "_NODENAME")


class Value(Struct, frozen=True):
    """One value of a name and the nodes that have it. `usual`: most nodes have it."""

    text: str
    nodes: str
    number: int
    usual: bool


class Name(Struct, frozen=True):
    """A version or setting, with its values from the most frequent on. More than one: the nodes differ."""

    name: str
    values: tuple[Value, ...]
    more: int = 0

    @property
    def differs(self) -> bool:
        """Return whether nodes differ that could be equal; a rank is each process's own."""
        return len(self.values) > 1 and not self.name.endswith(_OWN)


MOST_VALUES = 8
_UNSET = "not set"


def versions(environment: Mapping[str, NodeEnvironment]) -> list[Name]:
    """Each version by name; what differs first."""
    return _names({node: _texts(each.versions) for node, each in environment.items()}, "unknown")


def settings(environment: Mapping[str, NodeEnvironment]) -> list[Name]:
    """Each variable with its value and where that comes from; what differs first. A node may lack it."""
    return _names(
        {
            node: {s.name: f"{'(not recorded)' if s.value is None else s.value}  [{s.origin}]" for s in each.settings}
            for node, each in environment.items()
        },
        _UNSET,
    )


def _texts(told: Mapping[str, str | None]) -> dict[str, str]:
    return {name: "unknown" if value is None else value for name, value in told.items()}


def _names(by_node: Mapping[str, Mapping[str, str]], lacking: str) -> list[Name]:
    names = dict.fromkeys(name for told in by_node.values() for name in told)
    found = [_name(name, {node: told.get(name, lacking) for node, told in by_node.items()}) for name in names]
    return sorted(found, key=lambda each: not each.differs)


def _name(name: str, by_node: Mapping[str, str]) -> Name:
    nodes = defaultdict(list)
    for node, text in by_node.items():
        nodes[text].append(node)
    ranked = sorted(nodes.items(), key=lambda pair: -len(pair[1]))
    most = len(ranked[0][1])
    alone = sum(len(who) == most for _, who in ranked) == 1
    values = tuple(Value(text, folded(who), len(who), alone and len(who) == most) for text, who in ranked[:MOST_VALUES])
    return Name(name, values, len(ranked) - len(values))
