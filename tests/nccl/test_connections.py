"""What NCCL makes of a connection: the GID that it finds, its parameters by version, and the rails that it takes.

More settings and releases are in tests/data/command_values/ports.txt.
"""

from ipaddress import IPv6Address

from ncclprobe.checks.ib.fixtures import fabric, gpus, having, pci
from ncclprobe.facts.infiniband import Fabric, Gid, Port, Rate, RdmaDevice
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.software import Software
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.nccl.hcas import Wish, address_range, advised, family, pick, valid, wish
from ncclprobe.nccl.selection import choose_rails, crossing, default_timeout, rail_ports
from tests.checks.cases.ib import nccl
from tests.each_row import each_row, known

Release = tuple[int, int, int]
Row = tuple[str, str | None]
V1, V2, NEW = "IB/RoCE v1", "RoCE v2", (2, 30, 7)
LOCAL, FOUR, GLOBAL = "fe80::1", "::ffff:10.0.0.1", "2001:db8::1"
USUAL = ((LOCAL, V1), (LOCAL, V2), (FOUR, V1), (FOUR, V2))
WIDER = (*USUAL, (GLOBAL, V1), (GLOBAL, V2))


def roce(*rows: Row, layer: str = "Ethernet") -> Port:
    table = tuple(Gid(n, IPv6Address(address), kind) for n, (address, kind) in enumerate(rows) if address != "::")
    return Port("mlx5_0", 1, "ACTIVE", "LinkUp", Rate(400, 4), layer, gids=table)


def settings(**values: str) -> Settings:
    return Settings({name: Setting(name, text, "environment") for name, text in values.items()})


ROCE, IB = roce(*USUAL), Port("mlx5_1", 1, "ACTIVE", "LinkUp", fabric().ports[0].rate)


@each_row(
    ("rows", "asked", "index"),
    [
        (USUAL, {}, 3),
        (((LOCAL, V2), (FOUR, V2)), {}, 1),
        (((FOUR, V2), (FOUR, V1)), {}, 0),
        (((LOCAL, V1), (LOCAL, V2), (FOUR, None), (FOUR, None)), {}, 2),
        (((LOCAL, V1), ("::", None), ("::", None), (FOUR, V2)), {}, 3),
        ((*USUAL, ("::ffff:10.9.0.1", V1), ("::ffff:10.9.0.1", V2)), {"NCCL_IB_ADDR_RANGE": "10.9.0.0/16"}, 5),
        ((*USUAL, (GLOBAL, V2)), {"NCCL_IB_ADDR_FAMILY": "ipv6"}, 3),
        (USUAL, {"NCCL_IB_ADDR_RANGE": "nonsense"}, 3),
        (USUAL, {"NCCL_IB_GID_INDEX": "word"}, 0),
    ],
)
def test_the_search_ends_where_nccls_does(rows: tuple[Row, ...], asked: dict[str, str], index: int) -> None:
    assert known(pick(roce(*rows), wish(settings(**asked)))).index == index


def test_an_index_that_is_asked_for_is_not_checked_and_a_table_that_was_not_read_gives_no_answer() -> None:
    found = known(pick(ROCE, Wish(index=9)))
    assert (found.index, found.gid) == (9, None)
    assert pick(replace(ROCE, gids=Absent("permission denied")), Wish()) is None
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


def test_every_parameter_reaches_the_connection() -> None:
    given = settings(
        NCCL_IB_GID_INDEX="2", NCCL_IB_PKEY="4", NCCL_IB_SL="5", NCCL_IB_TC="106", NCCL_IB_TIMEOUT="22",
        NCCL_IB_RETRY_CNT="3", NCCL_IB_QPS_PER_CONNECTION="4", NCCL_IB_ADAPTIVE_ROUTING="1",
        NCCL_IB_PCI_RELAXED_ORDERING="0",
    )  # fmt: skip
    (port,) = rail_ports((ROCE,), given, NEW)
    assert (port.gid_index, port.pkey_index, port.service_level, port.traffic_class) == (2, 4, 5, 106)
    assert (port.timeout, port.retry_count, port.queue_pairs) == (22, 3, 4)
    assert (port.adaptive_routing, port.relaxed_ordering) == (True, False)
    timeouts: dict[Release | None, int] = {(2, 14, 1): 14, (2, 18, 3): 18, (2, 23, 4): 20, None: 20}
    assert {version: default_timeout(version) for version in timeouts} == timeouts


def node(given: Settings, *devices: RdmaDevice) -> Snapshot:
    return Snapshot("n0", {Fabric: Fabric(devices), Settings: given, Software: nccl(*NEW), Gpus: gpus(), Pci: pci()})


FAR, NEAR = RdmaDevice("mlx5_0", (ROCE,), pci="0000:90:00.0"), RdmaDevice("mlx5_1", (IB,), pci="0000:10:00.0")
EFA = RdmaDevice("rdmap0s6", (Port("rdmap0s6", 1, "ACTIVE", "LinkUp", IB.rate, link_layer="Unknown"),))


@each_row(
    ("given", "devices", "chosen", "why"),
    [
        (Settings(), (FAR, NEAR), ["mlx5_1", "mlx5_0"], ""),  # in its order
        (having("NCCL_IB_HCA", "^mlx5_1"), (FAR, NEAR), ["mlx5_0"], ""),
        (Settings(), (EFA,), [], "EFA (rdmap0s6) has no reliable connections"),
        (Settings(), (EFA, NEAR), ["mlx5_1"], ""),
    ],
)
def test_rails_are_the_ports_that_nccl_takes_and_efa_is_not_tried(
    given: Settings, devices: tuple[RdmaDevice, ...], chosen: list[str], why: str
) -> None:
    found = choose_rails(node(given, *devices))
    assert [each.device for each in known(found.chosen)] == chosen
    assert why in found.why


@each_row(
    ("given", "links", "why"),
    [
        (Settings(), None, ""),
        (having("NCCL_CROSS_NIC", "1"), None, "NCCL_CROSS_NIC=1 (environment)"),
        (having("NCCL_CROSS_NIC", "0"), None, ""),
        (having("NCCL_PXN_DISABLE", "1"), None, "NCCL_PXN_DISABLE=1 (environment)"),
        (Settings(), NvLinks(((),) * 4), "its GPUs have no NVLink, which PXN needs"),
        (Settings(), NvLinks(((NvLink(0, "active"),), *((),) * 3)), ""),
        (Settings(), NvLinks((Absent("denied"),) * 4), ""),
    ],
)
def test_rails_of_different_numbers_meet_where_settings_make_them(
    given: Settings, links: NvLinks | None, why: str
) -> None:
    found = node(given)
    assert crossing(replace(found, facts={**found.facts, **({NvLinks: links} if links else {})})) == why
