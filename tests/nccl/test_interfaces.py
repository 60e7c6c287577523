"""Which interfaces NCCL takes, step by step; more is in tests/data/command_values/interfaces.txt."""

from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl.interfaces import Family, find_interfaces, forced_family


class Face(Struct, frozen=True):
    name: str
    address: str
    netmask: str = "255.255.255.0"
    running: bool = True

    @property
    def family(self) -> str:
        return "inet6" if ":" in self.address else "inet"


HALF = "ffff:ffff:ffff:ffff::"
LO, LO6 = Face("lo", "127.0.0.1", "255.0.0.0"), Face("lo", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
ETH0, ETH1, IB0 = Face("eth0", "10.0.0.5"), Face("eth1", "10.0.1.5"), Face("ib0", "192.168.0.5")
ETH0_LINK, ETH1_LINK = Face("eth0", "fe80::1%eth0", HALF), Face("eth1", "fe80::2%eth1", HALF)
DOCKER, VIRBR = Face("docker0", "172.17.0.1", "255.255.0.0"), Face("virbr0", "192.168.122.1")
CNI, DOWN = Face("cni0", "10.244.0.1"), replace(ETH0, running=False)


def test_a_family_is_forced_by_its_exact_name_and_leaves_the_other_out() -> None:
    taken: dict[Family | None, tuple[Face, ...]] = {None: (ETH0,), "inet": (ETH0,), "inet6": (ETH0_LINK,)}
    for family, faces in taken.items():
        assert find_interfaces((LO, ETH0, LO6, ETH0_LINK), family=family).interfaces == faces
    words = {"AF_INET": "inet", "AF_INET6": "inet6", "ipv4": None, "af_inet": None, "": None}
    assert {text: forced_family(text) for text in words} == words


SUBNETS = (ETH0, replace(ETH0, netmask=""), DOWN, ETH0_LINK, Face("eth0", "fd00::1", HALF))
NEIGHBOURS = ("10.0.0.200", "10.0.2.5", "fe80::1", "10.0.0.5", "fe80::9%eth0", "fe80::9%eth1", "fe80::9", "fd00::9")
ZOO = (LO, DOCKER, CNI, ETH0, ETH1, IB0, VIRBR, LO6, ETH0_LINK, ETH1_LINK)
