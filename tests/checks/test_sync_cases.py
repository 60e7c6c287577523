"""Comparisons, case by case: what weighs how much, and what must not be told."""

from ipaddress import IPv6Address
from typing import Any

from fake_fleet import Facts, fleet, judged, node, put, with_setting

from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.infiniband import Fabric, Gid
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.machine import Dmi, Machine, System
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.process import Process, SharedMemory
from ncclprobe.facts.rank import RankProcess
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row


def findings(snapshots: list[Snapshot], name: str, job: Job | None = None) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(f.severity.value, f.subject, f.nodes) for f in judged(snapshots, job)[name].findings]


def own(name: str, *values: str) -> list[Snapshot]:
    """A fleet in which each node has its own value of one variable; empty: not set."""
    snapshots = fleet("hgx-h100", len(values))
    pairs = zip(snapshots, values, strict=True)
    return [replace(s, facts=with_setting(name, v)(s.facts)) if v else s for s, v in pairs]


@each_row(
    ("name", "values", "expected"),
    [
        ("NCCL_PROTO", ("Simple", "", ""), [("fail", ("n0",))]),
        ("NCCL_IB_TC", ("106", "106", ""), [("warn", ("n2",))]),
        ("NCCL_SOCKET_IFNAME", ("eth0", "ens3", "eno1"), []),
        ("NCCL_IB_HCA", ("mlx5", "mlx5", ""), [("note", ("n2",))]),
        ("NCCL_IB_TIMEOUT", ("0x14", "20", "20"), []),
        ("NCCL_ALGOO", ("Ring", "", ""), [("note", ("n0",))]),
        ("TORCH_NCCL_BLOCKING_WAIT", ("1", "0", "0"), [("warn", ("n0",))]),
        ("OMP_NUM_THREADS", ("1", "2", "3"), []),
    ],
)
def test_settings_weigh_by_what_the_variable_does(name: str, values: tuple[str, ...], expected: list[Any]) -> None:
    found = findings(own(name, *values), "sync.env")
    assert found == [(severity, name, nodes) for severity, nodes in expected]


def test_a_setting_of_a_file_is_the_images_and_one_of_the_environment_the_jobs() -> None:
    for origin, blame in {"/etc/nccl.conf:1": "image", "environment": "job"}.items():
        (finding,) = judged(fleet("hgx-h100", 3, with_setting("NCCL_ALGO", "Ring", origin), 1))["sync.env"].findings
        assert finding.blame == blame
        assert origin in finding.seen


def port_down(device: str) -> Any:
    def plant(facts: Facts) -> Facts:
        devices = [
            replace(each, ports=tuple(replace(p, state="DOWN", physical="Polling") for p in each.ports))
            if each.name == device
            else each
            for each in facts[Fabric].devices
        ]
        return {**facts, Fabric: Fabric(tuple(devices))}

    return plant


def test_a_port_that_others_have_up_is_named_with_its_node() -> None:
    down = fleet("hgx-h100", 4, port_down("mlx5_3"), 1)
    assert findings(down, "sync.network/port-state") == [("fail", "n3 mlx5_3:1", ("n3",))]
    assert findings(fleet("hgx-h100", 2, port_down("mlx5_3"), 1), "sync.network/port-state") == [
        ("fail", "n1 mlx5_3:1", ("n1",))
    ]
    halves = [*fleet("hgx-h100", 4)[:2], *fleet("hgx-h100", 4, port_down("mlx5_3"), 2)[2:]]
    assert [severity for severity, _, _ in findings(halves, "sync.network/port-state")] == ["warn"]
    assert findings(fleet("hgx-h100", 4, port_down("mlx5_3"), 4), "sync.network/port-state") == []


@each_row(("beside", "named"), [(False, ["n3 mlx5_3:1"]), (True, [])])
def test_ports_of_software_alone_are_compared_where_there_are_no_others(beside: bool, named: list[str]) -> None:
    """NCCL takes soft-RoCE where there is no NIC."""

    def soft(facts: Facts) -> Facts:
        devices = [
            each if beside and each.name == "mlx5_0" else replace(each, pci=None) for each in facts[Fabric].devices
        ]
        return {**facts, Fabric: Fabric(tuple(devices))}

    snapshots = [replace(s, facts=soft(s.facts)) for s in fleet("hgx-h100", 4, port_down("mlx5_3"), 1)]
    assert [subject for _, subject, _ in findings(snapshots, "sync.network/port-state")] == named
    assert [nodes for _, _, nodes in findings(snapshots, "sync.machine/nic-count")] == [("n3",)] * (not beside)


def test_a_port_of_another_kind_of_machine_is_not_compared() -> None:
    mixed = [*fleet("dgx-a100", 3)[:2], *fleet("hgx-h100", 3, port_down("mlx5_3"), 1)[2:]]
    assert findings(mixed, "sync.network/port-state") == []


def test_a_port_that_is_down_is_no_missing_nic() -> None:
    def down(facts: Facts) -> Facts:
        *others, last = facts[Fabric].devices
        silent = replace(last, ports=tuple(replace(p, state="DOWN") for p in last.ports))
        return {**facts, Fabric: Fabric((*others, silent))}

    (finding,) = judged(fleet("hgx-h100", 4, down, 1))["sync.machine/nic-count"].findings
    assert (finding.severity, finding.nodes) == (Severity.WARN, ("n3",))
    assert "mlx5_7:1" in finding.message


def test_of_two_nodes_the_one_whose_port_is_down_has_fewer_nics() -> None:
    two = fleet("hgx-h100", 2, port_down("mlx5_3"), 1)
    assert findings(two, "sync.machine/nic-count") == [("warn", "n1", ("n1",))]

    def gone(facts: Facts) -> Facts:
        return {**facts, Fabric: Fabric(facts[Fabric].devices[:-1])}

    assert [nodes for _, _, nodes in findings(fleet("hgx-h100", 2, gone, 1), "sync.machine/nic-count")] == [()]


def plain(number: int, mtu: int = 1500, nics: int = 2) -> Facts:
    """A host without GPUs and HCAs, a network namespace of one machine: the healthy lab."""
    facts = dict(node("build-vm", number))
    every = [Interface("lo", 1, frozenset({"up", "running", "loopback"}), 65536, virtual=True)]
    for nic in range(nics):
        name = f"eth{nic}"
        address = Address(name, "inet", f"10.{nic}.0.{number + 1}", "255.255.255.0", running=True)
        every.append(Interface(name, nic + 2, frozenset({"up", "running"}), mtu, addresses=(address,), virtual=True))
    facts[Interfaces] = Interfaces(tuple(every))
    facts[System] = replace(facts[System], boot_id="one")
    facts[Process] = replace(facts[Process], namespaces={**facts[Process].namespaces, "net": number})
    return facts


def lab(*facts: Facts) -> list[Snapshot]:
    return [Snapshot(f"n{number}", each) for number, each in enumerate(facts)]


@each_row("kind", ["gloo", "nccl"])
def test_hosts_that_share_a_kernel_are_healthy(kind: Any) -> None:
    verdicts = judged(lab(*map(plain, range(8))), Job(kind)).values()
    assert [f.message for v in verdicts for f in v.findings if f.severity is not Severity.NOTE] == []


def test_an_interface_that_one_node_lacks_is_a_missing_nic() -> None:
    snapshots = lab(plain(0), plain(1), plain(2, nics=1))
    assert findings(snapshots, "sync.machine/nic-count") == [("fail", "n2", ("n2",))]
    (finding,) = judged(snapshots)["sync.machine/nic-count"].findings
    assert "n2 has no eth1" in finding.message
    assert judged(snapshots, Job("gloo"))["sync.machine/nic-count"].status is Status.SKIP


@each_row("kind", ["gloo", "nccl"])
def test_one_mtu_that_differs_is_named_with_its_interface(kind: Any) -> None:
    (finding,) = judged(lab(plain(0), plain(1), plain(2, mtu=1400)), Job(kind))["sync.network/mtu"].findings[:1]
    assert (finding.subject, finding.nodes) == ("eth0", ("n2",))


def test_an_address_on_two_hosts_is_told_with_both() -> None:
    twin = {**plain(2), Interfaces: plain(0)[Interfaces]}
    found = findings(lab(plain(0), plain(1), twin), "sync.identity/address-twice", Job("gloo"))
    assert found == [("fail", "10.0.0.1", ("n0", "n2")), ("fail", "10.1.0.1", ("n0", "n2"))]


def test_two_containers_on_one_hosts_network_have_its_address_by_right() -> None:
    twin = {**plain(0), System: replace(plain(0)[System], hostname="n1")}
    assert findings(lab(plain(0), twin), "sync.identity/address-twice") == []


@each_row("name", ["docker0", "virbr0", "cni0", "br-0123456789ab", "tmfifo_net0", "kube-ipvs0"])
def test_what_every_machine_has_is_no_address_of_its_own(name: str) -> None:
    address = Address(name, "inet", "172.17.0.1", "255.255.0.0", running=True)
    bridge = Interface(name, 9, frozenset({"up", "running"}), 1500, addresses=(address,), virtual=True, kind="bridge")
    snapshots = [replace(s, facts={**s.facts, Interfaces: Interfaces((bridge,))}) for s in fleet("hgx-h100", 3)]
    assert findings(snapshots, "sync.identity/address-twice") == []


def test_a_clone_is_one_machine_to_nccl() -> None:
    clone = {**node("hgx-h100", 1), System: node("hgx-h100", 0)[System]}
    found = findings(lab(node("hgx-h100", 0), clone), "launch.ranks/hostname-unique")
    assert found == [("warn", "n[0-1]", ("n0", "n1"))]


def process(local_rank: int, **fields: Any) -> RankProcess:
    return replace(RankProcess(local_rank, 8, None, None, (0, 1), {"ipc": 39, "mnt": 32}, 26), **fields)


def seated(*processes: RankProcess) -> list[Snapshot]:
    """Two nodes with these ranks each."""
    snapshots = fleet("hgx-h100", 2)
    every = enumerate(processes * 2)
    rows: list[tuple[int, dict[type, Any]]] = [(rank, {RankProcess: each}) for rank, each in every]
    ranks = [dict(rows[: len(processes)]), dict(rows[len(processes) :])]
    return [replace(s, ranks=own_ranks) for s, own_ranks in zip(snapshots, ranks, strict=True)]


def test_ranks_with_a_gpu_each_and_one_ipc_namespace_are_healthy() -> None:
    verdicts = judged(seated(*map(process, range(8))))
    assert {verdicts[f"launch.ranks/{name}"].status for name in ("dup-gpu", "container-split")} == {Status.PASS}


def test_the_same_gpu_twice_is_told_for_each_node() -> None:
    snapshots = seated(process(0, visible=("3",)), process(1, visible=("3",)))
    found = findings(snapshots, "launch.ranks/dup-gpu")
    assert [(severity, nodes) for severity, _, nodes in found] == [("fail", ("n0",)), ("fail", ("n1",))]


def test_ranks_that_do_not_share_dev_shm_are_named() -> None:
    found = findings(seated(process(0), process(1, shm_device=77)), "launch.ranks/container-split")
    assert found == [("warn", "ranks 0-1", ("n0",)), ("warn", "ranks 2-3", ("n1",))]


def test_one_host_id_on_two_machines_stops_the_job() -> None:
    assert findings(own("NCCL_HOSTID", "node", "node", "other"), "sync.identity/hostid") == [
        ("fail", "NCCL_HOSTID", ("n0", "n1"))
    ]


def test_a_dev_shm_smaller_than_elsewhere_is_a_note_until_it_is_small() -> None:
    for nbytes, severity in {64 << 20: "warn", 8 << 30: "note"}.items():
        snapshots = fleet("hgx-h100", 4, put(SharedMemory(nbytes, nbytes)), 1)
        assert findings(snapshots, "sync.limits/limits", Job("gloo")) == [(severity, "/dev/shm", ("n3",))]


def test_the_network_of_a_management_controller_is_the_same_on_every_machine_and_harmless() -> None:
    address = Address("enp0s20u1", "inet", "16.1.15.2", "255.255.255.0", running=True)
    flags = frozenset({"up", "running"})
    bmc = Interface("enp0s20u1", 2, flags, 1500, driver="cdc_ether", addresses=(address,), virtual=False)
    snapshots = lab(plain(0), plain(1))
    both = [replace(s, facts={**s.facts, Interfaces: Interfaces((bmc, *s.facts[Interfaces].all))}) for s in snapshots]
    assert findings(both, "sync.identity/address-twice") == []


def test_ranks_that_are_confined_to_a_gpu_each_may_all_call_it_0() -> None:
    def one(facts: Facts) -> Facts:
        return {**facts, Gpus: replace(facts[Gpus], all=facts[Gpus].all[:1])}

    snapshots = seated(process(0, visible=("0",)), process(1, visible=("0",)))
    assert findings([replace(s, facts=one(s.facts)) for s in snapshots], "launch.ranks/dup-gpu") == []


@each_row(("virtual", "severity"), [(True, "note"), (False, "warn")])
def test_the_tree_of_a_virtual_machine_is_its_hypervisors_business(virtual: bool, severity: str) -> None:
    def split(facts: Facts) -> Facts:
        return {**facts, Cpus: replace(facts[Cpus], numa=facts[Cpus].numa[:1])}

    snapshots = [
        replace(s, facts={**s.facts, Machine: replace(s.facts[Machine], virtual=virtual)})
        for s in fleet("hgx-h100", 4, split, 1)
    ]
    assert findings(snapshots, "sync.machine/topology") == [(severity, "n3", ("n3",))]


def test_rails_that_tell_the_same_story_are_one_finding() -> None:
    def elsewhere(facts: Facts) -> Facts:
        gids = (Gid(0, IPv6Address("fec0:0:0:7::1")),)
        devices = (replace(d, ports=tuple(replace(p, gids=gids) for p in d.ports)) for d in facts[Fabric].devices)
        return {**facts, Fabric: Fabric(tuple(devices))}

    (finding,) = judged(fleet("hgx-h100", 8, elsewhere, 1))["sync.network/subnet-prefix"].findings
    assert finding.subject.startswith("mlx5_0:1, mlx5_1:1")


def test_one_gid_index_that_means_two_things_is_the_jobs_fault() -> None:
    def turned(facts: Facts) -> Facts:
        def port(of: Any) -> Any:
            return replace(of, gids=tuple(replace(gid, type="IB/RoCE v1") for gid in of.gids))

        devices = (replace(d, ports=tuple(map(port, d.ports))) for d in facts[Fabric].devices)
        return {**facts, Fabric: Fabric(tuple(devices))}

    index = with_setting("NCCL_IB_GID_INDEX", "3")
    snapshots = [replace(s, facts=index(s.facts)) for s in fleet("a100-bridged", 4, turned, 1)]
    (finding,) = judged(snapshots)["env.gid/gid-uniform"].findings
    assert (finding.severity, finding.nodes, finding.blame) == (Severity.FAIL, ("n3",), "job")


def test_an_nccl_that_hides_missing_nics_is_told_to_speak() -> None:
    def fewer(facts: Facts) -> Facts:
        return {**facts, Fabric: Fabric(facts[Fabric].devices[:-1])}

    for version, expected in {(2, 30, 7): [("warn", "NCCL_IGNORE_NET_MISMATCH", ("n3",))], (2, 29, 7): []}.items():
        library = NcclLibrary(version, "nvidia-nccl-cu12")
        snapshots = [
            replace(s, facts={**s.facts, Software: replace(s.facts[Software], nccl=(library,))})
            for s in fleet("hgx-h100", 4, fewer, 1)
        ]
        assert findings(snapshots, "sync.machine/ignore-net-mismatch") == expected


def test_a_node_whose_gpus_are_not_known_is_of_its_neighbours_kind() -> None:
    def blind(facts: Facts) -> Facts:
        return {**facts, Gpus: Absent("no driver"), Machine: replace(facts[Machine], dmi=Dmi())}

    verdicts = judged(fleet("hgx-h100", 4, blind, 1))
    assert verdicts["sync.machine/machine-type"].findings == ()
    assert verdicts["sync.machine/gpu-count"].status is Status.UNKNOWN
    assert verdicts["sync.machine/gpu-count"].required
