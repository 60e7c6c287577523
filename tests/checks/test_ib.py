"""NICs, ports and GPUDirect: what is a fault, whose it is, and what must not be called one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.ib import fixtures, gdr, ports
from ncclprobe.checks.ib.fixtures import EDR, NO_NCCL, PLAIN, TWO_NODES, fabric, gpus, having, pci, port
from ncclprobe.engine.collect import collect
from ncclprobe.engine.judge import judge
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric, Rate, RdmaDevice
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.host.capture import load
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Severity, Status
from ncclprobe.model.registry import Check, Collector, discover
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.checks.cases.ib import _SWITCHED, HDR, PEERMEM, nccl
from tests.each_row import each_row

CAPTURES = sorted((Path(__file__).parent.parent / "captures").glob("*.jsonl"))
COLLECTORS = discover("ncclprobe.facts", Collector)
CHECKS = discover("ncclprobe.checks.ib", Check)
NOTE, WARN, FAIL = Severity.NOTE, Severity.WARN, Severity.FAIL
DOWN: dict[str, Any] = {"state": "DOWN", "physical": "Polling"}
UNREAD = Absent("permission denied")


def said(check: Check, *facts: object) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.subject) for finding in check.run(*facts)]


def loud(check: Check, *facts: object) -> list[Finding]:
    return [finding for finding in check.run(*facts) if finding.severity is not NOTE]


def state(*changed: Any, launch: Launch = TWO_NODES, count: int = 4, cards: Pci | None = None, n: int = 4) -> Any:
    return said(ports.state, fabric(*changed, count=count), PLAIN, launch, cards or pci(max(n, 4)), gpus(n))


def facts_of(path: Path) -> dict[type, Any]:
    return collect(load(path), COLLECTORS)


def verdicts(facts: dict[type, Any], job: Job = Job()) -> dict[str, Any]:  # noqa: B008 - frozen
    return {verdict.key: verdict for verdict in judge([Snapshot("n", facts)], CHECKS, job)}


@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_machines_that_are_well_get_notes_at_most(path: Path) -> None:
    found = verdicts(facts_of(path)).values()
    assert [f for verdict in found for f in verdict.findings if f.severity is not NOTE] == []


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


def test_a_port_without_a_cable_among_many_is_no_fault() -> None:
    assert state(port(5, **DOWN), count=5) == [(NOTE, "mlx5_5:1")]


def test_second_ports_that_nobody_uses_are_no_fault() -> None:
    second = [replace(port(n, **DOWN), device=f"mlx5_{n}b") for n in range(4)]
    cards = [replace(fixtures.device(port(n)), name=idle.device, ports=(idle,)) for n, idle in enumerate(second)]
    both = Fabric((*fabric().devices, *cards))
    assert said(ports.state, both, PLAIN, TWO_NODES, pci(), gpus()) == [(NOTE, idle.name) for idle in second]


def test_most_rails_down_is_worth_a_warning_each() -> None:
    found = state(*(port(n, **DOWN) for n in range(3)))
    assert found == [(WARN, f"mlx5_{n}:1") for n in range(3)]


@each_row(("launch", "severity"), [(TWO_NODES, FAIL), (Launch(), NOTE)])
def test_no_active_port_at_all_matters_to_a_job_of_several_nodes(launch: Launch, severity: Severity) -> None:
    assert state(*(port(n, **DOWN) for n in range(4)), launch=launch) == [(severity, f"mlx5_{n}:1") for n in range(4)]


def test_a_link_without_a_subnet_manager_is_the_fabrics_fault() -> None:
    (found,) = loud(ports.state, fabric(port(1, state="INIT")), PLAIN, Launch(), pci(), gpus())
    assert (found.severity, found.blame, "subnet manager" in found.message) == (FAIL, "fabric", True)


def test_an_ethernet_port_in_init_has_no_subnet_manager_to_wait_for() -> None:
    beside = port(5, state="INIT", link_layer="Ethernet")
    assert state(beside) == [(NOTE, "mlx5_5:1")]


def test_in_a_guest_without_a_tree_the_number_of_siblings_tells() -> None:
    sick = fabric(port(2, **DOWN))
    assert said(ports.state, sick, PLAIN, Launch(), UNREAD, gpus()) == [(WARN, "mlx5_2:1")]
    flat = Pci({a: replace(d, place=UNREAD) for a, d in pci().devices.items()})
    assert said(ports.state, sick, PLAIN, Launch(), flat, gpus()) == [(WARN, "mlx5_2:1")]
    assert said(ports.state, fabric(port(4, **DOWN)), PLAIN, Launch(), UNREAD, gpus()) == [(NOTE, "mlx5_4:1")]


@each_row(("check", "field"), [(ports.state, "state"), (ports.rate, "rate")])
def test_ports_that_cannot_be_read_are_unknown_and_some_are_named(check: Check, field: str) -> None:
    extra = (Launch(),) if check is ports.state else ()
    changed: dict[str, Any] = {field: UNREAD}
    with pytest.raises(Unlearned, match="permission denied"):
        list(check.run(fabric(*(port(n, **changed) for n in range(4))), PLAIN, *extra, pci(), gpus()))
    assert said(check, fabric(port(2, **changed)), PLAIN, *extra, pci(), gpus()) == [(NOTE, "mlx5_2:1")]


def test_half_of_the_ports_at_another_rate_is_two_kinds_and_no_fault() -> None:
    assert not said(ports.rate, fabric(port(2, HDR), port(3, HDR)), PLAIN, pci(), gpus())


def test_a_slow_port_of_another_board_has_no_siblings() -> None:
    odd = fixtures.device(port(3, HDR), board="MT_0000000223")
    mixed = Fabric((*fabric(count=3).devices, odd))
    assert not said(ports.rate, mixed, PLAIN, pci(), gpus())


def test_a_slow_sibling_that_serves_no_gpu_is_worth_a_note() -> None:
    assert said(ports.rate, fabric(port(4, HDR)), PLAIN, pci(), gpus()) == [(NOTE, "mlx5_4:1")]


def test_devices_of_which_nobody_knows_whether_they_open_are_unknown() -> None:
    blind = Fabric((fixtures.device(port(0), opens=UNREAD),))
    with pytest.raises(Unlearned):
        list(ports.perm.run(blind, PLAIN, TWO_NODES))


def gpudirect(**changes: Any) -> list[Finding]:
    facts: dict[str, Any] = {
        "fabric": fabric(),
        "settings": PLAIN,
        "direct": PEERMEM,
        "gpus": gpus(),
        "pci": pci(),
        "nvlinks": Absent("none"),
        "software": NO_NCCL,
        "launch": Launch(),
        "machine": Machine(virtual=False),
    }
    return list(gdr.gdr.run(**{**facts, **changes}))


def test_the_gpu_without_gpudirect_is_told_which_nic_level_and_relay() -> None:
    (found,) = gpudirect(pci=pci(far=(3,)))
    assert (found.severity, found.subject) == (WARN, "GPU3")
    assert found.message == (
        "no GPUDirect RDMA: the nearest NIC mlx5_2 is across the host bridge (PHB or NODE), the default level is P2C, "
        "and no relay GPU (PXN) has a nearer one"
    )


def test_an_old_nccl_that_does_not_look_for_the_module_is_named() -> None:
    closed = replace(PEERMEM, driver="proprietary")
    (found,) = gpudirect(direct=closed, software=nccl(2, 21, 5))
    assert "NCCL 2.21.5 does not look at /sys/module/nvidia_peermem/version" in found.message
    assert not gpudirect(direct=closed, software=nccl(2, 23, 4))


def test_an_nvlink_machine_of_several_nodes_cannot_do_without() -> None:
    nothing = GpuDirect({}, (5, 15), "proprietary")
    (found,) = gpudirect(direct=nothing, nvlinks=_SWITCHED, launch=TWO_NODES)
    assert (found.severity, found.blame, found.action) == (FAIL, "image", "fix-image")


def test_a_setting_that_turns_it_off_is_the_jobs_and_says_what_it_may_hide() -> None:
    (found,) = gpudirect(settings=having("NCCL_NET_GDR_LEVEL", "LOC"))
    assert (found.subject, found.blame, "hides" in found.remedy) == ("NCCL_NET_GDR_LEVEL", "job", True)
    assert found.seen == "environment: NCCL_NET_GDR_LEVEL=LOC"


def test_where_half_of_the_gpus_are_far_the_machine_is_built_so() -> None:
    found = gpudirect(pci=pci(far=(2, 3)))
    assert [(finding.severity, finding.subject) for finding in found] == [(NOTE, "GPU2 and GPU3")]


def test_an_old_kernel_under_an_open_driver_is_unknown() -> None:
    with pytest.raises(Unlearned, match="old kernel"):
        gpudirect(direct=GpuDirect({}, (4, 18), "open"))


def test_distances_that_cannot_be_read_are_a_note() -> None:
    assert [f.severity for f in gpudirect(pci=UNREAD)] == [NOTE]


SOFT = Fabric((RdmaDevice("rxe0", (replace(fixtures.roce(0, "10.0.0.5"), device="rxe0"),), None),))
EFA = Fabric(
    (RdmaDevice("rdmap16s27", (replace(port(0), device="rdmap16s27", link_layer="Unspecified"),), "0000:10:1b.0"),)
)


@each_row("devices", [SOFT, EFA, Fabric()], ids=["soft-RoCE", "EFA", "none"])
def test_devices_that_are_not_for_nccls_own_transport_are_not_judged(devices: Fabric) -> None:
    facts: dict[type, Any] = {Fabric: devices, Gpus: gpus(), Pci: pci()}
    judged = {v.status for v in verdicts(facts).values() if v.key != "ib.perm" or devices is not SOFT}
    assert judged == {Status.SKIP}


def test_soft_roce_that_cannot_be_opened_is_told_where_there_is_no_nic() -> None:
    closed = Fabric(tuple(replace(each, opens=False) for each in SOFT.devices))
    assert said(ports.perm, closed, PLAIN, TWO_NODES)
    beside = Fabric((*closed.devices, *fabric(fixtures.roce(0, "10.0.0.5")).devices))
    assert not said(ports.perm, beside, PLAIN, TWO_NODES)


def test_a_management_nic_on_ethernet_needs_neither_address_nor_large_packets() -> None:
    beside = fixtures.roce(4, "", Rate(25, 1, "EDR"))
    mixed = fabric(beside)
    assert said(ports.roce_v2, mixed, PLAIN, TWO_NODES) == [(NOTE, "mlx5_4:1")]
    assert not said(ports.roce_mtu, mixed, PLAIN, fixtures.interfaces(1500, 1500, 1500, 1500, 1500), UNREAD)
    assert not loud(gdr.gdr, mixed, PLAIN, PEERMEM, gpus(), pci(), UNREAD, NO_NCCL, TWO_NODES, UNREAD)
    assert not said(gdr.gpu_near, mixed, PLAIN, pci(), gpus(), UNREAD)


@each_row(("mtu", "size"), [(9000, 4096), (4200, 4096), (4191, 2048), (2144, 2048), (1500, 1024), (576, 256), (100, 0)])
def test_the_packet_is_the_largest_power_of_two_beside_the_headers(mtu: int, size: int) -> None:
    assert ports._packet(mtu) == size


def test_one_short_mtu_beside_longer_ones_is_named_with_them() -> None:
    rails = fabric(fixtures.roce(0, "10.0.0.5"), fixtures.roce(1, "10.1.0.5"), count=0)
    (found,) = ports.roce_mtu.run(rails, PLAIN, fixtures.interfaces(9000, 2200), UNREAD)
    assert (found.severity, found.subject) == (WARN, "mlx5_1:1")
    assert found.message == "eth1 has MTU 2200: RoCE packets of 2048 bytes, 4096 on other ports"


@each_row(
    ("check", "rest"),
    [(ports.roce_v2, (TWO_NODES,)), (ports.roce_mtu, (fixtures.interfaces(9000), UNREAD))],
    ids=["gids", "interfaces"],
)
def test_roce_ports_that_tell_nothing_are_unknown(check: Check, rest: tuple[Any, ...]) -> None:
    blind = fabric(fixtures.roce(0, "", gids=UNREAD), count=0)
    with pytest.raises(Unlearned):
        list(check.run(blind, PLAIN, *rest))


def test_gids_without_a_type_are_unknown() -> None:
    table = (fixtures.gid(0, "10.0.0.5", None),)  # type: ignore[arg-type]
    with pytest.raises(Unlearned):
        list(ports.roce_v2.run(fabric(fixtures.roce(0, "", gids=table), count=0), PLAIN, TWO_NODES))


def test_a_gpu_whose_nic_is_missing_is_told_where_the_next_one_is() -> None:
    (found,) = gdr.gpu_near.run(fabric(count=3), PLAIN, pci(), gpus(), Machine(virtual=False))
    assert (found.severity, found.subject) == (WARN, "GPU3")
    assert found.message == "the nearest NIC is mlx5_2 at PHB; most GPUs have one below their own switch"


def test_a_nic_that_is_near_and_not_taken_is_named_before_the_next_one() -> None:
    settings = having("NCCL_IB_HCA", "^mlx5_3")
    (found,) = gdr.gpu_near.run(fabric(), settings, pci(), gpus(), Machine(virtual=False))
    start = "the nearest NIC, mlx5_3, is down, slow or left out; the next is mlx5_2 at PHB"
    assert found.message == f"{start}; most GPUs have one below their own switch"


@each_row("check", [gdr.gpu_near, gdr.numa], ids=lambda check: check.key)
def test_a_tree_that_tells_nothing_is_unknown(check: Check) -> None:
    blind = Pci({a: replace(d, place=UNREAD, numa_node=UNREAD) for a, d in pci().devices.items()})
    with pytest.raises(Unlearned):
        list(check.run(fabric(), PLAIN, blind, gpus(), UNREAD))


def test_a_node_that_the_firmware_does_not_give_is_a_note() -> None:
    found = pci()
    silent = Pci({**found.devices, "0000:12:00.0": replace(found.devices["0000:12:00.0"], numa_node=-1)})
    assert said(gdr.numa, fabric(), PLAIN, silent, gpus(), UNREAD) == [(NOTE, "mlx5_0")]


@each_row("make", [fabric, lambda: Fabric(())], ids=["NICs", "none"])
def test_flaps_of_other_devices_are_not_ours(make: Callable[[], Fabric]) -> None:
    log = ports.downs(1, 2, 3)
    other = replace(log, events=tuple(replace(event, device="0000:99:00.0") for event in log.events))
    assert not said(ports.flap_history, make(), PLAIN, other)


def test_a_link_that_comes_up_after_a_boot_has_not_flapped() -> None:
    log = ports.downs(0.1, 0.11, 0.12)
    young = replace(log, uptime_s=700.0, events=tuple(replace(event, at_s=200.0) for event in log.events))
    assert not said(ports.flap_history, fabric(), PLAIN, young)
