"""`ibstat` and `ibstatus`."""

import pytest
from zoo.ibstat import Adapter, Ibstat, IbstatPort, parse

from ncclprobe.model.errors import ParseError
from tests.each_row import each_row

IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: Down
\t\tPhysical state: Polling
\t\tRate: 40
\t\tBase lid: 75
\t\tSM lid: 334
\t\tLink layer: InfiniBand
"""
IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:0015:5dff:fd34:11eb
\tbase lid:\t 0x4b
\tsm lid:\t\t 0x14e
\tstate:\t\t 4: ACTIVE
\tphys state:\t 5: LinkUp
\trate:\t\t 200 Gb/sec (4X HDR)
\tlink_layer:\t InfiniBand
"""


def test_both_tools_give_the_same_fields() -> None:
    port = IbstatPort(1, "Down", "Polling", 40.0, 75, 334, "InfiniBand")
    assert parse(IBSTAT) == Ibstat((Adapter("mlx5_0", (port,), "MT4129", "28.39.1002"),))
    port = IbstatPort(1, "ACTIVE", "LinkUp", 200.0, 75, 334, "InfiniBand")
    assert parse(IBSTATUS) == Ibstat((Adapter("mlx5_0", (port,)),))


def test_a_mail_without_indentation_reads_the_same() -> None:
    assert parse("".join(f">>> {line.strip()}\n" for line in IBSTAT.splitlines())) == parse(IBSTAT)


def test_a_failure_does_not_hide_the_devices_before_it() -> None:
    failure = "ibpanic: [7] main: stat of IB device 'mlx5_8' failed: No such file or directory"
    assert parse(IBSTAT + failure).failures == (failure,)
    with pytest.raises(ParseError, match="ibpanic"):
        parse(failure)


@each_row(
    ("lost", "said"),
    [
        ("\t\tLink layer: InfiniBand\n", "mlx5_0 port 1: link_layer"),
        ("\t\tSM lid: 334\n\t\tLink layer: InfiniBand\n", "mlx5_0 port 1: sm_lid, link_layer"),
        (IBSTAT[IBSTAT.index("\tPort") :], "mlx5_0: 0 ports of 1"),
    ],
)
def test_text_that_is_cut_says_what_is_missing(lost: str, said: str) -> None:
    assert parse(IBSTAT.replace(lost, "")).incomplete == (said,)


@each_row("text", ["", "mlx5_0", IBSTAT + IBSTAT])
def test_no_device_or_one_twice_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)
