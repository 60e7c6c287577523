"""The job's settings that change what a collective should reach: read as NCCL reads them, and applied to the links.

NCCL_ALGO and NCCL_PROTO exclude algorithms and protocols, NCCL_NVLS_ENABLE and NCCL_MNNVL_ENABLE remove links; NCCL's
own tables then give its choice. No numbers are published for shared memory in place of P2P, for fewer channels or NICs,
or for more channels in a latency-bound call: rows that such a setting changes are not judged.
"""

import re
from collections.abc import Iterator
from typing import Literal

from ncclprobe.expect.system import NcclVersion, NodeSystem
from ncclprobe.expect.tuner.constants import ALGORITHMS, PROTOCOLS
from ncclprobe.expect.tuner.cost import FUNCTIONS, Forced
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.values import Struct, field, replace
from ncclprobe.nccl import algorithms as nccl
from ncclprobe.nccl.algorithms import Pin, parse_pin
from ncclprobe.nccl.gpudirect import user_level
from ncclprobe.nccl.hcas import MAX_HCAS, parse_selector
from ncclprobe.nccl.paths import PathType
from ncclprobe.nccl.values import read_setting

_MOST_CHANNELS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS")
_FEWEST_CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MIN_CTAS")


class Channels(Struct, frozen=True):
    """A limit on channels, as the user set it."""

    text: str
    number: int
    kind: Literal["most", "fewest"]

    def changes(self, used: int | None, *, large: bool = False) -> bool:
        """Return whether the limit changes a call that uses `used` channels; if `used` is None (unknown), it may.

        A `large`, bandwidth-bound call loses nothing by more channels: two nodes of 8 H200 reach 485 GB/s with NCCL's
        own number and with NCCL_MIN_NCHANNELS=32 (public GitHub files 55056782127 and 55048705438). This does not hold
        across processor sockets: 8 RTX PRO 6000 on two EPYC reach 22 GB/s, and 38 with NCCL_MIN_NCHANNELS=8
        (https://github.com/voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md).
        """
        if self.kind == "fewest":
            return not large and (used is None or self.number > used)
        return used is None or self.number < used


class Pinned(Struct, frozen=True):
    """The settings: `algorithms` and `protocols` by function; `algo` and `proto` as set in the environment.

    `nvls`, `mnnvl`, `p2p`, `shm`, `gdr` and `rdma` are the settings that disabled each; empty: not disabled. `hcas` is
    a list of NICs, and `few` how many it names.
    """

    algorithms: Pin = field(default_factory=Pin)
    protocols: Pin = field(default_factory=Pin)
    algo: str = ""
    proto: str = ""
    nvls: str = ""
    mnnvl: str = ""
    p2p: str = ""
    shm: str = ""
    gdr: str = ""
    rdma: str = ""
    hcas: str = ""
    few: int = 0
    channels: tuple[Channels, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything is set."""
        return self != NOTHING

    def __str__(self) -> str:
        """Return the settings as they were set: ``NCCL_ALGO=Ring, NCCL_NVLS_ENABLE=0``."""
        links = (self.nvls, self.mnnvl, self.p2p, self.shm, self.gdr, self.rdma, self.hcas)
        return ", ".join(filter(None, (self.algo, self.proto, *links, *(each.text for each in self.channels))))

    @property
    def between_nodes(self) -> str:
        """Return the setting that disables NICs, or their access to GPU memory, between nodes; empty: none."""
        return self.rdma or self.hcas or self.gdr

    @property
    def refused(self) -> str:
        """Return the setting that NCCL refuses to start with; empty: none."""
        pins = ((self.algorithms, self.algo), (self.protocols, self.proto))
        return next((f"NCCL refuses {text}: {pin.error}" for pin, text in pins if pin.error), "")

    def left(self, op: str) -> Forced | None:
        """Return the choices that the lists leave for `op`; None if they do not restrict it, or NCCL has no choice."""
        function = FUNCTIONS.get(op)
        if function is None:
            return None
        kept, protocols = self.algorithms.kept.get(function), self.protocols.kept.get(function)
        if kept is None and protocols is None:
            return None
        names = ALGORITHMS if kept is None else tuple(name for name in ALGORITHMS if name in kept)
        words = PROTOCOLS if protocols is None else tuple(name for name in PROTOCOLS if name in protocols)
        return Forced(frozenset(names), frozenset(words))

    def applied(self, system: NodeSystem) -> NodeSystem:
        """Return `system` without the disabled links."""
        found = replace(system, nvls=system.nvls and not self.nvls, gdr=system.gdr and not self.gdr)
        if self.few:
            found = replace(found, nics=min(found.nics, self.few))
        if self.rdma and (found.network in _RDMA or (found.network and self.rdma.startswith("NCCL_NET="))):
            found = replace(found, network="sockets", nics=1)
        if self.mnnvl:
            found = replace(found, domain_gpus=min(found.domain_gpus, found.gpus))
        if self.p2p:
            found = replace(found, nvlinks=0, nvlink_GBps=0.0, fabric="none", domain_gpus=0, nvls=False, p2p=False)
        return found


NOTHING = Pinned()
_RDMA = ("ib", "roce")
"""Networks of NCCL's own transport, which NCCL_IB_DISABLE disables."""


def pinned(settings: Settings, version: NcclVersion) -> Pinned:
    """Return the settings that matter to this release."""
    algo, proto = settings.get("NCCL_ALGO") or "", settings.get("NCCL_PROTO") or ""
    return Pinned(
        parse_pin(algo, nccl.ALGORITHMS, version),
        parse_pin(proto, nccl.PROTOCOLS, version),
        f"NCCL_ALGO={algo}" if algo else "",
        f"NCCL_PROTO={proto}" if proto else "",
        _disabling_value(settings, "NCCL_NVLS_ENABLE", version),
        _disabling_value(settings, "NCCL_MNNVL_ENABLE", version)
        or _disabling_value(settings, "NCCL_CUMEM_ENABLE", version),
        _no_p2p(settings, version),
        _set(settings, "NCCL_SHM_DISABLE") if read_setting(settings, "NCCL_SHM_DISABLE", 0, version) == 1 else "",
        _no_gdr(settings, version),
        _no_rdma(settings, version),
        *_named_hcas(settings),
        tuple(_channels(settings)),
    )


def _set(settings: Settings, name: str) -> str:
    return f"{name}={settings.get(name)}"


def _no_gdr(settings: Settings, version: NcclVersion) -> str:
    """Return the setting that disables GPUDirect: reads switched off, or the level LOC, which no NIC satisfies."""
    if read_setting(settings, "NCCL_NET_GDR_READ", 1, version) == 0:
        return _set(settings, "NCCL_NET_GDR_READ")
    level = user_level(settings, "NCCL_NET_GDR_LEVEL", version)
    return level.origin if level and level.path is PathType.LOC else ""


def _no_rdma(settings: Settings, version: NcclVersion) -> str:
    if (settings.get("NCCL_NET") or "").lower() == "socket":
        return _set(settings, "NCCL_NET")
    return _set(settings, "NCCL_IB_DISABLE") if read_setting(settings, "NCCL_IB_DISABLE", 0, version) else ""


def _named_hcas(settings: Settings) -> tuple[str, int]:
    """Return NCCL_IB_HCA and the number of devices it names, if each entry ends with a number: `mlx5` by itself means
    all.
    """
    selector = parse_selector(settings.get("NCCL_IB_HCA") or "", MAX_HCAS)
    names = {entry.prefix for entry in selector.entries}
    counted = names and not selector.exclude and all(re.search(r"[^x]\d$", name) for name in names)
    return (_set(settings, "NCCL_IB_HCA"), len(names)) if counted else ("", 0)


def _disabling_value(settings: Settings, name: str, version: NcclVersion) -> str:
    return _set(settings, name) if read_setting(settings, name, 2, version) == 0 else ""


def _no_p2p(settings: Settings, version: NcclVersion) -> str:
    if read_setting(settings, "NCCL_P2P_DISABLE", 0, version) == 1:
        return _set(settings, "NCCL_P2P_DISABLE")
    level = user_level(settings, "NCCL_P2P_LEVEL", version)
    return level.origin if level and level.path is PathType.LOC else ""


def _channels(settings: Settings) -> Iterator[Channels]:
    kinds: tuple[tuple[Literal["most", "fewest"], tuple[str, ...]], ...] = (
        ("most", _MOST_CHANNELS),
        ("fewest", _FEWEST_CHANNELS),
    )
    for kind, names in kinds:
        for name in names:
            number = read_setting(settings, name, 0)
            if number > 0:
                yield Channels(f"{name}={settings.get(name)}", number, kind)
