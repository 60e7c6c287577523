"""The operating system: the kernel and its limits, the network, RDMA devices, and what is installed."""

import json
import struct
from ipaddress import IPv4Address, IPv6Address, ip_interface
from pathlib import PurePosixPath
from typing import Any

from ncclprobe.model.errors import Denied, Missing
from zoo.answers import Answers
from zoo.description import Machine, Nic
from zoo.nvidia import _cpus
from zoo.pci import everyone, functions

NODES = "/sys/devices/system/node"
_GROUPS = {True: "/user.slice/user-0.slice/session-4.scope", False: "/user.slice/user-1000.slice/session-4.scope"}
_SCALING = {"AMD": "acpi-cpufreq", "Neo": "cppc_cpufreq", "POW": "powernv-cpufreq"}  # others are Intel's
_NAMESPACES = {"ipc": 39, "mnt": 32, "net": 33, "pid": 36, "user": 37, "uts": 38}  # 40265318.., of the first ones


def linux(machine: Machine, here: Answers) -> None:
    """Everything that a machine without GPUs and network has, too.

    Shapes: this machine's and the guest's real captures beside these; proc(5), cgroups(7) for version 2 under
    systemd; the files of /sys/class/dmi/id. /proc/cpuinfo has the lines that are looked at only.
    """
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
            "ds": {"meta_data": {"placement": stands}}}  # fmt: skip
        here.write("/run/cloud-init/instance-data.json", json.dumps(said))


def _log(machine: Machine, here: Answers) -> None:
    """A boot at which nothing happened, which only root may see."""
    here.write("/proc/uptime", "864213.77 152334561.02")

    def ring(pattern: str) -> str:
        if not machine.root:
            raise Denied("/dev/kmsg: permission denied; journalctl -k shows nothing to this user")
        return json.dumps({"source": "/dev/kmsg", "lines": [], "dropped": 0, "oldest_s": 0.0})

    here.programs["kernel_log"] = ring


NET = "/sys/class/net"
_INET, _PACKET = 2, 17
_ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
_LISTENING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
_SYSCTLS = {
    "ipv4/ip_local_port_range": "32768\t60999", "ipv4/ip_local_reserved_ports": "", "core/rmem_max": "16777216",
    "core/wmem_max": "16777216", "ipv4/tcp_rmem": "4096\t131072\t16777216", "ipv4/tcp_wmem": "4096\t65536\t16777216",
}  # fmt: skip
_RULES = [
    {"priority": 0, "src": "all", "table": "local"}, {"priority": 32766, "src": "all", "table": "main"},
    {"priority": 32767, "src": "all", "table": "default"}]  # fmt: skip


def network(machine: Machine, here: Answers) -> None:
    """Loopback and every NIC that has an interface, all up; the first without RDMA has the default route.

    Shapes: this machine's and the guest's real captures beside these; psutil's net_if_addrs and net_if_stats as
    ncclprobe.host.live passes them on; the tables of proc(5) and the sysctls' defaults of Linux 5.15 with the
    server's usual larger buffers.
    """
    ports = [nic for nic in machine.nics if nic.netdev]
    addresses: dict[str, Any] = {"lo": [_row("127.0.0.1/8")]}
    stats: dict[str, Any] = {"lo": _stats("up,loopback,running", 0, 65536)}
    for number, nic in enumerate(ports):
        found = [_row(nic.address)] if nic.address else []
        mac = {"family": _PACKET, "address": f"02:00:00:00:01:{number:02x}", "netmask": None}
        addresses[nic.netdev] = [*found, {**mac, "broadcast": "ff:ff:ff:ff:ff:ff", "ptp": None}]
        stats[nic.netdev] = _stats("up,broadcast,running,multicast", max(nic.speed_mbps, 0), nic.mtu)
    here.said["psutil", "net_if_addrs"] = json.dumps(addresses)
    here.said["psutil", "net_if_stats"] = json.dumps(stats)
    _loopback(here)
    places = functions(machine)
    for index, nic in enumerate(ports, start=2):
        _interface(here, nic, places[nic.place].path, index)
    _protocols(here, [nic for nic in ports if nic.address])
    _names(machine, here)


def _row(address: str) -> dict[str, Any]:
    own = ip_interface(address)
    return {"family": _INET, "address": str(own.ip), "netmask": str(own.netmask), "broadcast": None, "ptp": None}


def _stats(flags: str, speed: int, mtu: int) -> dict[str, Any]:
    return {"isup": True, "duplex": 2, "speed": speed, "mtu": mtu, "flags": flags}


def _loopback(here: Answers) -> None:
    here.link(f"{NET}/lo", "../../devices/virtual/net/lo")
    for name, text in {"uevent": "INTERFACE=lo\nIFINDEX=1", "ifindex": "1", "operstate": "unknown"}.items():
        here.write(f"{NET}/lo/{name}", text)


def _interface(here: Answers, nic: Nic, path: str, index: int) -> None:
    folder = f"{NET}/{nic.netdev}"
    below = "virtio0/" if nic.model.driver == "virtio_net" else ""
    here.link(folder, f"../../devices/{path}/{below}net/{nic.netdev}")
    here.link(f"{folder}/device/driver", f"../../../../bus/pci/drivers/{nic.model.driver}")
    for name, text in {
        "ifindex": str(index),
        "operstate": "up",
        "speed": str(nic.speed_mbps),
        "carrier_changes": "2",
    }.items():
        here.write(f"{folder}/{name}", text)


def _protocols(here: Answers, ports: list[Nic]) -> None:
    rows = [_route(nic.netdev, nic.address) for nic in ports]
    outwards = next((nic for nic in ports if not nic.rdma), None)
    if outwards:
        gateway = next(ip_interface(outwards.address).network.hosts())
        rows.insert(0, f"{outwards.netdev}\t00000000\t{_number(gateway)}\t0003\t0\t0\t100\t00000000\t0\t0\t0\n")
    here.write("/proc/net/route", _ROUTES + "".join(rows))
    here.write(
        "/proc/net/ipv6_route", f"{'0' * 31}1 80 {'0' * 32} 00 {'0' * 32} 00000000 00000002 00000000 80200001       lo"
    )
    here.run("ip -j -4 rule", json.dumps(_RULES))
    ssh = "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21873 1\n"
    here.write("/proc/net/tcp", _LISTENING + ssh)
    here.write("/proc/net/tcp6", _LISTENING)
    here.write(
        "/proc/net/sockstat", "sockets: used 412\nTCP: inuse 9 orphan 0 tw 3 alloc 12 mem 4\nUDP: inuse 4 mem 2\n"
    )
    here.write("/proc/net/ip_tables_names", "")
    here.write("/proc/net/ip6_tables_names", "")
    release = {"version": "1.0.2", "release_name": "Lester Gooch", "json_schema_version": 1}
    here.run("nft -j list chains", json.dumps({"nftables": [{"metainfo": release}]}))
    for name, text in _SYSCTLS.items():
        here.write(f"/proc/sys/net/{name}", text)


def _route(name: str, address: str) -> str:
    network = ip_interface(address).network
    return (
        f"{name}\t{_number(network.network_address)}\t00000000\t0001\t0\t0\t100\t{_number(network.netmask)}\t0\t0\t0\n"
    )


def _number(address: Any) -> str:
    return f"{struct.unpack('<I', IPv4Address(str(address)).packed)[0]:08X}"


def _names(machine: Machine, here: Answers) -> None:
    here.write("/etc/hosts", f"127.0.0.1 localhost\n10.0.0.11 {machine.name}\n")
    here.said["resolve", machine.name] = json.dumps({"addresses": ["10.0.0.11"], "seconds": 0.0002})
    here.write("/etc/resolv.conf", "nameserver 10.0.0.2\nsearch cluster.example\n")
    here.write("/etc/nsswitch.conf", "passwd: files systemd\nhosts: files dns\n")


INFINIBAND = "/sys/class/infiniband"
_COUNTERS = (
    "excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors "
    "port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets port_rcv_remote_physical_errors "
    "port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data port_xmit_discards port_xmit_packets "
    "port_xmit_wait symbol_error VL15_dropped"
)
_HW_COUNTERS = (
    "duplicate_request implied_nak_seq_err local_ack_timeout_err out_of_buffer out_of_sequence packet_seq_err "
    "req_cqe_error req_cqe_flush_error req_remote_access_errors req_remote_invalid_request resp_cqe_error "
    "resp_cqe_flush_error resp_local_length_error resp_remote_access_errors rnr_nak_retry_err rx_atomic_requests "
    "rx_read_requests rx_write_requests"
)
_ROCE_COUNTERS = "np_cnp_sent np_ecn_marked_roce_packets roce_adp_retrans roce_slow_restart rp_cnp_handled"
_TRAFFIC = ("port_rcv_data", "port_rcv_packets", "port_xmit_data", "port_xmit_packets")


def rdma(machine: Machine, here: Answers) -> None:
    """Every port, active.

    Shapes: the guest captured for real beside these (soft-RoCE); the kernel's drivers/infiniband/core/sysfs.c;
    names of the counters: drivers/infiniband/hw/mlx5/counters.c and core/sysfs.c. EFA: an ibv_devinfo from a p4d
    pod (rdmap16s27: zero GUIDs, firmware 0.0.0.0); its link layer is "Unknown" to core/sysfs.c. Peer memory:
    nvidia-peermem.c of NVIDIA/open-gpu-kernel-modules, and Mellanox/nv_peer_memory.
    """
    cards = [nic for nic in machine.nics if nic.rdma]
    if not cards:
        return
    found = functions(machine)
    here.write("/sys/class/infiniband_verbs/abi_version", "6")
    here.write("/dev/infiniband/rdma_cm", "")
    for number, nic in enumerate(cards):
        here.write(f"/sys/class/infiniband_verbs/uverbs{number}/ibdev", nic.rdma)
        here.write(f"/dev/infiniband/uverbs{number}", "")
        here.link(f"{INFINIBAND}/{nic.rdma}/device", f"../../../{found[nic.place].address}")
        _device(here, nic, number)
        _port(here, nic, number)
    if machine.peer_memory:
        _peer_memory(machine, here)


def _peer_memory(machine: Machine, here: Answers) -> None:
    """Whose client the module is to MLNX_OFED: nv_peer_mem of old, and nvidia_peermem, which came with driver 470."""
    driver = machine.software.driver
    comes_along = int(driver.partition(".")[0]) >= 470
    for client in ("nv_mem", "nv_mem_nc") if comes_along else ("nv_mem",):
        here.write(f"/sys/kernel/mm/memory_peers/{client}/version", driver if comes_along else "1.1-0")
    if comes_along:
        here.write("/sys/module/nvidia_peermem/version", driver)


def _efa(nic: Nic) -> bool:
    return nic.model.driver == "efa"


def guid(nic: Nic, number: int) -> str:
    """A GUID as sysfs writes it."""
    return "0000:0000:0000:0000" if _efa(nic) else _port_guid(number)


def _port_guid(number: int) -> str:
    return f"a088:c203:00e3:{0x1400 + number:04x}"


def _device(here: Answers, nic: Nic, number: int) -> None:
    folder = f"{INFINIBAND}/{nic.rdma}"
    here.write(f"{folder}/node_guid", guid(nic, number))
    here.write(f"{folder}/fw_ver", nic.model.firmware)
    if not _efa(nic):
        here.write(f"{folder}/board_id", nic.model.board)
        here.write(f"{folder}/hca_type", nic.model.hca)


def _port(here: Answers, nic: Nic, number: int) -> None:
    folder, infiniband = f"{INFINIBAND}/{nic.rdma}/ports/1", nic.layer == "InfiniBand"
    for name, text in {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": nic.rate,
        "link_layer": nic.layer,
        "lid": f"{0x2A + number:#x}" if infiniband else "0x0",
        "sm_lid": "0x1" if infiniband else "0x0",
        "pkeys/0": "0xffff",
    }.items():
        here.write(f"{folder}/{name}", text)
    _gids(here, nic, number, folder)
    if _efa(nic):
        for name in ("rx_bytes", "rx_drops", "rx_pkts", "tx_bytes", "tx_pkts"):
            here.write(f"{folder}/hw_counters/{name}", "0")
        here.write(f"{folder}/hw_counters/lifespan", "12")
        return
    for name in _COUNTERS.split():
        here.write(f"{folder}/counters/{name}", "81234567890" if name in _TRAFFIC else "0")
    for name in f"{_HW_COUNTERS} {'' if infiniband else _ROCE_COUNTERS}".split():
        here.write(f"{folder}/hw_counters/{name}", "0")
    here.write(f"{folder}/hw_counters/lifespan", "10")


def _gids(here: Answers, nic: Nic, number: int, folder: str) -> None:
    """InfiniBand: one, of the default subnet. RoCE: its interface's addresses, each as version 1 and 2. EFA: one."""
    link_local = f"fe80:0000:0000:0000:{_port_guid(number)}"
    table = [(link_local, "IB/RoCE v1")]
    if nic.layer == "Ethernet":
        address = IPv6Address(f"::ffff:{nic.address.partition('/')[0]}").packed.hex(":", -2)
        table = [(gid, kind) for gid in (link_local, address) for kind in ("IB/RoCE v1", "RoCE v2")]
    for index, (gid, kind) in enumerate(table):
        here.write(f"{folder}/gids/{index}", gid)
        here.write(f"{folder}/gid_attrs/types/{index}", kind)
        if nic.layer == "Ethernet":
            here.write(f"{folder}/gid_attrs/ndevs/{index}", nic.netdev)


_MULTIARCH = {"x86_64": "/usr/lib/x86_64-linux-gnu", "aarch64": "/usr/lib/aarch64-linux-gnu", "ppc64le": "/usr/lib64"}
GLIBC = ("GLIBC_2.17", "GLIBC_2.28", "GLIBC_2.34")


def software(machine: Machine, here: Answers) -> None:
    """What is installed.

    Shapes: torch's wheels from PyPI, whose metadata names the NCCL wheel that each version brings (2.4.0: 2.20.5,
    2.6.0: 2.21.5, 2.7.0: 2.26.2, 2.8.0: 2.27.3) and whose libtorch_cuda.so looks for it by an RPATH; NVIDIA's
    libnccl2 packages; folders of plugins as in ncclprobe/facts/plugins.py. What libnccl.so.2 needs: the wheels of
    2.30.7 and 2.32.3. What a plugin needs is not told by any source here: libc alone.
    """
    software = machine.software
    libraries = _MULTIARCH[machine.processors.arch]
    for folder in (libraries, "/usr/lib", "/usr/local/lib"):
        here.folder(folder)
    cached = [*software.cached, f"{libraries}/libc.so.6"]
    library(here, f"{libraries}/libc.so.6", versions=GLIBC)
    if software.system_nccl:
        cached.append(f"{libraries}/libnccl.so.2")
        for name in ("libnccl.so", "libnccl.so.2", f"libnccl.so.{software.system_nccl}"):
            here.write(f"{libraries}/{name}", _NCCL)
            says_version(here, f"{libraries}/{name}", software.system_nccl)
    for folder, names in software.plugins.items():
        for name in names:
            library(here, f"{folder}/{name}", "libc.so.6", asks=GLIBC[:1])
            says_names(here, f"{folder}/{name}")

    def cache(*prefixes: str) -> str:
        named = [(PurePosixPath(file).name, file) for file in cached]
        return json.dumps([pair for pair in named if pair[0].startswith(prefixes)])

    here.programs["ld_cache"] = cache
    _wheels(machine, here)


def library(here: Answers, path: str, *needed: str, asks: tuple[str, ...] = (), **told: Any) -> None:
    """A shared library; `asks`: the versions that it asks of the first library that it needs."""
    here.write(path, _dynamic(*needed, asks=asks, **told))


def says_version(here: Answers, path: str, version: str, cuda: str = "12.3") -> None:
    """The version of NCCL among a library's constants."""
    here.said["elf_texts", path, "NCCL version 2."] = json.dumps([f"NCCL version {version}+cuda{cuda}"])


def says_names(here: Answers, path: str) -> None:
    """What a plugin's file says to NCCL, as nccl_ofi_interface_nvidia.c of aws-ofi-nccl 1.9 has it; nothing of others,
    whose sources are not public.
    """
    ofi = "ofi" in path
    kind = "Tuner" if "tuner" in path else "Net"
    own = {"Tuner": {"ncclTunerPlugin_v2": "nccl_ofi_tuner"}, "Net": {"ncclNetPlugin_v8": "AWS Libfabric"}}[kind]
    here.said["elf_objects", path, "nccl"] = json.dumps(own if ofi else {})
    here.said["elf_texts", path, "aws-ofi-nccl "] = json.dumps(["aws-ofi-nccl 1.9.1-aws"] if ofi else [])


def _dynamic(*needed: str, asks: tuple[str, ...] = (), **told: Any) -> str:
    wants = {needed[0]: asks} if asks else {}
    empty = {"soname": "", "rpath": "", "runpath": "", "versions": ()}
    return json.dumps({**empty, "needed": needed, "needs_versions": wants, **told})


_NCCL = _dynamic("libc.so.6", asks=GLIBC[:1])


def _wheels(machine: Machine, here: Answers) -> None:
    software = machine.software
    packages = {"torch": software.torch} if software.torch else {}
    cuda = software.torch_cuda.partition(".")[0]
    if software.nccl:
        packages[f"nvidia-nccl-cu{cuda}"] = software.nccl
        for name in ("libnccl.so.2", "libnccl_static.a"):
            here.write(f"{software.python}/nvidia/nccl/lib/{name}", _NCCL)
            says_version(here, f"{software.python}/nvidia/nccl/lib/{name}", software.nccl)
    here.said["packages",] = json.dumps(packages | {"nvidia-ml-py": "13.580.82"})
    here.said["module", "torch"] = Missing("Python module torch: not installed")
    if not software.torch:
        return
    folder = f"{software.python}/torch"
    here.said["module", "torch"] = f"{folder}/__init__.py"
    value = repr(software.torch_cuda) if software.torch_cuda else "None"
    here.write(f"{folder}/version.py", f"__version__ = {software.torch!r}\ncuda: Optional[str] = {value}\n")
    here.said["elf", f"{folder}/lib/libtorch_nvshmem.so"] = Missing("it came with torch 2.8, and not for every machine")
    if software.torch_cuda:
        library(here, f"{software.python}/nvidia/cuda_runtime/lib/libcudart.so.{cuda}", "libc.so.6")
        paths = (
            "$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"
        )
        said = _dynamic(f"libcudart.so.{cuda}", "libnccl.so.2", soname="libtorch_cuda.so", rpath=paths)
        here.said["elf", f"{folder}/lib/libtorch_cuda.so"] = said
