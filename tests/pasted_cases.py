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
SETTINGS = {
    "docker inspect": '    "Config": {\n        "Env": [\n            "NCCL_DEBUG=INFO",\n            "A=1"\n'
    "        ]\n",
    "an option of a list": "mpirun:\n- -x\nexport NCCL_DEBUG=INFO\n- NCCL_A=1\n",
    "env": "HOME=/root\nNCCL_DEBUG=INFO\n",
    "env with a blank": "A=1\nNCCL_IB_HCA=mlx5_0, mlx5_1\n",
    "export": "export NCCL_IB_HCA='mlx5_0'\n",
    "several of a line": "export A=1 B=2  # rails\nexport C=3; export D=4\n",
    "systemd": '[Service]\nEnvironment=NCCL_DEBUG=INFO "A=1 2"\n',
    "fish": "set -gx NCCL_DEBUG INFO\nset -l B 2\n",
    "Dockerfile": "FROM x\nENV NCCL_DEBUG INFO\nENV A=1 B=2\n",
    "an open quotation mark": "export NCCL_DEBUG='INFO\nexport A=1\n",
    "csh": "setenv NCCL_DEBUG INFO\n",
    "before a command": "me@n1:~$ A=on B=2 torchrun --nproc 8 x.py\n",
    "docker run": 'docker run --gpus all \\\n  -e A=1 --env B="2" \\\n --env=C=3 image\n',
    "above a log": "$ docker run -e A=1 image\n[rank3]: ncclSystemError: C=3\n$ cat e\nexport B=2\n"
    "n1:7:7 [0] NCCL INFO ok\n",
    "mpirun": "mpirun -np 16 -x NCCL_DEBUG=INFO -x PATH ./a\n",
    "mpirun, with blanks": "mpirun -x NCCL_SOCKET_IFNAME = bond0 -x NCCL_DEBUG=INFO -x PATH ./a\n",
    "mpirun, an argument on each line": '- mpirun\n- -np\n- "72"\n- -x\n- NCCL_DEBUG=INFO\n- "-x"\n'
    '- "NCCL_IB_HCA=mlx5"\n- --mca\n- btl\n',
    "a file of --env-file": '$ cat nccl.list\nNCCL_IB_HCA="mlx5_0"\nA=1\n$ cat run.sh\n'
    'docker run --env-file nccl.list -e B="2" image\n',
    "another file": '$ cat my.env\nNCCL_IB_HCA="mlx5_0"\n',
    "a list of compose": 'services:\n  t:\n    environment:\n      - NCCL_A="INFO"\n      - "NCCL_B=x"\n',
    "srun": "#SBATCH --export=ALL,C=2\nexport HOST=$(hostname)\nsrun --export=ALL,A=1,B=x,y python t.py\n",
    "qsub": "#PBS -v A=1,B=x,y\nmpiexec python t.py\n",
    "a blank before the sign": "export NCCL_IB_HCA = mlx5_0\nexport A=1\n",
    "a mapping of our names": "values:\n  NCCL_A: INFO\n",
    "a name in small letters": "$ env | egrep 'NCCL|OMPI'\nOMPI_MCA_pml=ob1\nOMPI_MCA_btl_tcp_if_include=eth0\n"
    "NCCL_DEBUG=INFO\n",
    "Kubernetes": (
        "spec:\n  containers:\n  - name: worker\n    image: i\n    env:\n"
        '    - name: A\n      value: "1"\n    - name: IP\n      valueFrom:\n        fieldRef: x\n'
    ),
    "Kubernetes in braces": '- {name: A, value: "yes"}\n',
    "compose": 'services:\n  t:\n    environment:\n      NCCL_A: INFO\n      B1: "on"\n',
    "Python": 'import os\nos.environ["A"] = "1"\n',
    "Python, unless it is set": 'os.environ.setdefault("A", "1")\n',
    "a dictionary": 'env.update({"NCCL_A": "1", \'UCX_B\': "x,y", "note": "z"})\n',
    "JSON": '{"runtime_env": {"env_vars": {"NCCL_A": 1, "TORCH_NCCL_B": "on"}}}\n',
    "apptainer": "apptainer exec --env A=1,B=x,y img.sif python t.py\n",
    "conda": "conda env config vars set NCCL_DEBUG=INFO A=1\n",
    "another command of conda": "conda env create -n x python=3.11\nexport A=1\n",
    "kubectl": "kubectl set env deploy/t A=1 B=2\n",
    "with time stamps": "2026-09-01T23:52:54.000000Z export A=1\n2026-09-01T23:52:55.000000Z\n",
    "a section of several": "$ ibstat\n" + "x y\n" * 20 + "$ env | grep NCCL\nNCCL_DEBUG=INFO\n",
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
IDLE = (
    QUERY.replace("Current                   : 5", "Current                   : 1")
    + "    Performance State                     : P8\n    Clocks Event Reasons\n        Idle : Active\n"
)
BOOT = "[    1.000000] Linux version 6.1\n" * 3
UNSAID = {
    "a port that is down among its kind": "".join(UP.replace("mlx5_0", f"mlx5_{n}") for n in range(7))
    + IBSTAT.format(state="Down", physical="Polling").replace("mlx5_0", "mlx5_7"),
    "ports that are all up": "".join(UP.replace("mlx5_0", f"mlx5_{n}") for n in range(7)),
    "a log without a failure": BOOT,
    "an unknown failure": f"{BOOT}[  9.000000] nvidia 0000:07:00.0: GPU initialization FAILED, giving up\n",
    "an interface that no text shows": "export NCCL_SOCKET_IFNAME=eth0\n",
    "what a command says for itself": "$ ls /x\nls: cannot access '/x': No such file or directory\n$ cat r\n"
    "export NCCL_DEBUG=WARN\n",
    "strings of a manifest": POD.replace("3", '"3"'),
    "numbers of a mapping": "environment:\n  NCCL_IB_GID_INDEX: 3\n  NCCL_DEBUG: WARN\n",
    "one task on each node": BATCH.format(tasks=1, own=""),
    "a step of its own tasks": BATCH.format(tasks=8, own="--ntasks-per-node=1 "),
    "GPUs as a container counts them": COMPOSE.format(seen="0,1"),
    "no packet without a buffer": STATISTICS.format(0),
    "what nvidia-smi -q might show": SMI,
    "an idle GPU's speed in lspci": GPU_SLOT.format(speed=2.5, width=16),
    "two ports that nobody plugged": "eno1 UP 10.0.0.5/24\neno2 DOWN\neno3 DOWN\neno4 DOWN\n",
    "containers' interfaces": "eth0 UP 10.0.0.5/24\n"
    + "".join(f"veth{n} {'DOWN' if n == 3 else 'UP'}\n" for n in range(8)),
    "an idle GPU's link": IDLE,
    "a variable behind a filter": "$ kubectl exec t -- env | sort | egrep 'NCCL|WORLD'\nLOCAL_WORLD_SIZE=8\n"
    "NCCL_DEBUG=INFO\nWORLD_SIZE=16\n",
    "the address of rank 0 behind a filter": "$ env | grep -E 'NCCL|RANK|WORLD'\nRANK=0\nWORLD_SIZE=16\n"
    "NCCL_DEBUG=INFO\n",
    "a plugin in folders that nobody listed": "export NCCL_NET_PLUGIN=spcx\n",
    "a name that a plugin may read": "export NCCL_NET_PLUGIN=spcx\nexport NCCL_IB_NET_LATENCY=50\n",
    "a variable that a vendor prescribes": "export IB_RX_QUEUE_LEN=8192\nexport NCCL_IB_SL=0\n",
    "a fact that is not shown": "mlx5_0 port 1 ==> eth0 (Down)\nmlx5_1 port 1 ==> eth1 (Up)\n"
    "export NCCL_IB_HCA=mlx5_0\n",
    "another port, if one is up": "mlx5_0 port 1 ==> eth0 (Down)\nmlx5_1 port 1 ==> eth1 (Up)\n"
    "export NCCL_IB_HCA=mlx5_0\n",
    "an interface that is up": f"$ ip -br addr\n{ADDRESSES}$ cat r.sh\nexport NCCL_SOCKET_IFNAME=eth0\n"
    "export GLOO_SOCKET_IFNAME=eth0\n",
    "all protocols": "export NCCL_PROTO=LL,LL128,Simple\nexport NCCL_SOCKET_IFNAME=eth0\n",
    "NVLink of a node by itself": (
        SMI + "    Fabric\n        State : Completed\n        ClusterUUID : 00000000-0000-0000-0000-000000000000\n"
        "export NCCL_MNNVL_ENABLE=0\n"
    ),
}
