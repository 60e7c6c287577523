"""What ranks agree on before they measure: without torch, a store or a process."""

import ctypes
import json
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import answers

from ncclprobe.checks.run.ranks import in_words, settings
from ncclprobe.checks.sync.settings import MUST_AGREE, UNSET, meaning
from ncclprobe.commands import bandwidth
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.run.samples import DifferingSetting, Ending, Participants, RankSettings
from ncclprobe.model.report import Setting
from ncclprobe.model.values import asdict, replace
from ncclprobe.nccl.parameters import table
from ncclprobe.probes import nccl_library
from ncclprobe.probes.nccl_library import LoadedNccl
from ncclprobe.session.measure import interference
from ncclprobe.session.ranks import identity
from ncclprobe.session.ranks.identity import RankInfo, RunConfig, agree_on
from tests.each_row import each_row

INFO = RankInfo("n0", 7, {"torch": "2.13.0", "nccl": "2.28.9"}, "nccl", "GPU-0", usable=8)
INFOS = (INFO, replace(INFO, gpu="GPU-1"), replace(INFO, host="n1"))


GLOO = replace(INFO, backend="gloo", gpu=None)
MIG = [replace(INFO, instance=f"MIG-{n}") for n in range(2)]
NEWER = [replace(info, versions={"torch": "2.12.0", "nccl": "2.30.7"}) for info in MIG]


@each_row(
    ("infos", "nnodes", "config"),
    [
        (INFOS, 2, RunConfig("nccl", 2)),
        (INFOS[:2], 2, RunConfig("nccl", 2)),  # containers with one host name: the launcher knows their nodes
        ([GLOO] * 2, 1, RunConfig("gloo", 1)),
        ([replace(GLOO, note="no GPU")], 1, RunConfig("gloo", 1, note="no GPU")),
        ([replace(each, host_id="a") for each in INFOS[:2]], 1, RunConfig("nccl", 1)),
        (NEWER, 1, RunConfig("nccl", 1)),  # instances of one GPU are several GPUs to NCCL since 2.30
        # Ranks that see fewer GPUs than there are ranks on their host may see others.
        ([replace(each, usable=2) for each in INFOS], 2, RunConfig("nccl", 2)),
        ([replace(each, usable=1) for each in INFOS], 2, RunConfig("nccl", 2, apart=True)),
        ([INFO, replace(INFOS[1], usable=1)], 1, RunConfig("nccl", 1, apart=True)),
        ([replace(GLOO, usable=0)] * 2, 1, RunConfig("gloo", 1)),
    ],
)
def test_ranks_that_are_alike_measure(infos: Sequence[RankInfo], nnodes: int, config: RunConfig) -> None:
    assert agree_on(infos, nnodes) == config
    for each in (*infos, config):
        assert type(each)(**json.loads(json.dumps(asdict(each)))) == each, "cards and terms travel as JSON"


@each_row(
    ("infos", "words"),
    [
        ([INFO, replace(INFOS[1], backend="gloo")], "rank 0 on n0 would measure nccl and rank 1 on n0 gloo"),
        ([INFO, replace(INFOS[1], plan=8)], "rank 1 on n0 was started with different options from rank 0"),
        ([INFO, INFO], "ranks 0 and 1 on n0 have the same GPU; start"),
        ([replace(INFO, host_id="a")] * 2, "ranks 0 and 1 on n0 have the same GPU"),
        (MIG, "ranks 0 and 1 on n0 have the same GPU as MIG instances, and NCCL before 2.30 takes one"),
        ([NEWER[0]] * 2, "ranks 0 and 1 on n0 have the same GPU"),
        ([INFO, replace(INFOS[1], backend=None, error="torch can use none")], "torch can use none"),
    ],
)
def test_ranks_that_cannot_measure_together_are_told_why(infos: Sequence[RankInfo], words: str) -> None:
    assert agree_on(infos, nnodes=1).error.startswith(words)


def test_ranks_share_a_gpu_where_nccl_takes_them_for_two_nodes_and_that_is_said() -> None:
    config = agree_on([replace(INFO, host_id="a"), replace(INFO, host_id="b")], nnodes=2)
    assert (config.error, config.note.partition(",")[0]) == ("", "ranks 0 and 1 on n0 share a GPU")


def told(**settings: str) -> RankInfo:
    return replace(INFO, settings=settings)


NO_NCCL = replace(INFO, versions={"torch": "2.13.0+cpu", "nccl": None})


@each_row(
    ("infos", "differing"),
    [
        ([told(), told(NCCL_PROTO="LL"), told()], {"NCCL_PROTO": {"not set": (0, 2), "LL": (1,)}}),
        (
            [told(NCCL_BUFFSIZE="4194304"), told(NCCL_BUFFSIZE="8388608"), told()],  # a default is a value
            {"NCCL_BUFFSIZE": {"4194304": (0, 2), "8388608": (1,)}},
        ),
        ([told(NCCL_PROTO="LL")] * 2, {}),
        ([told(NCCL_IB_TIMEOUT="20"), told()], {}),  # what NCCL 2.28 takes unasked
        (
            [replace(NO_NCCL, settings={"GLOO_DEVICE_TRANSPORT": "TCP"}), NO_NCCL],
            {"GLOO_DEVICE_TRANSPORT": {"TCP": (0,), "not set": (1,)}},
        ),
    ],
)
def test_settings_that_differ_are_told_with_the_ranks(
    infos: list[RankInfo], differing: dict[str, dict[str, tuple[int, ...]]]
) -> None:
    assert {each.name: dict(each.values) for each in interference.differing(infos)} == differing


def test_debugging_by_torch_on_some_ranks_alone_is_told_and_its_quieter_words_are_not() -> None:
    (found,) = interference.differing([told(TORCH_DISTRIBUTED_DEBUG="DETAIL"), told()])
    assert (found.name, found.name in MUST_AGREE) == ("TORCH_DISTRIBUTED_DEBUG", True)
    assert "hangs the start" in in_words(found)
    for text, means in (("detail", "DETAIL"), ("INFO", UNSET), ("OFF", UNSET)):
        entry = Setting("TORCH_DISTRIBUTED_DEBUG", text, "environment")
        assert meaning(entry, table()["TORCH_DISTRIBUTED_DEBUG"], None) == means


def test_a_rank_tells_what_its_libraries_read_and_ranks_should_share(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("NCCL_", "GLOO_", "TORCH_NCCL_"))]:
        monkeypatch.delenv(name)
    given = {
        "NCCL_PROTO": "LL",
        "NCCL_BUFFSIZE": "0x400000",
        "NCCL_DEBUG": "INFO",  # its own business
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_OUR_SECRET": "x",  # which nothing reads
        "GLOO_DEVICE_TRANSPORT": "TCP",
        "PATH_OF_OURS": "x",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(nccl_library, "loaded", lambda: LoadedNccl((2, 28, 9), "", (2, 28, 9)))
    host = answers({})
    assert interference.told_settings("nccl", host) == {
        "NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "4194304", "GLOO_DEVICE_TRANSPORT": "TCP"
    }  # fmt: skip
    assert interference.told_settings("gloo", host) == {"GLOO_DEVICE_TRANSPORT": "TCP"}


class Driver:
    """CUDA's driver, whose second GPU is the only one that is visible."""

    def cuInit(self, flags: int) -> int:
        return flags

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number + 7
        return 0

    def cuDeviceGetPCIBusId(self, address: Any, size: int, device: Any) -> int:
        address.value = b"0001:AF:00.0" if device.value == 7 else b""
        return 0


@pytest.mark.parametrize(
    ("properties", "known_by"),
    [
        ({"pci_domain_id": 1, "pci_bus_id": 0xAF, "pci_device_id": 0, "uuid": "8a31-2"}, "0001:af:00.0"),  # torch 2.7
        ({"uuid": "8a31-2"}, "8a31-2"),  # 2.6
        ({}, "0001:af:00.0"),  # 2.4, where one GPU to a rank was refused as one GPU for all
    ],
)
def test_a_gpu_is_known_by_what_no_list_of_visible_devices_changes(
    properties: dict[str, Any], known_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only one of ``CUDA_VISIBLE_DEVICES=GPU-8a31-2``, or the one of a MIG instance, is 0 to CUDA."""
    torch = pytest.importorskip("torch")
    real = ctypes.CDLL  # torch with CUDA counts NVML's GPUs
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **how: Driver() if name == "libcuda.so.1" else real(name, **how))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", {0: SimpleNamespace(name="NVIDIA H100", **properties)}.__getitem__
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {})
    info = interference.rank_info(bandwidth.parse([]), "n0", answers({}), "nccl", 0, 1)
    others = (Gpu(0, uuid="GPU-8a31-1", pci="00000000:3B:00.0"), Gpu(5, uuid="GPU-8a31-2", pci="00000001:AF:00.0"))
    assert (info.gpu, info.instance) == (known_by, "")
    assert Gpus(others, "", (13, 0)).names[known_by] == "GPU5"
    part = SimpleNamespace(name="NVIDIA H100 MIG 1g.10gb", **properties)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {0: part}.__getitem__)
    assert identity.gpu_instance(0) == properties.get("uuid", "")


def test_torch_counts_gpus_that_cuda_does_not_show_where_mig_splits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 1, raising=False)
    assert interference.usable_gpus() == 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert interference.usable_gpus() == 0


@each_row(
    ("name", "ranks", "why", "severity"),
    [
        ("NCCL_P2P_DISABLE", (1,), "ranks were lost", "fail"),
        ("NCCL_P2P_DISABLE", (1,), "", "warn"),  # it went to its end all the same
        ("NCCL_P2P_DISABLE", (2, 3), "ranks were lost", "warn"),  # of one whole host
        ("NCCL_IB_TC", (1,), "ranks were lost", "warn"),
    ],
)
def test_how_ranks_of_one_host_reach_each_other_must_agree_among_them(
    name: str, ranks: tuple[int, ...], why: str, severity: str
) -> None:
    others = tuple(rank for rank in range(4) if rank not in ranks)
    differing = RankSettings((DifferingSetting(name, ((UNSET, others), ("1", ranks))),))
    job = Participants("torchrun", 4, ("n0", "n0", "n1", "n1"), "nccl", nnodes=2)
    (finding,) = settings.run(differing, job, Ending(why))
    assert finding.severity.value == severity
