"""Interfaces, routes, ports and names.

Shapes: this machine's and the guest's real captures beside these; psutil's net_if_addrs and net_if_stats as
ncclprobe.host.live passes them on; the tables of proc(5) and the sysctls' defaults of Linux 5.15 with the server's
usual larger buffers.
"""

import json
import struct
from ipaddress import IPv4Address, ip_interface
from typing import Any

from zoo.answers import Answers
from zoo.description import Machine, Nic
from zoo.pci import functions

ROOT = "/sys/class/net"
_INET, _PACKET = 2, 17
_ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
_LISTENING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
_SYSCTLS = {
    "ipv4/ip_local_port_range": "32768\t60999",
    "ipv4/ip_local_reserved_ports": "",
    "core/rmem_max": "16777216",
    "core/wmem_max": "16777216",
    "ipv4/tcp_rmem": "4096\t131072\t16777216",
    "ipv4/tcp_wmem": "4096\t65536\t16777216",
}
_RULES = [
    {"priority": 0, "src": "all", "table": "local"},
    {"priority": 32766, "src": "all", "table": "main"},
    {"priority": 32767, "src": "all", "table": "default"},
]


def describe(machine: Machine, here: Answers) -> None:
    """Loopback and every NIC that has an interface, all up; the first without RDMA has the default route."""
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
    here.link(f"{ROOT}/lo", "../../devices/virtual/net/lo")
    for name, text in {"uevent": "INTERFACE=lo\nIFINDEX=1", "ifindex": "1", "operstate": "unknown"}.items():
        here.write(f"{ROOT}/lo/{name}", text)


def _interface(here: Answers, nic: Nic, path: str, index: int) -> None:
    folder = f"{ROOT}/{nic.netdev}"
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
