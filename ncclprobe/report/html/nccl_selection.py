"""What NCCL would choose, as rows of a table: nodes with equal choices are shown once."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from ncclprobe.layout import first_of
from ncclprobe.model.nccl_selection import Choices, HcaChoice, Part, PeerChoice
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import folded

MOST_KINDS = 4


class Choice(Struct, frozen=True):
    """One part of the choice: its name, what was chosen, and why."""

    name: str
    chosen: str
    why: str


class EqualChoices(Struct, frozen=True):
    """Nodes with equal choices, and what they choose by the rules of NCCL `version`."""

    nodes: str
    version: str
    choices: tuple[Choice, ...]


def equal_choices(report: Report) -> tuple[list[EqualChoices], int]:
    """Return the kinds of choice, the most frequent first, and of how many nodes nothing is shown."""
    groups: dict[Choices, list[str]] = defaultdict(list)
    for node, made in report.choices.items():
        groups[made].append(node)
    ranked = sorted(groups.items(), key=lambda each: -len(each[1]))
    left = sum(len(nodes) for _, nodes in ranked[MOST_KINDS:])
    return [
        EqualChoices(folded(nodes), made.nccl or "", tuple(_rows(made))) for made, nodes in ranked[:MOST_KINDS]
    ], left


def _rows(made: Choices) -> Iterable[Choice]:
    parts: list[tuple[str, Part[Any], Callable[[Any], str]]] = [
        ("Bootstrap", made.bootstrap, lambda each: f"{each.name} {each.address}"),
        ("Sockets", made.sockets, lambda each: f"{each.name} {each.address}"),
        ("HCAs", made.hcas, _hca),
        ("HCAs left out", made.hcas_left_out, _hca),
        ("GIDs", made.gids, lambda each: f"{each.port} index {each.index} ({each.type or '?'} {each.address})"),
        ("GPUDirect", made.gpudirect, lambda each: f"{each.gpu} {'/'.join(each.nics)}: {_yes(each.receives)}"),
        ("GPU pairs", made.p2p, _peers),
    ]
    for name, part, shown in parts:
        if part.chosen or name in ("Bootstrap", "HCAs", "GPUDirect"):
            yield _row(name, part, shown)
    yield Choice("NVLS", _yes(made.nvls.available), made.nvls.why)


def _row(name: str, part: Part[Any], shown: Callable[[Any], str]) -> Choice:
    if not part.chosen:
        return Choice(name, "unknown" if part.chosen is None else "none", part.why)
    reasons = dict.fromkeys(filter(None, (part.why, *(each.why for each in part.chosen))))
    return Choice(name, ", ".join(map(shown, part.chosen)), "; ".join(list(reasons)[:4]))


def _hca(port: HcaChoice) -> str:
    return port.port if port.rate_gbps is None else f"{port.port} ({port.rate_gbps:g} Gb/s)"


def _peers(peers: PeerChoice) -> str:
    return f"{peers.transport or 'unknown'} {first_of(map('-'.join, peers.pairs), 4)}"


def _yes(answer: bool | None) -> str:
    return "unknown" if answer is None else "yes" if answer else "no"
