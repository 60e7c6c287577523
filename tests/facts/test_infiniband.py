"""RDMA devices from sysfs: InfiniBand, RoCE and soft-RoCE, whole and with files missing."""

import json
from ipaddress import IPv6Address
from typing import Any

import pytest
from conftest import answers
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.engine.collect import collect
from ncclprobe.facts import infiniband
from ncclprobe.facts.infiniband import NO_GID, NO_PKEY, ROOT, VERBS, Fabric, Gid, Rate
from ncclprobe.host import Question
from ncclprobe.model.errors import Denied, Failed, HostError, Missing, ParseError, TimedOut
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

DEVICE, PORT = f"{ROOT}/mlx5_0", f"{ROOT}/mlx5_0/ports/1"
LOCAL, MAPPED = "fe80:0000:0000:0000:0ac0:ebff:fe5b:dc10", "0000:0000:0000:0000:0000:ffff:0a01:0203"

CARD: dict[Question, Any] = {
    ("list", ROOT): ["mlx5_0"],
    ("list", VERBS): ["abi_version", "uverbs3"],
    ("read", f"{VERBS}/uverbs3/ibdev"): "mlx5_0\n",
    ("open", "/dev/infiniband/uverbs3"): "true",
    ("list", f"{DEVICE}/ports"): ["1"],
    ("link", f"{DEVICE}/device"): "../../../0000:41:00.0",
    ("read", f"{DEVICE}/fw_ver"): "28.39.1002\n",
    ("read", f"{DEVICE}/board_id"): "MT_0000000838\n",
    ("read", f"{DEVICE}/hca_type"): "MT4129\n",
    ("read", f"{PORT}/state"): "4: ACTIVE\n",
    ("read", f"{PORT}/phys_state"): "5: LinkUp\n",
    ("read", f"{PORT}/rate"): "400 Gb/sec (4X NDR)\n",
    ("read", f"{PORT}/link_layer"): "InfiniBand\n",
    ("read", f"{PORT}/lid"): "0x1f\n",
    ("files", f"{PORT}/pkeys", NO_PKEY): {"0": "0x7fff", "2": "0xffff"},
    ("files", f"{PORT}/gids", NO_GID): {"0": LOCAL},
    ("read", f"{PORT}/gid_attrs/types/0"): "IB/RoCE v1\n",
    ("read", f"{PORT}/gid_attrs/ndevs/0"): Failed("Invalid argument"),
    ("files", f"{PORT}/counters"): {
        "symbol_error": "0",
        "link_downed": "3",
        "port_xmit_wait": "N/A (no PMA)",
        "x": None,
    },
    ("files", f"{PORT}/hw_counters"): {"out_of_sequence": "7", "lifespan": "10"},
}
ROCE: dict[Question, Any] = CARD | {
    ("read", f"{PORT}/link_layer"): "Ethernet\n",
    ("read", f"{PORT}/lid"): "0x0\n",
    ("files", f"{PORT}/gids", NO_GID): {"0": LOCAL, "3": MAPPED, "10": LOCAL},
    ("read", f"{PORT}/gid_attrs/ndevs/0"): "eth2\n",
    ("read", f"{PORT}/gid_attrs/types/3"): "RoCE v2\n",
    ("read", f"{PORT}/gid_attrs/ndevs/3"): "eth2\n",
    ("read", f"{PORT}/gid_attrs/types/10"): Failed("Invalid argument"),
    ("read", f"{PORT}/gid_attrs/ndevs/10"): Failed("Invalid argument"),
}


def read(said: dict[Question, Any]) -> Any:
    return collect(answers(said), [infiniband.infiniband])[Fabric]


def test_a_card_is_read_with_its_port() -> None:
    (card,) = read(CARD).devices
    assert (card.name, card.pci, card.firmware, card.board) == ("mlx5_0", "0000:41:00.0", "28.39.1002", "MT_0000000838")
    assert (card.model, card.verbs, card.opens) == ("MT4129", "uverbs3", True)
    (port,) = card.ports
    assert (port.name, port.state, port.physical) == ("mlx5_0:1", "ACTIVE", "LinkUp")
    assert (port.rate, port.link_layer, port.lid) == (Rate(400.0, 4, "NDR"), "InfiniBand", 31)
    assert port.pkeys == ((0, 0x7FFF), (2, 0xFFFF))
    assert port.gids == (Gid(0, IPv6Address(LOCAL), "IB/RoCE v1"),)
    assert (port.counters, port.hw_counters) == ((("symbol_error", 0), ("link_downed", 3)), (("out_of_sequence", 7),))
    assert read(CARD).ports == (port,)


def test_gids_of_roce_keep_their_index_type_and_interface() -> None:
    (port,) = read(ROCE).ports
    assert [(g.index, g.type, g.netdev, g.ipv4, g.link_local) for g in port.gids] == [
        (0, "IB/RoCE v1", "eth2", False, True),
        (3, "RoCE v2", "eth2", True, False),
        (10, None, None, False, True),
    ]


def test_no_infiniband_at_all_is_known_to_be_empty() -> None:
    assert read({("list", ROOT): Missing("not there")}) == Fabric()


def test_a_class_that_may_not_be_listed_is_unknown() -> None:
    assert read({("list", ROOT): Denied("permission denied")}) == Absent("permission denied", "Denied")


def test_soft_roce_has_no_pci_address_and_may_say_little() -> None:
    gone = [("link", f"{DEVICE}/device"), ("read", f"{DEVICE}/fw_ver"), ("files", f"{PORT}/counters")]
    (card,) = read(CARD | {question: Missing("not there") for question in gone}).devices
    assert (card.pci, card.firmware, card.ports[0].counters) == (None, "", ())


def test_a_parent_that_is_no_pci_function_is_no_address() -> None:
    (card,) = read(CARD | {("link", f"{DEVICE}/device"): "../../../platform/rnic.0"}).devices
    assert card.pci is None


@each_row(
    ("refusal", "opens"),
    [
        (Denied("device cgroup"), False),
        (Missing("no node"), False),
        (Failed("No such device"), False),
        (TimedOut("no answer"), Absent("no answer", "TimedOut")),
    ],
)
def test_a_node_that_does_not_open_is_told_from_one_nobody_could_try(refusal: HostError, opens: object) -> None:
    (card,) = read(CARD | {("open", "/dev/infiniband/uverbs3"): refusal}).devices
    assert card.opens == opens


def test_without_the_verbs_module_nothing_opens() -> None:
    (card,) = read(CARD | {("list", VERBS): Missing("not there")}).devices
    assert (card.verbs, card.opens) == ("", False)


def test_verbs_that_cannot_be_listed_are_unknown() -> None:
    (card,) = read(CARD | {("read", f"{VERBS}/uverbs3/ibdev"): Denied("no")}).devices
    assert card.verbs == card.opens == Absent("no", "Denied")


def test_a_refused_file_is_absent_in_its_field_alone() -> None:
    (port,) = read(CARD | {("read", f"{PORT}/rate"): Failed("Invalid argument")}).ports
    assert port.rate == Absent("Invalid argument", "Failed")
    assert port.state == "ACTIVE"


def test_a_table_of_which_no_entry_is_readable_is_unknown_not_empty() -> None:
    (port,) = read(CARD | {("files", f"{PORT}/gids", NO_GID): {"0": None, "1": None}}).ports
    assert port.gids == Absent("none of 2 entries could be read", "Failed")


def test_a_table_without_any_entry_is_empty() -> None:
    (port,) = read(CARD | {("files", f"{PORT}/gids", NO_GID): {}, ("files", f"{PORT}/pkeys", NO_PKEY): {}}).ports
    assert (port.gids, port.pkeys) == ((), ())


@each_row(
    ("text", "rate"),
    [
        ("800 Gb/sec (4X XDR)\n", Rate(800.0, 4, "XDR")),
        ("100 Gb/sec (2X HDR)", Rate(100.0, 2, "HDR")),
        ("2.5 Gb/sec (1X)", Rate(2.5, 1)),
        ("10 Gb/sec (4X)", Rate(10.0, 4)),
        ("2.5 Gb/sec (1X SDR)", Rate(2.5, 1, "SDR")),
        ("40 Gb/sec (4X FDR10)", Rate(40.0, 4, "FDR10")),
    ],
)
def test_a_rate_has_lanes_and_maybe_a_generation(text: str, rate: Rate) -> None:
    assert infiniband.rate(text) == rate


@each_row("text", ["", "400", "400 Gb/s (4X NDR)", "-1 Gb/sec (4X)", "400 Gb/sec (4X NDR) x"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        infiniband.rate(text)


@each_row("text", ["nonsense", "[]", '{"symbol_error": 7}', '{"symbol_error": "7", "link_downed": [1]}'])
def test_what_is_no_folder_of_files_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="folder of files"):
        infiniband.counters(text)


@each_row(("text", "word"), [("1: DOWN\n", "DOWN"), ("7: Phy Test", "Phy Test"), ("9: <unknown>", "<unknown>")])
def test_a_state_is_the_word_after_its_number(text: str, word: str) -> None:
    assert infiniband.state(text) == word


@pytest.mark.slow
@given(st.dictionaries(st.integers(0, 255), st.ip_addresses(v=6)))
def test_a_gid_table_survives_the_hosts_answer(table: dict[int, IPv6Address]) -> None:
    assert infiniband.gids(json.dumps({str(index): gid.exploded for index, gid in table.items()})) == table
