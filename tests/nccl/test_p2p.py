"""Between two GPUs of a node: levels by maker and version, what NVML denies, and multicast in NVSwitches."""

from typing import Any

from ncclprobe.checks.ib import fixtures
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, P2pStatus, PeerAccess
from ncclprobe.facts.software import Version
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.gpudirect import Level, Maker, PeerTransport, maker, nvls, p2p_level, peer_transports
from ncclprobe.nccl.paths import PathType, Topology
from tests.each_row import each_row

PXB, SYS, LOC = PathType.PXB, PathType.SYS, PathType.LOC
PAIR = ("GPU0", "GPU1")
NONE = fixtures.PLAIN


@each_row(
    ("model", "machine", "who"),
    [
        ("AMD EPYC 9534 64-Core Processor", "x86_64", "amd"),
        ("INTEL(R) XEON(R) PLATINUM 8570", "x86_64", "intel"),
        ("Intel(R) Xeon(R) Platinum 8480C", "x86_64", "intel"),
        ("ZHAOXIN KaiSheng KH-40000@2.2GHz", "x86_64", "zhaoxin"),
        ("POWER9, altivec supported", "ppc64le", "power"),
        ("", "aarch64", "arm"),
        ("", "x86_64", ""),
    ],
)
def test_processors_are_known_by_name_and_architecture(model: str, machine: str, who: str) -> None:
    assert maker(Cpus((0,), model, ()), machine) == who


@each_row(
    ("who", "gpus", "version", "level"),
    [
        ("amd", 2, None, SYS),
        ("amd", 3, None, PXB),
        ("intel", 2, None, PXB),
        ("power", 2, None, PXB),
        ("amd", 8, (2, 22, 3), SYS),
        ("power", 4, (2, 22, 3), SYS),
        ("intel", 8, (2, 22, 3), PXB),
        ("arm", 8, (2, 22, 3), PXB),
        ("zhaoxin", 2, (2, 22, 3), PXB),
    ],
)
def test_the_default_level_goes_by_maker_version_and_number(
    who: Maker, gpus: int, version: Version | None, level: PathType
) -> None:
    assert p2p_level(NONE, version, who, gpus) == Level(level)


@each_row(
    ("name", "value", "level"),
    [
        ("NCCL_P2P_DISABLE", "1", LOC),
        ("NCCL_P2P_DISABLE", "0x1", LOC),
        ("NCCL_P2P_DISABLE", "true", PXB),
        ("NCCL_P2P_DISABLE", "2", PXB),
        ("NCCL_P2P_LEVEL", "NVL", PathType.NVL),
        ("NCCL_P2P_LEVEL", "nvl", PXB),
        ("NCCL_P2P_LEVEL", "3", PathType.PHB),
    ],
)
def test_what_the_user_sets_is_read_as_nccl_reads_it(name: str, value: str, level: PathType) -> None:
    assert p2p_level(fixtures.having(name, value), None, "intel", 8).path is level


def test_disabling_beats_a_level() -> None:
    both = replace(NONE, effective={**fixtures.having("NCCL_P2P_LEVEL", "SYS").effective,
                                    **fixtures.having("NCCL_P2P_DISABLE", "1").effective})  # fmt: skip
    assert p2p_level(both, None, "amd", 2) == Level(LOC, "NCCL_P2P_DISABLE=1")


def two(path: PathType | None) -> Topology:
    return Topology(gpus={"GPU0": "a", "GPU1": "b"}, paths={PAIR: path})


def peers(read: P2pStatus | Absent, write: P2pStatus | Absent | None = None) -> PeerAccess:
    return PeerAccess({(0, 1): read}, {(0, 1): read if write is None else write})


def found_transport(path: PathType | None, access: PeerAccess | Absent, **settings: str) -> PeerTransport:
    chosen: Any = {}
    for name, value in settings.items():
        chosen |= fixtures.having(f"NCCL_{name}", value).effective
    (found,) = peer_transports(two(path), access, replace(NONE, effective=chosen), Level(PXB))
    return found


@each_row(
    ("path", "status", "settings", "transport", "broken"),
    [
        (PathType.NVL, "OK", {}, "P2P", False),
        (PathType.PIX, "OK", {}, "P2P", False),
        (PathType.PHB, "OK", {}, "SHM", False),
        (PathType.SYS, "OK", {"SHM_DISABLE": "1"}, "NET", False),
        (PathType.NVL, "TNS", {}, "SHM", True),
        (PathType.NVL, "TNS", {"IGNORE_DISABLED_P2P": "1"}, "SHM", False),
        (PathType.NVL, "TNS", {"IGNORE_DISABLED_P2P": "2"}, "P2P", False),
        (PathType.PIX, "CNS", {}, "SHM", False),
        (PathType.NVB, "TNS", {}, "P2P", False),
    ],
)
def test_near_gpus_whose_peers_nvml_allows_go_directly(
    path: PathType, status: P2pStatus, settings: dict[str, str], transport: str, broken: bool
) -> None:
    found = found_transport(path, peers(status), **settings)
    assert (found.transport, found.broken) == (transport, broken)


def test_reading_and_writing_must_both_be_allowed() -> None:
    assert found_transport(PathType.PIX, peers("OK", "CNS")).transport == "SHM"


@each_row("access", [Absent("no NVML"), peers(Absent("not told")), PeerAccess()])
def test_what_nvml_does_not_say_is_not_guessed(access: PeerAccess | Absent) -> None:
    assert found_transport(PathType.NVL, access).transport is None
    assert found_transport(PathType.SYS, access).transport == "SHM"  # the level decides first


def test_an_unknown_distance_is_not_guessed() -> None:
    assert found_transport(None, peers("OK")).transport is None


def test_the_reason_names_path_and_level() -> None:
    assert found_transport(PathType.SYS, peers("OK")).why == "SYS, the default level is PXB"


LINKED = (NvLink(0, "active", remote="switch"),)
BRIDGED = (NvLink(0, "active", remote="gpu"),)


def hgx(count: int = 8, cuda: tuple[int, int] = (12, 4), **changes: Any) -> Gpus:
    made = GpuFabric("completed")
    every = (replace(Gpu(n, "NVIDIA H100", compute=(9, 0), mig=False, fabric=made), **changes) for n in range(count))
    return Gpus(tuple(every), "550.127.08", cuda)


@each_row(
    ("gpus", "row", "version", "available", "word"),
    [
        (hgx(), LINKED, None, True, "NVSwitches"),
        (hgx(), LINKED, (2, 17, 1), True, "NVSwitches"),
        (hgx(), LINKED, (2, 16, 5), False, "2.17"),
        (hgx(2), LINKED, (2, 29, 2), True, "NVSwitches"),
        (hgx(2), LINKED, (2, 28, 9), False, "it takes 3"),
        (hgx(1), LINKED, None, False, "1 GPU:"),
        (hgx(cuda=(12, 0)), LINKED, None, False, "12.1"),
        (hgx(compute=(8, 0)), LINKED, None, False, "compute capability 8.0"),
        (hgx(compute=Absent("not told")), LINKED, None, None, "does not report"),
        (hgx(mig=True), LINKED, None, False, "MIG"),
        (hgx(2), BRIDGED, None, False, "no NVSwitch"),
        (hgx(), (), None, False, "no NVSwitch"),
        (hgx(), Absent("not told"), None, None, "does not report"),
        (hgx(fabric=GpuFabric("in-progress")), LINKED, None, False, "in-progress"),
        (hgx(fabric=GpuFabric("completed", status=999)), LINKED, None, False, "999"),
        (hgx(fabric=Absent("old NVML")), LINKED, None, True, "NVSwitches"),
    ],
)
def test_multicast_takes_switches_hopper_and_a_healthy_fabric(
    gpus: Gpus, row: Any, version: Version | None, available: bool | None, word: str
) -> None:
    found = nvls(gpus, NvLinks((row,) * len(gpus.all)), NONE, version)
    assert (found.available, word in found.why) == (available, True)


@each_row(("value", "available"), [("0", False), ("no", False), ("1", True), ("2", True)])
def test_multicast_can_be_switched_off_also_by_a_word(value: str, available: bool) -> None:
    found = nvls(hgx(), NvLinks((LINKED,) * 8), fixtures.having("NCCL_NVLS_ENABLE", value))
    assert found.available is available
