"""What a container is given, by docker, compose or Kubernetes, is judged from the text that says so."""

import json
from pathlib import Path

import pytest

from ncclprobe.host.pasted_containers import pairs
from tests.pasted_texts import LIST, SMI
from tests.test_pasted import doctor

POD = """\
kind: Pod
spec:
  nodeSelector:
    node.kubernetes.io/instance-type: p5.48xlarge
  containers:
  - name: t
    image: train:1
    env:
    - {name: FI_PROVIDER, value: efa}
    resources:
      limits:
        nvidia.com/gpu: 8
        vpc.amazonaws.com/efa: %s
    volumeMounts:
    - name: shm
      mountPath: /dev/shm
  volumes:
  - name: shm
    emptyDir:
      medium: Memory
"""
HOSTDEV = POD.replace("p5.48xlarge", "dgx-h100").replace("- {name: FI_PROVIDER, value: efa}", "- {name: A, value: b}")
HOSTDEV = HOSTDEV.replace("vpc.amazonaws.com/efa", "nvidia.com/hostdev")
LOCK = '    securityContext: {capabilities: {add: ["IPC_LOCK"]}}\n    volumeMounts:'
DOCKER = "# DGX H100 x2\ndocker run --gpus all --network host %s -e NCCL_IB_HCA=mlx5 i torchrun --nnodes=2 t.py\n"
GIVEN = "--ipc=host --ulimit memlock=-1 --device=/dev/infiniband"
COMPOSE = """\
services:
  db: {image: postgres}
  t:
    image: i
    network_mode: host
    %s
    devices: [/dev/infiniband]
    environment: {NCCL_DEBUG: INFO}
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}
"""
RAILS = [{"interfaceName": f"eth{n + 2}", "network": f"rdma-{n}"} for n in range(8)]
GKE = """\
kind: Pod
metadata:
  annotations:
    networking.gke.io/interfaces: '%s'
spec:
  nodeSelector: {cloud.google.com/machine-type: a3-ultragpu-8g}
  limits: {nvidia.com/gpu: 8}
  mountPath: /dev/shm
"""
MULTUS = "k8s.v1.cni.cncf.io/networks"
LINK = "{}\n\tLnkCap: Port #0, Speed 32GT/s, Width x16\n\tLnkSta: Speed {}GT/s, Width x16\n"
PERFORMANCE = "    Clocks Event Reasons\n        Idle : Not Active\n            HW Thermal Slowdown : %s\n"
P2P = "$ nvidia-smi topo -p2p r\n \t" + "\t".join(f"GPU{n}" for n in range(8)) + "\n"
P2P += "".join(f" GPU{n}\t" + "\t".join("X" if n == m else "%s" for m in range(8)) + "\n" for n in range(8))
LISTED = "".join(LIST.replace("GPU 0", f"GPU {n}").replace("H200", "H100 80GB HBM3") for n in range(8))
CONF = "[a@n1 ~]$ cat /etc/nccl.conf\n# cluster defaults\n{}NCCL_IB_HCA==mlx5_0\n[a@n1 ~]$ env | grep NCCL\n"
TASKS = "#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\n{}\nexport NCCL_DEBUG=INFO\nsrun python t.py\n"
TORCH = "n1: 2.4.1+cu121 12.1 (2, 20, 5)\nn2: 2.4.1+cu121 12.1 (2, {}, 5)\nexport NCCL_DEBUG=INFO\n"
GIDS = "$ show_gids{}\nmlx5_0 1 3 0000:0000:0000:0000:0000:ffff:0ae0:002c 10.224.0.44 v2 rdma0\n"
GIDS += "$ cat r\nexport NCCL_IB_HCA==mlx5_0,mlx5_1\n"
BRIDGE = "21:00.0 PCI bridge: PLX Technology, Inc. PEX 88096\n\tACSCtl:\tSrcValid{0} ReqRedir{0} CmpltRedir{0}\n"
DIRECT = """\
$ uname -r ; cat /proc/driver/nvidia/version | head -1
4.18.0-372.9.1.el8.x86_64
NVRM version: NVIDIA UNIX {}Kernel Module  525.147.05  Wed Oct 25 20:27:35 UTC 2023
$ lsmod | grep nvidia
nvidia_uvm           1388544  16
nvidia              56496128  731 nvidia_uvm
{}$ env | grep NCCL
NCCL_IB_HCA=mlx5_0
"""
WELL = SMI.replace("|                    2 |", "|                    0 |").replace("E. Process", "  Default ")
SAYS = {
    "one EFA device of 32": (POD % 1, "FAIL host.limits vpc.amazonaws.com/efa the container gets 1 of the 32 NICs"),
    "28 of 32": (POD % 28, "WARN host.limits vpc.amazonaws.com/efa the container gets 28 of the 32 NICs"),
    "no EFA device": (
        POD.replace("        vpc.amazonaws.com/efa: %s\n", ""),
        "the container gets 0 of the 32 NICs",
    ),
    "one NIC of eight": (HOSTDEV % 1, "the container gets 1 of the 8 NICs that DGX H100 has"),
    "no right to lock memory": (HOSTDEV % 8, "WARN launch.vars securityContext lacks IPC_LOCK"),
    "a small limit of an emptyDir": (POD % 32 + "      sizeLimit: 64Mi\n", "WARN host.shm /dev/shm 64 MiB free"),
    "a pod without /dev/shm": ((POD % 32).partition("    volumeMounts")[0], "WARN host.shm /dev/shm 64 MiB free"),
    "docker's locked memory": (DOCKER % GIVEN.replace("-1", "65536"), "FAIL host.limits RLIMIT_MEMLOCK 64 KiB, on DGX"),
    "docker's shared memory": (DOCKER % GIVEN.replace("--ipc=host", "--shm-size=64m"), "WARN host.shm /dev/shm 64 MiB"),
    "docker without a device": (DOCKER % "--ipc=host", "WARN launch.vars /dev/infiniband is not given to the"),
    "docker's own network": (DOCKER.replace("--network host ", "") % GIVEN, "WARN launch.vars --network is not host"),
    "docker with too few GPUs": (
        DOCKER.replace("--gpus all", "--gpus '\"device=0,1\"'").replace("t.py", "--nproc-per-node=8 t.py") % GIVEN,
        "FAIL launch.vars --nproc-per-node starts 8 workers on a node",
    ),
    "compose's shared memory": (COMPOSE % "shm_size: 64m", "WARN host.shm /dev/shm 64 MiB free"),
    "compose's locked memory": (
        COMPOSE % "ipc: host\n    ulimits:\n      memlock:\n        soft: 65536\n        hard: 65536",
        "RLIMIT_MEMLOCK: 64 KiB",
    ),
    "no library of NVML": (
        DOCKER % f"{GIVEN} -e NVIDIA_DRIVER_CAPABILITIES=compute",
        "FAIL launch.vars NVIDIA_DRIVER_CAPABILITIES is compute: without utility the container has no libnvidia-ml",
    ),
    "half of the networks": (
        GKE % json.dumps(RAILS[:4]),
        "FAIL host.limits networking.gke.io/interfaces the container gets 4 of",
    ),
    "half of the networks of Multus": (
        GKE.replace("networking.gke.io/interfaces", MULTUS) % "rdma-0, rdma-1,rdma-2,rdma-3",
        "FAIL host.limits k8s.v1.cni.cncf.io/networks the container gets 4 of the 8 NICs",
    ),
    "a slow NIC in a script's list": (
        LINK.format("0c:00.0 mlx5_1", 32) + LINK.format("c0:00.0 mlx5_9", 16),
        "pci.link 0000:c0:00.0 runs at 16 GT/s x16, but supports 32 GT/s",
    ),
    "a file of the host": (
        DOCKER % f"{GIVEN} -e NCCL_TOPO_FILE=/opt/microsoft/t.xml -v /data:/data",
        "FAIL launch.vars NCCL_TOPO_FILE names /opt/microsoft/t.xml, a file of the host that no volume",
    ),
    "a limit on processors": (
        (POD % 32).replace("        nvidia.com/gpu: 8", '        cpu: "2"\n        nvidia.com/gpu: 8'),
        "WARN launch.vars limits.cpu is 2, for the ranks of 8 GPUs",
    ),
    "a conf with comments": (CONF.format("export "), "NCCL_IB_HCA is not set: the file is not a shell script"),
    "a GPU for each task": (TASKS.format(""), "WARN launch.vars --gpus-per-task lets each task of a node see only"),
    "a bound GPU": (TASKS.format("#SBATCH --gpu-bind=single:1"), "FAIL launch.vars --gpu-bind lets each task"),
    "versions of NCCL": (TORCH.format(18), "FAIL launch.vars NCCL is not the same on all hosts: 2.20.5 on n1; 2.18.5"),
    "a NIC that a whole list lacks": (GIDS.format(""), "'mlx5_1' matches no port"),
    "switches that redirect": (BRIDGE.format("+"), "WARN pci.acs PCIe switches 1 of 1 bridges redirect requests"),
    "a kernel without GPUDirect": (DIRECT.format("", ""), "WARN ib.gdr GPUDirect RDMA no peer-memory module"),
    "a GPU with ERR!": (
        SMI.replace("HBM3          On ", "HBM3        ERR! ", 1).replace("70W /  700W", "ERR! / ERR!"),
        "FAIL gpu.count GPU0 NVML reports that it is lost",
    ),
    "a GPU without a handle": (
        LIST + "Unable to determine the device handle for gpu 0000:CB:00.0: Unknown Error\n",
        "FAIL a GPU reports a hardware fault",
    ),
    "a GPU that is not there": (
        f"# p5.48xlarge\n{SMI}",
        "FAIL gpu.count GPUs the text shows 2, and a p5.48xlarge has 8",
    ),
    "no GPU": ("$ nvidia-smi\nNo devices were found\n", "FAIL nvidia-smi finds no GPU"),
    "a hot GPU by a filter": (
        PERFORMANCE % "Not Active" + PERFORMANCE % "Active",
        "WARN gpu.clocks GPU1 it is too hot",
    ),
    "a fabric by a filter": (
        "    Fabric\n        State : Not Started\n",
        "it has not begun to register with the NVLink fabric",
    ),
    "peers without access": (LISTED + P2P.replace("%s", "CNS"), "FAIL gpu.p2p GPU0 and GPU[1-7]"),
    "a kernel's panic": (
        "[   9.000000] x: y\n[  10.000000] Kernel panic - not syncing: Fatal exception\n",
        "FAIL the kernel of a host panicked",
    ),
    "a NIC that does not start": (
        "[   9.000000] mlx5_core 0000:29:00.0: firmware version: 28.42.1000\n"
        "[ 131.000000] mlx5_core 0000:29:00.0: probe_one:2050:(pid 4): mlx5_init_one failed with error code -110\n",
        "FAIL 0000:29:00.0 went down or failed",
    ),
}
SILENT = {
    "all EFA devices": POD % 32,
    "half the GPUs and devices": (POD % 16).replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 4"),
    "a machine with one": (POD % 1).replace("p5.48xlarge", "g6.48xlarge"),
    "a shared device": (HOSTDEV % 1)
    .replace("nvidia.com/hostdev", "rdma/rdma_shared_device_a")
    .replace("    volumeMounts:", LOCK),
    "the right to lock memory": (HOSTDEV % 8).replace("    volumeMounts:", LOCK),
    "a part of a manifest": "env:\n- name: NCCL_DEBUG\n  value: INFO\nresources:\n  limits:\n    nvidia.com/gpu: 8\n",
    "all that docker can give": DOCKER % GIVEN,
    "a privileged container": DOCKER % "--ipc=host --privileged",
    "InfiniBand that is off": (DOCKER % "--ipc=host").replace("NCCL_IB_HCA=mlx5", "NCCL_IB_DISABLE=1"),
    "compose with the host's memory": COMPOSE % "ipc: host\n    ulimits: {memlock: {soft: -1, hard: -1}}",
    "compose with room": COMPOSE % "shm_size: '16gb'",
    "GPUs by CDI": (DOCKER % GIVEN).replace("--gpus all", "--device nvidia.com/gpu=all").replace("docker", "podman"),
    "both kinds of libraries": DOCKER % f"{GIVEN} -e NVIDIA_DRIVER_CAPABILITIES=utility,compute,video",
    "all libraries": DOCKER % f"{GIVEN} -e NVIDIA_DRIVER_CAPABILITIES=all",
    "all networks": GKE % json.dumps(RAILS),
    "one network of a shared device": GKE.replace("networking.gke.io/interfaces", MULTUS) % "rdma-shared",
    "fast NICs in a script's list": LINK.format("0c:00.0 mlx5_1", 32) + LINK.format("c0:00.0 mlx5_9", 32),
    "a file that a volume brings": DOCKER
    % f"{GIVEN} -e NCCL_TOPO_FILE=/opt/microsoft/t -v /opt/microsoft:/opt/microsoft",
    "room on processors": (POD % 32).replace("nvidia.com/gpu: 8", 'cpu: "90"\n        nvidia.com/gpu: 8'),
    "GPUs of all tasks": TASKS.format("#SBATCH --gpu-bind=none"),
    "one version of NCCL": TORCH.format(20),
    "a NIC that a part of a list lacks": GIDS.format(" | grep mlx5_0"),
    "switches that do not redirect": BRIDGE.format("-"),
    "root ports that redirect": BRIDGE.format("+").replace("PLX Technology, Inc. PEX", "Intel Device"),
    "a peer-memory module": DIRECT.format("", "nvidia_peermem 16384 0\n"),
    "an open module on an old kernel": DIRECT.format("Open ", ""),
    "the channel of a command": "$ srun sh -c 'ls /dev/nvidia-caps-imex-channels; nvidia-imex-ctl -q'\n" + WELL,
    "peers with access": LISTED + P2P.replace("%s", "OK"),
    "cool GPUs by a filter": (PERFORMANCE % "Not Active") * 2,
    "a table that is cut": f"# p5.48xlarge\n$ nvidia-smi | head -8\n{WELL}",
    "half of the GPUs": f"# p5.48xlarge, 2 x H100\n{WELL}",
    "a matrix that is cut": "# DGX H100\n"
    + "\t".join(["", *(f"GPU{n}" for n in range(8))])
    + "\nGPU0\t X "
    + "\tNV18" * 7
    + "\nGPU1\tNV18\t X "
    + "\tNV18" * 6
    + "\n",
}


def test_what_a_container_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = {}
    for name, (text, must) in SAYS.items():
        _, said = doctor(tmp_path, capsys, text)
        if must not in said:
            missing[name] = said[:500]
    assert missing == {}


def test_a_container_with_all_it_needs_is_not_objected_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loud = {
        name: said[:500]
        for name, text in SILENT.items()
        if {"FAIL", "WARN", "NOTE"} & {*(said := doctor(tmp_path, capsys, text)[1]).split()}
    }
    loud.pop("InfiniBand that is off", None)  # its cost is another check's business
    assert loud == {}


def test_the_values_of_a_manifest_are_found_by_their_keys() -> None:
    text = "a:\n- b: 1\n  c: {d: x, e: y}\n-  b: 2 # two\n---\nf: [g, h]\ni:\n  j:\n    k: 'l'\n"
    assert pairs(text.splitlines()) == [
        (("a", "0", "b"), "1"),
        (("a", "0", "c", "d"), "x"),
        (("a", "0", "c", "e"), "y"),
        (("a", "1", "b"), "2"),
        (("f",), "[g, h]"),
        (("i", "j", "k"), "l"),
    ]
