"""Texts of the kernel and of tools, and what the parsers of facts make of each: `command_values/texts.txt` keeps it.

To add a case, add a row, run `scripts/golden.py texts`, and read what it kept. Invalid text raises a ParseError.
"""

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from conftest import FACTS

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
    nvml,
    pci,
    placement,
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
from ncclprobe.facts.job.gpus import LiveGpu
from ncclprobe.facts.machine import Dmi, NamedMachine
from ncclprobe.facts.nccl_conf import LONGEST_FIELD, LONGEST_LINE, SYSTEM_FILE
from ncclprobe.facts.routes import Route, Routes, Rule
from ncclprobe.facts.run.samples import LostRank
from ncclprobe.facts.traffic import Count, Traffic
from ncclprobe.host import Question, pasted_job
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Failed, NcclprobeError, TimedOut
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.facts import made_up as of
from tests.facts import made_up_devices, made_up_libraries
from tests.facts.made_up import GONE, ODD, TCP, learn

UNREAD = r"""why=("|').*?\1, (?=refused='ParseError')"""  # what Python says of it differs by release
GETLINE = (2, 29, 7)  # the last release that reads lines of any length and keeps carriage returns
BARS = "0x0 0x1fffff 0x20040200\n0x1000 0x101f 0x40101\n0x10 0x10 0x0\n" + "0x0 0x0 0x0\n" * 10
VIRTUAL, ARM = "flags\t\t: fpu sse hypervisor lahf\n", "processor\t: 0\n"
AZURE = "7783-7084-3265-9085-8269-3286-77"
LIMITS = [["a:1", 0, "-", "nofile", "512"], ["a:2", 2, "soft", "nofile", "700"], ["a:3", 1, "soft", "nofile", "9"],
          ["b:1", 0, "hard", "memlock", "unlimited"], ["b:2", 0, "soft", "memlock", "64"],
          ["b:3", 2, "soft", "nproc", "1"], ["b:4", 2, "soft", "nofile", "many"]]  # fmt: skip
COUNTER = {"packets": 0, "bytes": 0}
TOPOLOGY = of.TEXTS["NCCL_TOPO_FILE"]


def _lengths(text: str, version: software.Version | None = None) -> object:
    return [(len(each.name), len(each.value or "")) for each in nccl_conf.parse_conf(text, "f", version)]


def _limits_of(variables: dict[str, str | None], lines: Any = LIMITS, uid: int | None = 1000) -> object:
    return learn(process.job_user, {("user_limits", "2000"): lines}, [Environment(variables), of.process_with(uid=uid)])


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


_ROUTES = Routes(
    (Route("0.0.0.0/0", "eth0", "10.0.0.1", 100), Route("10.1.0.0/16", "a", metric=5), Route("10.1.0.0/16", "b")),
    (Rule(1, "101", "10.2.0.0/16"), Rule(2, "102", interface="x"), Rule(3, "main")),
    (Route("10.1.0.0/16", "c", table="101"), Route("10.1.0.0/16", "d", table="102")))  # fmt: skip

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
        (Dmi("Google", "Google Compute Engine"), VIRTUAL, ""), (Dmi("Google", "Google Compute Engine 2"), ARM, ""),
        (Dmi("Microsoft Corporation", "Virtual Machine", asset_tag=AZURE), VIRTUAL, ""),
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
    process.namespace: ["ipc:[4026531839]", " ipc:[4026531839]\n", "ipc:[x]", ""],
    process.real_user: ["Name:\tx\nUid:\t7\t0\t0\t0\n", "Uid: 7\n"],
    process.status: [of.STATUS, of.STATUS.replace("Mems", "x"), of.STATUS.replace("CapEff", "x"),
        of.STATUS.replace("0020", "x"), of.STATUS.replace("0000000000204000", "ffffffffffffffff")],
    process.is_held: [("x", True, {"paths": ["x"], "hidden": 0}, False), ("x", True, {"paths": [], "hidden": 5}, True),
                      ("x", False, {"paths": [], "hidden": 0}, True), ("x", False, {"paths": [], "hidden": 5}, True),
                      ("x", True, {"paths": [], "hidden": 0}, False)],
    _limits_of: [{}, ({"SLURM_JOB_UID": "2000"}, GONE, 1000), ({"SLURM_JOB_UID": "2000"}, LIMITS, None),
        {"SLURM_JOB_UID": "1000"}, {"SLURM_JOB_UID": "2000"}, {"SLURM_JOB_UID": "2000",
        "SLURM_RLIMIT_NOFILE": "U4096", "SLURM_RLIMIT_MEMLOCK": str((1 << 64) - 1)}, {"SLURM_JOB_UID": "2000",
        "SLURM_RLIMIT_NOFILE": str((1 << 63) - 2), "SLURM_RLIMIT_MEMLOCK": "many"}, ({"SLURM_JOB_UID": "2000"},
        '[["a:1", 1, "-", "memlock", "-1"], ["a:2", 1, "soft", "memlock", "2"]]'), ({"SLURM_JOB_UID": "2000"},
        '[["a:1", 1, "-", "memlock", "infinity"], ["a:2", 0, "hard", "memlock", "2"]]'), *({"SLURM_JOB_UID": "2000",
        "SLURM_RLIMIT_NOFILE": each, "SLURM_RLIMIT_MEMLOCK": "7"}
        for each in (str((1 << 63) - 1), "9" * 20, "9" * 21, "U", "-5"))],
    _container: [({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "/.dockerenv"), ({"APPTAINER_CONTAINER": "/x.sif"}, ""), ({
        "SINGULARITY_CONTAINER": "/x.sif", "container": "x"}, ""), ({"container": "lxc"}, "/.dockerenv"), ({
        "container": "podman"}, "/run/.containerenv"), ({"container": "lxc"}, ""), ({}, ""), ({}, "",
        "0::/kubepods/besteffort/pod1\n"), ({}, "", "0::/machine.slice/machine-x\n"), ({}, "", "0::/libpod-7\n")],
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
        "br-0123456789ab", "br-0", "veth12", "veth", "cali1", "lxc5", "lo", "lo1", "eth0", "virbr0x")), ("a", "",
        "dummy"), ("a", "", "", "loopback"), ("a", "", "bond"), ("a", "", "team"), *(("usb0", driver, "", "up",
        "169.254.0.17", "fe80::1%usb0", "16.1.15.2") for driver in ("cdc_ether", "cdc_eem", "cdc_ncm", "cdc_subset",
        "rndis_host", "r8152")), ("u", "cdc_ncm", "", "up", "fe80::1", "10.0.0.5"), ("u", "cdc_ncm", "", "up",
        "10.0.0.5", "fe80::1"), ("u", "cdc_ncm", "", "up", "16.1.15.4"), ("u", "cdc_ncm")],
    routes.main4: [of.ROUTE, "", "odd", of.ROUTE.replace("010200C0", "x"), of.ROUTE.replace("010200C0", "1FFFFFFFF"), *(
        f"Iface Destination Gateway\na 0000000A 00000000 {flags} 0 0 9 000000FF" for flags in ("1", "0", "201", "200")),
        f"Iface Destination Gateway\na {'x' * 200}", of.ROUTE.replace("Destination", "x"), "0: lookup local"],
    routes.main6: [of.ROUTE6, "", "x\n", *(f"fd00{'0' * 28} 40 {'0' * 32} 00 {'0' * 32} 400 1 0 {flags} a\n" for
        flags in ("1", "0", "201", "100001", "80000001"))],
    routes.rules: [json.dumps(of.RULES), '[{"priority": 1}, 7]', "[" * 100_000, '[{"priority": 1, "src": "' + "x" * 99
                   + '"}]', "", "odd", "0: from all lookup local", "{}", "[7]", '[{"priority": "x"}]',
                   '[{"priority": 1, "src": "x/9"}]'],
    routes.tables: [json.dumps(of.TABLE), "[]", '[{"dst": "x"}]', '[{"dst": "10.0.0.1/8", "metric": "x"}]'],
    ports.port_list: ["29500,40000-40010\n", "", "65535", "65536", "1-65536", "1-", "5,x", "1 2", "70000", "5-9,7"],
    ports.port_range: ["32768\t60999\n", "1", "1 2 3", "a b", "1 b", "a 2"], ports.number: ["-1\n", "1 2", "x"],
    ports.listening: [TCP, of.TCP6, TCP.replace("0100007F:733C", "00000000:0016"), "", "sl\n",
        TCP.replace(" 0A ", " 01 "), TCP.replace("0100007F", "7F"), TCP.replace("0100007F", "0100007F" * 2)],
    ports.time_wait: ["TCP: inuse 5 tw 28 alloc 23\n", "UDP: tw 3\n", ""],
    ports.chains: ['{"nftables": []}', "{}", "[]", "x", '{"nftables": 7}', '{"nftables": [7]}', "[" * 100_000,
                   '{"nftables": [{"chain": 7}]}', '{"nftables": [{"x": {}}]}', "["  + "x" * 99,
                   '{"nftables": [{"chain": {"hook": "input", "type": "filter"}}]}'],
    ports.rules: [json.dumps(of.in_chain(of.ESTABLISHED, last)) for last in (
        [{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}],  # firewalld's
        [{"counter": COUNTER}, {"log": {"prefix": "a"}}, {"drop": None}],
        [{"counter": COUNTER}, {"xt": {"type": "target", "name": "REJECT"}}],
        [{"counter": COUNTER}, {"xt": None}],  # iptables-nft, by nft before 1.0.7
        [{"xt": {"type": "match", "name": "tcp"}}, {"xt": {"type": "target", "name": "REJECT"}}],
        [{"match": {}}, {"drop": None}], [{"jump": {"target": "KUBE-FIREWALL"}}], [])] + ["x", '{"nftables": []}',
            "[]", "{}",
        "[" * 100_000, '{"nftables": [{"rule": {}}]}', '{"nftables": [{"rule": {"expr": [7]}}]}', '{"nftables": [7]}'],
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
    **made_up_devices.CALLS,
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
    nccl_conf.conf_paths: [({}, "/h"), ({}, None), ({"NCCL_CONF_FILE": ""}, "/h"), ({"NCCL_CONF_FILE": "/s"}, "/h"), ({
        "NCCL_CONF_FILE": "/s"}, "/h", (2, 23, 0)), ({"NCCL_CONF_FILE": "/s"}, "/h", (2, 22, 9)), ({}, "", (2, 30, 3))],
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
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


def _placed(labels: Any, variables: Mapping[str, str | None], cloud: str = "", kvp: Any = GONE) -> object:
    keys = "|".join(map(re.escape, placement.LEVEL_OF_LABEL))
    said = {("lines", placement.LABELS, f"^({keys})="): labels, placement.QUESTION: of.EC2,
            ("kvp", placement.HYPERV, "PhysicalHostNameFullyQualified"): kvp}  # fmt: skip
    known = [Environment(variables), machine.Machine(Dmi(), cloud)]
    return [(each.kind, each.name) for each in learn(placement.placement, said, known).levels]


def _of_ranks(ranks: Sequence[tuple[str, Any]]) -> object:
    """Return the answers about GPUs, merged from those of ranks; each rank sees the GPUs with these names."""
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
    "a device node that does not open": (lambda why: learn(infiniband.infiniband, of.CARD | {("open",
        "/dev/infiniband/uverbs3"): why}).devices[0].opens, [Failed("No such device"), TimedOut("no answer")]),
    "shapes of measured paths": (lambda said: learn(reach.paths, {("sample", "paths"): said}), [
        [], {}, {"me": 0}, {"me": 0, "names": {"x": "n0"}}, {"me": "0", "names": {}},
        {"me": 0, "names": {}, "rows": [{}]}, {"me": 0, "names": {"0": "n0"}}]),
    "answers about data paths": (lambda said: learn(data_paths.data_paths, of.DATA | {("data", "stat", "/link"): said}),
        [{**of.LOOK, "kind": "fifo"}, {**of.LOOK, "uid": "0"}, [], {}, TimedOut("late")]),
    "how many data paths": (lambda count: type(learn(data_paths.data_paths, {("sample", "asked_paths"): {"paths": [
        f"/{each}" for each in range(count)]}})).__name__, [bounds.DATA_PATHS, bounds.DATA_PATHS + 1]),
    "devices of a host": (lambda said: [(each.name, each.verbs, each.opens, [port.name for port in each.ports]) for
        each in learn(infiniband.infiniband, of.CARD | said).devices], [{("list", f"{of.IB}/mlx5_0/ports"): ["2", "10",
        "1"]}, {("list", infiniband.VERBS): ["uverbs3", "uverbs4"], **of.reads(infiniband.VERBS, **{
        "uverbs3/ibdev": Denied("three"), "uverbs4/ibdev": Denied("four")})}, {("list", infiniband.VERBS): ["uverbs4",
        "uverbs3", "x3"], **of.reads(infiniband.VERBS, **{"uverbs4/ibdev": "mlx5_4\n"})}]),
    "marks of a port": (lambda said: learn(infiniband.roce_qos, of.QOS | said, [of.fabric(replace(
        of.ROCE, gids=(replace(of.ROCE.gids[0], index=0, netdev=""), *of.ROCE.gids)))]).ports, [
        {}, {("read", f"{of.IB}/mlx5_0/tc/1/traffic_class"): f" {ODD}"}]),
    "interfaces of default routes": (lambda *dests: Routes(tuple(Route(each, f"i{n}") for n, each in enumerate(dests)),
        ()).default_interfaces, [("0.0.0.0/0", "::/0"), ("10.0.0.0/8", "::/0"), ("::/0", "::/1"), ("0.0.0.0/1",)]),
    "words for a lost GPU": (lambda words: (learn(nvml.nvml, of.NVML | {("nvml", "nvmlDeviceGetMemoryInfo", 0):
        Failed(f"NVML x: {words}")}).all[0].lost, LiveGpu(0, Absent(words)).lost), ["GPU is lost",
            "GPU requires restart", "GPU requires reset", "Not Found"]),
    "memory that ran out": (lambda why: LostRank(1, "h", "timing", why).shortage, ["it failed (out of memory: GPU 1)",
        "x", "out of memory: a, out of memory: b)", "out of memory"]),
    "what Xids mean": (lambda code: (tuple(kernel_log.XIDS[code]), code in kernel_log.HARMLESS_XIDS,
                                     code in kernel_log.LINK_XIDS), [(code,) for code in kernel_log.XIDS]),
    **made_up_devices.GPUS, **made_up_libraries.ROWS,
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
    **made_up_devices.FUNCTIONS,
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
    **made_up_devices.TREES,
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


FILES = ("texts", *(f"texts-{name}" for name in (
    "fleet", "jobs", "looks", "matrices", "model", "processes", "ranks", "records", "run", "tables")))  # fmt: skip
"""The files of kept values: of this module, and of each module `made_up_NAME`."""


def results(file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each function of a file, and a line for each of its rows: the arguments and what comes of them."""
    named = {f"{each.__module__.removeprefix('ncclprobe.')}.{each.__name__}": (each, CALLS[each]) for each in CALLS}
    other = f"tests.facts.made_up_{file.removeprefix('texts-')}"
    table = named | DERIVED if file == "texts" else importlib.import_module(other).rows()
    for name, (function, rows) in table.items():
        long = [ODD, f"{ODD} {ODD}\n{ODD}"] if isinstance(rows[0], str) else []
        yield name, [f"{each!r:.70} -> {_result(function, each)}" for each in (*rows, *long)]


def _result(function: Callable[..., object], arguments: Any) -> str:
    try:
        found = function(*arguments) if isinstance(arguments, tuple) else function(arguments)
    except (NcclprobeError, ValueError) as error:
        return re.sub(r"[?]{9,}", lambda each: f"{len(each[0])}x?", f"{type(error).__name__}: {error}")[:300]
    spelled = re.sub(
        r"frozenset\(\{(.*?)\}\)", lambda each: str(sorted(each[1].split(", "))),
        found if isinstance(found, str) else repr(found))  # fmt: skip
    rounded = re.sub(r"\d+\.\d{7,}(e-\d+)?", lambda each: f"{float(each[0]):.6g}", spelled)  # libraries differ beyond
    return f"{re.sub(UNREAD, '', rounded):.2000}"
