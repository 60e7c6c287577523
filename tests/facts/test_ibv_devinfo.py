"""`ibv_devinfo`."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.errors import ParseError
from ncclprobe.facts.ibv_devinfo import IbvDevice, IbvDevices, IbvPort, parse

TEXT = """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.43.2566
\tnode_guid:\t\t\tb8e9:2403:004e:deb0
\tvendor_part_id:\t\t\t4129
\tboard_id:\t\t\tMT_0000000834
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tlink_layer:\t\tEthernet
"""


def test_a_device_is_read_with_its_ports() -> None:
    port = IbvPort(1, "PORT_DOWN", 1024, "Ethernet")
    device = IbvDevice("mlx5_0", "InfiniBand", "28.43.2566", "b8e9:2403:004e:deb0", "4129", "MT_0000000834", (port,))
    assert parse(TEXT) == IbvDevices((device,))


def test_remarks_and_a_condensed_port_are_read() -> None:
    text = "hca_id: rdmap16s27\n  transport:  unspecified (4)  (EFA)\n  port 1: PORT_ACTIVE, max_mtu=4096\n"
    assert parse(text).devices == (
        IbvDevice("rdmap16s27", "unspecified", ports=(IbvPort(1, "PORT_ACTIVE", None, None),)),
    )


@pytest.mark.parametrize(("count", "incomplete"), [(2, ()), (3, ("2 devices of 3",))])
def test_a_list_gives_names_and_says_how_many_are_missing(count: int, incomplete: tuple[str, ...]) -> None:
    seen = parse(f"{count} HCAs found:\n\trocep145s0\n\trocep146s0\n\n")
    assert seen == IbvDevices((IbvDevice("rocep145s0"), IbvDevice("rocep146s0")), incomplete)


@pytest.mark.parametrize("text", ["", "No IB devices found", TEXT + TEXT])
def test_no_device_or_one_twice_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


@given(st.lists(st.sampled_from([*TEXT.splitlines(), "2 HCAs found:", "port 9", "hca_id:"])).map("\n".join) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ParseError):
        assert parse(text).devices
