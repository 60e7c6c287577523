"""Versions, settings and what NCCL would choose on a node, as lines of a terminal."""

from collections.abc import Callable
from typing import Any

from ncclprobe.model.nccl_selection import Choices, HcaChoice, Part, PeerChoice
from ncclprobe.model.report import Report, Setting
from ncclprobe.report.lines import wrapped


def environment(report: Report, width: int) -> list[str]:
    """Return the versions of each node and the settings that count there, with where each stands."""
    lines: list[str] = []
    for node, environment in report.environment.items():
        versions = ", ".join(f"{name} {version or 'unknown'}" for name, version in environment.versions.items())
        lines += wrapped(f"{node}: ", versions, width)
        lines += [f"  {line}" for line in map(_setting, environment.settings)]
    return lines


def choices(node: str, made: Choices, width: int) -> list[str]:
    """What NCCL would choose on a node: equal choices on one line with their reason, then what decided it all."""
    parts: list[tuple[str, Part[Any], Callable[[Any], tuple[str, str]]]] = [
        ("bootstrap", made.bootstrap, lambda each: ("", f"{each.name} {each.address}")),
        ("sockets", made.sockets, lambda each: ("", f"{each.name} {each.address}")),
        ("HCAs", made.hcas, _hca),
        ("left out", made.hcas_left_out, _hca),
        ("GIDs", made.gids, lambda each: ("", f"{each.port} index {each.index} ({each.type or '?'} {each.address})")),
        ("GPUDirect", made.gpudirect, lambda each: (_yes(each.receives), f"{each.gpu} {'/'.join(each.nics)}")),
        ("GPU pairs", made.p2p, lambda each: (each.transport or "unknown", _pairs(each, made.p2p))),
    ]
    lines = [f"{node}: what {f'NCCL {made.nccl}' if made.nccl else 'the newest NCCL'} would choose"]
    for name, part, shown in parts:
        by_reason: dict[tuple[str, str], list[str]] = {}
        for each in part.chosen or ():
            verdict, subject = shown(each)
            by_reason.setdefault((verdict, each.why), []).append(subject)
        rows = [f"{verdict} {', '.join(subjects)}: {why}" for (verdict, why), subjects in by_reason.items()]
        rows += [part.why] if name != "left out" and all(part.why != why for _, why in by_reason) else []
        if part.chosen != () or name in ("bootstrap", "HCAs", "GPUDirect"):
            rows[0] = {None: "unknown: ", (): "none: "}.get(part.chosen, "") + rows[0]
            for label, row in zip((name, *[""] * len(rows)), rows, strict=False):
                lines += wrapped(f"  {label:<11}", row, width)
    return [*lines, *wrapped(f"  {'NVLS':<11}", f"{_yes(made.nvls.available)}: {made.nvls.why}", width)]


def _hca(port: HcaChoice) -> tuple[str, str]:
    return "" if port.rate_gbps is None else f"{port.rate_gbps:g} Gb/s", port.port


def _pairs(peers: PeerChoice, part: Part[PeerChoice]) -> str:
    if part.chosen == (peers,) and peers.pairs[1:]:
        return f"all {len(peers.pairs)}"
    more = f" and {len(peers.pairs) - 3} more" if peers.pairs[3:] else ""
    return ", ".join(map("-".join, peers.pairs[:3])) + more


def _yes(answer: bool | None) -> str:
    return "unknown" if answer is None else "yes" if answer else "no"


def _setting(setting: Setting) -> str:
    value = "(value not recorded)" if setting.value is None else setting.value
    return f"{setting.name}={value}  [{setting.origin}]"
