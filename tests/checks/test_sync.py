"""Comparisons over whole fleets: every machine of the zoo many times, healthy and with one fault planted."""

import re
import sys
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address
from typing import Any

import pytest
import zoo
from fake_fleet import CHECKS, OURS, Facts, Plant, backend, changed, elsewhere, fleet, judged, node, put, with_setting

from ncclprobe.checks.launch.meeting import rank_silent
from ncclprobe.checks.majority import describe
from ncclprobe.checks.sync.roster import missing, told
from ncclprobe.engine.judge import compare, judge
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.infiniband import Fabric, Gid, Rate
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Dmi, Machine, System
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.placement import Placement
from ncclprobe.facts.process import Memlock, Process, SharedMemory
from ncclprobe.facts.rank import RankProcess
from ncclprobe.facts.reach import ClockOffset
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent, Every, Job, Snapshot, vote
from ncclprobe.model.values import replace
from tests.checks.cases.sync_nodes import at, four, placed
from tests.each_row import each_row

CAPTURES = sorted(path.stem for path in zoo.CAPTURES.glob("*.jsonl"))
H100, GLOO = "hgx-h100", Job("gloo")


@each_row("name", CAPTURES)
@each_row("size", [2, 8])
def test_a_fleet_of_healthy_machines_of_one_kind_has_no_finding(name: str, size: int) -> None:
    verdicts = judged(fleet(name, size), backend(name))
    assert [(v.key, f.message) for v in verdicts.values() for f in v.findings] == []
    assert {v.key for v in verdicts.values()} == set(OURS)
    assert {v.status for v in verdicts.values()} <= {Status.PASS, Status.SKIP}


def renamed(snapshot: Snapshot, number: int) -> Snapshot:
    """Return the same machine under another name and address."""
    facts = dict(snapshot.facts)
    facts[System] = replace(facts[System], hostname=f"m{number}", boot_id=f"other-{number}")
    facts[Interfaces] = Interfaces(tuple(elsewhere(each, 100 + number) for each in facts[Interfaces].all))
    return Snapshot(f"m{number}", facts)


def test_a_fleet_of_two_kinds_is_told_once_and_not_by_its_consequences() -> None:
    verdicts = judged([*fleet(H100, 4), *(renamed(s, i) for i, s in enumerate(fleet("hgx-h200", 4)))])
    above = {v.key for v in verdicts.values() for f in v.findings if f.severity is not Severity.NOTE}
    assert above == {"sync.machine/machine-type", "sync.versions/nccl-version", "sync.versions/torch-cuda"}


def devices(change: Callable[[Any], Any]) -> Plant:
    """Return what changes each device."""
    return lambda facts: {**facts, Fabric: Fabric(tuple(map(change, facts[Fabric].devices)))}


def ports(of: str = "", **fields: Any) -> Plant:
    """Return what changes the ports of one device, or of all."""

    def change(device: Any) -> Any:
        new = tuple(replace(port, **fields) for port in device.ports)
        return replace(device, ports=new) if of in ("", device.name) else device

    return devices(change)


def less(kind: type, field: str = "all") -> Plant:
    """Return what takes the last item of a fact."""
    return lambda facts: {**facts, kind: replace(facts[kind], **{field: getattr(facts[kind], field)[:-1]})}


def with_mtu(facts: Facts) -> Facts:
    return {**facts, Interfaces: Interfaces(tuple(replace(i, mtu=576) for i in facts[Interfaces].all))}


def moved(facts: Facts) -> Facts:
    tree = facts[Pci]
    first = tree.of("gpu")[0]
    return {**facts, Pci: replace(tree, devices={**tree.devices, first.address: replace(first, numa_node=1)})}


NCCL = NcclLibrary((2, 20, 3), "nvidia-nccl-cu12")
ELSEWHERE = ports(gids=(Gid(0, IPv6Address("fec0:0:0:7::1")),))
DOWN = ports("mlx5_3", state="DOWN", physical="Polling")
PLANTS: dict[str, tuple[str, Plant, Severity]] = {
    "sync.machine/gpu-count": ("GPU", less(Gpus), Severity.FAIL),
    "sync.machine/nic-count": ("NIC", less(Fabric, "devices"), Severity.FAIL),
    "sync.machine/machine-type": ("SYS-1", changed(Machine, dmi=Dmi("Supermicro", "SYS-1")), Severity.WARN),
    "sync.versions/nccl-version": ("2.20.3", changed(Software, nccl=(NCCL,)), Severity.FAIL),
    "sync.versions/torch-cuda": ("1.13", changed(Software, packages={"torch": "1.13"}), Severity.WARN),
    "sync.versions/nic-fw": ("0.0.1", devices(lambda each: replace(each, firmware="0.0.1")), Severity.WARN),
    "sync.env": ("Ring", with_setting("NCCL_ALGO", "Ring"), Severity.FAIL),
    "sync.network/rate": ("100 Gb/s", ports(rate=Rate(100, 4, "EDR")), Severity.FAIL),
    "sync.network/mtu": ("MTU 576", with_mtu, Severity.WARN),
    "sync.network/pkey": ("0x0003", ports(pkeys=((0, 0x8003),)), Severity.FAIL),
    "sync.network/subnet-prefix": ("fec0:0:0:7::", ELSEWHERE, Severity.WARN),
    "sync.machine/topology": ("on NUMA node 1", moved, Severity.WARN),
    "sync.limits/limits": ("8 MiB", put(Memlock(8 << 20)), Severity.WARN),
    "sync.clock": ("3 s", put(ClockOffset(3.0, 0.001)), Severity.WARN),
}


@each_row(("name", "says", "plant", "severity"), [(k, *v) for k, v in PLANTS.items()], ids=PLANTS)
def test_one_of_eight_that_differs_is_named_and_has_few_consequences(
    name: str, says: str, plant: Plant, severity: Severity
) -> None:
    found = judged(fleet(H100, 8, plant, 1))
    worst = [f for f in found[name].findings if f.severity is severity]
    assert {f.nodes for f in worst} == {("n7",)}
    assert all(re.search(r"1 of 8 nodes differs(:| \()", f.message) and "n7" in f.message for f in worst)
    assert any(says in f.message for f in worst)
    assert {v.key for v in found.values() for f in v.findings if f.severity is not Severity.NOTE} == {name}


@each_row(("name", "says", "plant", "severity"), [(k, *v) for k, v in PLANTS.items()], ids=PLANTS)
@each_row(("size", "sick"), [(8, 4), (2, 1)])
def test_a_tie_is_told_and_nobody_is_named(
    name: str, says: str, plant: Plant, severity: Severity, size: int, sick: int
) -> None:
    found = judged(fleet(H100, size, plant, sick))[name].findings
    assert {(each.severity, each.nodes) for each in found} == {(severity, ())}
    assert not {each.blame for each in found} & {"node", "link"}
    assert all(f"no majority among {size} nodes" in finding.message for finding in found)
    assert any(says in finding.message for finding in found)


@each_row(("name", "plant"), [(k, v[1]) for k, v in PLANTS.items()], ids=PLANTS)
def test_gpus_nccl_and_hcas_are_nothing_to_a_job_over_gloo(name: str, plant: Plant) -> None:
    found = judged(fleet(H100, 8, plant, 1), GLOO)
    above = {v.key for v in found.values() for f in v.findings if f.severity is not Severity.NOTE}
    assert above == {name} & {"sync.versions/torch-cuda", "sync.network/mtu", "sync.limits/limits", "sync.clock"}


def needed(name: str) -> set[type]:
    facts = {need.fact for need in CHECKS[name].needs if need.of == "nodes" and not need.accepts_absent}
    return facts - {Choices}  # made of the others


@each_row(("name", "fact"), [(name, fact) for name in PLANTS for fact in needed(name)])
def test_a_node_of_which_the_fact_is_not_known_never_makes_agreement(name: str, fact: type) -> None:
    found = judged(fleet(H100, 8, lambda facts: {**facts, fact: Absent("permission denied")}, 1))
    assert found[name].status is Status.UNKNOWN
    assert "n7" in found[name].why


def calls_to_compare(rule: Check, nodes: int) -> int:
    """Return how many functions are called: what the work is, on any machine."""
    unlike = [with_setting("NCCL_IB_TC", str(n % 7)) for n in range(7)]
    snapshots = [replace(s, facts=unlike[i % 7](s.facts)) for i, s in enumerate(fleet(H100, nodes))]
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


def test_a_plurality_is_no_majority_and_a_line_stays_short_however_many_values_there_are() -> None:
    ballot = vote({f"n{i}": str(i) for i in range(300)})
    assert (ballot.outliers, len(describe(ballot)) < 200, "295 more nodes" in describe(ballot)) == ((), True, True)
    assert vote(dict(zip("abcdef", "111223", strict=True))).outliers == ()
    assert vote(dict(zip("abcde", "11123", strict=True))).outliers == ("d", "e")


def own(name: str, *values: str, origin: str = "environment") -> list[Snapshot]:
    """Return a fleet in which each node has its own value of one variable; empty: not set."""
    pairs = zip(fleet(H100, len(values)), values, strict=True)
    return [replace(s, facts=with_setting(name, v, origin)(s.facts)) if v else s for s, v in pairs]


def all_of(snapshots: Sequence[Snapshot], plant: Plant) -> list[Snapshot]:
    """Return the nodes, each with the same change."""
    return [replace(s, facts=plant(s.facts)) for s in snapshots]


def soft(but: str = "") -> Plant:
    """Return what makes all devices but one software."""
    return devices(lambda each: each if each.name == but else replace(each, pci=None))


def plain(number: int, mtu: int = 1500, nics: int = 2) -> Facts:
    """Return a host without GPUs and HCAs, a network namespace of one machine: the healthy lab."""
    facts = dict(node("build-vm", number))
    every = [Interface("lo", 1, frozenset({"up", "running", "loopback"}), 65536, virtual=True)]
    for nic in range(nics):
        address = Address(f"eth{nic}", "inet", f"10.{nic}.0.{number + 1}", "255.255.255.0", running=True)
        up = frozenset({"up", "running"})
        every.append(Interface(f"eth{nic}", nic + 2, up, mtu, addresses=(address,), virtual=True))
    facts[Interfaces] = Interfaces(tuple(every))
    facts[System] = replace(facts[System], boot_id="one")
    facts[Process] = replace(facts[Process], namespaces={**facts[Process].namespaces, "net": number})
    return facts


def lab(*facts: Facts) -> list[Snapshot]:
    return [Snapshot(f"n{number}", each) for number, each in enumerate(facts)]


def with_interface(name: str, address: str, **fields: Any) -> Plant:
    """Return what gives every node one more interface with the same address."""
    own = (Address(name, "inet", address, "255.255.0.0", running=True),)
    more = Interface(name, 9, frozenset({"up", "running"}), 1500, addresses=own, **fields)
    return lambda facts: {**facts, Interfaces: Interfaces((more, *facts[Interfaces].all))}


def process(local_rank: int, **fields: Any) -> RankProcess:
    return replace(RankProcess(local_rank, 8, None, None, (0, 1), {"ipc": 39, "mnt": 32}, 26), **fields)


def seated(*processes: RankProcess, plant: Plant = lambda facts: facts) -> list[Snapshot]:
    """Return two nodes with these ranks each."""
    width = len(processes)
    rows: list[tuple[int, dict[type, Any]]] = [(rank, {RankProcess: each}) for rank, each in enumerate(processes * 2)]
    nodes = zip(fleet(H100, 2), (dict(rows[:width]), dict(rows[width:])), strict=True)
    return [replace(s, facts=plant(s.facts), ranks=ranks) for s, ranks in nodes]


def turned(facts: Facts) -> Facts:
    def port(of: Any) -> Any:
        return replace(of, gids=tuple(replace(gid, type="IB/RoCE v1") for gid in of.gids))

    return devices(lambda each: replace(each, ports=tuple(map(port, each.ports))))(facts)


def confined(facts: Facts) -> Facts:
    """Return a node that shows only its first GPU."""
    return {**facts, Gpus: replace(facts[Gpus], all=facts[Gpus].all[:1])}


def blind(facts: Facts) -> Facts:
    return {**facts, Gpus: Absent("no driver"), Machine: replace(facts[Machine], dmi=Dmi())}


def library(*version: int) -> Plant:
    return changed(Software, nccl=(NcclLibrary(version, "nvidia-nccl-cu12"),))  # type: ignore[arg-type]


MTU, LIMITS = "sync.network/mtu", "sync.limits/limits"
EIGHT_RAILS = f"{', '.join(f'mlx5_{n}:1' for n in range(7))} and mlx5_7:1"
BY_INDEX = with_setting("NCCL_IB_GID_INDEX", "3")
SPLIT, NO_NIC, LESS = less(Cpus, "numa"), less(Fabric, "devices"), less(Gpus)
BMC = with_interface("enp0s20u1", "16.1.15.2", driver="cdc_ether")
BRIDGES = ("docker0", "virbr0", "cni0", "br-0123456789ab", "tmfifo_net0", "kube-ipvs0")
EVERYWHERE = [with_interface(name, "172.17.0.1", virtual=True, kind="bridge") for name in BRIDGES]
TWIN = {**plain(2), Interfaces: plain(0)[Interfaces]}
CLONE = {**node(H100, 1), System: node(H100, 0)[System]}
GPU_3 = "FAIL job GPU-0000026d-0000-4000-8000-000000000003"
NIC, STATE, TWICE = "sync.machine/nic-count", "sync.network/port-state", "sync.identity/address-twice"
TREE, HIDES = "sync.machine/topology", "sync.machine/ignore-net-mismatch"
DUP, SHARED = "launch.ranks/dup-gpu", "launch.ranks/container-split"
COMPARED: list[tuple[str, list[str], Callable[[], list[Snapshot]]]] = [
    ("sync.machine/gpu-count", ["FAIL unknown n0 n0"], lambda: fleet(H100, 8, LESS, 7)),  # the one with more
    ("sync.machine/gpu-count", ["unknown"], lambda: fleet(H100, 4, blind, 1)),
    ("sync.machine/machine-type", [], lambda: fleet(H100, 4, blind, 1)),  # of its neighbours' kind
    ("sync.env", ["FAIL job NCCL_PROTO n0"], lambda: own("NCCL_PROTO", "Simple", "", "")),
    ("sync.env", ["WARN job NCCL_IB_TC n2"], lambda: own("NCCL_IB_TC", "106", "106", "")),
    ("sync.env", [], lambda: own("NCCL_SOCKET_IFNAME", "eth0", "ens3", "eno1")),
    ("sync.env", ["NOTE job NCCL_IB_HCA n2"], lambda: own("NCCL_IB_HCA", "mlx5", "mlx5", "")),
    ("sync.env", [], lambda: own("NCCL_IB_TIMEOUT", "0x14", "20", "20")),
    ("sync.env", ["NOTE job NCCL_ALGOO n0"], lambda: own("NCCL_ALGOO", "Ring", "", "")),
    ("sync.env", ["WARN job TORCH_NCCL_BLOCKING_WAIT n0"], lambda: own("TORCH_NCCL_BLOCKING_WAIT", "1", "0", "0")),
    ("sync.env", [], lambda: own("OMP_NUM_THREADS", "1", "2", "3")),
    ("sync.env", ["FAIL image NCCL_ALGO n0"], lambda: own("NCCL_ALGO", "Ring", "", "", origin="/etc/nccl.conf:1")),
    (STATE, ["FAIL link n3 mlx5_3:1 n3"], lambda: fleet(H100, 4, DOWN, 1)),
    (STATE, ["FAIL link n1 mlx5_3:1 n1"], lambda: fleet(H100, 2, DOWN, 1)),
    (STATE, ["WARN link n[2-3] mlx5_3:1 n2 n3"], lambda: fleet(H100, 4, DOWN, 2)),
    (STATE, [], lambda: fleet(H100, 4, DOWN, 4)),
    # NCCL takes soft-RoCE where there is no NIC, so it is compared there only.
    (STATE, ["FAIL link n3 mlx5_3:1 n3"], lambda: all_of(fleet(H100, 4, DOWN, 1), soft())),
    (STATE, [], lambda: all_of(fleet(H100, 4, DOWN, 1), soft("mlx5_0"))),
    (NIC, ["WARN link n3 n3"], lambda: all_of(fleet(H100, 4, DOWN, 1), soft())),
    (NIC, [], lambda: all_of(fleet(H100, 4, DOWN, 1), soft("mlx5_0"))),
    (STATE, [], lambda: [*fleet("dgx-a100", 3)[:2], *fleet(H100, 3, DOWN, 1)[2:]]),  # another kind of machine
    (NIC, ["WARN link n3 n3"], lambda: fleet(H100, 4, ports("mlx5_7", state="DOWN"), 1)),  # it is no missing NIC
    (NIC, ["WARN link n1 n1"], lambda: fleet(H100, 2, DOWN, 1)),
    (NIC, ["FAIL unknown nodes"], lambda: fleet(H100, 2, NO_NIC, 1)),
    (NIC, ["FAIL node n2 n2"], lambda: lab(plain(0), plain(1), plain(2, nics=1))),
    (MTU, ["WARN image eth0 n2", "WARN image eth1 n2"], lambda: lab(plain(0), plain(1), plain(2, mtu=1400))),
    (TWICE, [], lambda: lab(plain(0), changed(System, hostname="n1")(plain(0)))),  # containers of one host
    (TWICE, [], lambda: all_of(lab(plain(0), plain(1)), BMC)),
    *((TWICE, [], lambda more=more: all_of(fleet(H100, 3), more)) for more in EVERYWHERE),
    ("launch.ranks/hostname-unique", ["WARN job n[0-1] n0 n1"], lambda: lab(node(H100, 0), CLONE)),
    (DUP, [], lambda: seated(*map(process, range(8)))),
    (SHARED, [], lambda: seated(*map(process, range(8)))),
    (DUP, [f"{GPU_3}-0 n0", f"{GPU_3}-1 n1"], lambda: seated(*(process(n, visible=("3",)) for n in (0, 1)))),
    (DUP, [], lambda: seated(*(process(n, visible=("0",)) for n in (0, 1)), plant=confined)),  # all call it 0
    (SHARED, ["WARN job ranks 0-1 n0", "WARN job ranks 2-3 n1"], lambda: seated(process(0), process(1, shm_device=77))),
    ("sync.identity/hostid", ["FAIL job NCCL_HOSTID n0 n1"], lambda: own("NCCL_HOSTID", "node", "node", "other")),
    (TREE, ["WARN unknown n3 n3"], lambda: fleet(H100, 4, SPLIT, 1)),
    (TREE, ["NOTE unknown n3 n3"], lambda: all_of(fleet(H100, 4, SPLIT, 1), changed(Machine, virtual=True))),
    ("sync.network/subnet-prefix", [f"WARN fabric {EIGHT_RAILS} n7"], lambda: fleet(H100, 8, ELSEWHERE, 1)),
    ("env.gid/gid-uniform", ["FAIL job n3 n3"], lambda: all_of(fleet("a100-bridged", 4, turned, 1), BY_INDEX)),
    (HIDES, ["WARN job NCCL_IGNORE_NET_MISMATCH n3"], lambda: all_of(fleet(H100, 4, NO_NIC, 1), library(2, 30, 7))),
    (HIDES, [], lambda: all_of(fleet(H100, 4, NO_NIC, 1), library(2, 29, 7))),
]
OVER_GLOO: list[tuple[str, list[str], Callable[[], list[Snapshot]]]] = [
    (MTU, ["WARN image eth0 n2", "WARN image eth1 n2"], lambda: lab(plain(0), plain(1), plain(2, mtu=1400))),
    (TWICE, ["FAIL fabric 10.0.0.1 n0 n2", "FAIL fabric 10.1.0.1 n0 n2"], lambda: lab(plain(0), plain(1), TWIN)),
    (NIC, [], lambda: lab(plain(0), plain(1), plain(2, nics=1))),
    (LIMITS, ["WARN image /dev/shm n3"], lambda: fleet(H100, 4, put(SharedMemory(64 << 20, 64 << 20)), 1)),
    (LIMITS, ["NOTE image /dev/shm n3"], lambda: fleet(H100, 4, put(SharedMemory(8 << 30, 8 << 30)), 1)),
]


@each_row(
    ("job", "key", "expected", "make"), [*((Job(), *row) for row in COMPARED), *((GLOO, *row) for row in OVER_GLOO)]
)
def test_what_differs_weighs_by_what_it_does(
    job: Job, key: str, expected: list[str], make: Callable[[], list[Snapshot]]
) -> None:
    verdict = judged(make(), job)[key]
    found = [f"{f.severity.name} {f.blame} {f.subject} {' '.join(f.nodes)}".strip() for f in verdict.findings]
    assert (found or ["unknown"] * (verdict.status is Status.UNKNOWN)) == expected


@each_row("job", [GLOO, Job()])
def test_hosts_that_share_a_kernel_are_healthy(job: Job) -> None:
    verdicts = judged(lab(*map(plain, range(8))), job).values()
    assert [f.message for v in verdicts for f in v.findings if f.severity is not Severity.NOTE] == []


def test_a_node_count_without_end_is_not_believed() -> None:
    assert len(missing(Every({"a": Launch(nnodes=10**9, node_rank=0)}))) < 100_000


def test_of_ranks_that_nobody_waited_for_nothing_is_known() -> None:
    launches = four(0, 1, 2, 3).by_node.values()
    nodes = [Snapshot(f"n{i}", {Launch: each}, {8 * i: {RankProcess: process(0)}}) for i, each in enumerate(launches)]
    assert [each.status for each in judge(nodes, [rank_silent], Job())] == [Status.UNKNOWN]
    alone = [replace(each, facts={Launch: replace(each.facts[Launch], local_world_size=1)}) for each in nodes]
    assert [each.status for each in judge(alone, [rank_silent], Job())] == [Status.SKIP]


def test_where_nodes_stand_is_compared_only_if_something_tells_it_of_several() -> None:
    assert told.run(placed(at(zone="a"), Placement()))
    assert not told.run(placed(Placement(), Absent("refused")))
    assert not told.run(placed(at(zone="a")))
