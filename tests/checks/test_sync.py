"""Comparisons over whole fleets: every machine of the zoo many times, healthy and with one fault planted."""

import re
import sys
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
import zoo
from fake_fleet import (
    CHECKS,
    OURS,
    Facts,
    Plant,
    backend,
    changed,
    elsewhere,
    fleet,
    judged,
    put,
    with_setting,
)

from ncclprobe.checks.env.fixtures import PLAIN, having, setting
from ncclprobe.checks.majority import describe
from ncclprobe.checks.sync import settings
from ncclprobe.engine.judge import compare
from ncclprobe.facts.infiniband import Fabric, Gid, Rate
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import Dmi, Machine, System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.process import Memlock
from ncclprobe.facts.reach import ClockOffset
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent, Every, Job, Snapshot, vote
from ncclprobe.model.values import replace
from tests.each_row import each_row

CAPTURES = sorted(zoo.CAPTURES.glob("*.jsonl"))


@each_row("path", CAPTURES, ids=lambda path: path.stem)
@each_row("size", [2, 8])
def test_a_fleet_of_healthy_machines_of_one_kind_has_no_finding(path: Path, size: int) -> None:
    verdicts = judged(fleet(path.stem, size), backend(path.stem))
    assert [(v.key, f.message) for v in verdicts.values() for f in v.findings] == []
    assert {v.key for v in verdicts.values()} == set(OURS)
    assert {v.status for v in verdicts.values()} <= {Status.PASS, Status.SKIP}


def renamed(snapshot: Snapshot, number: int) -> Snapshot:
    """The same machine under another name and address."""
    facts = dict(snapshot.facts)
    facts[System] = replace(facts[System], hostname=f"m{number}", boot_id=f"other-{number}")
    facts[Interfaces] = Interfaces(tuple(elsewhere(each, 100 + number) for each in facts[Interfaces].all))
    return Snapshot(f"m{number}", facts)


def two_kinds() -> list[Snapshot]:
    return [*fleet("hgx-h100", 4), *(renamed(s, i) for i, s in enumerate(fleet("hgx-h200", 4)))]


def test_a_fleet_of_two_kinds_is_told_once_and_not_by_its_consequences() -> None:
    verdicts = judged(two_kinds())
    above = {v.key for v in verdicts.values() for f in v.findings if f.severity is not Severity.NOTE}
    assert above == {"sync.machine/machine-type", "sync.versions/nccl-version", "sync.versions/torch-cuda"}


def ports(**fields: Any) -> Plant:
    def plant(facts: Facts) -> Facts:
        devices = (replace(d, ports=tuple(replace(p, **fields) for p in d.ports)) for d in facts[Fabric].devices)
        return {**facts, Fabric: Fabric(tuple(devices))}

    return plant


def without_gpu(facts: Facts) -> Facts:
    return {**facts, Gpus: replace(facts[Gpus], all=facts[Gpus].all[:-1])}


def without_nic(facts: Facts) -> Facts:
    return {**facts, Fabric: Fabric(facts[Fabric].devices[:-1])}


def with_firmware(facts: Facts) -> Facts:
    return {**facts, Fabric: Fabric(tuple(replace(d, firmware="0.0.1") for d in facts[Fabric].devices))}


def with_mtu(facts: Facts) -> Facts:
    return {**facts, Interfaces: Interfaces(tuple(replace(i, mtu=576) for i in facts[Interfaces].all))}


def moved(facts: Facts) -> Facts:
    tree = facts[Pci]
    first = tree.of("gpu")[0]
    return {**facts, Pci: replace(tree, devices={**tree.devices, first.address: replace(first, numa_node=1)})}


NCCL = NcclLibrary((2, 20, 3), "nvidia-nccl-cu12")
PLANTS: dict[str, tuple[str, Plant, Severity]] = {
    "sync.machine/gpu-count": ("GPU", without_gpu, Severity.FAIL),
    "sync.machine/nic-count": ("NIC", without_nic, Severity.FAIL),
    "sync.machine/machine-type": ("SYS-1", changed(Machine, dmi=Dmi("Supermicro", "SYS-1")), Severity.WARN),
    "sync.versions/nccl-version": ("2.20.3", changed(Software, nccl=(NCCL,)), Severity.FAIL),
    "sync.versions/torch-cuda": ("1.13", changed(Software, packages={"torch": "1.13"}), Severity.WARN),
    "sync.versions/nic-fw": ("0.0.1", with_firmware, Severity.WARN),
    "sync.env": ("Ring", with_setting("NCCL_ALGO", "Ring"), Severity.FAIL),
    "sync.network/rate": ("100 Gb/s", ports(rate=Rate(100, 4, "EDR")), Severity.FAIL),
    "sync.network/mtu": ("MTU 576", with_mtu, Severity.WARN),
    "sync.network/pkey": ("0x0003", ports(pkeys=((0, 0x8003),)), Severity.FAIL),
    "sync.network/subnet-prefix": ("fec0:0:0:7::", ports(gids=(Gid(0, IPv6Address("fec0:0:0:7::1")),)), Severity.WARN),
    "sync.machine/topology": ("on NUMA node 1", moved, Severity.WARN),
    "sync.limits/limits": ("8 MiB", put(Memlock(8 << 20)), Severity.WARN),
    "sync.clock": ("3 s", put(ClockOffset(3.0, 0.001)), Severity.WARN),
}


@each_row(("name", "says", "plant", "severity"), [(k, *v) for k, v in PLANTS.items()], ids=PLANTS)
def test_one_of_eight_that_differs_is_named(name: str, says: str, plant: Plant, severity: Severity) -> None:
    found = judged(fleet("hgx-h100", 8, plant, 1))
    worst = [f for f in found[name].findings if f.severity is severity]
    assert {f.nodes for f in worst} == {("n7",)}
    assert all(re.search(r"1 of 8 nodes differs(:| \()", f.message) and "n7" in f.message for f in worst)
    assert any(says in f.message for f in worst)


@each_row(("name", "says", "plant", "severity"), [(k, *v) for k, v in PLANTS.items()], ids=PLANTS)
@each_row(("size", "sick"), [(8, 4), (2, 1)])
def test_a_tie_is_told_and_nobody_is_named(
    name: str, says: str, plant: Plant, severity: Severity, size: int, sick: int
) -> None:
    found = judged(fleet("hgx-h100", size, plant, sick))[name].findings
    assert found
    for finding in found:
        assert finding.severity is severity
        assert finding.nodes == ()
        assert finding.blame not in ("node", "link")
        assert f"no majority among {size} nodes" in finding.message
    assert any(says in finding.message for finding in found)


@each_row(("name", "plant"), [(k, v[1]) for k, v in PLANTS.items()], ids=PLANTS)
def test_a_planted_difference_has_few_consequences(name: str, plant: Plant) -> None:
    found = judged(fleet("hgx-h100", 8, plant, 1))
    above = {v.key for v in found.values() for f in v.findings if f.severity is not Severity.NOTE}
    assert above == {name}


@each_row(("name", "plant"), [(k, v[1]) for k, v in PLANTS.items()], ids=PLANTS)
def test_gpus_nccl_and_hcas_are_nothing_to_a_job_over_gloo(name: str, plant: Plant) -> None:
    found = judged(fleet("hgx-h100", 8, plant, 1), Job("gloo"))
    above = {v.key for v in found.values() for f in v.findings if f.severity is not Severity.NOTE}
    assert above == {name} & {"sync.versions/torch-cuda", "sync.network/mtu", "sync.limits/limits", "sync.clock"}


def without(fact: type) -> Plant:
    return lambda facts: {**facts, fact: Absent("permission denied")}


def needed(name: str) -> set[type]:
    facts = {need.fact for need in CHECKS[name].needs if need.of == "nodes" and not need.accepts_absent}
    return facts - {Choices}  # made of the others


@each_row(("name", "fact"), [(name, fact) for name in PLANTS for fact in needed(name)])
def test_a_node_of_which_the_fact_is_not_known_never_makes_agreement(name: str, fact: type) -> None:
    found = judged(fleet("hgx-h100", 8, without(fact), 1))
    assert found[name].status is Status.UNKNOWN
    assert "n7" in found[name].why


def calls_to_compare(rule: Check, nodes: int) -> int:
    """How many functions are called: what the work is, on any machine."""
    unlike = [with_setting("NCCL_IB_TC", str(n % 7)) for n in range(7)]
    snapshots = [replace(s, facts=unlike[i % 7](s.facts)) for i, s in enumerate(fleet("hgx-h100", nodes))]
    count = 0

    def counted(_frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        compare(snapshots, [rule], Job())
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sync.identity/address-twice", "sync.network/mtu", "sync.network/transport"])
def test_the_work_of_comparing_grows_as_the_nodes_do(name: str) -> None:
    few, many = (calls_to_compare(OURS[name], nodes) for nodes in (128, 256))
    assert many < 3 * few  # that of all pairs of nodes would be four times as much


def test_more_nodes_with_less_are_not_blamed_for_the_one_with_more() -> None:
    (finding,) = judged(fleet("hgx-h100", 8, without_gpu, 7))["sync.machine/gpu-count"].findings
    assert (finding.nodes, finding.blame) == (("n0",), "unknown")


def test_a_blame_line_stays_short_however_many_values_there_are() -> None:
    ballot = vote({f"n{i}": str(i) for i in range(300)})
    assert ballot.outliers == ()
    assert len(describe(ballot)) < 200
    assert "295 more nodes" in describe(ballot)


def test_a_plurality_is_no_majority() -> None:
    assert vote(dict(zip("abcdef", "111223", strict=True))).outliers == ()
    assert vote(dict(zip("abcde", "11123", strict=True))).outliers == ("d", "e")


@each_row(
    ("odd", "usual", "remedy"),
    [
        (having(NCCL_BUFFSIZE="1048576"), PLAIN, "on n2, run `unset NCCL_BUFFSIZE`"),
        (PLAIN, having(NCCL_BUFFSIZE="1048576"), "on n2, set NCCL_BUFFSIZE as on the other nodes"),
        (
            setting("NCCL_BUFFSIZE", "1048576", "/etc/nccl.conf:3"),
            PLAIN,
            "on n2, remove NCCL_BUFFSIZE from",
        ),
    ],
)
def test_a_setting_of_one_node_is_mended_on_that_node(odd: Settings, usual: Settings, remedy: str) -> None:
    every = Every({"n0": usual, "n1": usual, "n2": odd, "n3": usual})
    (finding,) = settings.env.run(every, Every({}), Job())
    assert finding.nodes == ("n2",)
    assert finding.remedy.startswith(remedy)
