"""Texts of the kernel and of tools, and what the parsers of facts make of each: `command_values/texts.txt` keeps it.

To add a case, add a row, run `scripts/golden.py texts`, and read what it kept. A text that is none is a ParseError.
"""

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from conftest import FACTS, answers
from fake_sysfs import BRIDGE, GEN5, INFINIBAND, NVSWITCH, Sysfs, config_space, two_sockets

from ncclprobe.engine.collect import collect
from ncclprobe.facts import (
    cgroup,
    cpu,
    data_paths,
    driver,
    environment,
    infiniband,
    interfaces,
    kernel_log,
    loader,
    machine,
    memory,
    names,
    nccl_conf,
    nvidia_smi,
    nvlink,
    nvml,
    pci,
    placement,
    plugins,
    ports,
    process,
    rank,
    reach,
    routes,
    software,
    traffic,
)
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Address, Interface
from ncclprobe.facts.loader import Loader
from ncclprobe.facts.machine import Dmi, NamedMachine
from ncclprobe.facts.nccl_conf import LONGEST_FIELD, LONGEST_LINE, SYSTEM_FILE
from ncclprobe.facts.plugins import Plugin, Plugins
from ncclprobe.facts.routes import Route, Routes, Rule
from ncclprobe.facts.software import Mapped, Software, Torch
from ncclprobe.facts.traffic import Count, Traffic
from ncclprobe.host import Question, pasted_job
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Failed, NcclprobeError, TimedOut
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.facts import made_up as of
from tests.facts.made_up import GONE, NVML, TCP, learn

UNREAD = r"""why=("|').*?\1, (?=refused='ParseError')"""  # what Python says of it differs by release
ODD = "?" * 400  # of which a message shows a part
GETLINE = (2, 29, 7)  # the last release that reads lines of any length and keeps carriage returns
BARS = "0x0 0x1fffff 0x20040200\n0x1000 0x101f 0x40101\n0x10 0x10 0x0\n" + "0x0 0x0 0x0\n" * 10
VIRTUAL, ARM = "flags\t\t: fpu sse hypervisor lahf\n", "processor\t: 0\n"
AZURE = "7783-7084-3265-9085-8269-3286-77"
LIMITS = [["a:1", 0, "-", "nofile", "512"], ["a:2", 2, "soft", "nofile", "700"], ["a:3", 1, "soft", "nofile", "9"],
          ["b:1", 0, "hard", "memlock", "unlimited"], ["b:2", 0, "soft", "memlock", "64"],
          ["b:3", 2, "soft", "nproc", "1"], ["b:4", 2, "soft", "nofile", "many"]]  # fmt: skip
COUNTER = {"packets": 0, "bytes": 0}
TOPOLOGY = of.TEXTS["NCCL_TOPO_FILE"]


def space(config: bytes) -> str:
    """Return a config space as a host answers."""
    rows = {hex(at): config[at : at + 16].hex() for at in range(0, len(config), 16)}
    return json.dumps({"length": len(config), "rows": rows})


def express(control: int, ats: int | None = None, following: int = 0x60) -> bytes:
    """Return the config space of a function on PCI Express, with another capability before."""
    config = bytearray(4096)
    config[0:4], config[0x34], config[0x40:0x42], config[0x60] = b"\xde\x10\x30\x23", 0x40, b"\x05\x60", 0x10
    config[0x41], config[0x68:0x6A] = following, control.to_bytes(2, "little")
    if ats is not None:
        config[0x100:0x104] = (1 << 16 | 0x000F).to_bytes(4, "little")
        config[0x106:0x108] = ats.to_bytes(2, "little")
    return bytes(config)


def patched(config: bytes, *changes: tuple[int, str]) -> str:
    """Return a config space, as a host answers, in which these bytes are others."""
    changed = bytearray(config)
    for at, said in changes:
        changed[at : at + len(said) // 2] = bytes.fromhex(said)
    return space(bytes(changed))


def _tree(one: str = "", *lost: str) -> object:
    """Return what is known of a device or a bridge of a machine that lacks these files of its first GPU."""
    with TemporaryDirectory() as folder:
        tree = Sysfs(Path(folder))
        two_sockets(tree)
        tree.pci("pci0000:00/0000:00:01.0", speed=GEN5)
        tree.pci("pci0000:00/0000:00:01.0/0000:01:00.0", NVSWITCH, speed=GEN5, width=2)
        tree.pci("pci0000:00/0000:00:02.0", INFINIBAND, numa=-1)
        host, own = tree.finish(), Path(folder, "sys/bus/pci/devices/0000:13:00.0")
        for name in lost:
            (own / name).write_text("nonsense\n") if name == "resource" else (own / name).unlink()
        seen = collect(host, [pci.pci])[pci.Pci]
    asked = [question[1] for question in host.asked if "0000:10:1f.0" in str(question)]
    kinds = [[each.address for each in seen.of(kind)] for kind in ("gpu", "nic", "nvswitch")]
    return {**seen.devices, **seen.bridges}[one] if one else (kinds, asked, len(host.asked) - len({*host.asked}))


PORT_ACS = config_space(BRIDGE, (1, 2), 3, [4], acs=0x1D)


def _fabric(mask: int, *changes: tuple[str, object]) -> object:
    """Return what NVML's answer about a GPU's fabric means, with this mask of its health."""
    said = {"clusterUuid": [0] * 16, "status": 0, "cliqueId": 0, "state": 3, "healthMask": mask, **dict(changes)}
    return learn(nvml.nvml, NVML | {("nvml", "nvmlDeviceGetGpuFabricInfoV", 0): said}).all[0].fabric


def _lengths(text: str, version: software.Version | None = None) -> object:
    return [(len(each.name), len(each.value or "")) for each in nccl_conf.parse_conf(text, "f", version)]


def _limits_of(variables: dict[str, str | None], lines: str = json.dumps(LIMITS)) -> object:
    return learn(process.job_user, {("user_limits", "2000"): lines}, [Environment(variables), of.process_with()])


def _container(variables: dict[str, str | None], sign: str, groups: str = "0::/init.scope\n") -> object:
    said = {**of.SIGNS, **({("stat", sign): "{}"} if sign else {}), ("read", "/proc/1/cgroup"): groups}
    return learn(process.container, said, [Environment(variables)])


def _moved(before: Count | Absent, after: Count | Absent, kind: traffic.NicKind = "ethernet") -> object:
    first, last = (Traffic(**{kind: {"nic": count}}) for count in (before, after))
    return traffic.moved(first, last, kind)


def _sent(before: int, after: int, kind: traffic.NicKind = "ethernet") -> object:
    return _moved(Count(before, before), Count(after, before), kind)


def _gbps(gtps: float | None, lanes: int | None) -> object:
    link = pci.PcieLink(None, lanes, gtps, lanes)
    return (round(link.max_gbps, 2) if link.max_gbps else None), link.gbps


def _merged(*files: str) -> object:
    merged = nccl_conf.merge(Environment({"A": "shell", "E": ""}), [nccl_conf.parse_conf(each, "f") for each in files])
    return merged.effective, merged.overridden


def _leads(name: str, driver: str = "", kind: str = "", flag: str = "up", *own: str) -> object:
    addresses = tuple(Address(name, "inet6" if ":" in each else "inet", each, "", running=True) for each in own)
    of = Interface(name, 2, frozenset({flag}), 1500, driver=driver, kind=kind, addresses=addresses)
    return of.ends_here, of.leads_out


def _entries(name: str) -> object:
    lines = "10.0.0.1 N0.Site n0\n10.0.0.2 n1.site N0\n10.0.0.3 n2\n10.0.0.4 n1.SITE\n"
    return [each.line for each in names.Names(names.hosts(lines)).entries(name)]


HEALTHY: dict[str, str] = json.loads((FACTS.parent / "nvidia_smi_gpu.json").read_text())
"""One GPU of ``nvidia-smi -q -x``: names and units as nvsmi_device_v12.dtd and nvidia-smi(1) have them."""


def xml(*gpus: Mapping[str, str | None]) -> str:
    """Return the output of ``nvidia-smi -q -x``; an element without a text is left out."""
    listed = ["".join(f"<{name}>{text}</{name}>" for name, text in gpu.items() if text is not None) for gpu in gpus]
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
        f"<driver_version>570.86.15</driver_version>{''.join(f'<gpu>{gpu}</gpu>' for gpu in listed)}</nvidia_smi_log>"
    )


OLDER: dict[str, str | None] = {
    **dict.fromkeys(("gpu_power_readings", "clocks_event_reasons")),
    "power_readings": "<enforced_power_limit>250 W</enforced_power_limit>"
    "<default_power_limit>300 W</default_power_limit>",
    "clocks_throttle_reasons": "<clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown>",
}


def _by_smi(*changes: Mapping[str, str | None], compute: str = "9.0\n9.0\n", **more: str) -> object:
    """Return what nvidia-smi tells where NVML cannot be asked; `changes`: of each GPU."""
    said = {("nvml", "nvmlDeviceGetCount"): GONE, ("run", "nvidia-smi", "--version"): "CUDA Version : 12.8\n"}
    text = more.get("text") or xml(*({**HEALTHY, **each} for each in changes))
    return learn(nvml.nvml, said | {nvidia_smi.ASK: text, nvidia_smi.ASK_COMPUTE: compute})


def _differs(**changed: str) -> object:
    """Return the fields of a GPU that are otherwise if nvidia-smi says this of it."""
    usual, now = (learned.all[0] for learned in (_by_smi({}, {}), _by_smi(changed, {})))
    return [(each, getattr(now, each)) for each in now.__struct_fields__ if getattr(now, each) != getattr(usual, each)]


def _odd_answer(function: str, answer: object, field: str, *more: object) -> object:
    gpu = learn(nvml.nvml, NVML | {("nvml", function, 0, *more): json.dumps(answer)}).all[0]
    return getattr(gpu, field), gpu.lost


class Machine:
    """A machine made of folders with libraries, each by what it says of itself."""

    def __init__(self, files: dict[str, dict[str, Any]], cached: dict[str, str] | None = None) -> None:
        self.files, self.cached = files, cached or {}

    def ask(self, *question: str | int) -> str:
        kind, path, *names = map(str, question)
        said: dict[Question, Any] = {}
        if kind == "ld_cache":
            said[question] = list(self.cached.items())
        elif kind == "among":
            said[question] = [name for name in names if f"{path}/{name}" in self.files]
        elif path in self.files and (kind == "elf" or "symbols" in self.files[path]):
            empty = {"soname": "", "needed": [], "rpath": "", "runpath": "", "needs_versions": {}, "versions": []}
            said[question] = empty | self.files[path] if kind == "elf" else self.files[path]["symbols"]
        else:
            said[question] = GONE
        return answers(said).ask(*question)


TORCH, OWN, NET = "/venv/torch", "/venv/nvidia/nccl/lib", "/opt/ofi/libnccl-net.so"
CUDA_LIBRARY, SITE_NCCL = f"{TORCH}/lib/libtorch_cuda.so", "/site/libnccl.so.2"
PATHS = "$ORIGIN/../../nvidia/nccl/lib:/rt"
NEEDED = ["libcudart.so.12", "libnccl.so.2", "libm.so.6"]
BASE: dict[str, dict[str, Any]] = {
    CUDA_LIBRARY: {"needed": NEEDED, "rpath": PATHS, "symbols": {"undefined": ["ncclSend", "ncclCommSplit"]}},
    "/rt/libcudart.so.12": {}, f"{OWN}/libnccl.so.2": {"symbols": {"defined": []}},
    "/site/libcudart.so.12": {}, SITE_NCCL: {"symbols": {"defined": ["ncclSend"]}},
    NET: {"needed": ["libcudart.so.12", "libfabric.so.1", "libc.so.6", "libnccl.so.2"],
          "needs_versions": {"libc.so.6": ["GLIBC_9", "GLIBC_2.34"]}},
    "/usr/lib64/libc.so.6": {"versions": ["GLIBC_2.34"]}, "/usr/lib/x86_64-linux-gnu/libcudart.so.12": {}}  # fmt: skip
LATE = {**BASE, CUDA_LIBRARY: {**BASE[CUDA_LIBRARY], "runpath": PATHS}}
INSTALLED = Software({}, mapped=Mapped(f"{OWN}/libnccl.so.2", "DT_RPATH"), torch=Torch(TORCH, "12.8"))


def _linked(files: dict[str, dict[str, Any]], searched: Loader, *cached: str, **more: Any) -> object:
    """Return which file the loader maps for each needed library, what of it is missing, and which files it hides."""
    environment = Environment({"NCCL_NET_PLUGIN": more.get("named")})
    found = Plugins((Plugin(NET, "net", "ofi", reachable=more.get("reachable", True)),))
    host = Machine(files, dict.fromkeys(cached, "/cuda/libcudart.so.12"))
    told = plugins.linking.run(host, searched, more.get("software", INSTALLED), found, environment)
    return [(each.name, each.needed_by, each.path, each.why, each.lacks, each.others) for each in told.libraries]


def _opened(path: str, kind: str, flavour: str, objects: Any, texts: Any = GONE) -> object:
    """Return what the constants of a plugin's file tell of it."""
    said = {
        ("elf_objects", path, "nccl"): objects,
        **{("elf_texts", path, mark): texts for mark in plugins.VERSION_MARKS.values()},
    }
    found = plugins.add_constants(answers(said), Plugin(path, kind, flavour, reachable=True))
    return found, found.told()


_ROUTES = Routes(
    (Route("0.0.0.0/0", "eth0", "10.0.0.1", 100), Route("10.1.0.0/16", "a", metric=5), Route("10.1.0.0/16", "b")),
    (Rule(1, "101", "10.2.0.0/16"), Rule(2, "102", interface="x"), Rule(3, "main")),
    (Route("10.1.0.0/16", "c", table="101"), Route("10.1.0.0/16", "d", table="102")),
)
_CUT = {"length": 70, "rows": {"0x000": "ff" * 4}}

CALLS: Mapping[Callable[..., object], Sequence[Any]] = {
    cpu.cpu_list: ["0", "0-2,5\n", "", "8,10-11", "3-3", "2-1", "a", "0-1-2", "1,,2", "-1",
                   f"0-{bounds.LISTED_NUMBERS - 1}", f"0-{bounds.LISTED_NUMBERS}", "1234567", "9-1" + ",1" * 99,
                   *(f"0-9,100-{bounds.LISTED_NUMBERS + more}" for more in (89, 90, 95)), f"0-{'9' * 6}" + ",1" * 99],
    cpu.model_name: ["model name\t: A  \nmodel name\t: B\n", "cpu\t\t: POWER9\n", "cpus : 3\n", ""],
    machine.distribution: ['NAME="x"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n', "PRETTY_NAME='Rocky Linux 9'\n", "NAME=x\n",
                           "", "PRETTY_NAME='x", "PRETTY_NAME=a=b", "PRETTY_NAME='" + ODD],
    kernel_log.uptime: ["350.25 700.00\n", "350 700", "", "1" * 13 + ".5 "],
    machine.synchronized: ["NTPSynchronized=yes\n", "NTPSynchronized=no", "", "yes"],
    machine.identify: [*((Dmi("Amazon EC2", product), VIRTUAL, "") for product in ("p5.48xlarge", "unnamed")),
        (Dmi("Amazon EC2", "g4dn.metal"), VIRTUAL, "xen"), (Dmi("Amazon EC2", "g5g.16xlarge"), ARM, ""),
        (Dmi("Google", "Google Compute Engine"), VIRTUAL, ""), (Dmi("Google", "Google Compute Engine 2"), ARM, ""), (
        Dmi("Microsoft Corporation", "Virtual Machine", asset_tag=AZURE), VIRTUAL, ""),
        (Dmi("Microsoft Corporation", "Surface"), ARM, ""), (Dmi("Microsoft Corporation", "Virtual Machine"), ARM, ""),
        (Dmi("Oracle Corporation", "ORACLE SERVER X9", asset_tag="OracleCloud.com"), "flags\t\t: fpu\n", ""),
        (Dmi("Acme", "Virtual Machine"), ARM, ""), (Dmi("Acme", "node.metal"), VIRTUAL, ""), (Dmi(), ARM, "xen"),
        (Dmi(bios_vendor="VMware"), ARM, ""), (Dmi(board_vendor="QEMU"), ARM, ""), (Dmi("Supermicro", "S.2"), ARM, ""),
        (Dmi("NVIDIA", "DGXH100"), "flags\t\t: fpu hypervisors\n", ""), *((Dmi(bios_vendor=name), ARM, "") for name in (
        "KVM", "OpenStack", "Amazon EC2", "VMW", "innotek GmbH", "VirtualBox", "Xen", "Bochs", "Parallels", "BHYVE",
        "Hyper-V", "Google Compute Engine", "Dell Inc.")), ],
    cgroup.quota: ["max 100000", "-1", ("150000", "100000"), "100000", "x 100000", "100000 0", "", "-5 100000", "5 1 1",
                   "0 1", "1 2 3", ("5", ODD), "9" * 18 + " 1", "9" * 19 + " 1"],
    cgroup.nbytes: ["max\n", "4096\n", str((1 << 60) - 1), str(1 << 60), "x", "-1", ""],
    cgroup.throttling: ["nr_periods 1\nnr_throttled 2\nthrottled_usec 3\n", "nr_periods 1\nthrottled_time 3\n", "",
                       "nr_throttled 2\nthrottled_usec 3\n"],
    cgroup.places: [(of.GROUPS1, of.MOUNTS1), ("0::/\n", of.MOUNTS2), ("0::/\n", ""), ("x", ""),
        ("0::/\n", "30 23 0:26 / /x"), ("4:memory:/other\n", of.MOUNTS1), ("0::/" + "a/" * 40 + "\n", of.MOUNTS2),
        (ODD, ""), ("0::/\n", ODD), *(("0::/a\n", line) for line in (of.MOUNTS2 + of.MOUNTS2.replace("/sys/fs", "/mnt"),
        "1 2 3 / - cgroup2 c rw", "1 2 3 / - ext4 c x", "1 2 3 / /c - cgroup2 c rw", "1 2 3 / /c rw - cgroup2 c",
        "1 2 3 / /c rw - cgroup2 c - x rw"))],
    process.namespace: ["ipc:[4026531839]", "ipc:[x]", ""],
    process.real_user: ["Name:\tx\nUid:\t7\t0\t0\t0\n", "Uid: 7\n"],
    process.status: [of.STATUS, of.STATUS.replace("Mems", "x"), of.STATUS.replace("CapEff", "x"),
        of.STATUS.replace("0020", "x"), of.STATUS.replace("0000000000204000", "ffffffffffffffff")],
    process.is_held: [("x", True, {"paths": ["x"], "hidden": 0}, False), ("x", True, {"paths": [], "hidden": 5}, True),
                      ("x", False, {"paths": [], "hidden": 0}, True), ("x", False, {"paths": [], "hidden": 5}, True),
                      ("x", True, {"paths": [], "hidden": 0}, False)],
    _limits_of: [{}, {"SLURM_JOB_UID": "1000"}, {"SLURM_JOB_UID": "2000"}, {"SLURM_JOB_UID": "2000",
        "SLURM_RLIMIT_NOFILE": "U4096", "SLURM_RLIMIT_MEMLOCK": str((1 << 64) - 1)}, {"SLURM_JOB_UID": "2000",
        "SLURM_RLIMIT_NOFILE": str((1 << 63) - 2), "SLURM_RLIMIT_MEMLOCK": "many"}, ({"SLURM_JOB_UID": "2000"},
        '[["a:1", 1, "-", "memlock", "-1"], ["a:2", 1, "soft", "memlock", "2"]]'), ({"SLURM_JOB_UID": "2000"},
        '[["a:1", 1, "-", "memlock", "infinity"], ["a:2", 0, "hard", "memlock", "2"]]'), *({"SLURM_JOB_UID": "2000",
        "SLURM_RLIMIT_NOFILE": each, "SLURM_RLIMIT_MEMLOCK": "7"}
        for each in (str((1 << 63) - 1), "9" * 20, "9" * 21, "U", "-5"))],
    _container: [({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "/.dockerenv"), ({"APPTAINER_CONTAINER": "/x.sif"}, ""),
                 ({"SINGULARITY_CONTAINER": "/x.sif", "container": "x"}, ""), ({"container": "lxc"}, "/.dockerenv"),
                 ({"container": "podman"}, "/run/.containerenv"), ({"container": "lxc"}, ""), ({}, ""),
                 ({}, "", "0::/kubepods/besteffort/pod1\n"), ({}, "", "0::/machine.slice/machine-x\n"),
                 ({}, "", "0::/libpod-7\n")],
    memory.meminfo: ["MemTotal: 9 kB\nMemAvailable: 5 kB\nSwapTotal: 3 kB\nSwapFree: 2 kB\n",
                     "MemTotal:  1024 kB\nMemAvailable:  512 kB\n", "MemTotal: 1024 kB\n", "MemAvailable: 1 kB\n", ""],
    memory.policy: ["7ffe8 default stack anon=3", "7ffe8 bind:1 stack", "7ffe8 bind=static:0-1,3 stack",
                    "7ffe8 prefer (many):2 stack", "7ffe8 local stack", "x", ""],
    driver.loaded: ["NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC\n",
                    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95  Release Build\n", "GCC version"],
    driver.state: ["a\nREADY \n", "", "\n", "x" * 40, "x" * 41, "a\n  READY \n"],
    driver.nodes: ["# a\n\n1 # b # c\n2", "n\n" * bounds.IMEX_NODES, "n\n" * (bounds.IMEX_NODES + 1)],
    driver.kernel_version: ["5.15.0-1053-nvidia", "6.8", "6", "x"],
    driver.fabric_manager_version: ["Fabric Manager version is : 535.161.08\n", "Fabric Manager version is : x"],
    names.comm_id_host: ["10.0.0.1:9999", "[fe80::1%eth0]:9999", "head", "a,b:1", ":1,c:2", "ab", "a", "", ":99",
                         "[::1", "[n1]:9", "[::1]:9]:5", ",,n7:1"],
    names.sources: ["hosts: files", "hosts : a b", "hosts:a [x=y] b # c", "host: x", "", "hosts files", "hosts:a:b c",
                    "host\nhosts: d"],
    interfaces.place: ["../../devices/virtual/net/lo", "../../devices/pci0000:00/0000:00:1c.0/0000:02:00.1/net/a",
                       "../../devices/vmbus/x/net/a", "../../devices/pci10000:00/10000:e1:00.0/net/a"],
    interfaces.device_type: ["DEVTYPE=bond \nX=1\n", "X=1\n"],
    interfaces.parse_address: [*(("eth0", {"family": family, "address": address, "netmask": mask}, True) for family,
        address, mask in ((2, "10.0.0.1", "255.0.0.0"), (10, "fe80::1%a", None), (2, "x", None),
        (2, "10.0.0.1", "y")))],
    names.hosts: ["10.0.0.1\n::1 a b # c\nx y\n10.0.0.2 n0 n1 # a\n"],
    names.resolv_conf: ["search x ; y # z\noptions a # b ; c\noptions d\ndomain e f\n", "nameserver 1\nsearch\n"],
    _entries: ["n0", "N1.site", "n2", "10.0.0.1"],
    _leads: [*((each,) for each in ("virbr0", "vmnet8", "lxcbr0", "lxdbr0", "podman1", "nerdctl0", "cbr0",
        "tmfifo_net0", "kube-ipvs0", "nodelocaldns", "docker0", "docker_gwbridge", "cni0", "cni-podman0", "cnix",
        "br-0123456789ab", "br-0", "veth12", "veth", "cali1", "lxc5", "lo", "lo1", "eth0", "virbr0x")),
        ("a", "", "dummy"), ("a", "", "", "loopback"), ("a", "", "bond"), *(("usb0", driver, "", "up", "169.254.0.17",
        "fe80::1%usb0", "16.1.15.2") for driver in ("cdc_ether", "cdc_eem", "cdc_ncm", "cdc_subset", "rndis_host",
        "r8152")), ("u", "cdc_ncm", "", "up", "fe80::1", "10.0.0.5"), ("u", "cdc_ncm", "", "up", "10.0.0.5", "fe80::1"),
        ("u", "cdc_ncm", "", "up", "16.1.15.4"), ("u", "cdc_ncm")],
    routes.main4: [of.ROUTE, "", "odd", of.ROUTE.replace("010200C0", "x"), of.ROUTE.replace("Destination", "x"),
                   "0: lookup local"],
    routes.main6: [of.ROUTE6, "", "x\n"],
    routes.rules: [json.dumps(of.RULES), "", "odd", "0: from all lookup local", "{}", "[7]", '[{"priority": "x"}]',
                   '[{"priority": 1, "src": "x/9"}]'],
    routes.tables: [json.dumps(of.TABLE), "[]", '[{"dst": "x"}]', '[{"dst": "10.0.0.1/8", "metric": "x"}]'],
    ports.port_list: ["29500,40000-40010\n", "", "65535", "65536", "1-65536", "1-", "5,x", "1 2", "70000", "5-9,7"],
    ports.port_range: ["32768\t60999\n", "1", "1 2 3", "a b", "1 b", "a 2"],
    ports.number: ["-1\n", "1 2", "x"],
    ports.listening: [TCP, of.TCP6, TCP.replace("0100007F:733C", "00000000:0016"), "", "sl\n",
        TCP.replace(" 0A ", " 01 "), TCP.replace("0100007F", "7F"), TCP.replace("0100007F", "0100007F" * 2)],
    ports.time_wait: ["TCP: inuse 5 tw 28 alloc 23\n", "UDP: tw 3\n", ""],
    ports.chains: ['{"nftables": []}', "{}", "[]", "x",
                   '{"nftables": [{"chain": {"hook": "input", "type": "filter"}}]}'],
    ports.rules: [json.dumps(of.in_chain(of.ESTABLISHED, last)) for last in (
        [{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}],  # firewalld's
        [{"counter": COUNTER}, {"log": {"prefix": "a"}}, {"drop": None}],
        [{"counter": COUNTER}, {"xt": {"type": "target", "name": "REJECT"}}],
        [{"counter": COUNTER}, {"xt": None}],  # iptables-nft, by nft before 1.0.7
        [{"xt": {"type": "match", "name": "tcp"}}, {"xt": {"type": "target", "name": "REJECT"}}],
        [{"match": {}}, {"drop": None}], [{"jump": {"target": "KUBE-FIREWALL"}}], [])] + ["x", '{"nftables": []}'],
    infiniband.rate: ["800 Gb/sec (4X XDR)\n", "100 Gb/sec (2X HDR)", "2.5 Gb/sec (1X)", "10 Gb/sec (4X)",
                      "2.5 Gb/sec (1X SDR)", "40 Gb/sec (4X FDR10)", "", "400", "400 Gb/s (4X NDR)", "-1 Gb/sec (4X)",
                      "400 Gb/sec (4X NDR) x"],
    infiniband.state: ["1: DOWN\n", "7: Phy Test", "9: <unknown>", "4:ACTIVE", "ACTIVE", "", "2: INIT", "3: ARMED\n"],
    infiniband.hexadecimal: ["0x1a\n", "0xFFFF", "1a", "0x"],
    infiniband.parent: ["../../../0000:41:00.0\n", "../../../platform/rnic.0"],
    infiniband.gids: ['{"0": "::1", "12": "fe80::1", "x": "::2", "3": null}', '{"0": null, "1": null}', "{}",
        '{"0": "x"}', '{"10": "::2", "9": "::1", "123456": "::3"}', json.dumps({"0": ODD}), json.dumps([ODD])],
    infiniband.pkeys: ['{"10": "0xffff", "2": "0x7fff"}', '{"0": "x"}'],
    infiniband.counters: ['{"a": "0", "b": "-1", "c": null, "lifespan": "10", "d": "N/A (no PMA)"}', "odd", "[]",
                          '{"a": 7}', '{"a": "7", "b": [1]}', "[" * 100_000, '{"a": "7"}'],
    infiniband.priorities: ['{"5": "1", "3": "1", "4": "0"}', "{}", "", "[]", "7", '{"a": "1"}', "[" * 100_000,
                            '{"7": "1", "6": "2", "0": "1"}'],
    infiniband.gid_text: [*(infiniband.IPv6Address(text) for text in ("::ffff:10.0.0.1", "fe80::1", "::1"))],
    pci.identity: ["PCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\nDRIVER=nvidia\n",
                   "PCI_CLASS=20700\nPCI_ID=15B3:1021\n", "PCI_ID=10DE:2330\n", "PCI_CLASS=x\nPCI_ID=10DE:2330\n", ""],
    pci.place: ["../../../devices/pci0000:00/0000:00:05.0", "../../../devices/pci0000:40/0000:40:01.0/0000:41:00.0",
                "../../../devices/LNXSYSTM:00/VMBUS:00/47505500-0001-0000/pci0001:00/0001:00:00.0\n",
                "../d/pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0", "", "x/y", "0000:41:00.0"],
    pci.speed: ["16.0 GT/s PCIe\n", "8 GT/s\n", "2.5 GT/s PCIe", "Unknown\n", "Unknown speed", "x", "16 GB/s"],
    pci.width: ["16\n", "1", "2", "4", "8", "12", "32", "0", "3", "63", "255", "x"],
    _gbps: [(2.5, 1), (5.0, 8), (8.0, 16), (16.0, 16), (32.0, 16), (64.0, 16), (None, 16), (8.0, None)],
    pci.bars: [BARS, "0x0 0x1 0x0\n", "", "0x9 0x1 0x0\n0x0 0x7 0x20000000\n" + "0x8 0x8 0x0\n" * 5],
    pci.aer: ["RxErr 3\nBadTLP 0\nBadDLLP 1\nTOTAL_ERR_COR 4\n", "", "x\n"],
    pci.normal: ["00000000:C4:00.0", "c4:00.1", "00010000:01:00.0", "0000:c4:00", "c4:00.8", ""],
    pci.acs: [space(PORT_ACS), space(PORT_ACS[:64]), space(PORT_ACS[:65]), space(PORT_ACS[:256]), space(b"\xff" * 4096),
        patched(bytes(4096), (0x100, "01000010")), json.dumps(_CUT), "x", '{"length": 4}', *(patched(bytes(size),
        (0x100, "0100" + at), (int(at[2:] + at[:1], 16), said)) for size in (4096, 4095) for at,
        said in (("81ff", "0d0000000000ffff"), ("c1ff", "0d000000"))), patched(bytes(4096), (0x100, "ffffffff")),
        patched(bytes(4096), (0x100, "0d0000000000ffff")),
        patched(bytes(4096), (0x100, "0e000000 0000ffff".replace(" ", ""))), "[]", "7", "[" * 100_000,
        '{"length": 1e400, "rows": {}}', '{"length": -1, "rows": {}}', '{"length": 4096, "rows": []}',
        '{"length": 99999, "rows": {"0x100": "0d0000000000ff00", "0x1000": "ff"}}',
        '{"length": 80, "rows": {"x": "00"}}', '{"length": 80, "rows": {"0": "0g"}}',
        '{"length": "80", "rows": {"0xfe": "00000d0000000000ff00"}}'],
    pci.settings: [space(express(0x5930)), space(express(0x2820, 0x8000)), space(express(0x2820, 0)),
        space(express(0)[:64]), space(bytes(4096)), space(express(0, following=0x40)), *(
        patched(express(control, 0xFFFF), (0x34, "43")) for control in (0xFFFF, 0x7FFF, 0x8FFF, 0xFF0F, 0xFFEF)),
        patched(express(0x2820, 0x7FFF), (0x41, "63")), patched(express(0x2820)[:0x6C]),
        patched(express(0x2820)[:0x6B]), patched(express(0x2820), (0x34, "3c")), patched(express(0), (0x41, "00")),
        patched(express(0x2820), (0x100, "0100c1ff"), (0xFFC, "0f000000")),
        patched(express(0x2820), (0x100, "010081ff"), (0xFF8, "0f00000000000080"))],
    nvidia_smi.count: ["GPU 0: A\n  GPU 1: B\nGPU 2: C\n", "no devices\n", ""],
    nvidia_smi.cuda_version: ["NVML version : 570.86\nCUDA Version        : 12.4\n", "CUDA Version: 12\n",
        'CUDA version        : Deprecated, see "CUDA UMD version" instead\nCUDA UMD version    : 13.3\n'],
    nvlink.parse: ["", "\n", "Link 0: 25 GB/s", "no", "  no  ", of.TWO_GPUS.replace("\n", "  \n"),
        "GPU 0: A (UUID: GPU-b) (UUID: GPU-c)\n Link 0: 25 GB/s\n Link 1: " + ODD,
        "GPU 0: A (UUID: GPU-b) (UUID: GPU-c) d)\n Link 0: 25.5 GB/s\n", of.TWO_GPUS, of.TWO_GPUS * 2,
        of.TWO_GPUS.replace("Link 1", "Link 0"), of.TWO_GPUS.replace("<inactive>", "25 Gb"),
        "".join(f"> {line}\n" for line in of.TWO_GPUS.splitlines()),
        f"GPU 0: NVIDIA RTX A6000 (UUID: GPU-b) {of.TWO_GPUS.splitlines()[-1]}\n"],
    nvml.members: [[0], [5, 1], [1 << 63], [], [3 << 63, 1]],
    nvml.reasons: [0, 1, 0x1FF, 0x200, 1 << 63],
    software.parse_version: ["2.29.7", "2.29.7+cuda13.0", "v2.30.7-1", " 2.30\n", 22907, "22907", 20906, 2804, 2708, "",
                             "2", "two", "2.x", "0", 7, "123456789", "2.29.7.1", "9999", "10000"],
    software.reaches: [((2, 28, 2), (2, 28, 3)), ((2, 28, 3), (2, 28, 3)), ((2, 28, 3), (2, 28)),
        ((2, 28, 3), (2, 28, 7)), ((2, 9, 6), (2, 28)), (None, (99, 0))],
    software.torch_cuda: ["cuda: Optional[str] = '13.0'\n", "__version__ = '2.1.0'\ncuda = '12.1'\nhip = None\n",
                          "cuda: Optional[str] = None\n", *(f"cuda: Optional[str] = '{bad}'\n" for bad in
                          ("9" * 5000, "x", "", "1234.5", "12.4" + "0" * 100))],
    software.version_text: ['["x", "NCCL version 2.30.7+cuda13.3"]', '["NCCL version of nothing"]', "x", "7",
        "[" * 100_000, '["NCCL version 2.29", "NCCL version 2.30.1"]', '["a", "b"]'],
    loader.elf: [(json.dumps({"needed": ["a"], "runpath": "", "rpath": "$ORIGIN/../../n/lib:${ORIGIN}:/abs//x:$ORIGINS",
                              "needs_versions": {"libc.so.6": ["GLIBC_2.34"]}, "versions": ["A"]}), "/v/t/lib/a.so"),
                 ("x", "/a"), ('{"needed": []}', "/a"), *((json.dumps(each), "/v/t/a.so") for each in (
                     {"needed": 7, "rpath": "", "runpath": ""}, {"needed": [], "rpath": 7, "runpath": ""},
                     {"needed": ["b", "a"], "rpath": "../../x:./a/./b:/..:/../../c:/:a/../..", "runpath": ""})),
                 ("[" * 100_000, "/a"), ('{"needed": [], "rpath": "../x:..", "runpath": "a"}', "/v/a")],
    nccl_conf.log_folder: ["/tmp/nccl.%h.%p", "/logs/%h/nccl.%p", "nccl.log", "stdout", "STDERR", "/dev/stderr", "",
                           "/a"],
    nccl_conf.graph_trouble: ['<graphs version="1"><graph id="0" pattern="4"/></graphs>\n',
        '<!-- ours -->\n<graphs version="1"/>', '<system version="1"></system>', "",
        '<graphs version="1"><graph id="0"', '<graphs version="1"><graph id="0"/>', '<graphs version="2"></graphs>',
        "<graphs ></graphs>", "# rings\n0 1 2 3", '<graphs version="1"></graphs><graphs version="2"></graphs>',
        '<graphs version="1">a/>b</graphs>', '\r\n <graphs version="1"></graphs>', '<graphs version="1">'],
    nccl_conf.conf_paths: [({}, "/h"), ({}, None), ({"NCCL_CONF_FILE": ""}, "/h"), ({"NCCL_CONF_FILE": "/s"}, "/h"),
                           ({"NCCL_CONF_FILE": "/s"}, "/h", (2, 23, 0)), ({"NCCL_CONF_FILE": "/s"}, "/h", (2, 22, 9)),
                           ({}, "", (2, 30, 3))],
    _merged: [("A=user\nB=user\nB=later\nE=user", f"A={SYSTEM_FILE}\nB=system\nC=system\n")],
    placement.cloud_init: ['{"v1.region": "r", "v1.availability_zone": "z"}', "{}", "", "[]", "{", "null", '"x"',
                           json.dumps([ODD])],
    placement.pod_labels: ['cloud.google.com/gce-topology-block="b1"\ncloud.google.com/gce-topology-host="h9"\n'
        'cloud.google.com/gce-topology-subblock="s2"\ntopology.kubernetes.io/zone="us-central1-a"\n', "x\n", "",
        "topology.kubernetes.io/region= \"a=b\" \ntopology.k8s.aws/network-node-layer-3=l3\n"
        "topology.k8s.aws/network-node-layer-1=l1\ntopology.k8s.aws/network-node-layer-2=l2\n"],
    data_paths.parse_mounts: [of.FILE_SYSTEMS, "23 1 8:1 / /", "a b - c", "23 1 8:1 / / rw - ext4\n", "",
                              "1 2 3 / /x - ext4 d rw", "1 2 3 / /x rw - ext4 d - e rw", "1 2 3 / /x rw ext4 d rw",
                              r"1 2 3 /\040r /a\677b rw - nfs s:/\0401 rw", "1 2 3 / /x rw - ext4 d"],
    environment.parse: ['{"A": "1", "B": null}', "", "[1]", '{"A": 1}', "odd", '{"A": "1", "B": 7}', json.dumps([ODD])],
    _moved: [(Absent("a"), Count(1, 1)), (Count(1, 1), Absent("b")), (Count(1, 2), Count(5, 9)),
             (Count(9, 9), Count(9, 1))],
    _sent: [(0, 5), ((1 << 32) - 8, 8), (1 << 31, 10), ((1 << 31) - 1, 10), (1 << 32, 10), (1 << 33, 1 << 32),
            ((1 << 34) - 8, 8, "rdma"), (1 << 33, 8, "rdma"), ((1 << 33) - 1, 8, "rdma"), (1 << 34, 8, "rdma")],
}  # fmt: skip
_SITE = Loader(library_path=("/site",))
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


def _placed(labels: Any, variables: Mapping[str, str | None], cloud: str = "", kvp: Any = GONE) -> object:
    keys = "|".join(map(re.escape, placement.LEVEL_OF_LABEL))
    said = {("lines", placement.LABELS, f"^({keys})="): labels, placement.QUESTION: of.EC2,
            ("kvp", placement.HYPERV, "PhysicalHostNameFullyQualified"): kvp}  # fmt: skip
    known = [Environment(variables), machine.Machine(Dmi(), cloud)]
    return [(each.kind, each.name) for each in learn(placement.placement, said, known).levels]


def _of_ranks(ranks: Sequence[tuple[str, Any]]) -> object:
    """Return what is said of GPUs once the answers of ranks are one; each rank sees the GPUs of these names."""
    every = []
    for gpus, shown in ranks:
        own: dict[Question, Any] = {("env",): shown if shown is GONE else json.dumps({rank._LIST: shown, "RANK": "0"})}
        for number, name in reversed([*enumerate(gpus)]):
            own["nvml", "nvmlDeviceGetUUID", number] = Failed("lost") if name == "?" else f"GPU-{name}"
            own["nvml", "nvmlDeviceGetPciInfo", number] = json.dumps({"busId": name})
            own["nvml", nvml.ASK, number, "0", 0] = own["nvml", "nvmlDeviceGetName", "all", 0] = f"[{number}]"
        every.append(own)
    return sorted(rank.merge_ranks(every[0], dict(enumerate(every[1:], 1))).items(), key=str)


DERIVED: Mapping[str, tuple[Callable[..., object], Sequence[Any]]] = {
    "the machine of a name": (lambda name: NamedMachine(name).machine,
                              ["bm.gpu4.8", "a3-megagpu-8g", "p5.48xlarge", "standard_nd96", "dgx-h100"]),
    "limits of a process": (lambda said: getattr(
        learn(process.process, of.PROCESS | {("rlimit", "RLIMIT_NPROC"): said}), "nproc", "not learned"), [
        [7, None], ["7", None], [{}, 7], [1.5, 2], [True, 7], [7], 7, "77"]),
    "a device node that does not open": (
        lambda why: learn(infiniband.infiniband, of.CARD | {("open", "/dev/infiniband/uverbs3"): why}).devices[0].opens,
        [Failed("No such device"), TimedOut("no answer")]),
    "shapes of measured paths": (lambda said: learn(reach.paths, {("sample", "paths"): said}), [
        [], {}, {"me": 0}, {"me": 0, "names": {"x": "n0"}}, {"me": "0", "names": {}},
        {"me": 0, "names": {}, "rows": [{}]}, {"me": 0, "names": {"0": "n0"}}]),
    "answers about data paths": (lambda said: learn(data_paths.data_paths, of.DATA | {("data", "stat", "/link"): said}),
        [{**of.LOOK, "kind": "fifo"}, {**of.LOOK, "uid": "0"}, [], {}, TimedOut("late")]),
    "how many data paths": (lambda count: type(learn(data_paths.data_paths, {
        ("sample", "asked_paths"): {"paths": [f"/{each}" for each in range(count)]}})).__name__, [
        bounds.DATA_PATHS, bounds.DATA_PATHS + 1]),
    "devices of a host": (lambda said: [(each.name, each.verbs, each.opens, [port.name for port in each.ports])
        for each in learn(infiniband.infiniband, of.CARD | said).devices], [
        {("list", f"{of.IB}/mlx5_0/ports"): ["2", "10", "1"]}, {("list", infiniband.VERBS): ["uverbs3", "uverbs4"],
        **of.reads(infiniband.VERBS, **{"uverbs3/ibdev": Denied("three"), "uverbs4/ibdev": Denied("four")})}, {
        ("list", infiniband.VERBS): ["uverbs4", "uverbs3", "x3"],
        **of.reads(infiniband.VERBS, **{"uverbs4/ibdev": "mlx5_4\n"})}]),
    "marks of a port": (lambda said: learn(infiniband.roce_qos, of.QOS | said, [of.fabric(replace(
        of.ROCE, gids=(replace(of.ROCE.gids[0], index=0, netdev=""), *of.ROCE.gids)))]).ports, [
        {}, {("read", f"{of.IB}/mlx5_0/tc/1/traffic_class"): f" {ODD}"}]),
    "what Xids mean": (lambda code: (tuple(kernel_log.XIDS[code]), code in kernel_log.HARMLESS_XIDS,
                                     code in kernel_log.LINK_XIDS), [(code,) for code in kernel_log.XIDS]),
    "odd answers of NVML": (_odd_answer, [("nvmlDeviceGetMemoryInfo", {"total": "1"}, "memory_bytes"),
        ("nvmlDeviceGetRemappedRows", [0, 0], "remap_failed"), ("nvmlDeviceGetMigMode", [True], "mig"),
        ("nvmlDeviceGetMigMode", [1, True], "mig"), ("nvmlDeviceGetComputeMode", 4, "compute_mode"),
        ("nvmlDeviceGetComputeMode", 3, "compute_mode"), ("nvmlDeviceGetComputeMode", -1, "compute_mode"),
        ("nvmlDeviceGetCudaComputeCapability", [9], "compute"), ("nvmlDeviceGetPersistenceMode", None, "persistence"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "1", "throttle"),
        ("nvmlDeviceGetEnforcedPowerLimit", [700000], "power_limit_W"),
        ("nvmlDeviceGetTotalEccErrors", 7, "ecc_since_reset", 1, 0),
        ("nvmlDeviceGetTotalEccErrors", 8, "ecc_ever", 1, 1), ("nvmlDeviceGetSramEccErrorStatus",
        {"bThresholdExceeded": 1}, "sram_worn"), ("nvmlDeviceGetRemappedRows", [0, 0, 1, 0], "remap_pending"),
        ("nvmlDeviceGetMigMode", [0, 1], "mig_pending"), ("nvmlDeviceGetRemappedRows", [0, 0, 1, 0], "remap_failed"),
        ("nvmlDeviceGetEccMode", [0, 1], "ecc"), ("nvmlDeviceGetComputeRunningProcesses", [None, 7, -1], "processes"),
        ("nvmlDeviceGetComputeRunningProcesses", [None, 7, 0], "processes"),
        ("nvmlDeviceGetCurrentClocksEventReasons", 0x1F0, "throttle"), ("nvmlDeviceGetMemoryInfo",
        {"total": 9, "used": 4}, "memory_used_bytes"), ("nvmlDeviceGetBAR1MemoryInfo", {"bar1Total": 8, "bar1Free": 3},
        "bar1_bytes"), ("nvmlDeviceGetEnforcedPowerLimit", 699499, "power_limit_W"), ("nvmlDeviceGetViolationStatus",
        {"violationTime": 2_500_000_001, "referenceTime": 7}, "hot_s", 1), *((function, number, field, *more)
        for number, (function, field, *more) in enumerate((("nvmlDeviceGetCurrPcieLinkGeneration", "pcie_generation"),
        ("nvmlDeviceGetCurrPcieLinkWidth", "pcie_width"), ("nvmlDeviceGetMaxPcieLinkGeneration", "pcie_max_generation"),
        ("nvmlDeviceGetMaxPcieLinkWidth", "pcie_max_width"),
        ("nvmlDeviceGetPowerManagementDefaultLimit", "power_default_W"),
        ("nvmlDeviceGetApplicationsClock", "clock_MHz", 1), ("nvmlDeviceGetTemperature", "temperature_C", 0),
        ("nvmlDeviceGetTemperatureThreshold", "slowdown_C", 1), ("nvmlDeviceGetPcieReplayCounter", "pcie_replays")),
        1500))]),
    "how many GPUs": (lambda said: learn(nvml.nvml, NVML | {("nvml", "nvmlDeviceGetCount"): said}), [
        str(bounds.NVML_DEVICES), str(bounds.NVML_DEVICES + 1), "1", Failed("Driver Not Loaded"), "[" * 100_000]),
    "names of GPUs": (lambda *rows: nvml.Gpus(tuple(nvml.Gpu(*row) for row in rows), "", (12, 4)).names, [
        ((3, "A", "GPU-a", "00000000:C4:00.0"), (0, "B", "b", ""), (1, "", "", ""))]),
    "Xids of NVML": (lambda said: nvml.xids(answers({("nvml", "xids"): said})), [
        [[0, 79], [3, 13]], [], [[0]], [["0", 79]], {}, "x"]),
    "heat of GPUs": (lambda said: nvml.heated_s(answers(NVML | said)), [{}, {("nvml", "nvmlDeviceGetCount"): GONE}, {
        ("nvml", "nvmlDeviceGetViolationStatus", 1, 1): {"violationTime": 7}}]),
    "GPUs by nvidia-smi": (_by_smi, [({}, {}), ({},), (OLDER, OLDER)]),
    "a change of what nvidia-smi says": (lambda name, text: _differs(**{name: text}), [
        ("mig_mode", "<current_mig>N/A</current_mig>"), ("remapped_rows", "N/A"), ("fabric", "<state>N/A</state>"),
        ("applications_clocks", "<graphics_clock>9 GHz</graphics_clock>"), ("processes", ""),
        ("fb_memory_usage", "<total>GPU is lost</total>"), ("fb_memory_usage", "<total>[GPU requires reset]</total>"),
        ("fb_memory_usage", "<total>ERR!</total>"), ("compute_mode", "Exclusive_Process"),
        ("fabric", "<state>Completed</state><status>Failure</status>"), ("fabric",
        "<state>In Progress</state><status>N/A</status><health><bandwidth>Degraded</bandwidth>"
        "<route_unhealthy>True</route_unhealthy></health>"), ("clocks_event_reasons",
        "<clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>"
        "<clocks_event_reason_display_clocks_setting>Active" "</clocks_event_reason_display_clocks_setting>"), (
        "ecc_errors", "<volatile><double_bit><total>5</total></double_bit></volatile>"), ("ecc_errors",
        "<volatile><sram_uncorrectable>N/A</sram_uncorrectable></volatile>"), ("gpu_power_readings",
        "<current_power_limit>[N/A]</current_power_limit>"), ("gpu_power_readings",
        "<current_power_limit>199.5 W</current_power_limit>"), ("processes",
        "<process_info><type>C+G</type><used_memory>N/A</used_memory></process_info>"), ("processes", "".join(
        f"<process_info>{kind}<used_memory>{used}</used_memory></process_info>" for kind, used in (
        ("<type>G</type>", "1 MiB"), ("<type>C</type>", "2 MiB"), ("", "3 MiB"), ("<type>M+C</type>", "4 MiB")))), *(
        ("fb_memory_usage", f"<total>{said}</total><used>9 MiB</used>") for said in ("GPU requires restart",
        "Insufficient Permissions", "Unknown Error", "9 MiB more", "9.6 MiB", "N/A",
        "Requested functionality has been deprecated")), ("ecc_errors", "".join(
        f"<aggregate><{kind}>{told}</{kind}></aggregate>" for kind, told in (("sram_uncorrectable_parity", "N/A"),
        ("dram_uncorrectable", "3"), ("dram_correctable", "50")))), ("ecc_errors",
        "<volatile><sram_uncorrectable_parity>2</sram_uncorrectable_parity><dram_uncorrectable>3"
        "</dram_uncorrectable><dram_correctable>50</dram_correctable></volatile>"), ("ecc_errors",
        "<volatile><sram_uncorrectable>x</sram_uncorrectable><dram_uncorrectable>ERR!"
        "</dram_uncorrectable></volatile>"), ("fabric",
        "<state>Completed</state><status>Success</status><clusterUuid>a</clusterUuid><cliqueId>7</cliqueId>"
        "<health><route_recovery_in_progress>True</route_recovery_in_progress>"
        "<access_timeout_recovery>True</access_timeout_recovery></health>"), ("fabric", "<state>Not Started</state>"),
        ("fabric", "<state>Not Supported</state>"), ("fabric", "<state>x</state>"), *((f"{place}_mode", said) for place,
        said in (("compute", "Exclusive_Thread"), ("compute", "Prohibited"), ("compute", "x"),
        ("persistence", "Disabled"))), ("mig_mode",
        "<current_mig>Disabled</current_mig><pending_mig>Enabled</pending_mig>"), ("ecc_mode",
        "<current_ecc>Enabled</current_ecc><pending_ecc>Disabled</pending_ecc>"), ("remapped_rows",
        "<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>"), (
        "temperature", "<gpu_temp>41 C</gpu_temp><gpu_temp_slow_threshold>87 C</gpu_temp_slow_threshold>"), (
        "clocks_event_reasons", "".join(f"<clocks_event_reason_{each}>{said}</clocks_event_reason_{each}>" for each,
        said in (("sw_thermal_slowdown", "Active"), ("hw_power_brake_slowdown", "Active"), ("sync_boost", "Not Active"),
        ("gpu_idle", "Active"), ("applications_clocks_setting", "Active"), ("sw_power_cap", "Active"))))]),
    "compute capabilities": (lambda said: [each.compute for each in _by_smi({}, {}, compute=said).all],
                             [  # type: ignore
        " 9.0 \n8.6", "9.0\n9", "9.0\nx.0", "x.0\n9.0", "9.0", "9.0\n9.0\n9.0", "9.0.1\n9.0"]),
    "what nvidia-smi does not tell": (lambda text: _by_smi(text=text), ["No devices were found", xml(), "<a/>",
        f"<{'b' * 99}/>", "<nvidia_smi_log><gpu>", f'<!ENTITY a "b">{xml(HEALTHY)}']),
    "how many NVLinks": (lambda text: str(learn(nvlink.nvlink,
        NVML | {("nvml", "nvmlDeviceGetFieldValues", 0, "91", "0"): text}, [nvml.nvml]).gpus[0])[:60], ["[2]", "[0]",
        f"[{bounds.NVLINKS}]", f"[{bounds.NVLINKS + 1}]", "[]", "[1, 1]", "7", '[{"refused": "x", "why": "y"}]',
        '[{"refused": "Failed", "why": "Not Supported"}]', '[{"refused": "Failed", "why": "Unknown Error"}]']),
    "libraries that are mapped": (_linked, [(BASE, _SITE), (LATE, _SITE), (BASE, Loader()),
        (LATE, Loader(preload=("/x/libnccl.so.2.27.3",))), ({CUDA_LIBRARY: BASE[CUDA_LIBRARY]},
        Loader(preload=("/x/libnccl.so.2.27.3",))), ({CUDA_LIBRARY: {"needed": NEEDED},
        "/usr/lib64/libcudart.so.12": {}}, Loader(), "libcudart.so.12"), ({CUDA_LIBRARY: {"needed": NEEDED},
        "/usr/lib64/libcudart.so.12": {}}, Loader()), ({}, Loader()), ({CUDA_LIBRARY: {"needed": NEEDED}} | {
        f"{f}/libnccl.so.2": {} for f in ("/lib64", "/usr/lib64", "/usr/lib")}, Loader(library_path=("/lib64",)))]),
    "constants of plugins": (_opened, [*((NET, kind, flavour, {symbol: name}) for kind, flavour, symbol, name in (
        ("net", "", "ncclNetPlugin_v8", "AWS Libfabric"), ("net", "", "ncclNet_v11", "IBext_v8"),
        ("net", "x", "ncclNet_v8", "gIB"), ("net", "", "ncclTunerPlugin_v2", "t"),
        ("", "", "ncclTunerPlugin_v2", "UCX"), ("", "", "ncclFooPlugin_v1", "f"), ("", "", "ncclNetPlugin_v8x", "f"),
        ("", "", "ncclNETPlugin_v8", "f"), ("net", "", "ncclNetPlugin_v12345", "f"), ("", "", "ncclProfiler_v1", ""))),
        *((NET, kind, "ofi", {"ncclNetPlugin_v6": "A", "ncclNetPlugin_v10": "B", "ncclNet_v9": "A",
        "ncclTunerPlugin_v3": "T", "odd": "x"}) for kind in ("", "net", "tuner", "env")), (NET, "net", "", GONE),
        (NET, "net", "", ["x"]), *((NET, "net", flavour, {"ncclNetPlugin_v8": "N"}, texts)
        for flavour in ("ofi", "tcpx", "gib", "sharp") for texts in ([], ["aws-ofi-nccl 1.9.2-aws",
        "NET/GPUDirectTCPX ver. 3.1.8.", "Initializing gIB v1.0.5"], ["x", "aws-ofi-nccl git", "aws-ofi-nccl 1.7"],
        {"a": 1}, GONE))]),
    "the plugin that is opened": (lambda path, reachable, variables: plugins.is_opened(
        plugins._plugin(path, reachable), variables), [*((f"/p/{name}", reachable, {variable: value}) for name in (
        "libnccl-net.so", "libnccl-net-ofi.so", "libnccl-tuner-ofi.so", "libx.so") for reachable in (True, False)
        for variable, value in (("NCCL_NET_PLUGIN", "ofi"), ("NCCL_NET_PLUGIN", "x,ofi"), ("NCCL_TUNER_PLUGIN", "ofi"),
        ("NCCL_ENV_PLUGIN", "/p/libx.so"), ("NCCL_PROFILER_PLUGIN", "libx.so"), ("NCCL_NET_PLUGIN", None)))]),
    "libraries that matter": (_linked, [({**BASE, CUDA_LIBRARY: {"needed": [f"lib{name}.so.1" for name in ("nccl",
        "cudart", "nvshmem_host", "fabric", "ucp", "ucs", "uct", "ibverbs", "z")], **changes}}, _SITE, *cached)
        for changes in ({}, {"needs_versions": {"libz.so.1": ["Z_1"], "libibverbs.so.1": []}})
        for cached in ((), ("libucp.so.1", "libz.so.1"))]),
    "functions that NCCL lacks": (lambda asked, offered: _linked({CUDA_LIBRARY: {"needed": NEEDED, "symbols": {
        "undefined": asked}}, SITE_NCCL: {"symbols": {"defined": offered}}}, _SITE),
        [([f"nccl{n}" for n in "jcahbdgfie"], []),
        (["ncclA"], ["ncclA", "ncclB"]), (["ncclB", "ncclA"], ["ncclB"]), ([], ["ncclA"])]),
    "libraries of a plugin that is named": (lambda named, reachable, software: _linked(
        BASE, _SITE, named=named, reachable=reachable, software=software), [
        ("ofi", True, INSTALLED), ("ofi", False, INSTALLED), (NET, False, INSTALLED), ("", False, Software({})),
        ("", True, replace(INSTALLED, torch=Torch(TORCH, None))),
        *((named, True, replace(INSTALLED, mapped=Mapped(f"{OWN}/libnccl.so.2", why))) for why in ("static", "DT_RPATH")
          for named in ("ofi,x", "x,ofi", f"{NET},x"))]),
    "what a text names": (lambda text: pasted_job.described(text.splitlines()), [
        "- replicas: 2\nreplicas: 4\nreplicas: '3'\nreplicas: 1", "mpirun -np 24 -H a:8,b:8,a:8 ./a",
        "mpirun -np 16 -npernode 8 ./a", "mpirun -np 17 -npernode 8 ./a", "srun -N 2 -n 16 ./a", "srun -N 2 -n 17 ./a",
        "srun -N 2 -n 16 --ntasks-per-node=4 ./a", "torchrun --nnodes=2 a.py\ntorchrun --nnodes=3 a.py",
        "--nnodes=2 --standalone --nnodes=2", "# two p5.48xlarge\n# two p5.48xlarge.", "2 p5.48xlarge, 2 p4d.24xlarge",
        "8x L40S\nGPU 0: NVIDIA L40S (UUID: GPU-1)", "8x L40S\nGPU 0: NVIDIA L40 (UUID: GPU-1)", "4x H100\n8x H100",
        "$ show_gids | grep mlx5_0", "$ nvidia-smi | head -3", "(same on all nodes)", "(same for the other NICs)",
        "(same for all GPUs)", "[... 8 GPUs in all]", "source env.sh", "ldconfig /usr/local/gib/lib64",
        "export NCCL_DEBUG=INFO\nexport NCCL_NET=IB\nmpirun -np 2 --bind-to none -H a,b -x NCCL_NET ./a",
        "mlx5_0 port 1 ==> eth0 (Up)\nlink mlx5_1/1 state ACTIVE physical_state LINK_UP netdev eth1"]),
    "threads that are left": (lambda most, used: cgroup.PidsLimit(most, "", used).left, [(5, 7), (5, Absent("x"))]),
    "DMA-BUF": (lambda kernel, flavour: driver.GpuDirect({}, kernel, flavour).dma_buf, [((5, 12), "open"),
        ((5, 11), "open"), ((6, 0), "proprietary"), ((6, 0), None), ((6, 0), Absent("x")), (Absent("x"), "open")]),
    "loopback addresses": (lambda *found: names.Master("n", found).loopback,
                           [("127.0.1.1", "::1", "fe80::1%eth0"), ("10.0.0.1",), ("::1%lo", "10.0.0.1")]),
    "the route of a packet": (_ROUTES.leaving, [
        ("10.1.0.9", ""), ("10.1.0.9", "10.2.0.5"), ("10.9.0.9", "10.2.0.5"), ("8.8.8.8", "10.0.0.5")]),
    "kind of a function": (lambda code, vendor: pci.Identity(code, vendor, 0).kind, [
        (0x030200, 0x10DE), (0x030000, 0x10DE), (0x030000, 0x1A03), (0x040300, 0x10DE), (0x068000, 0x10DE),
        (0x068000, 0x8086), (0x068001, 0x1014), (0x068000, 0x1014), (0x020000, 0x15B3), (0x020700, 0x15B3),
        (0x028000, 0x15B3), (0x0C0600, 0x15B3), (0x010802, 0x144D), (0x060400, 0x10B5), (0x120000, 0x10DE)]),
    "switches": (lambda *bridges: pci.PciPosition("pci0000:00", bridges).switches,
                 [(), ("r",), ("r", "u"), ("r", "u", "d"), ("r", "u", "d", "v", "e")]),
    "settings in lspci's words": (lambda control, ats: str(pci.settings(space(express(control, ats)))),
                                  [(0x5930, None), (0x2820, 0x8000), (0, 0)]),
    "fabric of NVLink": (_fabric, [*((mask,) for mask in (0, 0x1AA, 0x001, 0x155, 0x154, 0x100, 0x200, 0x400, 0x1200,
        0xF00, 0x004, 0x010, 0x040)), (0, ("state", 4)), (0, ("clusterUuid", [256] * 16)), (0, ("clusterUuid", 10**12)),
        (0, ("healthMask", None)), (0, ("status", -1))]),
    "topology files": (lambda text: nccl_conf.topology_file("/t", text), [
        TOPOLOGY, "", "not found", TOPOLOGY[:100], '<pci busid="1:0:0.0" class="0x0604"><pci busid="2:0:0.0"',
        '<system\tversion=\'1\'><pci class="0x030200" busid="0001:00:00.0"/></system>',
        '<system version="x"><pcix busid="1:0:0.0" class="0x0302"/><pci busid="a b" class="0x0302"/></system>',
        "<pci " * 200_000, '<pci busid="' * 100_000, "</system>", '<system version="2">', TOPOLOGY + " \n",
        "".join(f'<pci busid="{number}:0:0.0" class="{code}"/>' for number, code in enumerate((
            "0x0200", "0x0207", "0x0300", "0x0302", "0x030200", "0x0604", "0x02"))), '<pci busid="" class="0x0302"/>']),
    "events of the kernel's log": (lambda line: (*kernel_log.events([(1.5, line)]),
        bool(re.search(kernel_log.WANTED, line))), (FACTS.parent / "kernel_log.txt").read_text().splitlines()),
    "lines of nccl.conf": (lambda text, version: nccl_conf.parse_conf(text, "f", version), [
        *((text, version) for version in (None, GETLINE) for text in (
            "", "NCCL_DEBUG=INFO", "# a note\n\nNCCL_DEBUG=WARN\n", "NCCL_DEBUG = INFO\n", " # NCCL_DEBUG=INFO\n",
            "#NCCL_DEBUG=INFO\n", 'NCCL_NET="IB"  # why\n', "NCCL_NET_FORCE_MERGE=a=b\n", "NCCL_DEBUG=\n",
            "NCCL_DEBUG\n=INFO\n", "A=1\nA=2\n", "A=1\0B=2\0C=3\nD=4", "A=1\r\r\n", "=1\nA=<value not recorded>\n")),
        ("A=1\r\n", (2, 30, 3)), ("A=1\r\n", (2, 30, 2)), ("#A=1\n# a note\n", (2, 25, 1)), ("#A=1\n", (2, 26, 0))]),
    "lengths in nccl.conf": (_lengths, [
        "n" * (LONGEST_FIELD + 1) + "=" + "v" * (LONGEST_FIELD + 2), "A=" + "x" * (LONGEST_LINE - 2) + "\nB=2",
        "A=" + "x" * (LONGEST_LINE - 2) + "B=2", ("A=" + "x" * (LONGEST_LINE - 2) + "B=2", GETLINE)]),
    "lines that define nothing": (lambda text: [*nccl_conf.undefined(text, "f")], ["  setenv A B \n\n# c\nD: E\nF=1\n",
        "x" * (LONGEST_FIELD - 1), "x" * (LONGEST_FIELD + 1)]),
    "the mount of a path": (lambda path: data_paths.mount_of(path, data_paths.parse_mounts(of.FILE_SYSTEMS)).source, [
        "/data/set", "/data", "/database", "/data/cache/x", "/my data/x", "/", "no path"]),
    "local and remote": (lambda kind: ((of := data_paths.Mount("/", kind, "s")).is_local, of.is_remote), [
        "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "squashfs", "erofs", "vfat",
        "nfs", "nfs4", "nfs5", "lustre", "gpfs", "mmfs", "beegfs", "ceph", "glusterfs", "fuse.x", "fuse.", "fuse", "9p",
        "virtiofs", "cifs", "smb3", "afs", "orangefs", "wekafs", "panfs", "pvfs2", "other", "nfs4x"]),
    "file systems": (lambda *row: str(data_paths.Mount(*row)), [("/a", "nfs4", "s:/x"), ("/a", "ext4", "d", "/sub")]),
    "a tree on the bus": (_tree, [(), *(f"0000:{each}" for each in ("13:00.0", "17:00.0", "14:00.0", "31:00.0",
        "83:00.0", "01:00.0", "00:02.0", "10:01.0", "11:00.0", "12:00.0", "12:02.0", "30:01.0", "80:01.0")), *(
        ("0000:13:00.0", name) for name in ("numa_node", "max_link_width", "aer_dev_fatal", "iommu_group/type",
        "resource", "config"))]),
    "devices that do not answer": (lambda *said: learn(pci.pci, {("list", pci.ROOT): [name for name, _ in said],
        **{("read", f"{pci.ROOT}/{name}/uevent"): each for name, each in said}}), [
        (("0000:14:00.0", TimedOut("no answer")), ("0000:13:00.0", GONE)), (("b", Denied("no")), ("a",
            TimedOut("late"))),
        (("0000:14:00.0", "nonsense"),), (("0000:14:00.0", "PCI_CLASS=20700\nPCI_ID=15B3:1021\n"),)]),
    "placements": (_placed, [*(({}, {placement.SLURM: names, placement.SLURM_PATTERN: kinds}) for names, kinds in (
        ("s1.n1", "switch.node"), ("s0.s1.n1", "switch.switch.node"), ("b1.n1", "block.node"), ("n1", "node"),
        ("s1.n1", "switch"), ("a.b.c", "switch.node"), ("b1.s2.n1", "block.switch.node"), ("", ""), (None, "a.node"),
        (".".join("abcdefghijk"), ".".join(["switch"] * 10 + ["node"])))), *((labels, {**POD, **own}) for own in ({},
        {placement.OWN: " hall 1 / /row 2"}, {placement.SLURM: "s1.n1", placement.SLURM_PATTERN: "switch.node"})
        for labels in (GONE, *(f'{key}="x"' for key in placement.LEVEL_OF_LABEL),
        "\n".join(f'{key}="{key[-3:]}"' for key in placement.LEVEL_OF_LABEL))), ('topology.kubernetes.io/zone="x"', {}),
        (GONE, {}, "azure", ""), (GONE, {}, "azure", " \n"), (GONE, {}, "azure", "DUB\n"), (GONE, {}, "gcp", "DUB"),
        (GONE, POD, "azure", GONE), ('topology.kubernetes.io/zone="x"', POD, "aws")]),
    "GPUs of all ranks": (_of_ranks, [*(([("ab", one), ("ab", two), ("ab", three)],) for one, two, three in (
        ("0", "1", "2"), ("0, 1", " 1,2 ,", "0"), ("0", "1", None), ("0,1", "1", "0"), (None, "0", "1"), ("", "", ""),
        ("0,1", "2,3", "0"), (GONE, "1", "2"))), *(([(each, "0") for each in every],) for every in (
        "ab", "ba", ["ab", "bc"], ["", "a"], ["a", ""], ["?a", "b"], ["ba", "ab"], ["ca", "b"], ["a", "?"])),
        ([("a", GONE), ("b", "1")],), ([("a", "0"), ("?b", "1")],), ([("a", None), ("b", "1")],)]),
    "rates": (lambda *row: ((rate := data_paths.ReadRate(*row)).from_memory, rate.per_s), [
        (8, 2.0, 0.1), (8, 2.0, 0.11), (8, 2.0, None), (8, 0.0), (8, -2.0), (8, 2.0, 0.0, "why")])}  # fmt: skip


def results() -> Iterator[tuple[str, list[str]]]:
    """Yield each function, and a line for each of its rows: the arguments and what comes of them."""
    named = {f"{each.__module__.removeprefix('ncclprobe.')}.{each.__name__}": (each, CALLS[each]) for each in CALLS}
    names = ("fleet", "jobs", "looks", "matrices", "model", "processes", "ranks", "records", "run", "tables")
    others = [importlib.import_module(f"tests.facts.made_up_{name}") for name in names]
    tables = [named, DERIVED, *(module.rows() for module in others)]
    for name, (function, rows) in ((name, row) for table in tables for name, row in table.items()):
        long = [ODD, f"{ODD} {ODD}\n{ODD}"] if isinstance(rows[0], str) else []
        yield name, [f"{each!r:.70} -> {_result(function, each)}" for each in (*rows, *long)]


def _result(function: Callable[..., object], arguments: Any) -> str:
    try:
        found = function(*arguments) if isinstance(arguments, tuple) else function(arguments)
    except (NcclprobeError, ValueError) as error:
        return re.sub(r"[?]{9,}", lambda each: f"{len(each[0])}x?", f"{type(error).__name__}: {error}")[:300]
    spelled = re.sub(
        r"frozenset\(\{(.*?)\}\)",
        lambda each: str(sorted(each[1].split(", "))),
        found if isinstance(found, str) else repr(found),
    )
    rounded = re.sub(r"\d+\.\d{7,}(e-\d+)?", lambda each: f"{float(each[0]):.6g}", spelled)  # libraries differ beyond
    return f"{re.sub(UNREAD, '', rounded):.2000}"
