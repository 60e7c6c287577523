"""The networks, environments and configuration files that `scripts/oracle.py` asks NCCL about."""

import random
from typing import TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from oracle_server import HOME, OTHER_HOME

from ncclprobe.model.values import Struct, field

T = TypeVar("T")

NAMED = "/etc/named.conf"
_DRAWN_FOR_EACH = 4
_LONGEST_LABELLED = 13  # a label is at most 15 characters: the name, a colon and a digit
USER = f"{HOME}/.nccl.conf"
OTHER_USER = f"{OTHER_HOME}/.nccl.conf"
SYSTEM = "/etc/nccl.conf"
FIXED = {"HOME": HOME, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,BOOTSTRAP"}

NAMES = (
    *("eth0", "eth1", "eth10", "eth0.100", "ib0", "ibp1s0", "ib", "docker0", "virbr0", "br-x", "veth1", "cni0"),
    *("enp1s0f0np0", "lowpan0", "wg0", "bond0", "exactly15chars."),
)
_LIKE_NAMES = (
    "lo",
    "eth",
    "e",
    "i",
    "docker",
    "virbr",
    "eth9",
    "ETH0",
    "exactly15chars.x",
    "lo,",
    "*",
    "eth0 ",
    " eth0",
)


class Link(Struct, frozen=True):
    """One interface. `state`: ``up`` (with a carrier), ``nocarrier`` (its peer is down) or ``down``.

    `kind` is ``veth``, ``bridge`` (with a veth as its port) or ``macvlan`` (over a veth), which are to
    getifaddrs() what bonds and VLANs are; those need modules that few kernels of virtual machines have.
    """

    name: str
    state: str
    addresses: tuple[str, ...]
    kind: str = "veth"


class World(Struct, frozen=True):
    """A network: its links in the order of their making, and whether lo is up."""

    links: tuple[Link, ...]
    lo: bool = True


class Case(Struct, frozen=True):
    """Variables beside `FIXED`, and configuration files by path."""

    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The whole environment of the process."""
        return {**FIXED, **self.variables}

    def home(self, by_variable: bool) -> str:
        """The home by $HOME, or by the password file of the server."""
        return self.env["HOME"] if by_variable else HOME


def drawn(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """`count` different examples of `strategy`, the same ones at every run; fewer where it has no more.

    hypothesis begins with small ones and repeats itself, so that more are drawn than are taken.
    """
    found: dict[str, T] = {}

    @settings(
        max_examples=_DRAWN_FOR_EACH * count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: T) -> None:
        found[repr(example)] = example

    collect()
    return random.Random(0).sample(list(found.values()), min(count, len(found)))


def links(names: st.SearchStrategy[str]) -> st.SearchStrategy[Link]:
    """Any state and mixture of addresses, some labelled; few subnets, so that several interfaces share one."""
    host, net = st.integers(1, 50), st.integers(0, 3)
    v4 = st.builds("10.{}.0.{}/{}".format, net, host, st.sampled_from([8, 16, 24, 30, 32]))
    v6 = st.builds("fd00:{}::{}/{}".format, net, host, st.sampled_from([16, 64, 128]))
    local = st.builds("fe80::{}/64".format, host)
    labelled = st.builds("{} label LINK:{}".format, v4, st.integers(0, 2))
    few = st.lists(st.one_of(v4, v4, v6, local, labelled, st.just("169.254.7.7/16")), max_size=3, unique=True)
    kinds = st.sampled_from(["veth", "veth", "veth", "bridge", "macvlan"])
    state = st.sampled_from(["up", "up", "up", "nocarrier", "down"])
    return st.builds(_link, names, state, few, kinds)


def _link(name: str, state: str, addresses: list[str], kind: str) -> Link:
    """A link whose labels begin with its own name, as the kernel demands, as far as 15 characters hold them."""
    own = [each.replace("LINK", name) if len(name) <= _LONGEST_LABELLED else each.split()[0] for each in addresses]
    return Link(name, state, tuple(dict.fromkeys(own)), kind)


def worlds() -> st.SearchStrategy[World]:
    """Up to eight links in any order, and now and then forty, more than NCCL looks at."""
    some = st.lists(links(st.sampled_from(NAMES)), max_size=8, unique_by=lambda link: link.name)
    numbered = st.builds("{}{}".format, st.sampled_from(["eth", "ib", "ens", "docker"]), st.integers(0, 60))
    many = st.lists(links(numbered), min_size=20, max_size=40, unique_by=lambda link: link.name)
    sets = st.one_of(some, some, some, many).map(tuple)
    return st.builds(World, sets, st.sampled_from([True, True, True, False]))


def selectors() -> st.SearchStrategy[str]:
    """NCCL_SOCKET_IFNAME: lists with and without signs, ports, blanks, empty entries and too many of them."""
    name = st.sampled_from([*NAMES, *_LIKE_NAMES])
    port = st.sampled_from(["", "", "", "", ":", ":1", ":0:2", ":x", "::", ":-1", ":1:2:3:4:5"])
    entry = st.one_of(st.builds(str.__add__, name, port), st.sampled_from(["", ":1", "^lo", "=eth0"]))
    sign = st.sampled_from(["", "", "^", "=", "^=", "=^", "^^", "=="])
    filler = st.sampled_from(["", "", "", "zz," * 15, "zz," * 16, "," * 20, "q" * 70 + ","])
    lists = st.builds("{}{}{}".format, sign, filler, st.lists(entry, max_size=4).map(",".join))
    return st.one_of(lists, lists, lists, st.text(alphabet="^=,:ehtib01lo ", max_size=8))


_FAMILIES = st.sampled_from(["AF_INET", "AF_INET6", "AF_INET", "AF_INET6", "af_inet", "IPv4", "AF_INET ", ""])
_COMM_IDS = st.sampled_from(
    [
        *("10.1.0.9:4000", "10.2.0.9", "10.0.0.200:1", "127.0.0.1:1", "10.200.0.1:4000", "192.168.7.7:1"),
        *("[fd00:1::9]:4000", "[fd00:2::9]:1", "[fd99::1]:1", "[::1]:1", "[fe80::9%eth0]:1", "[fe80::9%ib0]:1"),
        *("[fe80::9]:1", "[fd00:1::9%eth0]:1", "[fd00:1::9%nosuch]:1", "node1:99", "node2", "nosuch.host:1", "x", ""),
        *("[fd00::1", ":4000", "10.1.0.9:1,10.2.0.9:1"),
    ]
)
NUMBERS = st.one_of(
    st.sampled_from(["", "0", "2", "true", "yes", "4M", "010", "0x10", "0X1f", "0x", "08", " 7", "\t9", "1.5", "-3"]),
    st.sampled_from(["+5", "- 5", "--5", "9223372036854775807", "9223372036854775808", "-9223372036854775808"]),
    st.sampled_from(
        ["-9223372036854775809", "0x8000000000000000", "00012", "0b101", "1e3", "7\r", "99999999999999999999"]
    ),
    st.text(alphabet="0123456789abxX+- M", max_size=6),
)


def conf_texts() -> st.SearchStrategy[str]:
    """Lines as people and tools write them, and as they should not."""
    name = st.sampled_from(["NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_GDRCOPY_ENABLE", "NCCL_XA", "NCCL_XB"])
    odd = st.sampled_from([" NCCL_XA", "NCCL_XA ", "export NCCL_XB", "", "#NCCL_XA", " #NCCL_XB", "NCCL_" + "L" * 1100])
    value = st.one_of(
        selectors(), _FAMILIES, NUMBERS, st.sampled_from(["a=b", '"quoted"', "x # y", "v" * 1100, "w" * 4200])
    )
    line = st.builds(
        "{}{}{}".format, st.one_of(name, name, odd), st.sampled_from(["=", "=", "=", " = ", "", "=="]), value
    )
    ended = st.builds(str.__add__, line, st.sampled_from(["\n", "\n", "\n", "\r\n", "\n\n", "\r\r\n", ""]))
    long = st.integers(4060, 4110).map(lambda n: "NCCL_XA=" + "y" * n + "NCCL_XB=z\n")
    return st.lists(st.one_of(ended, ended, ended, ended, long), max_size=5).map("".join)


def _seldom(strategy: st.SearchStrategy[dict[str, str]]) -> st.SearchStrategy[dict[str, str]]:
    """Nothing, mostly. (one_of() would count several times nothing as once.)"""
    return st.sampled_from([False, False, True]).flatmap(lambda given: strategy if given else st.just({}))


def cases() -> st.SearchStrategy[Case]:
    """Variables; with NCCL_COMM_ID, with NCCL_CONF_FILE and with files now and then."""
    variables = st.fixed_dictionaries(
        {},
        optional={
            "NCCL_SOCKET_IFNAME": selectors(),
            "NCCL_SOCKET_FAMILY": _FAMILIES,
            "NCCL_GDRCOPY_ENABLE": NUMBERS.filter(lambda text: text.strip() not in ("1", "+1")),
        },
    )
    comm_id = st.fixed_dictionaries({"NCCL_COMM_ID": _COMM_IDS})
    named = st.fixed_dictionaries({"NCCL_CONF_FILE": st.sampled_from([NAMED, "/etc/nosuch.conf", "/etc", ""])})
    home = st.fixed_dictionaries({"HOME": st.sampled_from([OTHER_HOME, "/etc/nosuch", ""])})
    env = st.builds(
        lambda *parts: {k: v for part in parts for k, v in part.items()},
        variables,
        _seldom(comm_id),
        _seldom(named),
        _seldom(home),
    )
    files = st.fixed_dictionaries({}, optional={p: conf_texts() for p in (NAMED, USER, OTHER_USER, SYSTEM)})
    return st.builds(Case, env, _seldom(files))
