"""NCCL's INFO lines are read for the transport, and the counters of NICs for the way that the bytes took."""

from typing import Any

from ncclprobe.facts.traffic import Count
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl import log
from ncclprobe.nccl.nic_traffic import Carried

HEAD = "gpu1:101:101 [0] NCCL INFO "


def said(*lines: str) -> log.Log:
    return log.read("".join(f"{HEAD}{line}\n" for line in lines))


DEVICES = (
    # One channel without GPUDirect is enough to say so. A device that no line names keeps its number.
    ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0", "Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA"),
    ("NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>", "Using network Socket",
     "Channel 00 : 0[7000] -> 1[7000] [send] via NET/Socket/1"),
    ("Using network AWS Libfabric", "Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/3/GDRDMA(PCI)"),
    ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",),
    (),
)  # fmt: skip
"""What is read of each is in tests/data/command_values/matrices.txt."""


LINES = {
    "version": ("NCCL version 2.20.5+cuda12.4", "NCCL version 2.28.9+cuda13.0"),
    "network": ("Using network IB", "Using network Socket", "Using network AWS Libfabric"),
    "hcas": (
        "NET/IB : Using [0]mlx5_2:1/IB [1]mlx5_3:1/IB [RO]; OOB ib0:10.9.0.7<0>",
        "NET/IB : Using [0]rocep12s0:1/RoCE [RO]; OOB eno1:10.9.0.7<0>",
        "NET/IB : Using [0]mlx5_2:1/RoCE ; OOB eno1:10.9.0.7<0>",  # up to 2.11, before relaxed ordering
    ),
    "interfaces": ("NET/Socket : Using [0]ens1:10.9.0.7<0> [1]ens2:10.9.1.7<0>",),
    "channels": (
        "2 coll channels, 2 p2p channels, 1 p2p channels per peer",  # up to 2.16
        "16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer",
        "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer",
    ),
    "choices": (
        "2048 Bytes -> Algo 0 proto 2 time 31.500000",  # up to 2.23
        "AllGather: 65536 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..3}",
    ),
    "P2P": (
        "Channel 00 : 2[1b000] -> 3[1c000] via P2P/IPC",  # bus numbers up to 2.18.1
        "Channel 01/0 : 2[2] -> 3[3] via P2P/CUMEM/read",
        "Channel 03/1 : 5[5] -> 1[1] via P2P/indirect/4[4]",
    ),
    "SHM": (
        "Channel 00 : 2[1b000] -> 3[1c000] via direct shared memory",  # up to 2.12
        "Channel 01 : 2[2] -> 3[3] via SHM/direct/direct",
        "Channel 01 : 2[2] -> 3[3] via SHM/direct",  # 2.30.7
    ),
    "NET": (
        "Channel 00 : 2[1b000] -> 10[1b000] [send] via NET/Socket/1",
        "Channel 00/0 : 10[2] -> 2[2] [receive] via NET/IB/4/GDRDMA",
        "Channel 01/0 : 2[2] -> 10[2] [send] via NET/IB/4(3)/GDRDMA/Shared",  # by the relay of rank 3
        "Channel 00/0 : 2[2] -> 10[2] [send] via NET/AWS Libfabric/0/GDRDMA(PCI)",
    ),
    "": ("Channel 00/16 :    0   7   6   5   4   3   2   1",),  # the ring of rank 0 is no connection
}
"""The texts of NCCL 2.8 to 2.30 as its format strings make them (docs/maintainers/nccl.md), by what is read of them."""


def test_lines_up_to_the_longest_and_connections_up_to_the_most_are_read() -> None:
    hop = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/{}"
    text = f"{HEAD}{hop.format(0)}"
    for length, devices in ((2048, ("device 0",)), (2049, ())):
        assert log.read(f"{'x' * (length - 1 - len(text))} {text}").devices() == devices
    many = said(
        *(hop.format(number) for number in range(300)), *(f"{n} Bytes -> Algo 1 proto 2 time 1" for n in range(300))
    )
    assert (len(many.hops), len(many.choices), many.hops[-1].device) == (256, 256, 255)


MIB = 1 << 20


def node(name: str, expected: str | None = "eth0", below: Any = None, **counts: Count | Absent) -> Carried:
    return Carried(name, counts, {}, None if expected is None else frozenset([expected]), below or {})


def both(nbytes: int) -> Count:
    return Count(nbytes, nbytes)


def nodes(expected: str | None = "eth0", below: Any = None, **counts: Count | Absent) -> list[Carried]:
    return [node(name, expected, below, **counts) for name in "ab"]
