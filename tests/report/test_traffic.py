"""Transports and copies in words: equal rows on one line, unknown ones left out, hostile names printable."""

from ncclprobe.checks.run.rows import ROW
from ncclprobe.checks.run.traffic import SLOW_COPY
from ncclprobe.model.measurement import Transport
from ncclprobe.model.values import replace
from ncclprobe.report import rows as as_rows
from ncclprobe.report import text as as_text
from ncclprobe.report import traffic
from tests.checks.cases.run_rates import _WRONG

from .samples import HEALTHY

IB = Transport("IB mlx5_0, mlx5_1", True, "RING", "LL128", 16)
TREE = replace(IB, algorithm="TREE", protocol="LL")


def lines(*rows: Transport) -> list[str]:
    made = [replace(ROW, nbytes=1024 << n, transport=transport) for n, transport in enumerate(rows)]
    return [line for block in traffic.blocks(replace(HEALTHY, measurements=tuple(made)), 100) for line in block]


def test_one_transport_for_all_rows_is_one_line_and_stands_above_the_table_too() -> None:
    assert lines(IB, IB) == ["transport: IB mlx5_0, mlx5_1, GPUDirect, RING LL128, 16 channels"]
    assert as_rows.header(replace(ROW, transport=IB), 200).splitlines()[0].endswith("over IB mlx5_0, mlx5_1")


def test_rows_of_other_transports_are_told_apart_by_their_sizes() -> None:
    assert lines(TREE, IB, IB) == [
        "transport: all_reduce 1 KiB: IB mlx5_0, mlx5_1, GPUDirect, TREE LL, 16 channels",
        "transport: all_reduce 2 KiB to 4 KiB: IB mlx5_0, mlx5_1, GPUDirect, RING LL128, 16 channels",
    ]


def test_a_transport_that_is_not_known_is_not_mentioned() -> None:
    assert lines(Transport()) == []
    assert "over" not in as_rows.header(ROW, 200).splitlines()[0].split(", ")[-1]


def test_no_gpudirect_is_said_and_unknown_is_not() -> None:
    assert traffic.words(Transport("Socket eth0", False)) == "Socket eth0, no GPUDirect"
    assert traffic.words(Transport("Socket eth0")) == "Socket eth0"


def test_tables_name_the_nic_and_the_copy() -> None:
    hostile = replace(_WRONG, nics=(replace(_WRONG.nics[0], nic="eth\x1b[2J"), *_WRONG.nics[1:]))
    report = replace(HEALTHY, nic_traffic=(hostile,), copies=(SLOW_COPY,))
    shown = as_text.render(report)
    assert "\x1b" not in shown
    assert "629.1 MB" in shown
    assert "host to GPU" in shown
    assert "NUMA 0, near" in shown


def test_copies_of_several_hosts_say_of_which_and_those_of_one_do_not() -> None:
    several = (SLOW_COPY, replace(SLOW_COPY, node="n7"))
    (one,) = traffic.blocks(replace(HEALTHY, copies=(SLOW_COPY,)), 80)
    (both,) = traffic.blocks(replace(HEALTHY, copies=several), 80)
    assert "host " not in one[0].replace("host to GPU", "")
    assert both[0].split()[:2] == ["host", "copy"]
    assert [line.split()[0] for line in both[1:]] == [SLOW_COPY.node, "n7"]
