"""What NCCL would choose, machine by machine, checked by hand against NCCL's rules; and how the machines are built."""

from functools import cache
from pathlib import Path
from typing import Any

from ncclprobe.checks.env.fixtures import having, nccl
from ncclprobe.engine.collect import collect, observed
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus, P2pStatus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.plugins import Plugins
from ncclprobe.facts.software import Software
from ncclprobe.host.capture import dump, load
from ncclprobe.model.findings import Status
from ncclprobe.model.hostlist import fold_numbers
from ncclprobe.model.nccl_selection import Choices, Decision, DirectChoice
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import Report, Tool
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.nccl.paths import layout
from ncclprobe.nccl.selection import choose, usable_gpus, visible
from ncclprobe.report import json as as_json
from ncclprobe.report import text as as_text
from tests.each_row import each_row

CAPTURES = sorted((Path(__file__).parent / "captures").glob("*.jsonl"))
KINDS = (Cpus, GpuDirect, Fabric, Interfaces, NvLinks, Gpus, PeerAccess, Pci, Plugins, Settings, Software, System)
UNREAD = Absent("permission denied")


@cache
def snapshot(name: str) -> Snapshot:
    host = load(Path(__file__).parent / "captures" / f"{name}.jsonl")
    return Snapshot(host.node, collect(host, discover("ncclprobe.facts", Collector)))


def changed(name: str, **changes: Any) -> Snapshot:
    """A machine with other facts, by the name of their type in lower case."""
    kinds = {kind.__name__.lower(): kind for kind in KINDS}
    before = snapshot(name)
    return replace(before, facts={**before.facts, **{kinds[key]: fact for key, fact in changes.items()}})


def under(name: str, **variables: str) -> Choices:
    return choose(changed(name, settings=having(**variables)))


def chosen(part: Decision[Any]) -> tuple[Any, ...]:
    assert part.chosen is not None, part.why
    return part.chosen


def names(part: Decision[Any]) -> list[str]:
    return [each.name for each in chosen(part)]


def ports(part: Decision[Any]) -> list[str]:
    return [each.port for each in chosen(part)]


def direct(made: Choices) -> dict[str, DirectChoice]:
    return {each.gpu: each for each in chosen(made.gpudirect)}


def between(made: Choices) -> list[tuple[str | None, str | None, int]]:
    return [(each.transport, each.path, len(each.pairs)) for each in chosen(made.p2p)]


# Machines.


def test_eight_h100_with_a_nic_each_go_directly_over_their_own() -> None:
    made = choose(snapshot("hgx-h100"))
    assert made.nccl == "2.21.5"
    assert [(i.name, i.address, i.step) for i in chosen(made.bootstrap)] == [("eno1", "10.0.0.11", "^docker,lo")]
    assert ports(made.hcas) == [f"mlx5_{n}:1" for n in range(8)]
    assert {each.rate_gbps for each in chosen(made.hcas)} == {400.0}
    assert (chosen(made.hcas_left_out), chosen(made.gids)) == ((), ())
    assert [(d.gpu, d.nics, d.path) for d in chosen(made.gpudirect)] == [
        (f"GPU{n}", (f"mlx5_{n}",), "PIX") for n in range(8)
    ]
    assert all(each.receives and each.sends and each.relay is None for each in chosen(made.gpudirect))
    assert "nv_mem" in made.gpudirect.why
    assert between(made) == [("P2P", "NVL", 28)]
    assert made.nvls.available is True


def test_a_machine_without_rdma_takes_every_interface_for_sockets() -> None:
    made = choose(snapshot("gcp-a3-mega"))
    assert names(made.bootstrap) == ["eth0"]
    assert names(made.sockets) == [f"eth{n}" for n in range(9)]
    assert (chosen(made.hcas), chosen(made.gpudirect)) == ((), ())
    assert made.network.chosen is None  # which of Google's plugins this is, only its settings tell
    over = under("gcp-a3-mega", NCCL_FASTRAK_IFNAME="eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8")
    assert [(n.name, n.rate_gbps) for n in chosen(over.network)] == [("FasTrak", 1600.0)]
    assert made.nvls.available is True


def test_two_desktop_gpus_go_through_shared_memory() -> None:
    made = choose(snapshot("rtx4090-2"))
    assert between(made) == [("SHM", "PHB", 1)]
    assert made.p2p.why == "the default level is SYS"  # two GPUs beside a processor by AMD
    assert "CNS" in chosen(made.p2p)[0].why
    assert made.nvls.available is False


def test_cuda_shows_no_gpu_whose_uuid_is_not_named_alone_and_of_gpus_that_mig_splits_one_instance() -> None:
    several = Gpus(tuple(Gpu(n, "H100", f"GPU-a{n}00") for n in range(2)), driver="580.65.06", cuda=(13, 0))
    assert [gpu.index for gpu in visible("GPU-a1,GPU-a0", several)] == [1, 0]
    assert visible("GPU-a", several) == ()
    assert usable_gpus(several, Environment({"CUDA_VISIBLE_DEVICES": "GPU-a1"})).chosen == ("GPU1",)
    split = replace(several, all=tuple(replace(gpu, mig=True) for gpu in several.all))
    assert "one instance" in usable_gpus(split, Environment({})).why
    half = replace(several, all=(split.all[0], several.all[1]))
    assert usable_gpus(half, Environment({})).chosen == ("GPU0", "GPU1")


def test_without_gpus_their_parts_are_unknown_and_the_others_are_not() -> None:
    made = choose(snapshot("laptop"))
    assert made.nccl is None
    assert [(i.name, i.step) for i in chosen(made.bootstrap)] == [("wlp0s20f3", "^docker,lo,virbr")]
    assert chosen(made.hcas) == ()
    assert made.p2p.chosen is None
    assert made.nvls.available is None
    assert "libnvidia-ml" in made.p2p.why
    assert "libnvidia-ml" in made.nvls.why


def test_soft_roce_shows_the_gid_that_is_searched_for() -> None:
    made = choose(snapshot("guest-rxe-root"))
    assert (names(made.bootstrap), names(made.sockets)) == (["v0"], ["v0", "v1"])
    assert ports(made.hcas) == ["rxe0:1", "rxe1:1"]
    assert [(g.port, g.index, g.address, g.type) for g in chosen(made.gids)] == [
        ("rxe0:1", 1, "::ffff:10.9.0.1", "RoCE v2"),
        ("rxe1:1", 0, "fe80::b437:66ff:fe63:5ac2", "RoCE v2"),
    ]
    assert "found no better one" in chosen(made.gids)[1].why


def test_a_hybrid_cube_mesh_reaches_half_of_its_pairs_over_another_gpu() -> None:
    made = choose(snapshot("dgx-1v"))
    assert between(made) == [("P2P", "NVL", 16), ("P2P", "NVB", 12)]
    assert direct(made)["GPU3"].nics == ("mlx5_1",)


def test_efa_is_left_out_and_its_plugin_named() -> None:
    made = choose(snapshot("aws-p4d"))
    assert chosen(made.hcas) == ()
    assert len(chosen(made.hcas_left_out)) == 4
    assert "Unknown" in chosen(made.hcas_left_out)[0].why
    (network,) = chosen(made.network)
    assert (network.name, len(network.devices), network.rate_gbps) == ("AWS Libfabric", 4, 400.0)
    assert network.plugin == "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"


@each_row(
    ("version", "interfaces", "refusal"),
    [
        ((2, 27, 3), (4,), "v4, and NCCL 2.27.3 takes v6 to v10"),
        ((2, 27, 3), (6,), ""),
        ((2, 27, 3), (), ""),
        ((2, 21, 5), (10, 9), "v10, v9, and NCCL 2.21.5 takes v5 to v8"),
        ((2, 21, 5), (10, 9, 8), ""),
        ((2, 24, 3), (10, 9), ""),
        ((2, 30, 7), (13,), ""),  # what a later release takes is not known
    ],
)
def test_a_plugin_of_which_this_nccl_takes_no_interface_is_passed_over(
    version: Any, interfaces: tuple[int, ...], refusal: str
) -> None:
    found = tuple(replace(each, interfaces=interfaces) for each in snapshot("aws-p4d").facts[Plugins].all)
    made = choose(changed("aws-p4d", plugins=Plugins(found), software=nccl(*version)))
    assert [each.name for each in chosen(made.network)] == ["Socket" if refusal else "AWS Libfabric"]
    assert refusal in made.network.why


@each_row(("version", "receives", "path"), [((2, 26, 2), False, "PHB"), ((2, 29, 7), True, "P2C")])
def test_a_graces_nics_are_near_its_gpus_from_some_version_on(version: Any, receives: bool, path: str) -> None:
    found = direct(choose(changed("gb200-tray", software=nccl(*version))))
    assert found["GPU2"].nics == ("mlx5_2", "mlx5_3")
    assert (found["GPU2"].receives, found["GPU2"].path) == (receives, path)


# Settings.


def test_one_nic_for_all_is_reached_over_the_gpu_beside_it() -> None:
    made = under("hgx-h100", NCCL_IB_HCA="=mlx5_0")
    assert ports(made.hcas) == ["mlx5_0:1"]
    assert {each.why for each in chosen(made.hcas_left_out)} == {"NCCL_IB_HCA==mlx5_0 (environment)"}
    found = direct(made)
    assert (found["GPU0"].relay, found["GPU7"].relay) == (None, "GPU0")
    assert (found["GPU7"].receives, found["GPU7"].path) == (True, "PIX")
    alone = direct(under("hgx-h100", NCCL_IB_HCA="=mlx5_0", NCCL_PXN_DISABLE="1"))
    assert (alone["GPU0"].receives, alone["GPU1"].receives, alone["GPU7"].path) == (True, False, "SYS")


@each_row("variables", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}], ids=lambda variables: "".join(variables))
def test_with_net_ib_off_every_port_is_left_out_for_that_reason(variables: dict[str, str]) -> None:
    made = under("hgx-h100", **variables)
    assert (chosen(made.hcas), chosen(made.gpudirect)) == ((), ())
    assert len(chosen(made.hcas_left_out)) == 8
    assert all(next(iter(variables)) in each.why for each in chosen(made.hcas_left_out))


def test_a_word_is_no_number_and_leaves_infiniband_on() -> None:
    assert len(chosen(under("hgx-h100", NCCL_IB_DISABLE="true").hcas)) == 8


def test_p2p_can_be_switched_off_and_the_variable_is_named() -> None:
    made = under("hgx-h100", NCCL_P2P_DISABLE="1")
    assert between(made) == [("SHM", "NVL", 28)]
    assert chosen(made.p2p)[0].why == "NVL, NCCL_P2P_DISABLE=1"


def test_an_index_that_is_set_is_taken_even_where_it_is_empty() -> None:
    first, second = chosen(under("guest-rxe-root", NCCL_IB_GID_INDEX="1").gids)
    assert (first.index, first.address) == (1, "::ffff:10.9.0.1")
    assert (second.index, second.address, second.type) == (1, None, None)
    assert "NCCL_IB_GID_INDEX=1 (environment)" in second.why


def test_interfaces_by_name_and_by_the_address_of_rank_0() -> None:
    made = under("gcp-a3-mega", NCCL_SOCKET_IFNAME="eth1,eth2")
    assert (names(made.bootstrap), names(made.sockets)) == (["eth1"], ["eth1", "eth2"])
    assert {each.step for each in chosen(made.sockets)} == {"env"}
    made = under("gcp-a3-mega", NCCL_SOCKET_IFNAME="ens")
    assert chosen(made.bootstrap) == ()
    assert "NCCL does not start" in made.bootstrap.why
    made = under("gcp-a3-mega", NCCL_COMM_ID="10.3.0.77:9999", NCCL_SOCKET_IFNAME="eth1")
    assert (names(made.bootstrap), names(made.sockets)) == (["eth3"], ["eth1"])
    made = under("gcp-a3-mega", NCCL_COMM_ID="node-0:9999")
    assert made.bootstrap.chosen is None
    assert "NCCL_COMM_ID=node-0:9999" in made.bootstrap.why


def test_a_topology_file_casts_doubt_on_what_the_tree_says() -> None:
    made = under("hgx-h100", NCCL_TOPO_FILE="/etc/topo.xml")
    assert "NCCL_TOPO_FILE=/etc/topo.xml" in made.gpudirect.why
    assert "NCCL_TOPO_FILE=/etc/topo.xml" in made.p2p.why


# What is broken, and what is not known.


def test_p2p_denied_over_nvlink_ends_nccls_start() -> None:
    denied: dict[tuple[int, int], P2pStatus] = {(a, b): "NS" for a in range(8) for b in range(8) if a != b}
    (peers,) = chosen(choose(changed("hgx-h100", peeraccess=PeerAccess(denied, denied, denied))).p2p)
    assert peers.refused
    assert "fails to start" in peers.why


def test_nvlinks_that_nobody_knows_leave_the_transports_unknown_but_not_a_nic_beside_its_gpu() -> None:
    links = snapshot("hgx-h100").facts[NvLinks]
    made = choose(changed("hgx-h100", nvlinks=replace(links, gpus=(UNREAD, *links.gpus[1:]))))
    assert made.p2p.chosen is None
    assert direct(made)["GPU0"].receives is True
    assert made.nvls.available is None


def test_without_a_way_in_the_kernel_no_gpu_is_reached_directly() -> None:
    made = choose(changed("hgx-h100", gpudirect=GpuDirect({}, (5, 4), "proprietary")))
    assert {(each.receives, each.sends) for each in chosen(made.gpudirect)} == {(False, False)}
    unsure = choose(changed("hgx-h100", gpudirect=GpuDirect(UNREAD, UNREAD, "open")))
    assert {(each.receives, each.sends) for each in chosen(unsure.gpudirect)} == {(None, None)}


def test_an_address_that_no_bus_has_makes_parts_unknown_and_breaks_nothing() -> None:
    gpus = snapshot("hgx-h100").facts[Gpus]
    odd = replace(gpus, all=tuple(replace(gpu, pci="somewhere") for gpu in gpus.all))
    machine = changed("hgx-h100", gpus=odd)
    assert choose(machine).p2p.chosen is None
    assert layout(machine).paths is None
    assert "somewhere" in layout(machine).why


def test_a_lost_gpu_takes_no_part() -> None:
    gpus = snapshot("hgx-h100").facts[Gpus]
    made = choose(
        changed("hgx-h100", gpus=replace(gpus, all=(replace(gpus.all[0], lost="GPU is lost"), *gpus.all[1:])))
    )
    assert between(made) == [("P2P", "NVL", 21)]
    assert "GPU0" not in direct(made)


def told(made: Choices) -> dict[object, object]:
    """Every single decision; None where it is not known."""
    parts = ("bootstrap", "sockets", "hcas", "hcas_left_out", "gids")
    return {
        **{name: getattr(made, name).chosen for name in parts},
        **{each.gpu: each.receives for each in made.gpudirect.chosen or ()},
        **{pair: each.transport for each in made.p2p.chosen or () for pair in each.pairs},
        "nvls": made.nvls.available,
    }


@each_row("kind", [kind for kind in KINDS if kind is not Software])  # without it other rules count
@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_a_fact_that_is_absent_makes_parts_unknown_and_none_of_them_wrong(path: Path, kind: type) -> None:
    machine = changed(path.stem, **{kind.__name__.lower(): UNREAD})
    made, whole = choose(machine), told(choose(snapshot(path.stem)))
    assert {key: value for key, value in told(made).items() if value not in (None, whole.get(key))} == {}
    assert all(part.why for part in (made.bootstrap, made.hcas, made.gids, made.gpudirect, made.p2p, made.nvls))
    if kind in (Pci, Gpus, NvLinks, Fabric, Interfaces, Cpus):
        assert UNREAD.why in layout(machine).why


# How machines are built.


def test_the_layout_of_a_machine_has_devices_nodes_and_paths() -> None:
    made = layout(snapshot("hgx-h100"))
    assert made.gpus
    assert made.nics
    assert made.paths
    assert (made.gpus[0].name, made.gpus[0].pci, made.gpus[0].numa) == ("GPU0", "0000:13:00.0", 0)
    assert [nic.name for nic in made.nics] == [*(f"mlx5_{n}" for n in range(8)), "eno1"]
    assert made.paths["GPU0"] == {
        **{f"GPU{n}": "NVL" for n in range(1, 8)},
        "eno1": made.paths["GPU0"]["eno1"],
        **{"mlx5_0": "PIX", "mlx5_1": "PHB", "mlx5_2": "PHB", "mlx5_3": "PHB"},
        **{f"mlx5_{n}": "SYS" for n in range(4, 8)},
    }
    assert made.numa
    assert [node.cpus for node in made.numa] == [made.gpus[0].cpus, made.gpus[7].cpus]
    assert made.why == ""


def test_interfaces_without_rdma_have_paths_too_and_soft_roce_has_no_place() -> None:
    paths = layout(snapshot("gcp-a3-mega")).paths
    assert paths
    assert (paths["GPU0"]["eth1"], paths["GPU0"]["eth8"]) == ("PIX", "SYS")
    made = layout(snapshot("guest-rxe-root"))
    assert [(nic.name, nic.pci) for nic in made.nics or ()][:3] == [
        ("rxe0", None),
        ("rxe1", None),
        ("enp67s0", "0000:43:00.0"),
    ]
    assert (made.gpus, made.paths) == (None, None)


@each_row(("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 8, 10, 11), "0-2,8,10-11"), ((1, 0), "0-1")])
def test_numbers_are_written_as_the_kernel_writes_them(numbers: tuple[int, ...], text: str) -> None:
    assert fold_numbers(numbers) == text


# Reports.


def report(*machines: str) -> Report:
    seen = [snapshot(name) for name in machines]
    return Report(
        tool=Tool("ncclprobe", "0"),
        started="2026-11-21T00:00:00+00:00",
        duration_s=0.0,
        command="ncclprobe doctor",
        status=Status.PASS,
        exit_code=0,
        topology={each.node: layout(each) for each in seen},
        choices={each.node: choose(each) for each in seen},
    )


@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_choices_and_topology_are_read_back_as_they_were_written(path: Path, tmp_path: Path) -> None:
    as_json.write(report(path.stem), str(tmp_path / "r.json"))
    assert as_json.read(str(tmp_path / "r.json")) == report(path.stem)


@each_row("width", [60, 100])
@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_the_verbose_report_shows_them_in_lines_that_fit(path: Path, width: int) -> None:
    assert "would choose" not in as_text.render(report(path.stem))
    lines = as_text.render(report(path.stem), verbose=True, width=width).split("would choose\n")[1].splitlines()
    assert [line.split()[0] for line in lines if line[:3].strip()][-3:] == ["NVLS", "checks:", "Ready"]
    assert len(lines) < 40
    assert all(len(line) <= width or "/" in line for line in lines)


def test_alike_is_said_once_and_each_reason_is_there() -> None:
    text = " ".join(as_text.render(report("hgx-h100"), verbose=True).split())
    assert "what NCCL 2.21.5 would choose" in text
    assert "bootstrap eno1 10.0.0.11: what ^docker,lo leaves, in the kernel's order" in text
    assert "GPU7 mlx5_7: at PIX, within PXB a peer-memory module is loaded" in text
    assert "GPU pairs P2P all 28: NVL, within PXB" in text


def test_this_machine_and_its_capture_choose_alike(tmp_path: Path) -> None:
    seen, answers = observed(discover("ncclprobe.facts", Collector), float("inf"))
    (tmp_path / "c.jsonl").write_text(dump(answers, seen.node), encoding="utf-8")
    host = load(tmp_path / "c.jsonl")
    again = Snapshot(host.node, collect(host, discover("ncclprobe.facts", Collector)))
    assert (choose(again), layout(again)) == (choose(seen), layout(seen))
