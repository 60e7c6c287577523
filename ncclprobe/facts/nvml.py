"""GPUs, as NVML shows them to this process."""

import json
from dataclasses import dataclass

from ncclprobe.errors import Failed, HostError, Missing
from ncclprobe.host import Host
from ncclprobe.registry import collector


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `pci` is its address (``00000000:07:00.0``), `lost` why NVML cannot read it, empty if it can."""

    index: int
    name: str = ""
    uuid: str = ""
    pci: str = ""
    memory_bytes: int | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Gpus:
    """At least one GPU, the driver's version, and the newest CUDA version it carries (12.4 is (12, 4))."""

    all: tuple[Gpu, ...]
    driver: str
    cuda: tuple[int, int]


@collector
def nvml(host: Host) -> Gpus:
    """Every GPU NVML counts. None at all is not knowing: a container may simply not have been given them."""
    count = int(host.ask("nvml", "nvmlDeviceGetCount"))
    if not count:
        raise Missing("NVML counts 0 GPUs: none is visible to this process")
    code = int(host.ask("nvml", "nvmlSystemGetCudaDriverVersion"))
    return Gpus(
        all=tuple(_gpu(host, index) for index in range(count)),
        driver=json.loads(host.ask("nvml", "nvmlSystemGetDriverVersion")),
        cuda=(code // 1000, code % 1000 // 10),
    )


def _gpu(host: Host, index: int) -> Gpu:
    """One GPU; a lost one does not hide the others."""
    try:
        return Gpu(
            index=index,
            name=json.loads(host.ask("nvml", "nvmlDeviceGetName", index)),
            uuid=json.loads(host.ask("nvml", "nvmlDeviceGetUUID", index)),
            pci=json.loads(host.ask("nvml", "nvmlDeviceGetPciInfo", index))["busId"],
            memory_bytes=_memory(host, index),
        )
    except Failed as error:
        return Gpu(index=index, lost=str(error))


def _memory(host: Host, index: int) -> int | None:
    try:
        return int(json.loads(host.ask("nvml", "nvmlDeviceGetMemoryInfo", index))["total"])
    except HostError:  # not supported where the memory is the host's (Grace, Jetson)
        return None
