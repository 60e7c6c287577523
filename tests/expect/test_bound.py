"""The most that a machine can still reach: no published run exceeds it, and settings cost what they take."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.env.choices import STARTS
from ncclprobe.engine import collect
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.expect import bound, network
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.pinned import pinned
from ncclprobe.expect.predict import LATEST
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.expect.tables import machines
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings, merge
from ncclprobe.model.findings import Severity, severity_of
from ncclprobe.model.nccl_selection import Choices, Decision, DirectChoice, NetworkChoice
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import published

ROWS = [
    row for row in published.kept(ROOT / "tests" / "data" / "published")
    if row.op == "all_reduce" and (row.nbytes or 1 << 30) >= 16 << 20
]  # fmt: skip
OVER = 1.1
"""No published run may exceed its bound by more."""


def through(name: str, *devices: str, gbps: float | None = None, direct: bool | None = True) -> Choices:
    rows = (DirectChoice("GPU0", devices, direct, direct, "PIX", None, "as asked"),)
    chosen = Decision((NetworkChoice(name, "", devices, gbps, "as asked"),), "as asked")
    return replace(STARTS, network=chosen, gpudirect=Decision(rows, "as asked"))


SOCKETS, INDIRECT = through("Socket", "eth0"), through("IB", "mlx5_0", direct=False)


def handicaps(system: NodeSystem, shape: Shape, settings: str) -> Iterator[tuple[str, float]]:
    """What is wrong with a machine of a published run, and the bound for it."""
    whole = replace(system, network="ib", gdr=True)
    if shape.nodes > 1 and system.network == "sockets":
        yield from (("sockets", each) for each in bound.over_network(whole, shape, SOCKETS))
    elif shape.nodes > 1 and system.network and not system.gdr and "tcpx" not in system.network:
        yield from (("no GPUDirect", each) for each in bound.over_network(whole, shape, INDIRECT))
    if shape.nodes > 1 and (limit := network.limit(system, shape, "all_reduce")):
        yield "NICs", limit.hard_GBps
    if shape.nodes == 1 and not system.p2p and not system.nvlinks:
        yield "host memory", bound.through_host_GBps(system)
    if "NCCL_NVLS_ENABLE=0" in settings and shape.nodes == 1 and "GRAPH" not in settings:
        kept = pinned(merge(Environment({"NCCL_NVLS_ENABLE": "0"}), ()), LATEST)
        found = expectation("all_reduce", 1 << 30, shape, system, settings=kept)
        yield from [("no NVLS", found.value)] if found else ()


def test_no_published_run_exceeds_the_bound_of_its_machine_by_more_than_a_tenth() -> None:
    seen: Counter[str] = Counter()
    above = []
    for row in ROWS:
        for kind, most in handicaps(row.system, row.shape, row.settings):
            seen[kind] += 1
            if row.busbw_GBps > OVER * most:
                above.append(f"{row.label}: {row.busbw_GBps:g} of {most:g} GB/s ({kind}, {row.sweep})")
    assert not above
    floors = {"sockets": 10, "no GPUDirect": 5, "NICs": 200, "host memory": 10, "no NVLS": 4}
    assert {kind for kind, least in floors.items() if seen[kind] < least} == set(), seen


COLLECTORS = discover("ncclprobe.facts", Collector, {"machine"})


@cache
def snapshot(capture: str) -> Snapshot:
    (found,) = collect.replayed([ROOT / "tests" / "captures" / f"{capture}.jsonl"], COLLECTORS)
    return found


def costs(capture: str, variables: dict[str, str], nodes: int | None = None) -> AttainableRate:
    settings: Settings = merge(Environment(variables), ())
    facts = {**snapshot(capture).facts, Settings: settings, Launch: Launch(nnodes=nodes)}
    return priced(facts)


def priced(facts: Mapping[type, Any]) -> AttainableRate:
    found = bound.predicted(facts)
    assert isinstance(found, AttainableRate)
    return found


FAIL, WARN, NONE = Severity.FAIL, Severity.WARN, None


@each_row(
    ("capture", "name", "value", "severity"),
    [
        ("hgx-h100", "NCCL_IB_HCA", "mlx5_0", FAIL), ("hgx-h100", "NCCL_NET_GDR_LEVEL", "LOC", WARN),
        ("hgx-h100", "NCCL_MAX_NCHANNELS", "32", NONE), ("l40s-8", "NCCL_P2P_DISABLE", "1", NONE),
        ("l40s-8", "NCCL_SHM_DISABLE", "1", FAIL), ("hgx-h100", "NCCL_SHM_DISABLE", "1", NONE),
        ("aws-p4d", "FI_PROVIDER", "tcp", FAIL), ("rtx4090-2", "NCCL_SHM_DISABLE", "1", FAIL),
    ],
)  # fmt: skip
def test_a_setting_costs_what_it_takes_here(capture: str, name: str, value: str, severity: Severity | None) -> None:
    """What each setting costs on each machine is in tests/data/command_values/captured.txt."""
    found = costs(capture, {name: value})
    assert (severity_of(found.lost(name)) if name in found.settings else None) == severity
    assert found.now_GBps == pytest.approx(min([*found.settings.values(), found.healthy_GBps]))


def test_a_node_with_nics_for_a_fabric_is_judged_for_two_nodes_at_least_and_each_setting_has_its_own_cost() -> None:
    few = {"NCCL_IB_HCA": "mlx5_0"}
    alone, eight = costs("hgx-h100", few), costs("hgx-h100", few, nodes=8)
    assert (alone.nodes, eight.nodes, costs("l40s-8", few).nodes) == (2, 8, 1)
    assert "over 2 nodes" in alone.cost()
    assert "over" not in costs("l40s-8", few).cost()
    assert eight.cost("NCCL_IB_HCA") == f"at most 56.2 of {eight.healthy_GBps:.3g} GB/s at 1 GiB over 8 nodes (18%)"
    found = costs("hgx-h100", {"NCCL_IB_HCA": "mlx5_0", "NCCL_P2P_DISABLE": "1", "NCCL_MAX_NCHANNELS": "8"})
    assert len({*found.settings.values()}) == 3
    assert found.now_GBps == min(found.settings.values())


def test_a_node_that_fell_back_to_sockets_is_priced_without_a_setting() -> None:
    sick, healthy = snapshot("sick/plugin-glibc"), snapshot("aws-p4d")
    checks = every_check(MACHINE)
    fell, whole = collect.add_predictions(collect.add_choices([sick, healthy], checks), checks, Job(), 1)
    assert fell.facts[AttainableRate].lost() > 0.5
    assert AttainableRate not in whole.facts


def test_nothing_is_lost_to_ports_whose_state_is_unknown_but_for_a_level_below_every_nic() -> None:
    b200 = snapshot("dgx-b200")
    fabric, gap = b200.facts[Fabric], Absent("not shown")
    unknown = [replace(each, ports=tuple(replace(p, state=gap) for p in each.ports)) for each in fabric.devices]
    facts = {**b200.facts, Fabric: replace(fabric, devices=tuple(unknown))}
    for value, severity in (("PIX", WARN), ("PXB", Severity.NOTE)):
        settings = merge(Environment({"NCCL_NET_GDR_LEVEL": value}), ())
        found = priced({**facts, Settings: settings})
        assert severity_of(found.lost("NCCL_NET_GDR_LEVEL")) == severity, value


def test_half_fails_a_tenth_warns_less_is_a_note_and_two_gpus_share_the_way_to_one_graces_memory() -> None:
    shared = {"GB300 NVL72": 247.5, "Alps GH200": 495}
    made = {name: bound.through_host_GBps(machines.table()[name].system()) for name in shared}
    assert made == pytest.approx(shared)
    h100, other = machines.find("dgx-h100").system(), replace(machines.find("dgx-h100").system(), network="sockets")
    ways = ((h100, 4), (h100, 1), (other, 4), (replace(h100, nics=0), 2), (replace(other, gpus=2), 2))
    assert [[*bound.through_network(*each)] for each in ways] == [[100.0], [], [5.0], [10.0], [5.0]]
    told = {0.5: FAIL, 0.49: WARN, 0.1: WARN, 0.09: Severity.NOTE, 0.0: Severity.NOTE}
    assert {lost: severity_of(lost) for lost in told} == told
