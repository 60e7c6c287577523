"""Faults that tools state in pasted text, and texts that state none."""

import re

from tests.pasted_containers import WELL

NET = 'export NCCL_NET="AWS Libfabric"\nexport NCCL_DEBUG=INFO\n'
NONE = "$ {}\nls: cannot access '{}': No such file or directory\n"
CARDS = "# two nodes of {0}\n$ ibstat\n" + "".join(
    f"CA 'mlx5_{n}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n"
    "\t\tPhysical state: LinkUp\n\t\tRate: {1}\n\t\tLink layer: InfiniBand\n"
    for n in range(8)
)
RATES = "".join(f"Settings for rdma{n}:\n\tSpeed: {{{n}}}00000Mb/s\n\tLink detected: yes\n" for n in range(3))
COUNTERS = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: Replay Errors: 0\n\t Link 1: CRC Errors: {}\n"
PORT = "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tactive_mtu:\t{} (3)\n\t\t\tlink_layer:\tEthernet\n"
MANAGER = "# {}\n$ systemctl is-active nvidia-persistenced nvidia-fabricmanager\nactive\n{}\nexport NCCL_DEBUG=INFO\n"
LISTED = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-000000{n})\n" for n in range(8))
LINKS = "".join(f"{line}\n\t Link 0: 26.562 GB/s\n\t Link 1: {{{n}}}\n" for n, line in enumerate(LISTED.splitlines()))
SBATCH = "#SBATCH --nodes={}\n#SBATCH --cpus-per-task={}\nsrun torchrun --nnodes=2 {} t.py\nexport NCCL_DEBUG=INFO\n"
CSV = "index, name, remapped_rows.failure\n" + "".join(f"{n}, NVIDIA H200, {{{n}}}\n" for n in range(2))
NICS = "# p5en.48xlarge\n$ ls /sys/class/infiniband{}\n" + "".join(f"rdmap{n}s0\n" for n in range(15))
UNIT = "# DGX H100\n[Service]\nLimitMEMLOCK={}\nexport NCCL_DEBUG=INFO\n"
RUN = "# DGX A100\nexport NCCL_DEBUG=INFO\napptainer exec {} t.sif torchrun t.py\n"
SAYS = {
    "a full /dev/shm": "Filesystem Size Used Avail Use% Mounted on\ntmpfs 1.0T 1.0T 20M 100% /dev/shm\n",
    "a mount": "shm on /dev/shm type tmpfs (rw,relatime,size=65536k)\nexport NCCL_DEBUG=INFO\n",
    "a GPU that a list lacks": "# p5.48xlarge\n" + LISTED.partition("GPU 7")[0],
    "a link that is down beside a list": f"{LISTED}$ nvidia-smi nvlink -s\n"
    + LINKS.format(*["26.562 GB/s"] * 7, "<inactive>"),
    "nodes that torchrun does not expect": SBATCH.format(4, 8, ""), "one processor": SBATCH.format(2, 1, ""),
    "a column of nvidia-smi": CSV.format("No", "Yes"), "a NIC that a list lacks": NICS.format(""),
    "a limit of a unit": UNIT.format(65536), "the source of a limit": UNIT.format(65536),
    "a limit of limits.conf": "* soft memlock 64\nexport NCCL_IB_HCA=mlx5\n",
    "a container without GPUs": RUN.format(""),
    "a plugin's folder": NET + NONE.format("ls /opt/ofi", "/opt/aws-ofi-nccl/lib"),
    "no plugin in a list": NET + "$ ldconfig -p | grep nccl\nlibnccl.so.2 => /lib/libnccl.so.2\n",
    "a tuner": NET.replace("NET=", "TUNER_PLUGIN=") + NONE.format("ls /x", "/usr/lib/libnccl-tuner.so"),
    "an image": NET + "image: nvcr.io/nvidia/pytorch:24.10-py3\n",
    "no EFA device in a list": "$ fi_info -p efa\nfi_getinfo: -61 (No data available)\n$ env\nFI_PROVIDER=efa\nA=1\n",
    "no IB device": "# DGX H100\n$ ibv_devinfo\nNo IB devices found\n", "a slow interface": RATES.format(4, 4, 1),
    "ports below the rate of their machine": CARDS.format("DGX H100", 100),
    "ports below the usual rate of a board": CARDS.format("HGX H100", 100),
    "an interface without link": RATES.format(4, 4, 4).replace("yes", "no", 1),
    "errors of a link": COUNTERS.format(918273), "small packets": PORT.format(1024),
    "the fabric manager": MANAGER.format("DGX H100", "inactive"),
    "an interface that is down": "$ ip -br addr\neth0 UP 10.0.0.5/24\nib0 DOWN\n$ env\nNCCL_SOCKET_IFNAME=ib0\nA=1\n",
}  # fmt: skip
SILENT = {
    "ports at the rate of their machine": CARDS.format("DGX H100", 400),
    "interfaces of two rates": RATES.format(4, 1, 2),
    "ports of no named machine": CARDS.format("a node", 100),
    "links that are cut": f"{WELL}$ nvidia-smi nvlink -s -i 0 | head -2\n{LISTED[:60]}\n\t Link 0: 26.562 GB/s\n",
    "RoCE NICs on a board of any maker": "# HGX H100\n"
    + "".join(f"mlx5_{n} port 1 ==> rdma{n} (Up)\n" for n in range(8)),
    "a pod": "kind: Pod\nn: p5.48xlarge\nl: {nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 32}\nmountPath: /dev/shm",
    "a table of GIDs that is cut": (
        "$ show_gids | head -4\n"
        + "".join(
            f"mlx5_{n} 1 {index} {gid} v2 rdma{n}\n"
            for n, index, gid in (
                (0, 0, "fe80:0000:0000:0000:1270:fdff:feb2:4cc2"),
                (0, 3, "0000:0000:0000:0000:0000:ffff:c0a8:1014"),
                (1, 0, "fe80:0000:0000:0000:1270:fdff:feb2:4cc3"),
            )
        )
        + "$ env\nNCCL_IB_GID_INDEX=3\nNCCL_DEBUG=WARN\n"
    ),
    "a list of all GPUs": "# p5.48xlarge\n" + LISTED,
    "a list that is cut": "# p5.48xlarge\n$ nvidia-smi -L | head -7\n" + LISTED.partition("GPU 7")[0],
    "UUIDs that are blackened": re.sub(r"GPU-\d+", "GPU-xxxx", LISTED),
    "a step on some of the nodes": SBATCH.format(4, 8, "").replace("srun ", "srun -N 2 "),
    "columns without a fault": CSV.format("No", "No"),
    "a list of NICs that is cut": NICS.format(" | head -15"),
    "a unit without limit": UNIT.format("infinity"),
    "a container with GPUs": RUN.format("--nv"),
    "a container with GPUs by a variable": "export APPTAINER_NV=1\n" + RUN.format(""),
    "a plugin in a list": NET + "$ ldconfig -p | grep nccl\nlibnccl-net.so => /opt/lib/libnccl-net.so\n",
    "a plugin on the path": NET + "export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib\n$ find / -name 'libnccl-net*'\n",
    "an image with the plugin mounted": NET
    + "docker run --gpus all --ipc=host -v /opt/amazon:/opt/amazon nvcr.io/nvidia/pytorch:1\n",
    "a network of NCCL's own": "export NCCL_NET=IB\n$ ldconfig -p | grep nccl\nlibnccl.so.2\n",
    "a machine without a fabric": "# 8x L40S\n$ ibv_devinfo\nNo IB devices found\nexport NCCL_DEBUG=INFO\n",
    "GPUs without NVSwitch": MANAGER.format("8x L40S", "inactive"),
    "a manager that runs": MANAGER.format("DGX H100", "active"),
    "equal interfaces": RATES.format(4, 4, 4) + "$ env\nNCCL_SOCKET_IFNAME=rdma0\nNCCL_DEBUG=INFO\n",
    "no errors": COUNTERS.format(3),
    "large packets": PORT.format(4096),
    "links without addresses": "4: eth2: <BROADCAST,UP,LOWER_UP> mtu 1500\nexport NCCL_SOCKET_IFNAME=eth2\n",
}
