"""NICs, ports and GPUDirect: what is a fault, whose it is, and what must not be called one."""

from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.ib import fixtures, ports
from ncclprobe.checks.ib.fixtures import EDR, gpus, pci, port
from ncclprobe.engine.collect import collect
from ncclprobe.engine.judge import judge
from ncclprobe.facts.infiniband import Fabric, Rate, RdmaDevice
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.host.capture import load
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.registry import Check, Collector, discover
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row

CAPTURES = sorted((Path(__file__).parent.parent / "captures").glob("*.jsonl"))
COLLECTORS = discover("ncclprobe.facts", Collector)
CHECKS = discover("ncclprobe.checks.ib", Check)
NOTE, WARN, FAIL = Severity.NOTE, Severity.WARN, Severity.FAIL
DOWN: dict[str, Any] = {"state": "DOWN", "physical": "Polling"}
UNREAD = Absent("permission denied")


def facts_of(path: Path) -> dict[type, Any]:
    return collect(load(path), COLLECTORS)


def verdicts(facts: dict[type, Any], job: Job = Job()) -> dict[str, Any]:  # noqa: B008 - frozen
    return {verdict.key: verdict for verdict in judge([Snapshot("n", facts)], CHECKS, job)}


@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_nothing_is_said_of_a_job_over_gloo(path: Path) -> None:
    assert {v.status for v in verdicts(facts_of(path), Job("gloo")).values()} == {Status.SKIP}


def capture(name: str) -> dict[type, Any]:
    path = Path(__file__).parent.parent / "captures" / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"no capture {name}")
    return facts_of(path)


def with_ports(facts: dict[type, Any], device: str, **changes: Any) -> dict[type, Any]:
    devices = [
        replace(each, ports=tuple(replace(p, **changes) for p in each.ports)) if each.name == device else each
        for each in facts[Fabric].devices
    ]
    return {**facts, Fabric: Fabric(tuple(devices))}


@each_row(
    ("machine", "rail"),
    [
        ("hgx-h100", "mlx5_3"),
        ("hgx-h200", "mlx5_5"),
        ("dgx-a100", "mlx5_7"),
        ("dgx-b200", "mlx5_0"),
        ("dgx-1v", "mlx5_2"),
    ],
)
def test_a_rail_that_is_down_or_slow_is_a_failure(machine: str, rail: str) -> None:
    facts = capture(machine)
    down = verdicts(with_ports(facts, rail, **DOWN))["ib.state"]
    assert [(f.severity, f.subject, f.blame) for f in down.findings] == [(FAIL, f"{rail}:1", "link")]
    slow = verdicts(with_ports(facts, rail, rate=EDR if machine != "dgx-1v" else Rate(56, 4, "FDR")))
    assert [(f.severity, f.subject) for f in slow["ib.rate"].findings] == [(FAIL, f"{rail}:1")]


def test_a_rail_that_is_down_explains_the_gpus_that_are_without() -> None:
    found = verdicts(with_ports(capture("hgx-h100"), "mlx5_3", **DOWN))
    assert (found["ib.gdr/gpu-near"].status, found["ib.gdr/gpu-near"].why) == (Status.SKIP, "explained by ib.state")


def test_a_storage_card_without_a_cable_is_no_fault() -> None:
    found = verdicts(with_ports(capture("hgx-h200"), "mlx5_1", **DOWN))["ib.state"]
    assert [(f.severity, f.subject) for f in found.findings] == [(NOTE, "mlx5_1:1")]


SOFT = Fabric((RdmaDevice("rxe0", (replace(fixtures.roce(0, "10.0.0.5"), device="rxe0"),), None),))
EFA = Fabric(
    (RdmaDevice("rdmap16s27", (replace(port(0), device="rdmap16s27", link_layer="Unspecified"),), "0000:10:1b.0"),)
)


@each_row("devices", [SOFT, EFA, Fabric()], ids=["soft-RoCE", "EFA", "none"])
def test_devices_that_are_not_for_nccls_own_transport_are_not_judged(devices: Fabric) -> None:
    facts: dict[type, Any] = {Fabric: devices, Gpus: gpus(), Pci: pci()}
    judged = {v.status for v in verdicts(facts).values() if v.key != "ib.perm" or devices is not SOFT}
    assert judged == {Status.SKIP}


@each_row(("mtu", "size"), [(9000, 4096), (4200, 4096), (4191, 2048), (2144, 2048), (1500, 1024), (576, 256), (100, 0)])
def test_the_packet_is_the_largest_power_of_two_beside_the_headers(mtu: int, size: int) -> None:
    assert ports._packet(mtu) == size
