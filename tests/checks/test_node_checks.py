"""Checks of one node: where they do not apply, what explains what, and what they must not tell."""

from pathlib import Path
from typing import Any

from ncclprobe.checks import host
from ncclprobe.checks.env.fixtures import setting
from ncclprobe.checks.gpu import at
from ncclprobe.checks.gpu.driver import BOX, BUS, log, xid
from ncclprobe.checks.gpu.siblings import p2p
from ncclprobe.checks.gpu.state import HEALTHY, box, remap
from ncclprobe.checks.host import EIGHT, FOUR, NIC, SMALL, TORCHRUN, TWO_SOCKETS, allowed, user
from ncclprobe.checks.ib import fixtures
from ncclprobe.checks.ib.fixtures import EDR, gpus, pci, port
from ncclprobe.checks.launch import BY_HAND, TWO_NODES, is_master, names, ports, variables
from ncclprobe.checks.launch.meeting import AT, NODE1, master_reach
from ncclprobe.checks.launch.mesh import unproven
from ncclprobe.checks.launch.names import CNI0, ETH0, FAR, NO_SOFTWARE, ROUTED
from ncclprobe.checks.pci.links import FULL, HALF, cards, gpu_gen, gpu_width, nic, nic_fits, nic_link
from ncclprobe.checks.pci.tree import ONE, acs, below_a_switch, iommu
from ncclprobe.cluster.mesh.listeners import mesh_interfaces
from ncclprobe.engine.collect import collect
from ncclprobe.engine.judge import judge
from ncclprobe.facts.cgroup import Cgroup, Quota
from ncclprobe.facts.cpu import Scaling
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric, Rate, RdmaDevice
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.kernel_log import Event
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import TimeSync
from ncclprobe.facts.names import Master, OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci, PcieLink
from ncclprobe.facts.ports import Ports
from ncclprobe.facts.process import Container, JobUser, Memlock
from ncclprobe.facts.reach import Proof
from ncclprobe.host.capture import load
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.registry import Check, Collector, discover
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.report.digest import copyable
from tests.checks.cases.gpu import NO_SUCH_THING
from tests.checks.cases.launch_meeting import nodes_of
from tests.checks.cases.launch_names import ALONE, UNROUTED
from tests.checks.cases.pci import GUEST, UNTOLD
from tests.each_row import each_row

PASS, FAIL, WARN, SKIP, UNKNOWN = Status.PASS, Status.FAIL, Status.WARN, Status.SKIP, Status.UNKNOWN
GLOO, LOCAL = Job("gloo"), Job(local=True)
LONE_GPU = Gpus(FOUR.all[:1], "570.86.15", (12, 8))
NARROW = Cgroup(Quota(0.5, "/sys/fs/cgroup", host.QUIET), None)
OLD = replace(HEALTHY, remap_pending=NO_SUCH_THING, remap_failed=NO_SUCH_THING)
UNTELLING = Absent("NVML nvmlDeviceGetCurrPcieLinkWidth: Not Supported", "Failed")
GRACE = replace(HEALTHY, **dict.fromkeys(("pcie_width", "pcie_max_width", "pcie_generation"), UNTELLING))  # type: ignore[arg-type]
HERE = Master("node0", ("10.0.0.5",))
LOCALHOST = Master("localhost", ("127.0.0.1",), 0.001)
ONE_NODE = replace(BY_HAND, world_size=8, nnodes=1)
LOST = Master("node0", failure="resolve node0: Name or service not known")
BOTH = Interfaces((CNI0, ETH0))
BLIND = replace(ports.USUAL, ephemeral_ports=Absent("denied"))
SPARK = (*cards(nic(0, PcieLink(32.0, 4, 32.0, 4), 200.0)), box(replace(HEALTHY, name="NVIDIA GB10")))


def judged(checks: list[Check], *facts: Any, job: Job | None = None) -> list[Status]:
    """Return what becomes of checks on a node with these facts."""
    snapshot = Snapshot("n", {type(fact): fact for fact in facts})
    return [verdict.status for verdict in judge([snapshot], checks, job or Job())]


def linked(link: PcieLink | Absent) -> tuple[Any, ...]:
    """Return a NIC with this link."""
    rdma, device = nic(0, FULL)
    return Fabric((rdma,)), Pci({device.address: replace(device, link=link)}), ONE


@each_row(
    ("check", "facts", "job", "status"),
    [
        (host.affinity, (allowed(0), TWO_SOCKETS, Launch(), LONE_GPU), Job(), SKIP),
        (host.affinity, (allowed(0), TWO_SOCKETS, Launch(), LONE_GPU), GLOO, SKIP),
        (host.cpu_quota, (NARROW, Launch(), LONE_GPU), Job(), SKIP),
        (host.cpu_quota, (NARROW, Launch(), LONE_GPU), GLOO, SKIP),
        (host.cpu_quota, (Cgroup(Absent("not mounted here"), None), TORCHRUN, FOUR), Job(), UNKNOWN),
        (host.governor, (Scaling(),), Job(), SKIP),  # a machine that does not set its clock
        (host.memlock, (Memlock(65536), NIC, user(), JobUser()), GLOO, SKIP),
        (host.memlock, (Memlock(65536), Fabric(), user(), JobUser()), Job(), SKIP),
        (host.caps, (Container(), user(), SMALL, host.NEW_DRIVER, Launch(), host.NCCL_2_27, host.PLAIN), Job(), SKIP),
        (host.timesync, (TimeSync(False), TORCHRUN), Job(), SKIP),
        (host.timesync, (TimeSync(False), host.TWO_NODES), LOCAL, SKIP),
        (host.timesync, (TimeSync(False), host.TWO_NODES), Job(), WARN), (remap, (box(OLD, OLD),), Job(), SKIP),
        (gpu_width, (box(GRACE, GRACE),), Job(), SKIP), (gpu_gen, (box(GRACE, GRACE),), Job(), SKIP),
        (nic_link, linked(UNTOLD), Job(), SKIP),
        (nic_link, linked(Absent("permission denied", "Denied")), Job(), UNKNOWN),
        (nic_fits, SPARK, Job(), SKIP),  # it splits its NIC on purpose
        (acs, (GUEST, below_a_switch("ReqRedir", iommu="DMA"), ONE), Job(), SKIP),
        (iommu, (GUEST, below_a_switch("ReqRedir", iommu="DMA"), ONE), Job(), SKIP),
        (variables.one_rank, (Launch("slurm", 0, 2, 0, 1, 2), variables.EIGHT, Environment({})), Job(), SKIP),
        (variables.one_rank, (Launch("pytorchjob", 0, 2, 0, 1, 2), variables.EIGHT, Environment({})), Job(), SKIP),
        (ports.port_free, (TWO_NODES, HERE, ports.HERE, ports.TAKEN), Job(), SKIP),  # torchrun listens itself
        (ports.port_free, (BY_HAND, HERE, ports.HERE, ports.TAKEN), Job(), FAIL),
        (ports.port_free, (BY_HAND, HERE, ports.HERE, ports.TAKEN), LOCAL, SKIP),
        (ports.port_free, (BY_HAND, HERE, ports.HERE, ports.TAKEN), Job(met=True), SKIP),
        (ports.port_ephemeral, (BY_HAND, FAR, BLIND), Job(), UNKNOWN),
        (ports.ports_enough, (TWO_NODES, BLIND, Ports((), 0)), Job(), UNKNOWN),
        (ports.ports_enough, (ONE_NODE, ports.USUAL, Ports((), 0)), Job(), SKIP),
        (names.route, (ONE_NODE, FAR, BOTH, UNROUTED, Settings(), NO_SOFTWARE), Job(), SKIP),
        (master_reach, (TWO_NODES, FAR), Job(), SKIP),  # rank 0 itself
        (master_reach, (NODE1, LOST, replace(AT, outcome="resolve")), Job(), SKIP),
        (master_reach, (NODE1, Master("node0", ("127.0.1.1",)), replace(AT, outcome="refused")), Job(), SKIP),
        (master_reach, (NODE1, FAR), Job(), UNKNOWN), (master_reach, (NODE1, FAR, AT), Job(), PASS),
        (unproven, (Proof("munge", proved=True),), Job(), PASS), (unproven, (), Job(), SKIP),
    ],
)  # fmt: skip
def test_a_check_applies_only_where_it_can_tell_something(check: Check, facts: Any, job: Job, status: Status) -> None:
    assert judged([check], *facts, job=job) == [status]


@each_row(
    ("checks", "facts", "expected"),
    [
        ([host.shm, host.caps], (EIGHT,), [FAIL, PASS]),
        ([host.shm, host.caps], (host.NEW_DRIVER,), [PASS, WARN]),
        ([nic_link, nic_fits], (*cards(nic(0, HALF), nic(1, FULL)), ONE), [FAIL, SKIP]),
        ([names.master_resolve, names.route], (BY_HAND, LOST, BOTH, ROUTED, Settings(), NO_SOFTWARE), [FAIL, SKIP]),
    ],
)
def test_one_fault_is_one_finding_and_not_two(checks: list[Check], facts: Any, expected: list[Status]) -> None:
    in_docker = (SMALL, Launch(), host.NCCL_2_27, host.PLAIN, host.DOCKER, user()) if host.shm in checks else ()
    assert judged(checks, *in_docker, *facts) == expected


@each_row(
    ("launch", "master", "here"),
    [
        (BY_HAND, HERE, True),
        (BY_HAND, FAR, False),  # rank 0, but MASTER_ADDR is elsewhere
        (replace(BY_HAND, rank=8, node_rank=1), Master("node0", ("127.0.1.1", "10.0.0.5")), True),
        (replace(BY_HAND, rank=8, node_rank=1), LOCALHOST, False), (BY_HAND, LOCALHOST, True), (ALONE, LOCALHOST, True),
    ],
)  # fmt: skip
def test_the_master_is_here_where_its_address_is_ours(launch: Launch, master: Master, here: bool) -> None:
    assert is_master(launch, master, Interfaces((ETH0,))) is here


def test_whose_process_it_was_is_not_told() -> None:
    event = Event(7000.0, "xid", BUS, "31", "pid=4711, name=secret_model, Ch 00000008, intr 00000000. MMU Fault")
    (finding,) = xid.run(log(event), BOX)
    assert "MMU Fault" in finding.seen
    assert "secret" not in str(finding)
    assert "4711" not in str(finding)


def test_an_address_without_function_finds_its_gpu_and_a_foreign_one_stays() -> None:
    assert at("00000000:07:00", BOX) == at("0000:07:00", BOX) == at("0000:07:00.0", BOX) == "GPU0"
    assert at("0000:17:00", BOX) == "0000:17:00"
    assert at("0000:07:00", Absent("no NVML")) == "0000:07:00"


def test_no_remedy_types_the_setting_that_hides_the_fault() -> None:
    assert "NCCL_IGNORE_DISABLED_P2P" in p2p.fix
    assert not [each for each in copyable(p2p.fix) if "NCCL_IGNORE_DISABLED_P2P" in each]


IB_CHECKS = discover("ncclprobe.checks.ib", Check)


def of_nics(facts: dict[type, Any], device: str = "", **changes: Any) -> dict[str, Any]:
    """Return what the checks of NICs say, where the ports of one device are otherwise."""
    ports_of = {each: tuple(replace(p, **changes) for p in each.ports) for each in facts[Fabric].devices}
    devices = tuple(replace(each, ports=new) if each.name == device else each for each, new in ports_of.items())
    verdicts = judge([Snapshot("n", {**facts, Fabric: Fabric(devices)})], IB_CHECKS, Job())
    return {verdict.key: verdict for verdict in verdicts}


@each_row(("machine", "number"), [("hgx-h100", 3), ("hgx-h200", 5), ("dgx-a100", 7), ("dgx-b200", 0), ("dgx-1v", 2)])
def test_a_rail_that_is_down_or_slow_is_a_failure_and_explains_the_gpus_that_are_without(
    machine: str, number: int
) -> None:
    rail = f"mlx5_{number}"
    path = Path(__file__).parent.parent / "captures" / f"{machine}.jsonl"
    facts = collect(load(path), discover("ncclprobe.facts", Collector))
    down = of_nics(facts, rail, state="DOWN", physical="Polling")
    told = [(f.severity, f.subject, f.blame) for f in down["ib.state"].findings]
    assert told == [(Severity.FAIL, f"{rail}:1", "link")]
    assert (down["ib.gdr/gpu-near"].status, down["ib.gdr/gpu-near"].why) == (SKIP, "explained by ib.state")
    slow = of_nics(facts, rail, rate=EDR if machine != "dgx-1v" else Rate(56, 4, "FDR"))["ib.rate"]
    assert [(f.severity, f.subject) for f in slow.findings] == [(Severity.FAIL, f"{rail}:1")]
    if machine == "hgx-h200":
        storage = of_nics(facts, "mlx5_1", state="DOWN", physical="Polling")["ib.state"]  # a card without a cable
        assert [(f.severity, f.subject) for f in storage.findings] == [(Severity.NOTE, "mlx5_1:1")]


SOFT = RdmaDevice("rxe0", (replace(fixtures.roce(0, "10.0.0.5"), device="rxe0"),), None)
EFA = RdmaDevice("rdmap16s27", (replace(port(0), device="rdmap16s27", link_layer="Unspecified"),), "0000:10:1b.0")


@each_row("devices", [(SOFT,), (EFA,), ()])
def test_devices_that_are_not_for_nccls_own_transport_are_not_judged(devices: tuple[RdmaDevice, ...]) -> None:
    found = of_nics({Fabric: Fabric(devices), Gpus: gpus(), Pci: pci()})
    assert {v.status for key, v in found.items() if key != "ib.perm" or devices != (SOFT,)} == {SKIP}


@each_row(
    ("backend", "name", "ifname", "addresses"),
    [
        ("nccl", "10.0.0.5", "", {"nccl0": "10.1.0.5", "default": "10.0.0.5"}),
        ("nccl", "fd00::5", "", {"nccl0": "10.1.0.5", "default": "10.0.0.5", "gloo0": "fd00::5"}),
        ("nccl", "10.1.0.5", "", {"nccl0": "10.1.0.5", "default": "10.0.0.5"}),
        ("gloo", "fd00::5", "", {"default": "fd00::5"}),
        ("gloo", "fd00::5", "eth1,eth0", {"default": "10.1.0.5", "gloo1": "10.0.0.5"}),
        ("gloo", "127.0.1.1", "", {"default": "10.0.0.5"}),  # no other node calls a loopback address
    ],
)
def test_what_nccl_and_gloo_listen_on_is_called(
    backend: str, name: str, ifname: str, addresses: dict[str, str]
) -> None:
    facts: dict[type, Any] = {
        Interfaces: nodes_of("")["interfaces"].by_node["n0"], Settings: setting("NCCL_SOCKET_IFNAME", "=eth1"),
        Environment: Environment({"GLOO_SOCKET_IFNAME": ifname} if ifname else {}), OwnName: OwnName("n0", (name,)),
    }  # fmt: skip
    assert {each.name: each.address for each in mesh_interfaces(Snapshot("n0", facts), backend)} == addresses
