"""What checks of the environment say of machines under settings that a user may write, each line beside the last."""

from collections.abc import Iterator, Mapping
from typing import Any

from fake_fleet import learned

from ncclprobe.checks.env.fixtures import ALONE, DOCKER0, ETH0, ETH1, LO, ONE_NODE, TWO_NODES, interface, nccl
from ncclprobe.engine.judge import judge
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software
from ncclprobe.model.registry import Check, discover
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.checks.cases import values
from tests.command_inputs import DATA

_CHECKS = discover("ncclprobe.checks.env", Check)
_TAIL = interface("tailscale0", 7, "100.64.0.7", virtual=True)
_DOWN = replace(interface("eth2", 4, "10.2.0.5"), flags=frozenset({"up"}))
_MANY = Interfaces((LO, ETH1, _DOWN, ETH0, interface("eth10", 12, "10.9.0.5"), DOCKER0, _TAIL))
_CLOUDS = {
    "Standard_ND96isr_H100_v5": "azure", "BM.GPU.H100.8": "oracle", "p5.48xlarge": "aws", "p6-b200.48xlarge": "aws",
    "a3-highgpu-8g": "gcp", "a3-megagpu-8g": "gcp", "a4-highgpu-8g": "gcp",
}  # fmt: skip
_LINES = {
    name: list(lines)
    for name, *lines in (
        group.splitlines() for group in (DATA / "settings.txt").read_text(encoding="utf-8").split("== ")[1:]
    )
}


def _set_inputs() -> Iterator[tuple[str, object]]:
    """Yield what is said of each line, and on which machines, without what is said of every line there."""
    clouds, names, devices, parts, files = _LINES.values()
    hosts = {
        "hgx-h100": (TWO_NODES, names + devices + parts),
        "hgx-h100 alone": (ALONE, devices + parts),
        "l40s-8": (ONE_NODE, parts + devices[:29]),
        "gb200-tray unseen": (Absent("not seen"), parts[:16] + devices),
        "dgx-1v": (Launch("slurm", 0, 16, 0, 8, 2), parts),
        **{f"hgx-h100 {cloud}": (TWO_NODES, clouds) for cloud in _CLOUDS},
        "aws-p4d": (TWO_NODES, clouds),
        "aws-p4d one": (ONE_NODE, clouds),
    }
    found: dict[str, dict[str, list[str]]] = {}
    for name, (launch, lines) in hosts.items():
        machine, _, more = name.partition(" ")
        facts = {**learned(machine), Launch: launch, Interfaces: _MANY, Software: nccl(2, 27, 7)}
        facts |= {Machine: Machine(cloud=_CLOUDS[more], instance_type=more)} if more in _CLOUDS else {}
        usual = _told(facts, Settings())
        for line in lines:
            rows = [part.partition("=")[::2] for part in line.split(";")]
            own = {each: Setting(each, value, "environment") for each, value in rows if each}
            told = _told({**facts, Environment: Environment(dict(rows))}, Settings(own))
            new = "\n".join(each for each in told if each not in usual) or "nothing more"
            found.setdefault(line, {}).setdefault(new, []).append(name)
    for line, told_on in found.items():
        yield line, {", ".join(where): [{"": each} for each in told.split("\n")] for told, where in told_on.items()}
    for line in files:
        name, _, value = line.partition("=")
        yield f"in a file: {line}", _told({}, Settings({name: Setting(name, value, "/etc/nccl.conf:2")}))


def _told(facts: Mapping[type, Any], settings: Settings) -> list[str]:
    verdicts = judge([Snapshot("n1", {**facts, Settings: settings})], _CHECKS, Job())
    why = [f"{each.key}: {each.status.value} {each.why}" for each in verdicts if each.why]
    return [f"{each.key}: {values(found)}" for each in verdicts for found in each.findings] + why


FUNCTIONS = {"set-lines": _set_inputs}
