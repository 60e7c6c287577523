"""What people paste of one machine: forms, settings, and what is wrong with either, or is not."""

import json

from tests.pasted_texts import (
    ADDRESSES,
    CUT,
    DEVINFO,
    IBSTAT,
    IBSTATUS,
    IFCONFIG,
    IP_ADDR,
    LIST,
    MATRIX,
    NARROW,
    NVLINK,
    QUERY,
    SMI,
    ULIMIT,
)

UP = IBSTAT.format(state="Active", physical="LinkUp")
RATES = {2.5: "Sleep", 10: "Polling", 20: "Disabled", 40: "Training", 56: "LinkUp", 100: "Link_Up"}
RATES |= {200: "LinkErrorRecovery", 400: "Broken", 800: "Up", 196: "Up", 195: "Up"}
FORMS = {
    "ibstat": IBSTAT.format(state="Initializing", physical="LinkUp"),
    "ibstatus": IBSTATUS,
    "ports of every rate": "".join(
        f"CA 'mlx5_{rate}'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: {state}\n\t\tRate: {rate}\n"
        for rate, state in RATES.items()
    ),
    "ibv_devinfo": DEVINFO,
    "rdma link": "link mlx5_0/1 state DOWN physical_state DISABLED netdev eth1\n",
    "ibdev2netdev": "mlx5_0 port 1 ==> ib0 (Up)\n",
    "quoted in a mail": "".join(f"> {line}\n" for line in DEVINFO.splitlines()),
    "srun -l": "".join(f"0: {line}\n" for line in ADDRESSES.splitlines()),
    "nvidia-smi -L": LIST,
    "ip addr": IP_ADDR,
    "ifconfig": IFCONFIG,
    "nvlink -s": NVLINK,
    "nvlink -s, cut in a GPU": CUT + CUT.replace("GPU 0", "GPU 1").rpartition("\t")[0] + "...\n",
    "topo -m": MATRIX,
    "ulimit -a": ULIMIT,
    "ulimit of zsh": "-l: locked-in-memory size (kbytes)  64\n-n: file descriptors   1024\n",
    "df -h": "Filesystem      Size  Used Avail Use% Mounted on\nshm              64M     0   32M   0% /dev/shm\n",
    "show_gids": (
        "DEV\tPORT\tINDEX\tGID\t\t\tIPv4\tVER\tDEV\n"
        "mlx5_0\t1\t0\tfe80:0000:0000:0000:5e25:73ff:feb1:c004\t\t\tv1\teth1\n"
        "mlx5_0\t1\t3\t0000:0000:0000:0000:0000:ffff:c633:6407\t198.51.100.7\tv2\teth1\nn_gids_found=2\n"
    ),
    "ibv_devinfo -v": f"{DEVINFO}\t\t\tactive_width:\t\t4X (2)\n\t\t\tactive_speed:\t\t100.0 Gbps (128)\n",
    "an address of no form": "lo UNKNOWN 127.0.0.1/8\neth0 UP 10.0.0.500/24 fe80::1/64\n",
    "versions": "Fabric Manager version is : 550.127.08\nLinux n1 5.15.0-91-generic #98 SMP x86_64\n",
    "reasons of clocks": "index, clocks_event_reasons.hw_slowdown, clocks_event_reasons.sw_power_cap\n0, Active, No\n",
    "ulimit -l": "$ ulimit -l\n64\n",
    "/proc/self/limits": "Max locked memory         65536                unlimited            bytes\n",
}


def eight_gpus() -> tuple[str, str, str]:
    """Return what `nvidia-smi`, `nvidia-smi topo -m` and `ibstat` print on a board of eight GPUs and NICs."""
    head, *gpus = SMI.splitlines(keepends=True)
    smi = head + "".join(
        gpus[0].replace("|   0 ", f"|   {n} ").replace("00000000:19", f"00000000:{0x19 + n:02X}") + "".join(gpus[1:3])
        for n in range(8)
    )
    names = [*(f"GPU{n}" for n in range(8)), *(f"NIC{n}" for n in range(8))]
    rows = [
        "\t".join([one, *(" X " if one == two else between(one, two) for two in names)])
        + ("\t0-55\t0" if one.startswith("GPU") else "")
        for one in names
    ]
    legend = "".join(f"  NIC{n}: mlx5_{n}\n" for n in range(8))
    matrix = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity"]) + "\n" + "\n".join(rows)
    nics = "".join(UP.replace("mlx5_0", f"mlx5_{n}") for n in range(8))
    return smi, f"{matrix}\n\nNIC Legend:\n\n{legend}", nics


def between(one: str, two: str) -> str:
    return "NV18" if one[:3] == two[:3] == "GPU" else "PIX" if one[3:] == two[3:] else "NODE"


RAILS = "".join(f"ens{n}f0np0 UP 10.0.{n}.5/24 fe80::1/64\n" for n in range(8))
NIC_SLOT = """\
5e:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\tNUMA node: 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed {speed}GT/s, Width x{width}
"""
GPU_SLOT = NIC_SLOT.replace("Infiniband controller: Mellanox", "3D controller: NVIDIA Corporation")
DMESG = "[ 12.883120] mlx5_core 0000:18:00.0: firmware version: 28.42.1000\n[ 21.640031] nvidia: loading out-of-tree\n"
MANAGER = """\
x nvidia-fabricmanager.service - NVIDIA fabric manager service
     Active: failed (Result: exit-code) since Mon 2026-11-23 04:12:07 UTC; 2h ago
Nov 23 04:12:07 n1 systemd[1]: Failed to start nvidia-fabricmanager.service - NVIDIA fabric manager service.
"""
PENDING = """\
Name:             w-3
Namespace:        ml
    Environment:
      FI_PROVIDER:         efa
Events:
  Warning  FailedScheduling  3m  default-scheduler  0/4 nodes are available: 4 Insufficient vpc.amazonaws.com/efa.
"""
POD = """\
apiVersion: v1
kind: Pod
    env:
    - name: NCCL_IB_GID_INDEX
      value: 3
    - name: NCCL_SOCKET_IFNAME
      value: "eth0"
"""
BATCH = """\
#SBATCH --ntasks-per-node={tasks}
export NCCL_DEBUG=WARN
srun {own}torchrun --nnodes=4 \\
    --nproc-per-node=8 train.py
"""
COMPOSE = """\
    environment:
      CUDA_VISIBLE_DEVICES: "{seen}"
      NCCL_DEBUG: "WARN"
          devices:
            - device_ids: ["2", "3"]
"""
STATISTICS = "$ ethtool -S ens3\n     rx_prio3_bytes: 918833\n     rx_prio3_discards: {}\n     rx_out_of_buffer: 0\n"
SAYS = {
    "one mistake in a block of settings": "NCCL_IB_DISABLE=true\nNCCL_DEBUG=INFO\n",
    "a variable that nothing filtered": "$ env | sort\nHOME=/root\nLOCAL_WORLD_SIZE=8\nNCCL_DEBUG=INFO\nPATH=/bin\n"
    "WORLD_SIZE=16\n",
    "numbers of a manifest": POD,
    "tasks that each start all workers": BATCH.format(tasks=8, own=""),
    "a GPU beyond a container's": COMPOSE.format(seen="2,3"),
    "packets without a buffer": STATISTICS.format(18430277),
    "an interface of ethtool": "Settings for rdma2:\n\tSpeed: 400000Mb/s\n\tLink detected: yes\n",
    "a rail that is down": RAILS.replace("ens3f0np0 UP", "ens3f0np0 DOWN"),
    "a rail without an address": RAILS.replace("10.0.6.5/24 ", ""),
    "a slow slot of a NIC": NIC_SLOT.format(speed=8, width=16),
    "a narrow slot of a GPU": GPU_SLOT.format(speed=2.5, width=8),
    "an Xid": DMESG
    + "[ 90.1] NVRM: Xid (PCI:0000:cb:00): 79, GPU has fallen off the bus.\n".replace("90.1", "90.100000"),
    "a fabric manager that failed": MANAGER,
    "a pod that no node takes": PENDING,
    "a log in docker's JSON": "".join(
        json.dumps({"log": f"{line}\n", "stream": "stdout"}) + "\n" for line in ULIMIT.splitlines()
    ),
    "a healthy kernel": DMESG,
    "room in shared memory": "Filesystem Size Used Avail Use% Mounted on\nshm 512G 1G 511G 1% /dev/shm\n",
    "a narrow link": QUERY,
    "rows to remap": QUERY + "    Remapped Rows\n        Pending   : Yes\n        Remapping Failure Occurred : No\n",
    "registration that goes on": QUERY + "    Fabric\n        State                             : In Progress\n",
    "nvidia-smi": SMI,
    "a matrix": NARROW,
    "locked memory": ULIMIT,
    "a transport that is off": "docker run -e NCCL_P2P_DISABLE=1 i\n",
    "no port up": "".join(
        IBSTAT.format(state="Down", physical="Disabled").replace("mlx5_0", f"mlx5_{n}") for n in range(8)
    ),
    "a port without subnet manager": DEVINFO.replace("PORT_DOWN (1)", "PORT_INIT (2)").replace(
        "Ethernet", "InfiniBand"
    ),
    "the only port is down": DEVINFO,
    "a port that is down beside one that is up": UP
    + IBSTAT.format(state="Down", physical="Polling").replace("mlx5_0", "mlx5_1").replace("400", "10"),
    "links of an SXM2 board that are down": (
        "GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-1)\n"
        + "".join(f"\t Link {n}: {'<inactive>' if n in (3, 5) else '25.781 GB/s'}\n" for n in range(6))
    ),
    "no NVLink": MATRIX.replace("NV18", "SYS"),
    "loopback": "export NCCL_SOCKET_IFNAME=lo\n",
    "quotation marks in a value": '$ cat n.list\nNCCL_IB_HCA="mlx5_0"\n$ docker run --env-file n.list image\n',
    "little shared memory": "Filesystem Size Used Avail Use% Mounted on\nshm 64M 0 64M 0% /dev/shm\n",
    "a file that is not there": "$ ls /t.xml\nls: cannot access '/t.xml': No such file or directory\n$ cat r\n"
    "export NCCL_TOPO_FILE=/t.xml\n",
    "NVLink to other nodes that is off": (
        SMI.replace("H100 80GB HBM3", "GB200")
        + "    Fabric\n        State                 : Completed\n        Status                : Success\n"
        + "        CliqueId : 32766\n        ClusterUUID : 8f3a51d2-7c1e-4b60-a1f4-0d2c9b7e5a11\n"
        + "$ cat r.sh\nexport NCCL_CUMEM_ENABLE=0\n"
    ),
    "a port that is down while others are up": (
        "".join(f"mlx5_{n} port 1 ==> eth{n} ({'Up' if n else 'Down'})\n" for n in range(2))
        + "export NCCL_IB_HCA=mlx5_0\n"
    ),
    "a GID that leads nowhere": FORMS["show_gids"] + "$ cat r.sh\nexport NCCL_IB_GID_INDEX=0\n",
    "an interface of containers for gloo": f"$ ip -br addr\n{ADDRESSES}docker0 DOWN 172.17.0.1/16\n$ cat r.sh\n"
    "export GLOO_SOCKET_IFNAME=docker0\n",
    "an interface that is down for NCCL": f"$ ip -br addr\n{ADDRESSES}eth7 DOWN 10.1.0.1/16\n$ cat r.sh\n"
    "export NCCL_SOCKET_IFNAME=eth7\n",
    "two hosts of pdsh": (
        "".join(
            f"{host}: {line}\n"
            for host, state in (("n1", "Active"), ("n2", "Down"))
            for line in IBSTAT.format(state=state, physical="LinkUp").splitlines()[1:]
        )
    ),
}
