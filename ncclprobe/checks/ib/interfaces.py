"""Network interfaces of one kind that differ, if the RDMA devices behind them are not known."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ncclprobe.checks import NODE
from ncclprobe.checks.ib import ROCE_GROUP
from ncclprobe.checks.ib.fixtures import interfaces
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.model.findings import Finding, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import grouped, replace

_LEAST, _FEW = 4, 0.25
"""So many interfaces have to be of one kind, and so few of them may differ, to call these the odd ones."""
_VIRTUAL = re.compile(r"(?:lo|docker|br-|virbr|veth|cali|cni|flannel|lxc|tunl|tap|tun|vnet|dummy|bond)")


@applies
def without_rdma(job: Job, fabric: Fabric | Absent, interfaces: Interfaces | Absent) -> bool:
    """to jobs on GPUs, if interfaces are known and RDMA devices are not."""
    unknown = isinstance(fabric, Absent) or not fabric.devices
    return job.backend == "nccl" and unknown and isinstance(interfaces, Interfaces)


def rails(**change: Any) -> Interfaces:
    """Return eight rails, one of them changed, for examples."""
    first, *others = interfaces(*[9000] * 8).all
    return Interfaces((*others, replace(first, **change)))


DOWN = rails(flags=frozenset({"up"}))


@check(
    group=ROCE_GROUP,
    bad=lambda: [(DOWN,)],
    good=lambda: [(rails(),)],
    applies=without_rdma,
)
def odd_interface(found: Interfaces) -> Iterator[Finding]:
    """One of several equal interfaces is down, has no IPv4 address, or has a smaller MTU.

    Right: All interfaces of the same kind are up, with an IPv4 address and the same MTU.
    Why: each rail of a node has its own interface. NCCL does not use an interface that is down or has no address, and
    with a smaller MTU RoCE sends more, smaller packets.
    Fix: run `ip link set dev INTERFACE up mtu 9000`, and give it an address like those of its siblings. If it stays
    down, check its cable and the switch port.
    """
    kinds = grouped((re.sub(r"\d+", "#", each.name, count=1), each) for each in found.all)
    for own in kinds.values():
        if len(own) >= _LEAST and not _VIRTUAL.match(own[0].name):
            yield from _odd(own)


def _odd(own: Sequence[Interface]) -> Iterator[Finding]:
    up = [each for each in own if each.running]
    with_address = [each for each in up if each.subnets]
    most = Counter(each.mtu for each in up).most_common(1)[0][0] if up else 0
    cases = (
        ([each for each in own if not each.running], up, "is DOWN, but {} of its {} siblings are up"),
        (
            [each for each in up if not each.subnets],
            with_address,
            "has no IPv4 address, but {} of its {} siblings have one",
        ),
        (
            [each for each in up if each.mtu < most],
            [each for each in up if each.mtu == most],
            f"has a smaller MTU: {{}} of its {{}} siblings have {most}",
        ),
    )
    for odd, usual, words in cases:
        if len(odd) <= _FEW * len(own) and len(usual) >= (1 - _FEW) * len(own) - 1:
            for each in odd:
                message = words.format(len(usual), len(own) - 1)
                yield warn(each.name, message, **NODE, evidence=f"flags, addresses and MTU of {each.name}")
