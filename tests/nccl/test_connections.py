"""What NCCL makes of a connection: the GID that it finds, its parameters by version, and the rails that it takes.

More settings and releases are in tests/data/command_values/ports.txt.
"""

from ipaddress import IPv6Address

from ncclprobe.checks.ib.fixtures import fabric
from ncclprobe.facts.infiniband import Gid, Port, Rate
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.hcas import Wish, address_range, advised, family, pick, valid
from tests.each_row import known

Row = tuple[str, str | None]
V1, V2 = "IB/RoCE v1", "RoCE v2"
LOCAL, FOUR, GLOBAL = "fe80::1", "::ffff:10.0.0.1", "2001:db8::1"
USUAL = ((LOCAL, V1), (LOCAL, V2), (FOUR, V1), (FOUR, V2))
WIDER = (*USUAL, (GLOBAL, V1), (GLOBAL, V2))


def roce(*rows: Row, layer: str = "Ethernet") -> Port:
    table = tuple(Gid(n, IPv6Address(address), kind) for n, (address, kind) in enumerate(rows) if address != "::")
    return Port("mlx5_0", 1, "ACTIVE", "LinkUp", Rate(400, 4), layer, gids=table)


def settings(**values: str) -> Settings:
    return Settings({name: Setting(name, text, "environment") for name, text in values.items()})


ROCE, IB = roce(*USUAL), Port("mlx5_1", 1, "ACTIVE", "LinkUp", fabric().ports[0].rate)


def test_an_index_that_is_asked_for_is_not_checked_and_a_table_that_was_not_read_gives_no_answer() -> None:
    found = known(pick(ROCE, Wish(index=9)))
    assert (found.index, found.gid) == (9, None)
    for unread in ({"gids": Absent("permission denied")}, {"link_layer": Absent("permission denied")}):
        assert pick(replace(ROCE, **unread), Wish()) is None  # type: ignore[arg-type]
    assert isinstance(ROCE.gids, tuple)
    assert (advised(ROCE.gids), advised(ROCE.gids[:3])) == (3, None)  # version 2 over IPv4


def test_addresses_are_told_apart_and_a_range_of_the_other_family_or_without_a_length_restricts_nothing() -> None:
    kinds = {
        **dict.fromkeys(("fe80::", LOCAL, "::"), ("inet6", False)),
        **dict.fromkeys((FOUR, "ff0e::ffff:10.0.0.1"), ("inet", True)),
        **dict.fromkeys(("fe80:0:12:34::1", GLOBAL), ("inet6", True)),
    }
    assert {text: (family(IPv6Address(text)), valid(IPv6Address(text))) for text in kinds} == kinds
    assert address_range("10.0.0.0/8", "inet6") is address_range("10.0.0.1", "inet") is None
    assert str(address_range("10.0.0.1/8", "inet")) == "10.0.0.0/8"
