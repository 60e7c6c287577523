"""The operating system: kernel, distribution, host name, boot id and architecture."""

import json
import shlex

from ncclprobe.errors import HostError, Missing, ParseError
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct


class System(Struct, frozen=True):
    """`boot_id` changes at each boot and is shared by a machine's containers; None where it cannot be read."""

    hostname: str
    kernel: str
    machine: str
    distribution: str
    boot_id: str | None


@collector
def system(host: Host) -> System:
    """Read uname(2), /etc/os-release and the kernel's boot id."""
    names = json.loads(host.ask("uname"))
    try:
        release = host.ask("read", "/etc/os-release")
    except Missing:  # a minimal container
        release = ""
    return System(
        hostname=names["hostname"],
        kernel=names["release"],
        machine=names["machine"],
        distribution=distribution(release),
        boot_id=_boot_id(host),
    )


def _boot_id(host: Host) -> str | None:
    try:
        return host.ask("read", "/proc/sys/kernel/random/boot_id").strip()
    except HostError:  # a container may hide it, which says nothing of the rest
        return None


def distribution(text: str) -> str:
    """Return PRETTY_NAME of os-release(5), which is shell-quoted; empty where the file lacks it."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            try:
                return " ".join(shlex.split(value))
            except ValueError:
                raise ParseError(f"/etc/os-release: unbalanced quotes: {line[:80]!r}") from None
    return ""
