"""NCCL's INFO lines are read for the transport: all sample lines of 2.8 to 2.30, damaged streams, what is not said."""

import csv
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.nccl import log
from ncclprobe.nccl.log import Choice, Device, Hop

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
    assert (found.version, found.network, found.channels, found.nvls_channels) == ("2.29.7", "IB", 16, 0)
    assert found.hcas == (Device(0, "mlx5_0", 1, "IB"), Device(1, "mlx5_3", 1, "RoCE"))
    assert found.hops[1] == Hop(1, 0, 8, "NET", "IB", 1, True, 2, "send")
    assert found.hops[2] == Hop(0, 0, 1, "P2P", "CUMEM")
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


def test_warnings_are_kept_once() -> None:
    warn = "gpu1:1:2 [0] misc/socket.cc:484 NCCL WARN connect returned timeout\n"
    assert log.read(warn * 3).warnings == ("connect returned timeout",)


def test_every_sample_of_a_line_of_the_transport_is_read(shared: Callable[[str], Path]) -> None:
    """Of all versions from 2.8 to 2.30: the samples that the grammar was checked against."""
    with shared("facts/log_lines.tsv").open(newline="") as file:
        rows = {row["id"]: row["samples"].split(" ;; ") for row in csv.DictReader(file, delimiter="\t")}
    read = {kind: [log.read(HEAD + sample) for sample in samples] for kind, samples in rows.items()}
    assert all(each.version for each in read["version"])
    assert all(each.network for each in read["using-network"])
    assert all(each.hcas for each in read["net-ib"])
    assert all(each.interfaces for each in read["net-socket"])
    assert all(each.channels for each in read["channels"])
    assert all(each.choices for each in read["choice"])
    for kind, how in (("chan-p2p", "P2P"), ("chan-shm", "SHM"), ("chan-net", "NET")):
        assert [hop.how for each in read[kind] for hop in each.hops] == [how] * len(rows[kind])
    assert not any(each.hops for each in read["chan-ring"])


@given(
    text=st.text()
    | st.lists(st.sampled_from([HEAD, "Channel ", "0/0 : ", "1[2]", " -> ", "via NET/", "\n", "9" * 40])).map("".join)
)
def test_no_text_breaks_the_reading(text: str) -> None:
    log.read(text)
