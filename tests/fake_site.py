"""A node of a site that wants to hide: names, addresses, GUIDs and serials wherever a capture can have them."""

import json
from typing import Any

from ncclprobe.facts.ports import LISTENING
from ncclprobe.host import Question
from ncclprobe.host.capture import dump
from ncclprobe.model.errors import HostError

KEY = "incident 4711, a long word"
GUID = "506b:4b03:00c4:aaaa"
UUID = "8932f937-d72c-4106-c12f-20bd9faed9f6"
CLUSTER = [int(UUID.replace("-", "")[at : at + 2], 16) for at in range(0, 32, 2)]
MAC = "98:03:9b:12:34:56"
GIDS = {
    "0": "fe80:0000:0000:0000:506b:4b03:00c4:aaaa", "1": "fe80:0000:0000:0000:9a03:9bff:fe12:3456",
    "2": "0000:0000:0000:0000:0000:ffff:0a14:0007", "3": "fec0:0000:0000:0021:506b:4b03:00c4:aaaa",
}  # fmt: skip
ENV = {
    "HOME": "/home/alice", "USER": "alice", "MASTER_ADDR": "blade-017.rack7.example.org", "MASTER_PORT": "29500",
    "NCCL_CONF_FILE": "/nfs/alice/nccl.conf", "NCCL_IB_HCA": "mlx5_0:1", "NCCL_IB_DISABLE": "true",
    "NCCL_SOCKET_IFNAME": "blade", "RANK": "0", "SLURM_JOB_NODELIST": "blade-[017-019],login3", "WORLD_SIZE": "16",
}  # fmt: skip
STATS = {"isup": True, "mtu": 1500, "flags": "up,running", "speed": 100000, "duplex": 2}
SYS = "/sys/class/infiniband"
ANSWERS: dict[Question, Any] = {
    ("uname",): {"node": "blade-017", "hostname": "blade-017", "release": "6.8.0.10", "machine": "x86_64"},
    ("env",): ENV,
    ("read", "/etc/hosts"): "127.0.0.1 localhost\n10.20.0.7 blade-017.rack7.example.org blade-017\n"
    "10.20.0.9 store1 ib0\n",
    ("read", "/etc/resolv.conf"): "search rack7.example.org\nnameserver 10.20.255.53\n",
    ("read", "/etc/nsswitch.conf"): "hosts: files dns\n",
    ("read", "/proc/sys/kernel/random/boot_id"): f"{UUID[::-1]}\n",
    ("resolve", "blade-017.rack7.example.org"): {"addresses": ["10.20.0.7"], "seconds": 0.1},
    ("conf", "/nfs/alice/nccl.conf"): "NCCL_COMM_ID = boss4:29\nNCCL_BUFFSIZE=4M # blade-018, ask boss4@rack7\n",
    ("conf", "/etc/nccl.conf"): "",
    ("psutil", "net_if_stats"): {"ib0": STATS, "lo": STATS | {"flags": "up,loopback,running"}},
    ("psutil", "net_if_addrs"): {"ib0": [{"family": 2, "address": "10.20.0.7", "netmask": "255.255.0.0",
        "broadcast": None}, {"family": 10, "address": "fe80::9a03:9bff:fe12:3456%ib0",
        "netmask": "ffff:ffff:ffff:ffff::"}, {"family": 17, "address": MAC, "netmask": None},], "lo": [{"family": 2,
        "address": "127.0.0.1", "netmask": "255.0.0.0", "broadcast": None}],},
    ("link", "/sys/class/net/ib0"): "../../devices/pci0000:00/0000:00:1c.0/0000:02:00.0/net/ib0",
    ("read", "/sys/class/net/ib0/ifindex"): "2\n", ("link", "/sys/class/net/lo"): "../../devices/virtual/net/lo",
    ("read", "/sys/class/net/lo/ifindex"): "1\n", ("list", SYS): ["mlx5_0"], ("list", f"{SYS}/mlx5_0/ports"): ["1"],
    ("files", f"{SYS}/mlx5_0/ports/1/gids", ":".join(["0000"] * 8)): GIDS,
    ("read", f"{SYS}/mlx5_0/node_guid"): f"{GUID}\n", ("read", f"{SYS}/mlx5_0/fw_ver"): "20.43.1014\n",
    ("read", "/proc/net/route"): "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
    "ib0\t0000140A\t00000000\t0001\t0\t0\t0\t0000FFFF\nib0\t00000000\t0100140A\t0003\t0\t0\t0\t00000000\n",
    ("read", "/proc/net/ipv6_route"): f"fd123456{'0' * 24} 40 {'0' * 32} 00 {'0' * 32} 00000100 00000001 0 "
    "00000001 ib0\n",
    ("read", "/etc/os-release"): 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
    ("lines", "/proc/net/tcp", LISTENING): "  sl  local_address rem_address   st\n"
    "   0: 0700140A:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1674 1 0\n",
    ("lines", "/proc/net/tcp6", LISTENING): "  sl  local_address remote_address   st\n"
    f"   0: 0000000000000000FFFF00000700140A:07E8 {'0' * 32}:0000 0A 00000000:00000000 0 0 1674\n",
    ("run", "ip", "-j", "-4", "rule"): [{"priority": 9, "src": "10.20.0.0", "srclen": 16, "table": "main"}],
    ("run", "ip", "-j", "-4", "route", "show", "table", "all"): [{"dst": "10.20.0.0/16", "dev": "ib0"}],
    ("run", "nvidia-smi", "-L"): f"GPU 0: NVIDIA H200 (UUID: GPU-{UUID})\n", ("nvml", "nvmlDeviceGetCount"): 1,
    ("nvml", "nvmlSystemGetCudaDriverVersion"): 12080, ("nvml", "nvmlSystemGetDriverVersion"): "570.86.15",
    ("nvml", "nvmlSystemGetNVMLVersion"): "12.250.86.15", ("nvml", "nvmlDeviceGetName", 0): "NVIDIA H200",
    ("nvml", "nvmlDeviceGetUUID", 0): f"GPU-{UUID}", ("nvml", "nvmlDeviceGetSerial", 0): "1650924001234",
    ("nvml", "nvmlDeviceGetPciInfo", 0): {"busId": "00000000:07:00.0"},
    ("nvml", "nvmlDeviceGetGpuFabricInfoV", 0): {"clusterUuid": CLUSTER, "status": 0, "cliqueId": 3, "state": 3},
    ("packages",): {"torch": "2.7.1", "nvidia-cudnn-cu12": "9.1.0.70"},
    ("kernel_log", "mlx5"): {"lines": [[1.5, "blade-018: peer 10.20.0.9:29500 of store1 gone, Serial: 1650924001234"]]},
    ("read", "/sys/class/dmi/id/product_serial"): "1650924001234\n",
    ("read", "/sys/class/dmi/id/chassis_asset_tag"): "7783-7084-3265-9085-8269-3286-77\n",
}  # fmt: skip
ORIGINALS = (
    *("blade-01", "rack7", "example", "store1", "login3", "boss4", "alice", UUID, UUID.upper(), "1650924001234"),
    *("10.20.0.", "10.20.255", "0a14", "140A", "fd123456", GUID, MAC, "9a03:9bff", "506b"))  # fmt: skip


def texts(answers: dict[Question, Any]) -> dict[Question, str | HostError]:
    plain = {"read", "link", "run", "lines", "conf"}
    return {
        ask: v if isinstance(v, HostError) or (ask[0] in plain and isinstance(v, str)) else json.dumps(v)
        for ask, v in answers.items()
    }


def capture(answers: dict[Question, Any] = ANSWERS, node: str = "blade-017") -> str:
    return dump(texts(answers), node)
