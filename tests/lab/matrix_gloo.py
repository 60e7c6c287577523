"""Faults of what gloo listens on: own names and GLOO_SOCKET_IFNAME, under gloo and in addition to NCCL."""

from collections.abc import Callable, Sequence

from . import faults
from .matrix import Codes, Named, Row, Setup

GROUP, FQDN = "launch.gloo-group", "launch.names"
THEIRS = "gloo groups of this job"
EVERYWHERE = ("@all",)


def own_name(address: str, on: Sequence[str] = EVERYWHERE) -> Callable[[Setup], object]:
    """The own name of these hosts is this address; empty: it is unknown. MASTER_ADDR is an address."""

    def make(setup: Setup) -> None:
        setup.set(master_addr=setup.hub.address())
        for name in setup.expand(on):
            others = [line for line in setup.lab.names() if line.split()[1] != name]
            setup.use(faults.names(setup.lab[name], *([f"{address} {name}"] if address else []), *others))

    return make


def listens(ifname: str, on: Sequence[str] = EVERYWHERE) -> Callable[[Setup], object]:
    """GLOO_SOCKET_IFNAME on hosts."""

    def make(setup: Setup) -> None:
        for name in setup.expand(on):
            setup.use(faults.environment(setup.lab[name], GLOO_SOCKET_IFNAME=ifname))

    return make


def third_card_closed(setup: Setup) -> None:
    """NCCL has a card, the default route another, and gloo a third one, on which nothing gets to the victim."""
    for host in setup.lab.hosts:
        setup.use(faults.environment(host, NCCL_SOCKET_IFNAME="=eth1", GLOO_SOCKET_IFNAME="eth2"))
    setup.use(faults.rules(setup.victim, ['iifname "eth2" meta l4proto tcp drop'], "in"))


GLOO = (
    Row(
        "every node's own name is 127.0.1.1, as Debian writes it",
        own_name("127.0.1.1"),
        (Named(GROUP, nodes=EVERYWHERE, says="127.0.1.1", blame="image", of_two=EVERYWHERE),),
        also=(FQDN,),
    ),
    Row(
        "one node's own name is ::1, where the others have IPv4",
        own_name("::1", on=("@victim",)),
        (Named(GROUP, "", ("@victim",), "::1", blame="image"),),
        Codes(4, 4, 0),
        also=(FQDN,),
    ),
    Row(
        "GLOO_SOCKET_IFNAME names no interface on one node",
        listens("eth9", on=("@victim",)),
        (Named("env.ifname", "GLOO_SOCKET_IFNAME", ("@victim",), "eth9", blame="job"),),
    ),
    Row(
        "every node's own name is 127.0.1.1, under NCCL",
        own_name("127.0.1.1"),
        (Named(GROUP, nodes=EVERYWHERE, says=THEIRS, severity="warn", of_two=EVERYWHERE),),
        Codes(0, 0, 0),
        gpus=True,
    ),
    Row(
        "gloo's card is closed on one node, under NCCL",
        third_card_closed,
        (Named("launch.mesh", "", ("@victim",), THEIRS, severity="warn", of_two=EVERYWHERE),),
        Codes(0, 0, 0),
        also=("env.ifname",),
        gpus=True,
        nics=3,
    ),
)
