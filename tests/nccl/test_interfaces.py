"""Which interfaces NCCL takes, step by step; more is in tests/data/command_values/interfaces.txt."""

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl.interfaces import Family, find_interfaces, forced_family, same_subnet
from tests.each_row import each_row

Release = tuple[int, int, int]
BEFORE_RUNNING = (2, 27, 7)  # the last release before 2.28.3


class Face(Struct, frozen=True):
    name: str
    address: str
    netmask: str = "255.255.255.0"
    running: bool = True

    @property
    def family(self) -> str:
        return "inet6" if ":" in self.address else "inet"


class Packet(Face, frozen=True):
    @property
    def family(self) -> str:
        return "packet"


HALF = "ffff:ffff:ffff:ffff::"
LO, LO6 = Face("lo", "127.0.0.1", "255.0.0.0"), Face("lo", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
ETH0, ETH1, IB0 = Face("eth0", "10.0.0.5"), Face("eth1", "10.0.1.5"), Face("ib0", "192.168.0.5")
ETH0_LINK, ETH1_LINK = Face("eth0", "fe80::1%eth0", HALF), Face("eth1", "fe80::2%eth1", HALF)
DOCKER, VIRBR = Face("docker0", "172.17.0.1", "255.255.0.0"), Face("virbr0", "192.168.122.1")
CNI, DOWN = Face("cni0", "10.244.0.1"), replace(ETH0, running=False)
ALL, REST = (LO, ETH0, ETH1, IB0, DOCKER, LO6), "^docker,lo,virbr"
OLD = {"version": BEFORE_RUNNING}


@each_row(
    ("faces", "settings", "step", "taken"),
    [
        ((LO, ETH0, IB0), {}, "ib", ("ib0",)),
        ((LO, DOCKER, ETH0, ETH1), {}, REST, ("eth0", "eth1")),
        ((VIRBR,), {}, "virbr", ("virbr0",)),
        ((LO6,), {}, "none", ()),
        ((Packet("eth0", "02:00:00:00:00:01"),), {}, "none", ()),  # neither family
        # virbr was an interface like any other before 2.28.3, and one without carrier counted.
        ((LO, VIRBR), OLD, "^docker,lo", ("virbr0",)),
        ((DOWN,), OLD, "^docker,lo", ("eth0",)),
        ((DOWN,), {}, "none", ()),
        # What the user names is taken in the kernel's order, or nothing is; one letter is no name.
        (ALL, {"ifname": "^docker,lo"}, "env", ("eth0", "eth1", "ib0")),
        (ALL, {"ifname": "=eth0, eth1"}, "env", ("eth0",)),
        (ALL, {"ifname": "eth0:1"}, "env", ("eth0",)),
        ((LO, ETH0, IB0), {"ifname": "^e,l,d,i"}, "env", ()),
        ((LO, ETH0), {"ifname": "l"}, REST, ("eth0",)),
        # The subnet of the comm id is preferred to the rest, and InfiniBand to it.
        ((LO, ETH0, ETH1, LO6), {"comm_id_address": "10.0.1.77"}, "subnet", ("eth1",)),
        ((ETH0, IB0), {"comm_id_address": "10.0.0.9"}, "ib", ("ib0",)),
    ],
)
def test_interfaces_are_taken_as_nccl_takes_them(
    faces: tuple[Face, ...], settings: dict[str, Any], step: str, taken: tuple[str, ...]
) -> None:
    choice = find_interfaces(faces, **settings)
    assert (choice.step, tuple(each.name for each in choice.interfaces)) == (step, taken)


def test_a_family_is_forced_by_its_exact_name_and_leaves_the_other_out() -> None:
    taken: dict[Family | None, tuple[Face, ...]] = {None: (ETH0,), "inet": (ETH0,), "inet6": (ETH0_LINK,)}
    for family, faces in taken.items():
        assert find_interfaces((LO, ETH0, LO6, ETH0_LINK), family=family).interfaces == faces
    words = {"AF_INET": "inet", "AF_INET6": "inet6", "ipv4": None, "af_inet": None, "": None}
    assert {text: forced_family(text) for text in words} == words


@each_row(
    ("face", "address", "same"),
    [
        (ETH0, "10.0.0.200", True),
        (ETH0, "10.0.2.5", False),
        (ETH0, "fe80::1", False),
        (replace(ETH0, netmask=""), "10.0.0.5", False),
        (DOWN, "10.0.0.200", True),
        (ETH0_LINK, "fe80::9%eth0", True),
        (ETH0_LINK, "fe80::9%eth1", False),
        (ETH0_LINK, "fe80::9", False),
        (Face("eth0", "fd00::1", HALF), "fd00::9", True),
    ],
)
def test_a_subnet_is_family_masked_bits_and_scope(face: Face, address: str, same: bool) -> None:
    assert same_subnet(face, address) is same


@each_row(
    ("version", "same"),
    [(None, True), ((2, 28, 9), True), ((2, 29, 2), False), ((2, 29, 7), False), ((2, 30, 3), True)],
)
def test_the_2_29_releases_take_the_interface_of_another_ipv4_subnet(version: Release | None, same: bool) -> None:
    assert same_subnet(ETH0, "10.0.0.200", version) is same
    assert same_subnet(ETH0, "10.0.2.5", version) is not same
    assert same_subnet(ETH0_LINK, "fe80::9%eth0", version)
    assert not same_subnet(ETH0, "fe80::1", version)


ZOO = (LO, DOCKER, CNI, ETH0, ETH1, IB0, VIRBR, LO6, ETH0_LINK, ETH1_LINK)


@given(
    faces=st.lists(st.sampled_from(ZOO)),
    ifname=st.one_of(st.just(""), st.text(alphabet="^=,:ehtib01lo ", max_size=12)),
    family=st.sampled_from([None, "inet", "inet6"]),
    address=st.sampled_from([None, "10.0.0.1", "fe80::1%eth0"]),
    limit=st.integers(1, 16),
    version=st.sampled_from([None, BEFORE_RUNNING]),
)
def test_the_choice_is_a_part_of_what_there_is_in_the_same_order(
    faces: list[Face], ifname: str, family: Any, address: str | None, limit: int, version: Release | None
) -> None:
    choice = find_interfaces(faces, ifname=ifname, family=family, comm_id_address=address, limit=limit, version=version)
    rest: Iterator[object] = iter(faces)
    assert all(each in rest for each in choice.interfaces)
    assert len({each.name for each in choice.interfaces}) == len(choice.interfaces) <= limit
    assert (choice.step in ("none", "env")) or choice.interfaces
