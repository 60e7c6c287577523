"""What NCCL's parameters make of a connection, by version (src/transport/net_ib/connect.cc)."""

from ipaddress import IPv6Address

import pytest

from ncclprobe.checks.ib.fixtures import fabric, gpus, having, pci
from ncclprobe.facts.infiniband import Fabric, Gid, Port, RdmaDevice
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.software import Software
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.nccl.selection import choose_rails, crossing, default_timeout, rail_ports
from tests.checks.cases.ib import nccl
from tests.each_row import each_row

GIDS = (
    Gid(0, IPv6Address("fe80::1"), "IB/RoCE v1"),
    Gid(1, IPv6Address("fe80::1"), "RoCE v2"),
    Gid(2, IPv6Address("::ffff:10.0.0.1"), "IB/RoCE v1"),
    Gid(3, IPv6Address("::ffff:10.0.0.1"), "RoCE v2"),
)
ROCE = Port("mlx5_0", 1, "ACTIVE", "LinkUp", fabric().ports[0].rate, link_layer="Ethernet", gids=GIDS)
IB = Port("mlx5_1", 1, "ACTIVE", "LinkUp", fabric().ports[0].rate)
NEW = (2, 30, 7)


def settings(**values: str) -> Settings:
    return Settings({name: Setting(name, value, "environment") for name, value in values.items()})


def test_without_settings_nccl_takes_its_defaults() -> None:
    roce, infiniband = rail_ports((ROCE, IB), Settings(), NEW)
    assert (roce.gid_index, roce.pkey_index, roce.queue_pairs, roce.timeout, roce.retry_count) == (3, 0, 1, 20, 7)
    assert (roce.service_level, roce.traffic_class, roce.relaxed_ordering) == (None, None, True)
    assert not roce.adaptive_routing
    assert infiniband.adaptive_routing
    assert infiniband.gid_index == 0


def test_every_parameter_reaches_the_connection() -> None:
    given = settings(
        NCCL_IB_GID_INDEX="2", NCCL_IB_PKEY="4", NCCL_IB_SL="5", NCCL_IB_TC="106", NCCL_IB_TIMEOUT="22",
        NCCL_IB_RETRY_CNT="3", NCCL_IB_QPS_PER_CONNECTION="4", NCCL_IB_ADAPTIVE_ROUTING="1",
        NCCL_IB_PCI_RELAXED_ORDERING="0",
    )  # fmt: skip
    (port,) = rail_ports((ROCE,), given, NEW)
    assert (port.gid_index, port.pkey_index, port.service_level, port.traffic_class) == (2, 4, 5, 106)
    assert (port.timeout, port.retry_count, port.queue_pairs) == (22, 3, 4)
    assert port.adaptive_routing
    assert not port.relaxed_ordering


@each_row(("roce", "index"), [("1", 2), ("2", 3)])
def test_the_gid_is_that_of_ncclss_search(roce: str, index: int) -> None:
    (port,) = rail_ports((ROCE,), settings(NCCL_IB_ROCE_VERSION_NUM=roce), NEW)
    assert port.gid_index == index


@each_row(("version", "timeout"), [((2, 14, 1), 14), ((2, 18, 3), 18), ((2, 23, 4), 20), (None, 20)])
def test_the_timeout_is_that_of_the_version(version: tuple[int, int, int] | None, timeout: int) -> None:
    assert default_timeout(version) == timeout


@each_row(("text", "pairs"), [("0", 1), ("4000", 128), ("-3", 1), ("many", 1)])
def test_a_number_of_queue_pairs_that_is_none_is_bounded(text: str, pairs: int) -> None:
    (port,) = rail_ports((ROCE,), settings(NCCL_IB_QPS_PER_CONNECTION=text), NEW)
    assert port.queue_pairs == pairs


def node(given: Settings, *devices: RdmaDevice) -> Snapshot:
    return Snapshot("n0", {Fabric: Fabric(devices), Settings: given, Software: nccl(*NEW), Gpus: gpus(), Pci: pci()})


def test_rails_are_the_ports_that_nccl_takes_in_its_order() -> None:
    devices = (RdmaDevice("mlx5_0", (ROCE,), pci="0000:90:00.0"), RdmaDevice("mlx5_1", (IB,), pci="0000:10:00.0"))
    chosen = choose_rails(node(Settings(), *devices)).chosen
    assert [each.device for each in chosen or ()] == ["mlx5_1", "mlx5_0"]
    assert choose_rails(node(having("NCCL_IB_HCA", "^mlx5_1"), *devices)).chosen == chosen[1:]  # type: ignore[index]


EFA = RdmaDevice("rdmap0s6", (Port("rdmap0s6", 1, "ACTIVE", "LinkUp", IB.rate, link_layer="Unknown"),))


def test_an_efa_device_is_not_tried_and_the_reason_says_so() -> None:
    found = choose_rails(node(Settings(), EFA))
    assert found.chosen == ()
    assert "EFA (rdmap0s6) has no reliable connections" in found.why


def test_ports_that_nccl_takes_itself_come_before_efa() -> None:
    (port,) = choose_rails(node(Settings(), EFA, RdmaDevice("mlx5_1", (IB,), pci="0000:10:00.0"))).chosen or ()
    assert port.device == "mlx5_1"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Settings(), ""),
        (having("NCCL_CROSS_NIC", "1"), "NCCL_CROSS_NIC=1 (environment)"),
        (having("NCCL_CROSS_NIC", "0"), ""),
        (having("NCCL_PXN_DISABLE", "1"), "NCCL_PXN_DISABLE=1 (environment)"),
    ],
)
def test_rails_of_different_numbers_meet_where_settings_make_them(given: Settings, why: str) -> None:
    assert crossing(node(given)) == why
