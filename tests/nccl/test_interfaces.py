"""Which interfaces NCCL takes, step by step."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl.interfaces import Family, find_interfaces, forced_family, same_subnet
from tests.each_row import each_row

BEFORE_RUNNING = (2, 27, 7)  # the last release before 2.28.3


class Face(Struct, frozen=True):
    name: str
    address: str
    netmask: str = "255.255.255.0"
    running: bool = True

    @property
    def family(self) -> str:
        return "inet6" if ":" in self.address else "inet"


LO = Face("lo", "127.0.0.1", "255.0.0.0")
LO6 = Face("lo", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
ETH0 = Face("eth0", "10.0.0.5")
ETH1 = Face("eth1", "10.0.1.5")
ETH0_LINK = Face("eth0", "fe80::1%eth0", "ffff:ffff:ffff:ffff::")
ETH1_LINK = Face("eth1", "fe80::2%eth1", "ffff:ffff:ffff:ffff::")
IB0 = Face("ib0", "192.168.0.5")
DOCKER = Face("docker0", "172.17.0.1", "255.255.0.0")
VIRBR = Face("virbr0", "192.168.122.1")
CNI = Face("cni0", "10.244.0.1")


def names(*faces: Face, **settings: object) -> tuple[str, ...]:
    return tuple(each.name for each in find_interfaces(faces, **settings).interfaces)  # type: ignore[arg-type]


@each_row(
    ("faces", "step", "taken"),
    [
        ((LO, ETH0, IB0), "ib", ("ib0",)),
        ((LO, DOCKER, ETH0, ETH1), "^docker,lo,virbr", ("eth0", "eth1")),
        ((LO, CNI, ETH0), "^docker,lo,virbr", ("cni0", "eth0")),
        ((LO, DOCKER, VIRBR), "docker", ("docker0",)),
        ((LO, VIRBR), "lo", ("lo",)),
        ((VIRBR,), "virbr", ("virbr0",)),
        ((), "none", ()),
        ((LO6,), "none", ()),
    ],
)
def test_the_attempts_follow_one_another(faces: tuple[Face, ...], step: str, taken: tuple[str, ...]) -> None:
    choice = find_interfaces(faces)
    assert (choice.step, tuple(each.name for each in choice.interfaces)) == (step, taken)


@each_row(
    ("faces", "step", "taken"),
    [
        ((LO, VIRBR), "^docker,lo", ("virbr0",)),
        ((LO, DOCKER), "docker", ("docker0",)),
        ((LO,), "lo", ("lo",)),
    ],
)
def test_virbr_was_an_interface_like_any_other_before_2_28_3(
    faces: tuple[Face, ...], step: str, taken: tuple[str, ...]
) -> None:
    choice = find_interfaces(faces, version=BEFORE_RUNNING)
    assert (choice.step, tuple(each.name for each in choice.interfaces)) == (step, taken)


@each_row(
    ("ifname", "taken"),
    [
        ("eth", ("eth0", "eth1")),
        ("eth1,eth0", ("eth0", "eth1")),
        ("=eth0", ("eth0",)),
        ("^docker,lo", ("eth0", "eth1", "ib0")),
        ("=eth0, eth1", ("eth0",)),
        ("lo", ("lo",)),
        ("eth0:1", ("eth0",)),
    ],
)
def test_what_the_user_names_is_taken_in_the_kernels_order(ifname: str, taken: tuple[str, ...]) -> None:
    assert names(LO, ETH0, ETH1, IB0, DOCKER, LO6, ifname=ifname) == taken


@each_row("ifname", ["enp", "eno1", "^e,l,d,i", "=eth"])
def test_what_the_user_names_is_found_or_nothing_is(ifname: str) -> None:
    choice = find_interfaces((LO, ETH0, IB0), ifname=ifname)
    assert (choice.step, choice.interfaces) == ("env", ())


@each_row("ifname", ["", "l", "^"])
def test_a_single_character_counts_as_not_set(ifname: str) -> None:
    assert find_interfaces((LO, ETH0), ifname=ifname).step == "^docker,lo,virbr"


@each_row(("limit", "taken"), [(1, ("eth0",)), (2, ("eth0", "eth1")), (16, ("eth0", "eth1", "cni0"))])
def test_no_more_than_the_limit_are_taken(limit: int, taken: tuple[str, ...]) -> None:
    assert names(ETH0, ETH1, CNI, limit=limit) == taken


def test_the_first_address_of_a_name_is_used() -> None:
    assert find_interfaces((ETH0, ETH1, ETH0_LINK)).interfaces == (ETH0, ETH1)


@each_row(
    ("family", "taken"),
    [(None, (ETH0,)), ("inet", (ETH0,)), ("inet6", (ETH0_LINK,))],
    ids=["any", "v4", "v6"],
)
def test_a_forced_family_leaves_the_other_out(family: Family | None, taken: tuple[Face, ...]) -> None:
    assert find_interfaces((LO, ETH0, LO6, ETH0_LINK), family=family).interfaces == taken


def test_a_family_that_is_neither_is_never_taken() -> None:
    class Packet(Face, frozen=True):
        @property
        def family(self) -> str:
            return "packet"

    assert names(Packet("eth0", "02:00:00:00:00:01")) == ()


@each_row(("version", "taken"), [(None, ()), ((2, 28, 3), ()), (BEFORE_RUNNING, ("eth0",))])
def test_an_interface_without_carrier_is_left_out_since_2_28_3(
    version: tuple[int, int, int] | None, taken: tuple[str, ...]
) -> None:
    assert names(replace(ETH0, running=False), version=version) == taken


@each_row(
    ("address", "step", "taken"),
    [
        ("10.0.1.77", "subnet", ("eth1",)),
        ("10.9.9.9", "^docker,lo,virbr", ("eth0", "eth1")),
        ("127.0.0.1", "subnet", ("lo",)),
        (None, "^docker,lo,virbr", ("eth0", "eth1")),
    ],
)
def test_the_subnet_of_the_comm_id_is_preferred_to_the_rest(
    address: str | None, step: str, taken: tuple[str, ...]
) -> None:
    choice = find_interfaces((LO, ETH0, ETH1, LO6), comm_id_address=address)
    assert (choice.step, tuple(each.name for each in choice.interfaces)) == (step, taken)


def test_infiniband_is_preferred_to_the_subnet_of_the_comm_id() -> None:
    assert find_interfaces((ETH0, IB0), comm_id_address="10.0.0.9").step == "ib"


@each_row(
    ("face", "address", "same"),
    [
        (ETH0, "10.0.0.200", True),
        (ETH0, "10.0.2.5", False),
        (ETH0, "fe80::1", False),
        (replace(ETH0, netmask=""), "10.0.0.5", False),
        (replace(ETH0, running=False), "10.0.0.200", True),
        (ETH0_LINK, "fe80::9%eth0", True),
        (ETH0_LINK, "fe80::9%eth1", False),
        (ETH0_LINK, "fe80::9", False),
        (Face("eth0", "fd00::1", "ffff:ffff:ffff:ffff::"), "fd00::9", True),
    ],
)
def test_a_subnet_is_family_masked_bits_and_scope(face: Face, address: str, same: bool) -> None:
    assert same_subnet(face, address) is same


@each_row(
    ("version", "same"),
    [(None, True), ((2, 28, 9), True), ((2, 29, 2), False), ((2, 29, 7), False), ((2, 30, 3), True)],
)
def test_the_2_29_releases_take_the_interface_of_another_ipv4_subnet(
    version: tuple[int, int, int] | None, same: bool
) -> None:
    assert same_subnet(ETH0, "10.0.0.200", version) is same
    assert same_subnet(ETH0, "10.0.2.5", version) is not same
    assert same_subnet(ETH0_LINK, "fe80::9%eth0", version)
    assert not same_subnet(ETH0, "fe80::1", version)


@each_row(
    ("text", "family"),
    [("AF_INET", "inet"), ("AF_INET6", "inet6"), ("ipv4", None), ("af_inet", None), ("", None)],
)
def test_a_family_is_forced_by_its_exact_name(text: str, family: Family | None) -> None:
    assert forced_family(text) == family


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
    faces: list[Face],
    ifname: str,
    family: Family | None,
    address: str | None,
    limit: int,
    version: tuple[int, int, int] | None,
) -> None:
    choice = find_interfaces(faces, ifname=ifname, family=family, comm_id_address=address, limit=limit, version=version)
    rest: Iterator[object] = iter(faces)
    assert all(each in rest for each in choice.interfaces)
    assert len({each.name for each in choice.interfaces}) == len(choice.interfaces) <= limit
    assert (choice.step in ("none", "env")) or choice.interfaces
