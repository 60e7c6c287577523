"""Which ports NCCL takes: the list grammar of NCCL_IB_HCA and NCCL_SOCKET_IFNAME, states, limits and order."""

import ctypes

from hypothesis import example, given
from hypothesis import strategies as st

from ncclprobe.checks.env.fixtures import having
from ncclprobe.facts.infiniband import Fabric, Port, Rate, RdmaDevice
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.hcas import MAX_HCAS, MAX_INTERFACES, Entry, parse_selector, select_by

LIBC = ctypes.CDLL(None)
LIBC.atoi.argtypes = (ctypes.c_char_p,)
LIBC.atoi.restype = ctypes.c_int


def test_entries_beyond_the_limit_are_told_and_not_used_and_those_that_vanish_do_not_use_it_up() -> None:
    assert (MAX_INTERFACES, MAX_HCAS) == (16, 32)
    for limit in (MAX_INTERFACES, MAX_HCAS):
        names = [f"nic{number}x" for number in range(limit + 2)]
        selector = parse_selector("=" + ",,".join(names), limit)
        assert [entry.prefix for entry in selector.entries] == names[:limit]
        assert selector.dropped == tuple(names[limit:])
        assert not selector.takes(names[-1])
    few = parse_selector(",:1,eth0", limit=1)
    assert (few.entries, few.dropped) == ((Entry("eth0"),), ())


@given(st.text(alphabet=" \t+-0123456789x", min_size=1, max_size=25))
@example("-99999999999999999999")
@example("99999999999999999999")
def test_a_port_is_the_number_that_libc_makes_of_it(text: str) -> None:
    (entry,) = parse_selector(f"mlx5_0:{text}", MAX_HCAS).entries
    assert entry.port == LIBC.atoi(text.encode())


def port(device: str, state: str | Absent = "ACTIVE", layer: str = "InfiniBand") -> Port:
    return Port(device, 1, state, "LinkUp", Rate(400, 4, "NDR"), layer)


def fabric(*ports: Port) -> Fabric:
    return Fabric(tuple(RdmaDevice(each.device, (each,)) for each in ports))


ELEVEN = fabric(*(port(f"mlx5_{n}") for n in range(12)))
MIXED = fabric(port("a"), port("b", "DOWN"), port("c", layer="Unspecified"), port("d", layer="Ethernet"),
               port("e", "INIT"), port("f", Absent("permission denied", "Denied")))  # fmt: skip


def test_newer_versions_sort_by_pci_address() -> None:
    """The limits of each version are in tests/data/command_values/ports.txt."""
    one, other = fabric(port("a"), port("b")).devices
    both = Fabric((replace(one, pci="0000:90:00.0"), replace(other, pci="0000:10:00.0")))
    for version, ordered, first in (((2, 29, 7), "1", "b:1"), ((2, 29, 7), "", "b:1"), ((2, 29, 7), "0", "a:1"),
                                    ((2, 28, 9), "1", "a:1"), (None, "0", "a:1"), (None, "", "b:1")):  # fmt: skip
        settings = having(**({"NCCL_IB_DEVICE_PCI_ORDER": ordered} if ordered else {}))
        assert select_by(both, settings, version).taken[0].name == first
    assert len(parse_selector("a" * 64, MAX_HCAS).entries[0].prefix) == 63
