"""NVLink: the links of each GPU, and the NVSwitch fabric that they lead to.

The links are NVML's, and where it does not tell them, those that ``nvidia-smi nvlink -s`` prints.
"""

from collections.abc import Iterator, Mapping

from ncclprobe.errors import Unlearned
from ncclprobe.facts.nvlink import GpuLinks, NvLink, NvLinks, NvlinkStatus
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct


class Linked(Struct, frozen=True):
    """A GPU and its links, from either source.

    `up` are those that are not inactive, `dozing` those of them that carry nothing now ("sleep", "traffic-disabled"),
    `speeds` of those up in MB/s, None where it is not told. `switched`: one leads to an NVSwitch; None: not told.
    `meshed`: they lead to several GPUs.
    """

    name: str
    product: str
    up: tuple[int, ...]
    down: tuple[int, ...] = ()
    dozing: tuple[int, ...] = ()
    speeds: tuple[float | None, ...] = ()
    switched: bool | None = None
    meshed: bool = False


class Box(Struct, frozen=True):
    """The GPUs whose links are known, why those of others are not, and where this is from."""

    gpus: tuple[Linked, ...]
    unknown: Mapping[str, Absent]
    evidence: str

    def like(self, gpu: Linked) -> tuple[Linked, ...]:
        """Return the GPUs of the same product, itself included."""
        return tuple(other for other in self.gpus if other.product == gpu.product)


def look(gpus: Gpus | Absent, links: NvLinks | Absent, status: NvlinkStatus | Absent) -> Box:
    """Return the links of every GPU. Those with MIG are left out: they show none. Raises Unlearned where neither
    tells.
    """
    if isinstance(gpus, Gpus) and isinstance(links, NvLinks):
        return _from_nvml(gpus, links)
    if isinstance(status, NvlinkStatus):
        return Box(tuple(_printed(n, gpu) for n, gpu in status.gpus.items()), {}, "nvidia-smi nvlink -s")
    gaps = [fact.why for fact in (gpus, links, status) if isinstance(fact, Absent)]
    raise Unlearned("; ".join(dict.fromkeys(gaps)))


def _from_nvml(gpus: Gpus, links: NvLinks) -> Box:
    known: list[Linked] = []
    unknown: dict[str, Absent] = {}
    for gpu, row in zip(gpus.all, links.gpus, strict=False):
        gap = row if isinstance(row, Absent) else next(_gaps(row), None)
        if gap:
            unknown[f"GPU{gpu.index}"] = gap
        elif not isinstance(row, Absent) and gpu.mig is not True:
            known.append(_read(gpu, row))
    return Box(tuple(known), unknown, "NVML, link by link (nvidia-smi nvlink -s)")


def _gaps(row: tuple[NvLink, ...]) -> Iterator[Absent]:
    return (link.state for link in row if isinstance(link.state, Absent))


def _read(gpu: Gpu, row: tuple[NvLink, ...]) -> Linked:
    up = [link for link in row if link.state != "inactive"]
    return Linked(
        name=f"GPU{gpu.index}",
        product=gpu.name,
        up=tuple(link.link for link in up),
        down=tuple(link.link for link in row if link.state == "inactive"),
        dozing=tuple(link.link for link in up if link.state != "active"),
        speeds=tuple(None if isinstance(link.speed_MBps, Absent) else link.speed_MBps for link in up),
        switched=any(link.remote == "switch" for link in up) if up else None,
        meshed=len({link.remote_pci for link in up if link.remote == "gpu" and isinstance(link.remote_pci, str)}) > 1,
    )


def _printed(index: int, gpu: GpuLinks) -> Linked:
    up = {link: speed for link, speed in gpu.links.items() if speed is not None}
    down = tuple(link for link, speed in gpu.links.items() if speed is None)
    return Linked(f"GPU{index}", gpu.name, tuple(up), down, speeds=tuple(speed * 1000 for speed in up.values()))
