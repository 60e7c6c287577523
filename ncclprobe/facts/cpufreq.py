"""How the kernel sets the clock of the processors, from sysfs; open to every user. Few virtual machines have a say."""

from ncclprobe.errors import Missing
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

POLICY = "/sys/devices/system/cpu/cpu0/cpufreq"


class Scaling(Struct, frozen=True):
    """The driver and the governor of the first processor, for every tool sets all to the same.

    Both empty: this kernel does not set the clock; firmware or a hypervisor does.
    """

    driver: str = ""
    governor: str = ""


@collector
def cpufreq(host: Host) -> Scaling:
    """Read two files of the first processor, open to every user."""
    try:
        return Scaling(
            host.ask("read", f"{POLICY}/scaling_driver").strip(), host.ask("read", f"{POLICY}/scaling_governor").strip()
        )
    except Missing:
        return Scaling()
