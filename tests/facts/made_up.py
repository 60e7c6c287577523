"""Made-up machines: what is learned of the answers of each, and what of it changes if one answer is refused or odd.

`tests/data/command_values/answers.txt` keeps both. To add a case, add a row, run `scripts/golden.py answers`, and read
what it kept: of a refusal each field must become absent, but for what is known not to be there.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv6Address
from typing import Any

from conftest import FACTS, answers

from ncclprobe.checks.env.fixtures import fabric, nccl, port
from ncclprobe.checks.nvl import TRAY
from ncclprobe.checks.sync.host import EIGHT
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
    placement,
    plugins,
    ports,
    process,
    rank,
    reach,
    routes,
    software,
    topo_matrix,
    traffic,
)
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import NO_GID, NO_PKEY, Gid
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.loader import DEFAULT_FOLDERS, LIBRARIES, Loader
from ncclprobe.facts.machine import Dmi, Machine, System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.process import Process, ResourceLimit
from ncclprobe.facts.reach import MeshListener, Path, Paths
from ncclprobe.facts.traffic import Traffic
from ncclprobe.host import Host, Question
from ncclprobe.model.errors import Denied, Failed, Missing, TimedOut
from ncclprobe.model.registry import Collector
from ncclprobe.model.report import Setting
from ncclprobe.model.values import asdict, replace

Said = dict[Question, Any]
GONE = Missing("not there")
ODD = "?" * 400  # of which a message shows a part
REFUSALS = {"missing": GONE, "denied": Denied("no"), "failed": Failed("no"), "odd": "?"}


def sections(name: str) -> dict[str, str]:
    """Return the texts of a file in tests/data, by their titles."""
    parts = (FACTS.parent / name).read_text().split("== ")[1:]
    return {title: text for title, _, text in (part.partition("\n") for part in parts)}


TEXTS = sections("kernel_texts.txt")


def given(fact: object, kind: type | None = None) -> Collector:
    """Return what collects a fact that is known."""
    return Collector(run=lambda host: fact, produces=kind or type(fact))


def unknown(kind: type) -> Collector:
    """Return what collects a fact that cannot be learned."""

    def refuse(host: Host) -> object:
        raise GONE

    return Collector(run=refuse, produces=kind)


def learn(collector: Collector, said: Mapping[Question, Any], known: Sequence[object] = ()) -> Any:
    """Return the fact that `collector` makes of answers; `known`: facts that it needs, or what collects them."""
    others = [each if isinstance(each, Collector) else given(each) for each in known]
    return collect(answers(dict(said)), [collector, *others])[collector.produces]


def settings(**values: str) -> Settings:
    """Return what a job's environment sets."""
    return Settings({name: Setting(name, text, "environment") for name, text in values.items()})


def reads(folder: str, **texts: Any) -> Said:
    """Return what the files of a folder say."""
    return {("read", f"{folder}/{name}"): text for name, text in texts.items()}


NODE, NET, CONF = f"{cpu.ROOT}/node", interfaces.ROOT, "/proc/sys/net/ipv4/conf"
CPUS: Said = {
    ("read", f"{cpu.ROOT}/cpu/online"): "0-3\n", ("read", "/proc/cpuinfo"): "processor\t: 0\nmodel name\t: Fast CPU\n",
    ("list", NODE): ["has_cpu", "node0", "node1", "online"],
    **reads(f"{NODE}/node0", cpulist="0-1\n", distance="10 20\n"),
    **reads(f"{NODE}/node1", cpulist="\n", distance="20 10\n")}  # fmt: skip
UP = {"flags": "up,running", "mtu": 1500}
INTERFACES: Said = {
    ("psutil", "net_if_addrs"): {
        "eth0": [
            {"family": 2, "address": "10.0.0.5", "netmask": "255.255.255.0"},
            {"family": 10, "address": "fe80::1%eth0", "netmask": "ffff:ffff:ffff:ffff::"},
            {"family": 17, "address": "aa:bb:cc:dd:ee:ff", "netmask": None},
        ],
        "eth0:1": [{"family": 2, "address": "10.9.0.5", "netmask": "255.255.255.0"}],  # a label, as ifconfig makes it
        "own:1": [],  # an interface whose own name has a colon
        "lo": [{"family": 2, "address": "127.0.0.1", "netmask": None}],
    },
    ("psutil", "net_if_stats"): {"eth0": {"flags": "up,broadcast,running,multicast", "mtu": 9000},
        "own:1": {"flags": "", "mtu": 1}, "lo": {"flags": "up,loopback,running", "mtu": 65536}, "eth1": UP, "bond0": UP,
        "veth1": UP, "down0": UP, },
    **{("read", f"{NET}/{name}/ifindex"): f"{n}\n"
       for n, name in enumerate(("lo", "eth0", "eth1", "bond0", "veth1", "own:1", "down0"), 1)},
    ("link", f"{NET}/eth0"): "../../devices/pci0000:00/0000:00:1c.0/0000:02:00.0/net/eth0",
    ("link", f"{NET}/eth0/device/driver"): "../../../../bus/pci/drivers/mlx5_core",
    ("link", f"{NET}/eth0/master"): "../../../../virtual/net/bond0",
    **reads(f"{NET}/eth0", speed="100000\n", carrier_changes="7\n"),
    ("link", f"{NET}/eth1"): "../../devices/vmbus/VMBUS:01/3f2/net/eth1", ("link", f"{NET}/eth1/master"): "../bond0",
    **reads(f"{NET}/eth1", speed="0\n", carrier_changes="0\n"),
    ("read", f"{NET}/down0/speed"): Failed("Invalid argument"),
    ("link", f"{NET}/bond0"): "../../devices/virtual/net/bond0",
    **reads(f"{NET}/bond0", uevent="DEVTYPE=bond\nINTERFACE=bond0\nIFINDEX=4\n", speed="50000\n"),
    ("link", f"{NET}/veth1"): "../../devices/virtual/net/veth1",
    **reads(f"{NET}/veth1", uevent="INTERFACE=veth1\n", speed="-1\n"),
    ("link", f"{NET}/lo"): "../../devices/virtual/net/lo"}  # fmt: skip
ROUTE, ROUTE6, TCP = (TEXTS[f"/proc/net/{each}"] for each in ("route", "ipv6_route", "tcp"))
RULES: list[dict[str, Any]] = [
    {"priority": 0, "src": "all", "table": "local"},
    {"priority": 49, "src": "all", "dst": "10.3.0.0", "dstlen": 16, "action": "unreachable"},
    {"priority": 50, "src": "10.2.0.0", "srclen": 16, "fwmark": "0x5", "iif": "b", "table": "102"},
    {"priority": 51, "src": "10.2.0.0", "srclen": 16, "oif": "c", "table": "main"},
    {"priority": 32765, "src": "10.1.0.1", "table": "101"}, {"priority": 32766, "src": "all", "table": "main"},
    {"priority": 32767, "src": "all", "table": "default"}]  # fmt: skip
TABLE: list[dict[str, Any]] = [
    {"dst": "default", "dev": "rdma0", "gateway": "10.1.0.254", "table": "101", "flags": []},
    {"type": "local", "dst": "10.1.0.1", "dev": "rdma0", "table": "local", "prefsrc": "10.1.0.1"},
    {"type": "unreachable", "dst": "10.9.0.0/16", "nexthops": [{"dev": "a"}, {"dev": "b"}]},
    {"dst": "10.8.0.0/16", "dev": "a", "prefsrc": "10.8.0.1", "metric": 7}]  # fmt: skip
IP = ("run", "ip", "-j", "-4")
ROUTES: Said = {
    ("read", "/proc/net/route"): ROUTE, ("read", "/proc/net/ipv6_route"): ROUTE6, (*IP, "rule"): RULES,
    (*IP, "route", "show", "table", "all"): TABLE}  # fmt: skip
SYSCTLS: Said = {
    **reads("/proc/sys/net/ipv4", ip_local_port_range="32768\t60999\n", ip_local_reserved_ports="29500,40000-40010\n"),
    **reads(f"{CONF}/all", arp_ignore="0", arp_announce="2"), **reads(f"{CONF}/a", arp_ignore="1", arp_announce="1"),
    **reads(f"{CONF}/b", arp_ignore="0", arp_announce="3")}  # fmt: skip


def rail(name: str, address: str, index: int, *flags: str) -> Interface:
    """Return an interface of a /24."""
    own = Address(name, "inet", address, "255.255.255.0", running=True)
    return Interface(name, index, frozenset({"up", "running", *flags}), 9000, addresses=(own,))


RAILS = Interfaces((rail("a", "10.0.0.1", 2), rail("b", "10.0.0.2", 3), rail("c", "10.0.1.1", 4),
                    rail("lo", "10.0.1.2", 1, "loopback")))  # fmt: skip
TCP6 = TCP.replace("0100007F:733C", f"{'0' * 24}01000000:E10E").replace(" 00000000:0000 0A", f" {'0' * 32}:0000 0A")
PORTS: Said = {
    ("lines", "/proc/net/tcp", ports.LISTENING): TCP, ("lines", "/proc/net/tcp6", ports.LISTENING): TCP6,
    ("read", "/proc/net/sockstat"): "sockets: used 35\nTCP: inuse 5 orphan 0 tw 28 alloc 23 mem 536\n"}  # fmt: skip


def chain(name: str, hook: str = "input", kind: str = "filter", policy: str = "drop") -> dict[str, Any]:
    """Return a row of ``nft -j list chains``."""
    family, table, own = name.split("/")
    return {"chain": {"family": family, "table": table, "name": own, "type": kind, "hook": hook, "policy": policy}}


def in_chain(*rules: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what ``nft -j list chain`` of nftables 1.0.6 says of a chain with these rules."""
    own = {"family": "inet", "table": "t", "chain": "c"}
    listed = ({"rule": {**own, "handle": n, "expr": each}} for n, each in enumerate(rules, 5))
    return {"nftables": [{"metainfo": {}}, chain("inet/t/c"), *listed]}


ESTABLISHED = [{"match": {"op": "==", "right": {"set": ["established", "related"]}}}, {"accept": None}]
CHAINS = [{"metainfo": {"version": "1.0.6"}}, chain("inet/filter/input"), chain("ip/filter/FORWARD", "forward"),
          {"chain": {"family": "inet", "table": "filter", "name": "helper"}},
          chain("ip/nat/PREROUTING", "prerouting", "nat"), chain("ip/raw/PREROUTING", "prerouting", policy="accept"),
          chain("netdev/f/in-gress", "ingress"), chain("inet/odd; flush ruleset/input")]  # fmt: skip
NFT = ("run", "nft", "-j", "list")
FIREWALL: Said = {
    (*NFT, "chains"): {"nftables": CHAINS}, (*NFT, "chain", "inet", "filter", "input"): in_chain(ESTABLISHED),
    (*NFT, "chain", "ip", "raw", "PREROUTING"): in_chain(ESTABLISHED, [{"reject": None}]),
    (*NFT, "chain", "netdev", "f", "in-gress"): in_chain(), ("read", "/proc/net/ip_tables_names"): "nat\nfilter\n",
    ("read", "/proc/net/ip6_tables_names"): "mangle\n"}  # fmt: skip


def process_with(*capabilities: str, uid: int | None = 1000) -> Process:
    """Return a process with these capabilities."""
    limit = ResourceLimit(None, None)
    return Process(limit, (0,), (0,), frozenset(capabilities), True, {"net": 4026531840}, uid)


STATUS = "Name:\tx\nUid:\t1000\t0\t0\t0\nCapEff:\t0000000000204000\nCpus_allowed_list:\t0-3,8\nMems_allowed_list:\t0\n"
PROCESS: Said = {
    **reads("/proc/self", status=STATUS, uid_map="         0          0 4294967295\n"),
    ("rlimit", "RLIMIT_NOFILE"): [1024, 1048576], ("rlimit", "RLIMIT_NPROC"): [4096, None],
    ("rlimit", "RLIMIT_MEMLOCK"): [65536, None],
    **{("link", f"/proc/self/ns/{kind}"): f"{kind}:[402653183{n}]"
       for n, kind in enumerate(("ipc", "mnt", "net", "user", "uts"))},
    ("link", "/proc/self/ns/pid"): Denied("no")}  # fmt: skip
SIGNS: Said = {("stat", path): GONE for path in ("/.dockerenv", "/run/.containerenv")}
SHM: Said = {
    ("statvfs", "/dev/shm"): {"total": 1 << 30, "available": 1 << 20},
    ("stat", "/dev/shm"): {"device": 27, "bytes": 60, "age_s": 1.0, "mine": False},
    ("list", "/dev/shm", "nccl-*"): ["nccl-aaaaaa", "nccl-bbbbbb", "nccl-cccccc", "nccl-gone"],
    ("stat", "/dev/shm/nccl-aaaaaa"): {"device": 27, "bytes": 9637892, "age_s": 86400.0, "mine": True},
    ("stat", "/dev/shm/nccl-bbbbbb"): {"device": 27, "bytes": 4096, "age_s": 0.5, "mine": False},
    ("stat", "/dev/shm/nccl-cccccc"): {"device": 27, "bytes": 5, "age_s": 5.0, "mine": False},
    ("stat", "/dev/shm/nccl-gone"): GONE,
    ("mapped", "/dev/shm/nccl-"): {"paths": ["/dev/shm/nccl-bbbbbb"], "hidden": 12},
    ("link", "/proc/self/ns/pid"): "pid:[4026531836]"}  # fmt: skip
IMEX_NODES = "/dev/nvidia-caps-imex-channels"
DEVICES: Said = {
    ("list", "/dev", "nvidia*"): ["nvidia0", "nvidia-caps", "nvidia-caps-imex-channels", "nvidiactl"],
    ("access", "/dev/nvidia0"): {"read": True, "write": True},
    ("access", "/dev/nvidiactl"): {"read": True, "write": False},
    ("list", IMEX_NODES, "channel*"): [f"channel{number}" for number in range(17)],
    **{("access", f"{IMEX_NODES}/channel{number}"): {"read": False, "write": True} for number in range(17)},
    ("list", "/dev/infiniband", "*"): ["by-path", "by-ibdev", "uverbs0"],
    ("access", "/dev/infiniband/uverbs0"): {"read": True, "write": True}}  # fmt: skip
SLURM = "0::/system.slice/slurmstepd.scope/job_7/step_0/task_0\n"
STEP = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
MOUNTS2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNTS1 = (
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "32 31 0:29 /docker/1 /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "36 31 0:33 /docker/1 /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
GROUPS1 = "4:memory:/docker/1\n2:cpuacct,cpu:/docker/1\n1:name=systemd:/\n0::/\n"
LEVELS = [f"{STEP}/step_0/task_0", *(STEP.rsplit("/", n)[0] for n in (1, 2, 3))]
CGROUP: Said = {
    **reads("/proc/self", cgroup=SLURM, mountinfo=MOUNTS2),
    **{("read", f"{level}/{name}"): GONE for level in LEVELS for name in ("cpu.max", "memory.max", "pids.max")},
    ("read", f"{STEP}/step_0/cpu.max"): "max 100000", ("read", f"{STEP}/step_0/memory.max"): "68719476736",
    ("read", f"{STEP}/step_0/memory.current"): "1048576\n", ("read", f"{STEP}/step_0/pids.max"): "4096\n",
    ("read", f"{STEP}/step_0/pids.current"): "4090\n", ("read", f"{STEP}/cpu.max"): "800000 100000",
    ("read", f"{STEP}/cpu.stat"): "usage_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 1500000\n",
    ("read", f"{STEP}/memory.max"): "137438953472", ("read", f"{STEP}/pids.max"): "1024\n",
    ("read", f"{STEP}/pids.current"): "1000\n"}  # fmt: skip
CGROUP1: Said = {
    **reads("/proc/self", cgroup=GROUPS1, mountinfo=MOUNTS1),
    ("read", "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"): "150000\n",
    ("read", "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us"): "100000\n",
    ("read", "/sys/fs/cgroup/cpu,cpuacct/cpu.stat"): "nr_periods 10\nnr_throttled 3\nthrottled_time 2000000000\n",
    ("read", "/sys/fs/cgroup/memory/memory.limit_in_bytes"): "8589934592\n",
    ("read", "/sys/fs/cgroup/memory/memory.usage_in_bytes"): "4096\n",
    ("read", "/sys/fs/cgroup/unified/pids.max"): "max\n"}  # fmt: skip
PEERMEM = "/sys/module/nvidia_peermem/version"
IB, VERBS = infiniband.ROOT, infiniband.VERBS
PORT = f"{IB}/mlx5_0/ports/1"
LOCAL, MAPPED = "fe80:0000:0000:0000:0ac0:ebff:fe5b:dc10", "0000:0000:0000:0000:0000:ffff:0a01:0203"
CARD: Said = {
    ("list", IB): ["mlx5_0"], ("list", VERBS): ["abi_version", "uverbs3"],
    ("read", f"{VERBS}/uverbs3/ibdev"): "mlx5_0\n", ("open", "/dev/infiniband/uverbs3"): "true",
    ("list", f"{IB}/mlx5_0/ports"): ["1"], ("link", f"{IB}/mlx5_0/device"): "../../../0000:41:00.0",
    **reads(f"{IB}/mlx5_0", fw_ver="28.39.1002\n", board_id="MT_0000000838\n", hca_type="MT4129\n"),
    **reads(PORT, state="4: ACTIVE\n", phys_state="5: LinkUp\n", rate="400 Gb/sec (4X NDR)\n",
            link_layer="InfiniBand\n", lid="0x1f\n"),
    ("files", f"{PORT}/pkeys", NO_PKEY): {"0": "0x7fff", "2": "0xffff"},
    ("files", f"{PORT}/gids", NO_GID): {"0": LOCAL, "3": MAPPED, "10": None},
    ("read", f"{PORT}/gid_attrs/types/0"): "IB/RoCE v1\n",
    ("read", f"{PORT}/gid_attrs/ndevs/0"): Failed("Invalid argument"),
    ("read", f"{PORT}/gid_attrs/types/3"): "RoCE v2\n", ("read", f"{PORT}/gid_attrs/ndevs/3"): "eth2\n",
    ("files", f"{PORT}/counters"): {"symbol_error": "0", "link_downed": "3", "port_xmit_wait": "N/A", "x": None},
    ("files", f"{PORT}/hw_counters"): {"out_of_sequence": "7", "lifespan": "10"}}  # fmt: skip
ROCE = port("mlx5_0", link_layer="Ethernet", gids=(Gid(3, IPv6Address("::ffff:10.0.0.1"), "RoCE v2", "eth2"),))
ECN = "/sys/class/net/eth2/ecn"
QOS: Said = {
    ("read", f"{IB}/mlx5_0/tc/1/traffic_class"): "Global tclass=106\n",
    ("files", f"{ECN}/roce_rp/enable"): {str(n): str(int(n in (3, 5))) for n in range(8)},
    ("files", f"{ECN}/roce_np/enable"): {}}  # fmt: skip
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"
LINUX = System("n0", "6.8.0-45-generic", "x86_64", "Ubuntu", None)
MANAGER: Said = {
    ("run", "nv-fabricmanager", "--version"): "Fabric Manager version is : 535.161.08\n",
    ("read", driver.PID_FILE): "42\n", ("read", "/proc/42/comm"): "nv-fabricmanage\n"}  # fmt: skip
IMEX: Said = {
    ("read", driver.NODES): "# the rack\n10.0.0.1\n\n10.0.0.2  # second\n",
    ("run", "nvidia-imex-ctl", "-q"): "a note\nREADY\n"}  # fmt: skip
KERNEL: Said = {
    ("kernel_log", kernel_log.WANTED): {
        "source": "/dev/kmsg", "lines": [[12.5, "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus."],
                                         [13.0, "mlx5_core x"]], "dropped": 4, "oldest_s": 3.5},
    ("read", "/proc/uptime"): "350.25 700.00\n"}  # fmt: skip
SITE = "/venv/lib/python3.12/site-packages"
WHEEL, CUDA = f"{SITE}/nvidia/nccl/lib", f"{SITE}/torch/lib/libtorch_cuda.so"
RPATH = "$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"
TORCH: Said = {
    ("packages",): {"torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7"}, ("module", "torch"): f"{SITE}/torch/__init__.py",
    ("read", f"{SITE}/torch/version.py"): "cuda: Optional[str] = '13.0'\n",
    ("elf", CUDA): {"needed": ["libcudart.so.13", "libnccl.so.2"], "rpath": RPATH, "runpath": ""},
    ("list", f"{SITE}/nvidia/cudnn/lib", LIBRARIES): [],
    ("list", WHEEL, LIBRARIES): ["libnccl.so.2", "libnccl_device.bc"],
    ("elf_texts", f"{WHEEL}/libnccl.so.2", "NCCL version 2."): ["NCCL version 2.30.7+cuda13.0"],
    ("list", "/site/lib", LIBRARIES): ["libnccl.so.2", "libnccl.so.2.28.9"],
    ("elf_texts", "/site/lib/libnccl.so.2.28.9", "NCCL version 2."): ["NCCL version 2.28.9"],
    ("list", "/new", LIBRARIES): ["libnccl.so.2"],
    **{("list", folder, LIBRARIES): GONE for folder in DEFAULT_FOLDERS}}  # fmt: skip
BARE = TORCH | {("packages",): {}, ("module", "torch"): GONE}
RUNPATH = {("elf", CUDA): {"needed": ["libnccl.so.2"], "rpath": "/old", "runpath": "/new"}}
OFI = "/opt/amazon/ofi-nccl/lib"
PLUGINS: Said = {
    ("list", OFI, LIBRARIES): ["libnccl-net.so", "libnccl-ofi-tuner.so", "libnccl-env-site.so", "libnccl.so.2"],
    ("elf_objects", f"{OFI}/libnccl-net.so", "nccl"): {
        "ncclNetPlugin_v8": "AWS Libfabric", "ncclNetPlugin_v10": "Libfabric", "ncclNetPlugin_v99999": "y",
        "ncclTunerPlugin_v3": "nccl_ofi_tuner", "ncclGetVersion": "no plugin's", "ncclNetPlugin_v": "x"},
    ("elf_texts", f"{OFI}/libnccl-net.so", "aws-ofi-nccl "): ["aws-ofi-nccl is great", "aws-ofi-nccl 1.14.0-aws"],
    ("elf_objects", f"{OFI}/libnccl-env-site.so", "nccl"): {"ncclEnvPlugin_v1": "site"},
    ("list", "/site", LIBRARIES): ["libnccl-profiler-x.so", "libnccl_net.so.1", "libnccl.txt"],
    **{("list", path, LIBRARIES): [name] for path, name in {
        "/usr/local/gib/lib64": "libnccl-net_gib.so", "/usr/local/tcpx/lib64": "libnccl-net.so",
        "/opt/hpcx/nccl_rdma_sharp_plugin/lib": "libnccl-net.so", "/ucx": "libnccl-gin-ucx.so"}.items()}}  # fmt: skip
NVML: Said = {
    ("nvml", "nvmlDeviceGetCount"): "2", ("nvml", "nvmlSystemGetCudaDriverVersion"): "12080",
    ("nvml", "nvmlSystemGetDriverVersion"): '"570.86.15"', ("nvml", "nvmlSystemGetNVMLVersion"): '"12.570.86.15"',
    **{("nvml", "nvmlDeviceGetName", n): '"NVIDIA H200"' for n in (0, 1)},
    **{("nvml", "nvmlDeviceGetUUID", n): f'"GPU-{n}"' for n in (0, 1)},
    **{("nvml", "nvmlDeviceGetPciInfo", n): {"busId": f"00000000:0{n}:00.0"} for n in (0, 1)},
    ("nvml", "nvmlDeviceGetMemoryInfo", 0): {"total": 1 << 37, "used": 5},
    ("nvml", "nvmlDeviceGetRemappedRows", 0): [3, 2, 1, 0], ("nvml", "nvmlDeviceGetMigMode", 0): [1, 0],
    ("nvml", "nvmlDeviceGetComputeMode", 0): 2, ("nvml", "nvmlDeviceGetCudaComputeCapability", 0): [9, 0],
    ("nvml", "nvmlDeviceGetPersistenceMode", 0): 1, ("nvml", "nvmlDeviceGetCurrentClocksEventReasons", 0): 0x10C,
    ("nvml", "nvmlDeviceGetEnforcedPowerLimit", 0): 699600,
    ("nvml", "nvmlDeviceGetViolationStatus", 0, 1): {"violationTime": 1_600_000_000},
    ("nvml", "nvmlDeviceGetComputeRunningProcesses", 0): [5 << 30, None],
    ("nvml", "nvmlDeviceGetGpuFabricInfoV", 0): {
        "clusterUuid": [*range(16)], "status": 3, "cliqueId": 7, "state": 3, "healthMask": 0x401},
}  # fmt: skip
NIC_COUNTERS: Said = {
    ("list", traffic.NET): ["bonding_masters", "eth0", "eth1", "lo"],
    ("files", "/sys/class/net/eth0/statistics"): {"tx_bytes": "100", "rx_bytes": "70", "rx_errors": "0"},
    ("files", "/sys/class/net/eth1/statistics"): {"tx_bytes": "1"},
    ("counters", "/sys/class/net/eth0/statistics", 2): {"tx_bytes": "160", "rx_bytes": "70"},
    ("list", traffic.RDMA): ["mlx5_0"], ("list", f"{traffic.RDMA}/mlx5_0/ports"): ["1"],
    ("files", f"{traffic.RDMA}/mlx5_0/ports/1/counters"): {"port_xmit_data": "10", "port_rcv_data": "20"}}  # fmt: skip
FILE_SYSTEMS, TWO_GPUS = TEXTS["/proc/self/mountinfo"], TEXTS["nvidia-smi nvlink -s"]
LOOK = {"kind": "folder", "real": "/data/set", "uid": 0, "gid": 0, "mode": "0755", "user": 0, "nbytes": 4096,
        "read": True, "enter": True}  # fmt: skip
DATA: Said = {
    ("sample", "asked_paths"): {"paths": ["/link", "/fifo"]},
    ("read", "/proc/self/mountinfo"): FILE_SYSTEMS,
    ("data", "stat", "/link"): LOOK,  # it leads to a file system that is mounted over another
    ("data", "content", "/link"): {"entries": 2, "digest": "ab", "cut": False},
    ("data", "rate", "/link"): {"nbytes": 1 << 20, "seconds": 0.01, "resident": 0.0},
    ("data", "stat", "/fifo"): {**LOOK, "kind": "other", "real": "/fifo"},
}
NAMED = settings(
    NCCL_TOPO_FILE="/t.xml", NCCL_GRAPH_FILE="/g.xml", NCCL_DEBUG_FILE="/logs/nccl.%h",
    TORCH_FR_DUMP_TEMP_FILE="/dumps/fr", NCCL_TUNER_PLUGIN="libnope.so,libnccl-x.so,none",
    NCCL_NET_PLUGIN="/opt/a.so,libours.so")  # fmt: skip
NAMED_FILES: Said = {
    ("read", "/t.xml"): '<system version="1"><pci busid="0A:00.0" class="0x030200"/></system>\n',
    ("read", "/g.xml"): '<graphs version="2"></graphs>', ("access", "/logs"): {"read": True, "write": False},
    ("access", "/dumps"): {"read": True, "write": True}, ("stat", "/opt/a.so"): "{}",
    ("stat", "/opt/ours/libours.so"): "{}", **{("stat", f"{folder}/libours.so"): GONE for folder in DEFAULT_FOLDERS},
    **{("stat", f"{folder}/libnope.so"): GONE for folder in ("/opt/ours", *DEFAULT_FOLDERS)},
    ("ld_cache", "libours.so"): "[]", ("ld_cache", "libnope.so"): "[]"}  # fmt: skip
CONFS: Said = {
    ("home",): "/etc/me", ("conf", "/home/me/.nccl.conf"): "NCCL_DEBUG=WARN\nsetenv A B\n",
    ("conf", "/etc/me/.nccl.conf"): "NCCL_DEBUG=INFO\n",
    ("conf", "/etc/nccl.conf"): "NCCL_DEBUG=TRACE\nNCCL_NET=IB\n", ("access", "/home/me/.nccl.conf"): {"read": True},
    ("access", "/etc/me/.nccl.conf"): {"read": True}}  # fmt: skip
EC2 = {"v1.region": "us-east-1", "v1.availability_zone": "us-east-1d", "ds.meta_data.placement.group-name": "llm",
       "ds.meta_data.placement.availability-zone-id": "use1-az6"}  # fmt: skip
SWITCHES = {"SLURM_TOPOLOGY_ADDR": "spine1.leaf7.n3", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
PLACE: Said = {placement.QUESTION: EC2, ("kvp", placement.HYPERV, "PhysicalHostNameFullyQualified"): "DUB081\n"}
SEEN = Paths(
    me=1, names={0: "n0", 1: "n1"}, listeners=(MeshListener("nccl0", "eth0", "10.0.0.2", 40001),),
    rows=(Path(0, "nccl0", "eth0", "10.0.0.2", "10.0.0.1", "ok", rtt_s=5e-5, path_mtu=1500, rate_gbps=9.4),
          Path(0, "default", "eth1", "10.1.0.2", "10.1.0.1", "refused", "Connection refused", tries=2)),
    unopened={"nccl1": "Cannot assign requested address"})  # fmt: skip
SMI_LIST = ("run", "nvidia-smi", "-L")
MATRIX = ("run", "nvidia-smi", "topo", "-m")


def _traffic(host: Host) -> tuple[Traffic, Traffic]:
    return traffic.read(host), traffic.read(host, 2)


MACHINES: dict[str, tuple[Collector, Said, list[object]]] = {
    "processors": (cpu.cpu, CPUS, []),
    "scaling": (cpu.cpufreq, reads(cpu.POLICY, scaling_driver="intel_pstate\n", scaling_governor="performance\n"), []),
    "interfaces": (interfaces.interfaces, INTERFACES, []), "routes": (routes.routes, ROUTES, []),
    "usual rules": (routes.routes, ROUTES | {(*IP, "rule"): [RULES[0], *RULES[-2:]]}, []),
    "kernel settings": (ports.sysctls, SYSCTLS, [RAILS]),
    "kernel settings of a second address": (ports.sysctls, SYSCTLS, [Interfaces((rail("a", "10.0.0.1", 2), replace(rail(
        "b", "10.0.1.2", 3), addresses=(*rail("b", "10.0.1.2", 3).addresses, *rail("b", "10.0.0.2", 3).addresses)),
        rail("c", "10.0.2.1", 4)))]), "kernel settings of unknown ones": (ports.sysctls, SYSCTLS,
            [unknown(Interfaces)]),
    "kernel settings of no interface": (ports.sysctls, SYSCTLS, [Interfaces()]), "listeners": (ports.ports, PORTS, []),
    "filters": (ports.firewall, FIREWALL, [process_with("net_admin")]),
    "filters of an ordinary user": (ports.firewall, {}, [process_with("sys_admin")]),
    "names": (names.names, {
        ("read", "/etc/hosts"): "127.0.0.1 localhost\n127.0.1.1\tn0.site n0 # x\n\nodd here\n::1 ip6\n10.0.0.5\n",
        ("read", "/etc/resolv.conf"): "search a b\nnameserver 10.0.0.2\n; no\noptions ndots:5 edns0\ndomain c\n",
        ("read", "/etc/nsswitch.conf"): "passwd: files\nhosts:\tfiles dns [NOTFOUND=return] myhostname # x\n", }, []),
    "master": (names.resolver, {("resolve", "n0"): {"addresses": ["127.0.1.1", "10.0.0.1"], "seconds": 0.1}},
               [Launch(master_addr="n0")]),
    "master that is late": (names.resolver, {("resolve", "n0"): TimedOut("2 s")}, [Launch(master_addr="n0")]),
    "no master": (names.resolver, {}, [Launch()]),
    "own name": (names.own_name, {("resolve", "n0"): {"addresses": ["10.0.0.1"], "seconds": 0.1}},
                 [Launch(nnodes=2), LINUX]),
    "own name on one node": (names.own_name, {}, [Launch(nnodes=1), LINUX]),
    "NCCL_COMM_ID": (names.comm_id_named, {("resolve", "head"): {"addresses": ["10.0.0.9"]}},
                     [settings(NCCL_COMM_ID="head:9999")]),
    "NCCL_COMM_ID of an address": (names.comm_id_named, {}, [settings(NCCL_COMM_ID="[fe80::1%eth0]:9999")]),
    "NCCL_COMM_ID that names nothing": (names.comm_id_named, {}, [settings(NCCL_COMM_ID=":9")]),
    "process": (process.process, PROCESS, []), "open files": (process.open_files, PROCESS, []),
    "locked memory": (process.memlock, PROCESS, [process.process]),
    "container": (process.container, {**SIGNS, ("read", "/proc/1/cgroup"): "4:memory:/docker/0123\n"}, [Environment()]),
    "shared memory": (process.shared_memory, SHM, []), "device nodes": (process.devices, DEVICES, []),
    "memory": (memory.memory, {("read", "/proc/meminfo"): "MemTotal:  1024 kB\nMemFree:  1 kB\nMemAvailable:  512 kB\n"
                               "SwapTotal:  8 kB\nSwapFree:  4 kB\nHugePages_Total:  0\n"}, []),
    "memory policy": (memory.memory_policy, {("lines", "/proc/self/numa_maps", memory.STACK): "7ff bind:1 stack a\n"},
                      []),
    "control groups": (cgroup.cgroup, CGROUP, []), "control groups with two limits": (cgroup.cgroup, {**CGROUP,
        ("read", f"{STEP}/step_0/cpu.max"): "200000 100000",
        ("read", f"{STEP}/step_0/memory.max"): "274877906944"}, []), "control groups of version 1": (cgroup.cgroup,
            CGROUP1, []),
    "firmware": (machine.machine, {**reads(machine.DMI, sys_vendor="Amazon EC2\n", product_name="p5.48xlarge\n",
        board_vendor="a\n", board_name="b\n", chassis_asset_tag="c\n", bios_vendor="d\n"),
        ("read", machine.DEVICE_TREE): "8335-GTW\0", ("read", "/proc/cpuinfo"): "flags\t\t: fpu hypervisor lahf\n",
        ("read", "/sys/hypervisor/type"): "xen\n"}, []),
    "clock": (machine.timesync, {("run", "timedatectl", "show", "--property=NTPSynchronized"): "NTPSynchronized=yes\n"},
              []),
    "system": (machine.system, {("uname",): {"hostname": "n0", "release": "6.1", "machine": "x86_64"}, ("read",
        "/etc/os-release"): "PRETTY_NAME='Rocky 9'\n", ("read", "/proc/sys/kernel/random/boot_id"): "b1\n"}, []),
    "environment": (environment.environment, {("env",): {"NCCL_DEBUG": "INFO", "HOME": None}}, []),
    "InfiniBand": (infiniband.infiniband, CARD, []),
    "empty tables": (infiniband.infiniband, CARD | {("files", f"{PORT}/gids", NO_GID): {},
        ("files", f"{PORT}/pkeys", NO_PKEY): {"0": None}}, []),
    "marks of RoCE": (infiniband.roce_qos, QOS, [fabric(ROCE, port("mlx5_1"))]),
    "driver": (driver.driver, {("read", driver.VERSION): OPEN}, []),
    "fabric manager": (driver.fabric_manager, MANAGER, []), "IMEX": (driver.imex, IMEX, [TRAY]),
    "IMEX outside a rack": (driver.imex, {}, [EIGHT]),
    "GPUDirect": (driver.gpudirect, {**{("read", path): "1.3-0\n" for path in (*(
        f"/sys/kernel/mm/memory_peers/{name}/version" for name in ("nv_mem", "nv_mem_nc")), PEERMEM)},
                                     ("read", driver.VERSION): OPEN}, [LINUX, driver.driver]),
    "kernel log": (kernel_log.kernel_log, KERNEL, []),
    "software": (software.software, TORCH, [Loader(library_path=("/site/lib",))]),
    "software with a run path": (software.software, TORCH | RUNPATH, [Loader(library_path=("/site/lib",))]),
    "run path alone": (software.software, TORCH | RUNPATH, [Loader()]),
    "preloaded": (software.software, TORCH, [Loader(preload=("/x/libfoo.so", "/x/libnccl.so.2.27.3"))]),
    "NCCL inside torch": (software.software, TORCH | {("elf", CUDA): {"needed": [], "rpath": "", "runpath": ""}},
                          [Loader()]),
    "two wheels": (software.software,
                   TORCH | {("packages",): {"nvidia-nccl-cu12": "2.27.3", "nvidia-nccl-cu13": "2.30.7"}}, [Loader()]),
    "no torch": (software.software, BARE | {("list", "/usr/lib/x86_64-linux-gnu", LIBRARIES): ["libnccl.so.2.26.2"]},
                 [Loader(cached=(("libnccl.so.2", "/lib/x86_64-linux-gnu/libnccl.so.2"),))]),
    "nothing installed": (software.software, BARE, [Loader()]),
    "software by a loader that is not known": (software.software, TORCH, [unknown(Loader)]),
    "named files by a loader that is not known": (nccl_conf.named_files, NAMED_FILES, [NAMED, unknown(Loader)]),
    "plugins in an unknown environment": (plugins.plugins, PLUGINS, [unknown(Loader), unknown(Environment)]),
    "container in an unknown environment": (process.container, {**SIGNS, ("read", "/proc/1/cgroup"): "0::/\n"},
                                            [unknown(Environment)]),
    "default folders": (software.software, BARE | {("list", DEFAULT_FOLDERS[0], LIBRARIES): ["libnccl.so.2"]},
                        [Loader()]),
    "loader": (loader.loader, {("ld_cache", *loader.CACHED): [["libnccl.so.2", "/opt/lib/libnccl.so.2"]]},
               [Environment({"LD_LIBRARY_PATH": "/a::/b;/c", "LD_PRELOAD": "/x.so:/y.so /z.so"})]),
    "plugins": (plugins.plugins, PLUGINS, [Loader(library_path=(OFI,)), Environment({"NCCL_ENV_PLUGIN": "site"})]),
    "plugins out of reach": (plugins.plugins, PLUGINS,
                             [Loader(), Environment({"NCCL_NET_PLUGIN": "ofi,/site/libnccl_net.so.1,/ucx/x.so"})]),
    "NVML": (nvml.nvml, NVML, []), "NVML without a GPU": (nvml.nvml, NVML | {("nvml", "nvmlDeviceGetCount"): "0"}, []),
    "a lost GPU": (nvml.nvml, NVML | {("nvml", "nvmlDeviceGetName", 0): Failed("NVML x: GPU is lost")}, []),
    "a driver that hangs": (nvml.nvml, NVML | {("nvml", "nvmlDeviceGetName", 1): TimedOut("60 s")}, []),
    "peers": (nvml.nvml_p2p, NVML | {("nvml", nvml.ASK, gpu, str(1 - gpu), capability): [(gpu + 2 * capability) % 7]
                                     for gpu in (0, 1) for capability in (0, 1, 2)}, [nvml.nvml]),
    "nvidia-smi -L": (nvidia_smi.nvidia_smi, {SMI_LIST: "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: x\n"}, []),
    "nvidia-smi that hangs": (nvidia_smi.nvidia_smi, {SMI_LIST: TimedOut("no answer within 60 s")}, []),
    "nvidia-smi nvlink": (nvlink.nvlink_status, {("run", "nvidia-smi", "nvlink", "-s"): TWO_GPUS}, []),
    "nvidia-smi topo": (topo_matrix.topo_matrix, {MATRIX: "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n"}, []),
    "counters of NICs": (Collector(_traffic, tuple), NIC_COUNTERS, []), "data paths": (data_paths.data_paths, DATA, []),
    "no data paths": (data_paths.data_paths, {}, []),
    "files that are named": (nccl_conf.named_files, NAMED_FILES, [NAMED, Loader(library_path=("/opt/ours",))]),
    "no files named": (nccl_conf.named_files, {}, [Settings(), Loader()]),
    "nccl.conf": (nccl_conf.nccl_conf, CONFS, [Environment({"HOME": "/home/me", "NCCL_NET": ""}), nccl(2, 30, 3)]),
    "nccl.conf before 2.30": (nccl_conf.nccl_conf, CONFS, [Environment({"HOME": "/home/me"}), nccl(2, 29, 7)]),
    "nccl.conf in one home": (nccl_conf.nccl_conf, CONFS, [Environment({"HOME": "/etc/me"}), nccl(2, 29, 7)]),
    "nccl.conf that is named": (nccl_conf.nccl_conf, CONFS | {("conf", "/job.conf"): "NCCL_NET=Socket\n"},
                                [Environment({"NCCL_CONF_FILE": "/job.conf"}), nccl(2, 30, 3)]),
    "placement on AWS": (placement.placement, PLACE, [Environment(SWITCHES), Machine(Dmi(), "aws")]),
    "placement on Azure": (placement.placement,
                           {**PLACE, placement.QUESTION: {"ds.meta_data.imds.compute.placementGroupId": "6a7f"}},
                           [Environment({"NCCLPROBE_PLACEMENT": "/b7/ sub2 /", **SWITCHES}), Machine(Dmi(), "azure")]),
    "placement on no cloud": (placement.placement, {}, [Environment(SWITCHES), Machine()]),
    "a rank": (rank.rank_process, {("stat", "/dev/shm"): {"device": 27}}, [Environment({"CUDA_VISIBLE_DEVICES": "3, 5,",
        "NCCL_HOSTID": "h"}), Launch("slurm", 1, 8, 1, local_world_size=4), process_with()]),
    "GPUs of a rank": (rank.own_gpus, NVML, [Launch("slurm", 0, 2, 0, local_world_size=2)]),
    **{f"GPUs of a rank that sees {count}": (rank.own_gpus, NVML | {("nvml", "nvmlDeviceGetCount"): count}, [
        Launch("slurm", 0, 2, 0, local_world_size=2)]) for count in "13"}, "GPUs of a rank of torchrun": (
            rank.own_gpus, NVML, [Launch("torchrun", 0, 2, 0, local_world_size=2)]),
    "paths between nodes": (reach.paths, {("sample", "paths"): asdict(SEEN)}, [])}  # fmt: skip
"""By name: the collector, what the machine answers, and the facts that the collector needs."""


def changed(name: str) -> Iterator[tuple[str, str, Any]]:
    """Yield each question to a machine, each refusal of it or odd answer, and the fact that is learned then."""
    collector, said, known = MACHINES[name]
    for question in said:
        for how, refusal in REFUSALS.items():
            yield json.dumps(question)[1:121], how, learn(collector, said | {question: refusal}, known)
