"""Which ports NCCL takes, by NCCL_IB_HCA and by their state."""

from ncclprobe.facts.infiniband import Fabric, Port, Rate, RdmaDevice
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.hcas import MAX_HCAS, caught_besides, parse_selector, select
from tests.each_row import each_row

NDR = Rate(400, 4, "NDR")


def port(device: str, number: int = 1, state: str | Absent = "ACTIVE", layer: str = "InfiniBand") -> Port:
    return Port(device, number, state, "LinkUp", NDR, layer)


def fabric(*ports: Port) -> Fabric:
    names = dict.fromkeys(p.device for p in ports)
    return Fabric(tuple(RdmaDevice(name, tuple(p for p in ports if p.device == name)) for name in names))


ELEVEN = fabric(*(port(f"mlx5_{n}") for n in range(12)))


@each_row(
    ("text", "names"),
    [
        ("mlx5_1", ["mlx5_1:1", "mlx5_10:1", "mlx5_11:1"]),
        ("=mlx5_1", ["mlx5_1:1"]),
        ("=mlx5_1,mlx5_2:1", ["mlx5_1:1", "mlx5_2:1"]),
        ("mlx5_1:2", []),
        ("^mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8", ["mlx5_0:1", "mlx5_9:1"]),
        ("=mlx5_1, mlx5_2", ["mlx5_1:1"]),
        ("=mlx5", []),
    ],
)
def test_the_list_selects_as_in_nccl(text: str, names: list[str]) -> None:
    assert [p.name for p in select(ELEVEN, text).taken] == names


def test_no_list_takes_every_port_that_is_active_and_of_a_known_layer() -> None:
    mixed = fabric(
        port("a"),
        port("b", state="DOWN"),
        port("c", layer="Unspecified"),
        port("d", layer="Ethernet"),
        port("e", state="INIT"),
    )
    picked = select(mixed)
    assert [p.name for p in picked.taken] == ["a:1", "d:1"]
    assert [p.name for p in picked.down] == ["b:1", "e:1"]


def test_a_state_that_was_not_read_is_neither_up_nor_down() -> None:
    picked = select(fabric(port("a", state=Absent("permission denied", "Denied"))))
    assert (picked.taken, picked.down) == ((), ())
    assert [p.name for p in picked.unknown] == ["a:1"]


def test_a_device_that_may_not_be_opened_is_not_taken() -> None:
    shut = Fabric((replace(fabric(port("a")).devices[0], opens=False),))
    assert select(shut).taken == ()
    assert [p.name for p in select(shut).closed] == ["a:1"]


@each_row(("version", "limit"), [(None, MAX_HCAS), ((2, 19, 3), 32), ((2, 18, 3), 16)])
def test_there_is_a_limit(version: tuple[int, int, int] | None, limit: int) -> None:
    many = fabric(*(port(f"n{i:02}") for i in range(40)))
    picked = select(many, version=version)
    assert (len(picked.taken), len(picked.beyond)) == (limit, 40 - limit)


@each_row(
    ("version", "ordered", "names"),
    [((2, 29, 7), True, ["b:1", "a:1"]), ((2, 29, 7), False, ["a:1", "b:1"]), ((2, 28, 9), True, ["a:1", "b:1"])],
)
def test_newer_versions_sort_by_pci_address(version: tuple[int, int, int], ordered: bool, names: list[str]) -> None:
    one, other = fabric(port("a")).devices[0], fabric(port("b")).devices[0]
    both = Fabric((replace(one, pci="0000:90:00.0"), replace(other, pci="0000:10:00.0")))
    assert [p.name for p in select(both, "", version, ordered).taken] == names


def test_entries_that_fit_nothing_are_told() -> None:
    assert [entry.prefix for entry in select(ELEVEN, "mlx5_3,mlx4_0,mlx5_4:7").unmatched] == ["mlx4_0", "mlx5_4"]


@each_row(
    ("text", "others"),
    [
        ("mlx5_1", ("mlx5_10", "mlx5_11")),
        ("=mlx5_1", ()),
        ("mlx5", ()),
        ("mlx5_1,mlx5_10", ("mlx5_11",)),
        ("mlx5_2", ()),
    ],
)
def test_a_name_that_begins_others_is_told(text: str, others: tuple[str, ...]) -> None:
    selector = parse_selector(text, MAX_HCAS)
    assert caught_besides(selector.entries[0], ELEVEN, selector) == others
