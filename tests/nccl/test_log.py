"""NCCL's INFO lines are read for the transport: all sample lines of 2.8 to 2.30, damaged streams, what is not said."""

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.nccl import log
from ncclprobe.nccl.log import Choice, Device, Hop
from tests.each_row import each_row

HEAD = "gpu1:101:101 [0] NCCL INFO "


def said(*lines: str) -> str:
    return "".join(f"{HEAD}{line}\n" for line in lines)


def test_a_log_over_infiniband_names_its_devices_and_gpudirect() -> None:
    found = log.read(
        said(
            "NCCL version 2.29.7+cuda12.9",
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/RoCE [RO]; OOB ib0:10.0.0.1<0>",
            "Using network IB",
            "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
            "Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1(2)/GDRDMA/Shared",
            "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
            "16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer",
            "AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}",
        )
    )
    assert (found.version, found.network, found.channels) == ("2.29.7", "IB", 16)
    assert found.hcas == (Device(0, "mlx5_0", 1, "IB"), Device(1, "mlx5_3", 1, "RoCE"))
    assert found.hops[1] == Hop("NET", "IB", 1, True)
    assert found.hops[2] == Hop("P2P", "CUMEM")
    assert found.devices() == ("mlx5_0", "mlx5_3")
    assert found.gdr is True
    assert found.chosen(1 << 20, "AllReduce") == Choice("AllReduce", 1 << 20, "RING", "LL128", 16)
    assert found.chosen(1 << 20, "Broadcast") is None


def test_one_channel_without_gpudirect_is_enough_to_say_so() -> None:
    text = said(
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0", "Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA"
    )
    assert log.read(text).gdr is False


def test_what_a_log_does_not_say_is_not_known() -> None:
    nothing = log.read("some other program\n")
    assert (nothing.gdr, nothing.network, nothing.version, nothing.channels) == (None, None, None, None)
    assert nothing.devices() == ()


def test_sockets_have_the_names_of_their_interfaces() -> None:
    found = log.read(
        said(
            "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>",
            "Using network Socket",
            "Channel 00 : 0[7000] -> 1[7000] [send] via NET/Socket/1",
        )
    )
    assert found.devices() == ("eth1",)
    assert found.gdr is False


def test_a_device_that_no_line_names_keeps_its_number() -> None:
    text = said("Using network AWS Libfabric", "Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/3/GDRDMA(PCI)")
    assert log.read(text).devices() == ("device 3",)


def test_numbers_of_older_versions_have_names() -> None:
    found = log.read(said("1024 Bytes -> Algo 1 proto 0 time 12.300000"))
    assert found.choices == (Choice("", 1024, "RING", "LL"),)
    assert found.chosen(1024, "AllReduce") == found.choices[0]


def test_launchers_prefixes_colours_and_stamps_are_stripped() -> None:
    for head in ("[default3]:", "0: ", "\x1b[32m[1,0]<stdout>:\x1b[0m", "[2026-01-02 03:04:05] "):
        assert log.read(f"{head}{HEAD}Using network IB\n").network == "IB", head


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
}
"""The texts of NCCL 2.8 to 2.30 as its format strings make them (docs/maintainers/nccl.md), by what is read of them."""
WAYS = {
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
}
RING = "Channel 00/16 :    0   7   6   5   4   3   2   1"


@each_row(("what", "text"), [(what, text) for what, texts in LINES.items() for text in texts])
def test_the_lines_of_every_release_are_read(what: str, text: str) -> None:
    assert getattr(log.read(HEAD + text), what)


@each_row(("how", "text"), [(how, text) for how, texts in WAYS.items() for text in texts])
def test_the_way_of_every_connection_is_read(how: str, text: str) -> None:
    assert [hop.how for hop in log.read(HEAD + text).hops] == [how]


def test_the_ring_of_rank_0_is_no_connection() -> None:
    assert not log.read(HEAD + RING).hops


@given(
    text=st.text()
    | st.lists(st.sampled_from([HEAD, "Channel ", "0/0 : ", "1[2]", " -> ", "via NET/", "\n", "9" * 40])).map("".join)
)
def test_no_text_breaks_the_reading(text: str) -> None:
    log.read(text)
