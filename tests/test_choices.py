"""What NCCL would choose, machine by machine, checked by hand against NCCL's rules; and how the machines are built.

What it chooses on each capture, and on some with each of `SETTINGS`, is kept in tests/data/command_values/choices.txt.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ncclprobe.checks.env.fixtures import having, interface, nccl
from ncclprobe.engine.collect import collect, observed
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import System
from ncclprobe.facts.names import CommIdHost
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.plugins import Linking, Plugins, SharedLibrary
from ncclprobe.facts.software import Software
from ncclprobe.host.capture import dump, load
from ncclprobe.model.findings import Status
from ncclprobe.model.hostlist import fold_numbers
from ncclprobe.model.nccl_selection import Choices, Decision
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import Report, Tool
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.nccl.paths import layout
from ncclprobe.nccl.selection import choose, usable_gpus, visible
from ncclprobe.report import json as as_json
from tests.each_row import each_row, known

CAPTURES = sorted((Path(__file__).parent / "captures").glob("*.jsonl"))
every_capture = each_row("name", [path.stem for path in CAPTURES])
ALL_KINDS = (CommIdHost, Linking)
KINDS = (Cpus, GpuDirect, Fabric, Interfaces, NvLinks, Gpus, PeerAccess, Pci, Plugins, Settings, Software, System)
UNREAD = Absent("permission denied")
DATA_NICS = ",".join(f"eth{number}" for number in range(1, 9))
SET_ON = ("hgx-h100", "gcp-a3-mega", "aws-p4d", "guest-rxe-root", "rtx4090-2", "gb200-tray")
SETTINGS: tuple[dict[str, str], ...] = (
    *({"NCCL_IB_HCA": text} for text in ("=mlx5_0", "^mlx5_0", "mlx5_1,mlx5_2:2", "rxe1", "nothing")),
    *({"NCCL_NET": text} for text in ("Socket", "IB", "AWS Libfabric", "FasTrak", "gIB", "UCX", "other")),
    *({"NCCL_NET_PLUGIN": text} for text in ("none", "ofi", "/opt/none.so", "aws-ofi,none", "static_plugin")),
    *({"NCCL_IB_DISABLE": text} for text in ("1", "true")),
    *({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "SYS"}, {"NCCL_SHM_DISABLE": "1"}, {"NCCL_NVLS_ENABLE": "0"}),
    *({"NCCL_IB_HCA": "=mlx5_0", "NCCL_PXN_DISABLE": "1"}, {"NCCL_NET_GDR_LEVEL": "PIX"}, {"NCCL_DMABUF_ENABLE": "0"}),
    *({"NCCL_IB_GID_INDEX": "1"}, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, {"NCCL_TOPO_FILE": "/etc/topo.xml"}),
    *({"NCCL_SOCKET_IFNAME": text} for text in ("eth1,eth2", "ens", "v1", "^v0,eno1", "eno1")),
    *({"NCCL_COMM_ID": text} for text in ("10.3.0.77:9999", "node-0:9999", "[fe80::1]:1", "192.0.2.1:1", "nonsense")),
    *({"FI_PROVIDER": text} for text in ("tcp", "efa", "^efa", "tcp;ofi_rxm", "cxi")),
    *({"NCCL_FASTRAK_IFNAME": text} for text in (DATA_NICS, "ens9")),
    {"NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2"},
)


@cache
def snapshot(name: str) -> Snapshot:
    host = load(Path(__file__).parent / "captures" / f"{name}.jsonl")
    return Snapshot(host.node, collect(host, discover("ncclprobe.facts", Collector)))


def changed(name: str, **changes: Any) -> Snapshot:
    """A machine with other facts, by the name of their type in lower case."""
    kinds = {kind.__name__.lower(): kind for kind in (*KINDS, *ALL_KINDS)}
    before = snapshot(name)
    return replace(before, facts={**before.facts, **{kinds[key]: fact for key, fact in changes.items()}})


def test_an_interface_is_explained_by_the_step_that_took_it() -> None:
    for names, why in (("lo docker0", "there is none but docker's and lo"), ("lo", "there is none but lo"),
                       ("virbr0", "there is none but virbr"),
                       ("eth0 ib0", "its name begins with ib, which NCCL prefers over all others")):  # fmt: skip
        faces = Interfaces(tuple(interface(name, n, f"10.{n}.0.5") for n, name in enumerate(names.split())))
        made = choose(changed("hgx-h100", interfaces=faces, software=nccl(2, 30, 7))).sockets
        assert (made.why, known(made.chosen)[0].name) == (why, names.split()[-1])


def under(name: str, **variables: str) -> Choices:
    return choose(changed(name, settings=having(**variables)))


def offering(interface: int, *version: int) -> Snapshot:
    """A machine whose plugin offers one interface to this NCCL."""
    found = tuple(replace(each, interfaces=(interface,)) for each in snapshot("aws-p4d").facts[Plugins].all)
    return changed("aws-p4d", plugins=Plugins(found), software=nccl(*version))


def rows() -> Iterator[tuple[str, object]]:
    """What is kept: the choices on each capture, and what settings or releases change; of pairs their number."""
    cases = {path.stem: choose(snapshot(path.stem)) for path in CAPTURES}
    for name, variables in product(SET_ON, SETTINGS):
        cases[f"{name} {' '.join(map('='.join, variables.items()))}"] = under(name, **variables)
    for name, minor in product(SET_ON, (9, 16, 20, 22, 24, 26, 28, 30)):
        cases[f"{name} NCCL 2.{minor}"] = choose(changed(name, software=nccl(2, minor, 3)))
    (plugin,) = (each for each in snapshot("aws-p4d").facts[Plugins].all if each.kind == "net")
    for name, flavour in product(SET_ON[:3], ("ofi", "tcpx", "tcpxo", "gib", "sharp", "ucx", "")):
        own = Plugins((replace(plugin, flavour=flavour, names=(), interfaces=()),))
        for needed in ("", "libfabric.so.1"):
            library = SharedLibrary(needed, "", plugin.path) if needed else None
            linking = Linking((library,) if library else (), plugin.path)
            cases[f"{name} plugin {flavour} {needed}"] = choose(changed(name, plugins=own, linking=linking))
    for addresses in ((), ("10.3.0.77", "10.0.0.11"), ("192.0.2.1",)):
        host = CommIdHost("node-0", addresses, "" if addresses else "unknown host")
        given = having(NCCL_COMM_ID="node-0:9999")
        cases[f"gcp-a3-mega node-0 is {addresses}"] = choose(changed("gcp-a3-mega", settings=given, commidhost=host))
    for name, made in cases.items():
        pairs = tuple(replace(each, pairs=((str(len(each.pairs)), ""),)) for each in made.p2p.chosen or ())
        kept = replace(made, p2p=replace(made.p2p, chosen=pairs if made.p2p.chosen is not None else None))
        usual = cases[name.partition(" ")[0]] if " " in name else None
        parts = [part for part in made.__struct_fields__ if getattr(made, part) != getattr(usual, part, usual)]
        if parts:
            yield name, {part: getattr(kept, part) for part in parts}
    for minor, patch in product((6, 8, 12, 13, 19, 20, 24, 26, 28, 30), (0, 3, 7)):
        nets = [chosen(choose(offering(each, 2, minor, patch)).network)[0].name for each in range(2, 15)]
        yield f"plugins of 2.{minor}.{patch}", nets
    for path in CAPTURES:
        yield f"layout of {path.stem}", layout(snapshot(path.stem))


def chosen(part: Decision[Any]) -> tuple[Any, ...]:
    return known(part.chosen)


def direct(made: Choices, gpu: str) -> tuple[object, ...]:
    """The NICs of a GPU, whether it receives and sends directly, the path, and the relay."""
    (row,) = [each for each in chosen(made.gpudirect) if each.gpu == gpu]
    return row.nics, row.receives, row.sends, row.path, row.relay


def test_reasons_name_what_decided() -> None:
    h100, desktop, soft, efa = (
        choose(snapshot(name)) for name in ("hgx-h100", "rtx4090-2", "guest-rxe-root", "aws-p4d")
    )
    assert all(direct(h100, f"GPU{n}") == ((f"mlx5_{n}",), True, True, "PIX", None) for n in range(8))
    assert [(each.transport, each.path, len(each.pairs)) for each in chosen(h100.p2p)] == [("P2P", "NVL", 28)]
    assert "nv_mem" in h100.gpudirect.why
    assert desktop.p2p.why == "the default level is SYS"  # two GPUs beside a processor by AMD
    assert "CNS" in chosen(desktop.p2p)[0].why
    assert "found no better one" in chosen(soft.gids)[1].why
    assert (len(chosen(efa.hcas_left_out)), "Unknown" in chosen(efa.hcas_left_out)[0].why) == (4, True)
    laptop = choose(snapshot("laptop"))  # without GPUs their parts are unknown
    assert (laptop.p2p.chosen, laptop.nvls.available, "libnvidia-ml" in laptop.p2p.why) == (None, None, True)


def test_cuda_shows_no_gpu_whose_uuid_is_not_named_alone_and_of_gpus_that_mig_splits_one_instance() -> None:
    several = Gpus(tuple(Gpu(n, "H100", f"GPU-a{n}00") for n in range(2)), driver="580.65.06", cuda=(13, 0))
    assert [gpu.index for gpu in visible("GPU-a1,GPU-a0", several)] == [1, 0]
    assert visible("GPU-a", several) == ()
    assert usable_gpus(several, Environment({"CUDA_VISIBLE_DEVICES": "GPU-a1"})).chosen == ("GPU1",)
    split = replace(several, all=tuple(replace(gpu, mig=True) for gpu in several.all))
    assert "one instance" in usable_gpus(split, Environment({})).why
    half = replace(several, all=(split.all[0], several.all[1]))
    assert usable_gpus(half, Environment({})).chosen == ("GPU0", "GPU1")


def single(made: Choices) -> dict[object, object]:
    """Every single decision; None where it is not known."""
    parts = ("bootstrap", "sockets", "hcas", "hcas_left_out", "gids")
    return {
        **{name: getattr(made, name).chosen for name in parts},
        **{each.gpu: each.receives for each in made.gpudirect.chosen or ()},
        **{pair: each.transport for each in made.p2p.chosen or () for pair in each.pairs},
        "nvls": made.nvls.available,
    }


@each_row("kind", [kind for kind in KINDS if kind is not Software])  # without it other rules count
@every_capture
def test_a_fact_that_is_absent_makes_parts_unknown_and_none_of_them_wrong(name: str, kind: type) -> None:
    machine = changed(name, **{kind.__name__.lower(): UNREAD})
    made, whole = choose(machine), single(choose(snapshot(name)))
    assert {key: value for key, value in single(made).items() if value not in (None, whole.get(key))} == {}
    assert all(part.why for part in (made.bootstrap, made.hcas, made.gids, made.gpudirect, made.p2p, made.nvls))
    if kind in (Pci, Gpus, NvLinks, Fabric, Interfaces, Cpus):
        assert UNREAD.why in layout(machine).why


def test_numbers_are_written_as_the_kernel_writes_them() -> None:
    folded = {(): "", (3,): "3", (0, 1, 2, 8, 10, 11): "0-2,8,10-11", (1, 0): "0-1"}
    assert {numbers: fold_numbers(numbers) for numbers in folded} == folded


def report(name: str) -> Report:
    seen = snapshot(name)
    return Report(
        tool=Tool("ncclprobe", "0"), started="2026-11-21T00:00:00+00:00", duration_s=0.0, command="ncclprobe doctor",
        status=Status.PASS, exit_code=0, topology={seen.node: layout(seen)}, choices={seen.node: choose(seen)},
    )  # fmt: skip


@every_capture
def test_choices_are_read_back_as_they_were_written(name: str, tmp_path: Path) -> None:
    as_json.write(report(name), str(tmp_path / "r.json"))
    assert as_json.read(str(tmp_path / "r.json")) == report(name)


def test_this_machine_and_its_capture_choose_alike(tmp_path: Path) -> None:
    seen, answers = observed(discover("ncclprobe.facts", Collector), float("inf"))
    (tmp_path / "c.jsonl").write_text(dump(answers, seen.node), encoding="utf-8")
    host = load(tmp_path / "c.jsonl")
    again = Snapshot(host.node, collect(host, discover("ncclprobe.facts", Collector)))
    assert (choose(again), layout(again)) == (choose(seen), layout(seen))
