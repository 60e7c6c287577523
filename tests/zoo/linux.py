"""The kernel, processors, limits, control groups and firmware.

Shapes: this machine's and the guest's real captures beside these; proc(5), cgroups(7) for version 2 under systemd; the
files of /sys/class/dmi/id. /proc/cpuinfo has the lines that are looked at only.
"""

import json

from ncclprobe.model.errors import Denied
from zoo.answers import Answers
from zoo.description import Machine
from zoo.nvidia import _cpus
from zoo.pci import everyone

NODES = "/sys/devices/system/node"
_GROUPS = {True: "/user.slice/user-0.slice/session-4.scope", False: "/user.slice/user-1000.slice/session-4.scope"}
_SCALING = {"AMD": "acpi-cpufreq", "Neo": "cppc_cpufreq", "POW": "powernv-cpufreq"}  # others are Intel's
_NAMESPACES = {"ipc": 39, "mnt": 32, "net": 33, "pid": 36, "user": 37, "uts": 38}  # 40265318.., of the first ones


def describe(machine: Machine, here: Answers) -> None:
    """Everything that a machine without GPUs and network has, too."""
    _system(machine, here)
    _processors(machine, here)
    _process(machine, here)
    _groups(machine, here)
    _memory(machine, here)
    _firmware(machine, here)
    _log(machine, here)


def _system(machine: Machine, here: Answers) -> None:
    uname = {"system": "Linux", "node": machine.name, "release": machine.kernel, "version": "#1 SMP", "processor": ""}
    here.said["uname",] = json.dumps(uname | {"machine": machine.processors.arch, "hostname": machine.name})
    here.write("/etc/os-release", f'PRETTY_NAME="{machine.distribution}"')
    bare = machine.processors.arch == "x86_64" and not machine.processors.virtual
    passthrough = " iommu=pt" if bare else ""
    here.write("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{machine.kernel} root=/dev/sda2 ro quiet{passthrough}")
    here.write("/proc/sys/kernel/random/boot_id", f"{sum(map(ord, machine.title)):08x}-0000-4000-8000-000000000000")
    here.run("timedatectl show --property=NTPSynchronized", "NTPSynchronized=yes\n")
    home = "/root" if machine.root else "/home/user"
    here.said["env",] = json.dumps({"HOME": home})
    here.said["home",] = home


def _processors(machine: Machine, here: Answers) -> None:
    processors = machine.processors
    online = _cpus(everyone(machine))
    last = max(online)
    here.write("/sys/devices/system/cpu/online", f"0-{last}" if len(online) == last + 1 else everyone(machine))
    here.write("/proc/cpuinfo", "".join(_cpu(machine, cpu) for cpu in online))
    for node, cpus in processors.nodes.items():
        here.write(f"{NODES}/node{node}/cpulist", cpus)
        row = ["10" if other == node else _distance(machine, node, other) for other in processors.nodes]
        here.write(f"{NODES}/node{node}/distance", " ".join(row))
    if not processors.virtual:
        folder = "/sys/devices/system/cpu/cpu0/cpufreq"
        here.write(f"{folder}/scaling_driver", _SCALING.get(processors.model[:3], "intel_pstate"))
        here.write(f"{folder}/scaling_governor", processors.governor)
    for name in ("has_cpu", "has_memory", "online", "possible"):
        here.write(f"{NODES}/{name}", ",".join(map(str, processors.nodes)))


def _distance(machine: Machine, one: int, other: int) -> str:
    """As NUMA nodes per socket are seen (12 beside, 32 across) on an EPYC, else one number for all."""
    several = len(machine.processors.nodes) == 8
    return "12" if several and one // 4 == other // 4 else str(machine.processors.distance)


def _cpu(machine: Machine, cpu: int) -> str:
    arch, model = machine.processors.arch, machine.processors.model
    if arch == "aarch64":
        return f"processor\t: {cpu}\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n"
    if arch == "ppc64le":
        return f"processor\t: {cpu}\ncpu\t\t: {model}\n\n"
    flags = " hypervisor" if machine.processors.virtual else ""
    return f"processor\t: {cpu}\nmodel name\t: {model}\nflags\t\t: fpu sse2 avx2{flags}\n\n"


def _process(machine: Machine, here: Answers) -> None:
    capabilities = "000001ffffffffff" if machine.root else "0000000000000000"
    nodes = ",".join(map(str, machine.processors.nodes))
    here.write(
        "/proc/self/status",
        f"CapEff:\t{capabilities}\nCpus_allowed_list:\t{everyone(machine)}\nMems_allowed_list:\t{nodes}\n",
    )
    here.write("/proc/self/uid_map", "         0          0 4294967295")
    for kind, number in _NAMESPACES.items():
        here.link(f"/proc/self/ns/{kind}", f"{kind}:[{4026531800 + number}]")
    for name, value in {"MEMLOCK": None, "NOFILE": 1048576, "NPROC": 8254334}.items():
        here.said["rlimit", f"RLIMIT_{name}"] = json.dumps([value, value])


def _groups(machine: Machine, here: Answers) -> None:
    """Version 2 under systemd, without any limit; the root has none of these files."""
    group = _GROUPS[machine.root]
    here.write("/proc/self/cgroup", f"0::{group}")
    here.write("/proc/1/cgroup", "0::/init.scope")
    here.write(
        "/proc/self/mountinfo",
        "22 28 0:21 / /sys rw,nosuid - sysfs sysfs rw\n"
        "33 22 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
    )
    while group:
        here.write(f"/sys/fs/cgroup{group}/cpu.max", "max 100000")
        here.write(f"/sys/fs/cgroup{group}/memory.max", "max")
        here.write(f"/sys/fs/cgroup{group}/pids.max", "max")
        group = group.rpartition("/")[0]


def _memory(machine: Machine, here: Answers) -> None:
    """A machine that does nothing, and /dev/shm: half of the memory, as tmpfs has by default."""
    kib = machine.processors.memory_gib << 20
    here.write(
        "/proc/meminfo", f"MemTotal: {kib} kB\nMemAvailable: {kib - (8 << 20)} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )
    here.write("/proc/self/numa_maps", "7ffd4a3c1000 default stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4")
    total = machine.processors.memory_gib << 29
    here.said["statvfs", "/dev/shm"] = json.dumps({"total": total, "available": total - (1 << 20)})
    here.said["stat", "/dev/shm"] = json.dumps({"device": 26, "bytes": 40, "age_s": 86400.0, "mine": machine.root})
    here.folder("/dev/shm")


def _firmware(machine: Machine, here: Answers) -> None:
    firmware = machine.firmware
    if firmware.tree:
        here.write("/proc/device-tree/model", f"{firmware.tree}\0")
    if not firmware.vendor:
        return
    for name, text in {
        "sys_vendor": firmware.vendor,
        "product_name": firmware.product,
        "board_vendor": firmware.vendor,
        "board_name": firmware.board,
        "chassis_vendor": firmware.vendor,
        "chassis_asset_tag": firmware.asset_tag,
        "bios_vendor": firmware.bios,
    }.items():
        here.write(f"/sys/class/dmi/id/{name}", text)
    if firmware.vendor == "Amazon EC2":  # the shape of cloud-init's documentation of EC2's instance data
        stands = {"availability-zone": "us-east-1d", "availability-zone-id": "use1-az6", "region": "us-east-1"}
        said = {
            "v1": {"region": "us-east-1", "availability_zone": "us-east-1d"},
            "ds": {"meta_data": {"placement": stands}},
        }
        here.write("/run/cloud-init/instance-data.json", json.dumps(said))


def _log(machine: Machine, here: Answers) -> None:
    """A boot at which nothing happened, which only root may see."""
    here.write("/proc/uptime", "864213.77 152334561.02")

    def ring(pattern: str) -> str:
        if not machine.root:
            raise Denied("/dev/kmsg: permission denied; journalctl -k shows nothing to this user")
        return json.dumps({"source": "/dev/kmsg", "lines": [], "dropped": 0, "oldest_s": 0.0})

    here.programs["kernel_log"] = ring
