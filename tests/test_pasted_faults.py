"""What a tool states of a fault in pasted text is reported under the check that asks for it."""

import re
from pathlib import Path

import pytest

from tests.test_pasted import doctor
from tests.test_pasted_containers import WELL

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
    "a full /dev/shm": (
        "Filesystem Size Used Avail Use% Mounted on\ntmpfs 1.0T 1.0T 20M 100% /dev/shm\n",
        "20 MiB free",
    ),
    "a mount": (
        "shm on /dev/shm type tmpfs (rw,relatime,size=65536k)\nexport NCCL_DEBUG=INFO\n",
        "64 MiB free of 64 MiB",
    ),
    "a GPU that a list lacks": (
        "# p5.48xlarge\n" + LISTED.partition("GPU 7")[0],
        "FAIL gpu.count GPUs the text shows 7, and a p5.48xlarge has 8",
    ),
    "a link that is down beside a list": (
        f"{LISTED}$ nvidia-smi nvlink -s\n" + LINKS.format(*["26.562 GB/s"] * 7, "<inactive>"),
        "FAIL nvl.links GPU7 1 NVLinks are up, link 1 down",
    ),
    "nodes that torchrun does not expect": (SBATCH.format(4, 8, ""), "FAIL launch.vars --nnodes is 2, but srun starts"),
    "one processor": (SBATCH.format(2, 1, ""), "WARN launch.vars --cpus-per-task=1 gives each task one processor"),
    "a column of nvidia-smi": (CSV.format("No", "Yes"), "GPU1"),
    "a NIC that a list lacks": (NICS.format(""), "WARN ib.gdr NICs the text lists 15, and a p5en.48xlarge has 16"),
    "a limit of a unit": (UNIT.format(65536), "FAIL host.limits RLIMIT_MEMLOCK 64 KiB, on DGX H100"),
    "the source of a limit": (UNIT.format(65536), "seen: RLIMIT_MEMLOCK in the pasted text"),
    "a limit of limits.conf": (
        "* soft memlock 64\nexport NCCL_IB_HCA=mlx5\n",
        "FAIL host.limits RLIMIT_MEMLOCK 64 KiB",
    ),
    "a container without GPUs": (RUN.format(""), "FAIL launch.vars container is started without an option"),
    "a plugin's folder": (
        NET + NONE.format("ls /opt/ofi", "/opt/aws-ofi-nccl/lib"),
        "FAIL env.libraries NCCL_NET=AWS Libfabric asks for a plugin that is not there: /opt/aws-ofi-nccl/lib",
    ),
    "no plugin in a list": (
        NET + "$ ldconfig -p | grep nccl\nlibnccl.so.2 => /lib/libnccl.so.2\n",
        "`ldconfig -p | grep nccl` lists no plugin",
    ),
    "a tuner": (
        NET.replace("NET=", "TUNER_PLUGIN=") + NONE.format("ls /x", "/usr/lib/libnccl-tuner.so"),
        "WARN env.libraries NCCL_TUNER_PLUGIN=AWS Libfabric asks for a plugin",
    ),
    "an image": (
        NET + "image: nvcr.io/nvidia/pytorch:24.10-py3\n",
        "it is unknown if the image nvcr.io/nvidia/pytorch",
    ),
    "no EFA device": (
        "$ fi_info -p efa\nfi_getinfo: -61 (No data available)\n$ env\nFI_PROVIDER=efa\nA=1\n",
        "FAIL ib.state RDMA devices no RDMA device is visible here",
    ),
    "no IB device": ("# DGX H100\n$ ibv_devinfo\nNo IB devices found\n", "WARN ib.state RDMA devices"),
    "a slow interface": (RATES.format(4, 4, 1), "WARN ib.rate rdma2 runs at 100 Gb/s, 2 of 3 others at 400 Gb/s"),
    "ports below the rate of their machine": (
        CARDS.format("DGX H100", 100),
        "FAIL ib.rate NICs all 8 ports run at 100 Gb/s; the NICs of DGX H100 usually run at 400 Gb/s",
    ),
    "ports below the usual rate of a board": (CARDS.format("HGX H100", 100), "WARN ib.rate NICs all 8 ports"),
    "an interface without link": (RATES.format(4, 4, 4).replace("yes", "no", 1), "WARN ib.state rdma0 has no link"),
    "errors of a link": (COUNTERS.format(918273), "WARN nvl.links GPU0 link 1 counts 918273 errors"),
    "small packets": (PORT.format(1024), "WARN ib.roce active_mtu RoCE packets have 1024 bytes"),
    "the fabric manager": (MANAGER.format("DGX H100", "inactive"), "FAIL nvl.fabric nvidia-fabricmanager is inactive"),
    "an interface that is down": (
        "$ ip -br addr\neth0 UP 10.0.0.5/24\nib0 DOWN\n$ env\nNCCL_SOCKET_IFNAME=ib0\nA=1\n",
        "FAIL env.ifname NCCL_SOCKET_IFNAME 'ib0' is down or has no address",
    ),
}
SILENT = {
    "ports at the rate of their machine": CARDS.format("DGX H100", 400),
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


def test_a_fault_that_a_text_states_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = {}
    for name, (text, must) in SAYS.items():
        _, said = doctor(tmp_path, capsys, text)
        if must not in said:
            missing[name] = said[:500]
    assert missing == {}


def test_what_states_no_fault_is_not_objected_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loud = {
        name: said[:500]
        for name, text in SILENT.items()
        if {"FAIL", "WARN", "NOTE", "UNKNOWN"} & {*(said := doctor(tmp_path, capsys, text)[1]).split()}
    }
    assert loud == {}
