"""The GID index that NCCL finds."""

from ipaddress import IPv6Address

from ncclprobe.facts.infiniband import Gid, Port, Rate
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.hcas import Wish, address_range, advised, family, pick, valid, wish
from tests.each_row import each_row

V1, V2 = "IB/RoCE v1", "RoCE v2"
LOCAL, FOUR, GLOBAL = "fe80::1", "::ffff:10.0.0.1", "2001:db8::1"
USUAL = ((LOCAL, V1), (LOCAL, V2), (FOUR, V1), (FOUR, V2))
Row = tuple[str, str | None]


def roce(*rows: Row, layer: str = "Ethernet") -> Port:
    table = tuple(Gid(n, IPv6Address(address), kind) for n, (address, kind) in enumerate(rows) if address != "::")
    return Port("mlx5_3", 1, "ACTIVE", "LinkUp", Rate(400, 4), layer, gids=table)


def settings(**values: str) -> Settings:
    return Settings({name: Setting(name, text, "environment") for name, text in values.items()})


@each_row(
    ("rows", "asked", "index"),
    [
        (USUAL, {}, 3),
        (((LOCAL, V1), (LOCAL, V2)), {}, 0),
        (((LOCAL, V2), (FOUR, V2)), {}, 1),
        (((FOUR, V1), (FOUR, V2)), {}, 1),
        (((FOUR, V2), (FOUR, V1)), {}, 0),
        (((LOCAL, V1), (LOCAL, V2), (FOUR, None), (FOUR, None)), {}, 2),
        (((LOCAL, V1), ("::", None), ("::", None), (FOUR, V2)), {}, 3),
        ((*USUAL, (GLOBAL, V1), (GLOBAL, V2)), {}, 3),
        ((*USUAL, (GLOBAL, V1), (GLOBAL, V2)), {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 5),
        ((*USUAL, (GLOBAL, V2)), {"NCCL_IB_ADDR_FAMILY": "ipv6"}, 3),
        (USUAL, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, 2),
        ((*USUAL, ("::ffff:10.9.0.1", V1), ("::ffff:10.9.0.1", V2)), {"NCCL_IB_ADDR_RANGE": "10.9.0.0/16"}, 5),
        (USUAL, {"NCCL_IB_ADDR_RANGE": "192.168.0.0/16"}, 0),
        (USUAL, {"NCCL_IB_ADDR_RANGE": "nonsense"}, 3),
        (USUAL, {"NCCL_IB_GID_INDEX": "-1"}, 3),
        (USUAL, {"NCCL_IB_GID_INDEX": "1"}, 1),
        (USUAL, {"NCCL_IB_GID_INDEX": "word"}, 0),
    ],
)
def test_the_search_ends_where_nccls_does(rows: tuple[Row, ...], asked: dict[str, str], index: int) -> None:
    found = pick(roce(*rows), wish(settings(**asked)))
    assert found is not None
    assert found.index == index


@each_row(
    ("version", "asked", "index", "by"),
    [
        ((2, 20, 5), {}, 0, "version"),
        ((2, 20, 5), {"NCCL_IB_GID_INDEX": "3"}, 3, "setting"),
        ((2, 20, 5), {"NCCL_IB_ROCE_VERSION_NUM": "1"}, 0, "version"),
        ((2, 21, 5), {}, 3, "search"),
    ],
)
def test_before_2_21_there_is_no_search(
    version: tuple[int, int, int], asked: dict[str, str], index: int, by: str
) -> None:
    found = pick(roce(*USUAL), wish(settings(**asked), version), version)
    assert found is not None
    assert (found.index, found.by) == (index, by)


def test_an_index_that_is_asked_for_is_not_checked() -> None:
    found = pick(roce(*USUAL), Wish(index=9))
    assert found is not None
    assert (found.index, found.gid) == (9, None)


def test_infiniband_uses_index_0_whatever_is_asked_for() -> None:
    found = pick(roce((LOCAL, None), layer="InfiniBand"), Wish(index=3))
    assert found is not None
    assert (found.index, found.by) == (0, "infiniband")


@each_row(("version", "index"), [((2, 22, 3), 1), ((2, 21, 5), 0)])
def test_infiniband_uses_a_routable_lid_where_there_is_one(version: tuple[int, int, int], index: int) -> None:
    port = roce((LOCAL, None), ("fe80:0:12:34::1", None), layer="InfiniBand")
    found = pick(port, wish(settings(), version), version)
    assert found is not None
    assert found.index == index


def test_a_table_that_was_not_read_gives_no_answer() -> None:
    port = Port("mlx5_3", 1, "ACTIVE", "LinkUp", Rate(400, 4), "Ethernet", gids=Absent("permission denied"))
    assert pick(port, Wish()) is None


@each_row(
    ("address", "kind", "good"),
    [
        ("fe80::", "inet6", False),
        (LOCAL, "inet6", False),
        ("::", "inet6", False),
        (FOUR, "inet", True),
        ("ff0e::ffff:10.0.0.1", "inet", True),
        ("fe80:0:12:34::1", "inet6", True),
        (GLOBAL, "inet6", True),
    ],
)
def test_addresses_are_told_apart(address: str, kind: str, good: bool) -> None:
    assert (family(IPv6Address(address)), valid(IPv6Address(address))) == (kind, good)


def test_a_range_of_the_other_family_or_without_a_length_restricts_nothing() -> None:
    assert address_range("10.0.0.0/8", "inet6") is None
    assert address_range("10.0.0.1", "inet") is None
    assert str(address_range("10.0.0.1/8", "inet")) == "10.0.0.0/8"


def test_the_advice_is_version_2_over_ipv4() -> None:
    table = roce(*USUAL).gids
    assert isinstance(table, tuple)
    assert advised(table) == 3
    assert advised(table[:3]) is None
