"""What ranks agree on before they measure: without torch, a store or a process."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import answers

from ncclprobe.checks.run.ranks import in_words
from ncclprobe.checks.sync.settings import MUST_AGREE, UNSET, meaning
from ncclprobe.commands import bandwidth
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.model.report import Setting
from ncclprobe.model.values import replace
from ncclprobe.nccl.parameters import table
from ncclprobe.session.measure import interference
from ncclprobe.session.ranks import identity
from ncclprobe.session.ranks.identity import RankInfo

INFO = RankInfo("n0", 7, {"torch": "2.13.0", "nccl": "2.28.9"}, "nccl", "GPU-0", usable=8)


def told(**settings: str) -> RankInfo:
    return replace(INFO, settings=settings)


def test_debugging_by_torch_on_some_ranks_alone_is_told_and_its_quieter_words_are_not() -> None:
    (found,) = interference.differing([told(TORCH_DISTRIBUTED_DEBUG="DETAIL"), told()])
    assert (found.name, found.name in MUST_AGREE) == ("TORCH_DISTRIBUTED_DEBUG", True)
    assert "hangs the start" in in_words(found)
    for text, means in (("detail", "DETAIL"), ("INFO", UNSET), ("OFF", UNSET)):
        entry = Setting("TORCH_DISTRIBUTED_DEBUG", text, "environment")
        assert meaning(entry, table()["TORCH_DISTRIBUTED_DEBUG"], None) == means


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
