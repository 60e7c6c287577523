"""Settings that differ from what the vendor of the network prescribes."""

from collections.abc import Iterator

from ncclprobe.checks.env import as_evidence, jobs_warn, nccl_job
from ncclprobe.checks.env.choices import STARTS
from ncclprobe.checks.env.fixtures import having
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.findings import Finding
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.vendors import TITLES, compared, in_use, source

_TCPX = {
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth0",
    "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
    "NCCL_CROSS_NIC": "0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_NET_GDR_LEVEL": "PIX",
}
_ANY = Absent("not asked")
_INTERFACES = (
    ("NCCL_FASTRAK_IFNAME", "NCCL_FASTRAK_CTRL_DEV"),
    ("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "NCCL_GPUDIRECTTCPX_CTRL_DEV"),
)


@check(
    slows=True,
    bad=lambda: [(having(**{**_TCPX, "NCCL_PROTO": "LL"}), _ANY, STARTS, _ANY)],
    good=lambda: [(having(**_TCPX), _ANY, STARTS, _ANY)],
    last=True,
    applies=nccl_job,
)
def vendor(
    settings: Settings, machine: Machine | Absent, choices: Choices, interfaces: Interfaces | Absent
) -> Iterator[Finding]:
    """A setting is not what the vendor of the network prescribes.

    Right: Every setting is what the vendor of the network prescribes.
    Why: clouds and makers of networks test one set of settings with their plugin, and some of their plugins end the job
    where one differs (Google's guest config checker); what is right on InfiniBand is wrong there, and the other way
    round.
    Fix: take the vendor's whole block of settings, from the page or the script that the message names.
    """
    vendors = in_use(settings, machine, choices)
    found = compared(settings, vendors)
    for entry, row in found.other:
        told = " or ".join(row.values[:3])
        message = f"is {entry.value!r}; {TITLES[row.vendor]} prescribes {told} ({source(row.vendor)})"
        yield jobs_warn(entry.name, message, as_evidence(entry))
    for name in vendors:
        lacking = [row.name for row in found.missing if row.vendor == name]
        if lacking:
            message = f"{'is' if len(lacking) == 1 else 'are'} not set; {TITLES[name]} prescribes it ({source(name)})"
            yield jobs_warn(", ".join(lacking), message, "environment and NCCL's configuration files")
    yield from _absent_interfaces(settings, interfaces)


def _absent_interfaces(settings: Settings, interfaces: Interfaces | Absent) -> Iterator[Finding]:
    """Yield each list of Google's data NICs that this node does not have, or that the control device is one of."""
    for names, control in _INTERFACES:
        listed = [name for name in (settings.get(names) or "").split(",") if name]
        here = () if isinstance(interfaces, Absent) else interfaces.by_name
        for variable, wanted in ((names, listed), (control, [settings.get(control) or ""])):
            strange = [name for name in wanted if name and here and name not in here]
            if strange:
                message = f"names {', '.join(strange)}, which this node does not have"
                yield jobs_warn(variable, message, as_evidence(settings.effective[variable]))
        if len({*listed}) < len(listed):
            yield jobs_warn(names, "names a NIC twice", as_evidence(settings.effective[names]))
        if len(listed) > 1 and settings.get(control) in listed:
            message = f"is {settings.get(control)}, one of the NICs for data of {names}"
            yield jobs_warn(control, message, as_evidence(settings.effective[control]))
