"""What containers are given, by docker, compose and Kubernetes, and what tools state beside."""

import json

from tests.pasted_texts import LIST, SMI

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
    "one EFA device of 32": POD % 1,
    "28 of 32": POD % 28,
    "no EFA device": POD.replace("        vpc.amazonaws.com/efa: %s\n", ""),
    "one NIC of eight": HOSTDEV % 1,
    "no right to lock memory": HOSTDEV % 8,
    "a small limit of an emptyDir": POD % 32 + "      sizeLimit: 64Mi\n",
    "a pod without /dev/shm": (POD % 32).partition("    volumeMounts")[0],
    "docker's locked memory": DOCKER % GIVEN.replace("-1", "65536"),
    "docker's shared memory": DOCKER % GIVEN.replace("--ipc=host", "--shm-size=64m"),
    "docker without a device": DOCKER % "--ipc=host",
    "docker's own network": DOCKER.replace("--network host ", "") % GIVEN,
    "docker with too few GPUs": DOCKER.replace("--gpus all", "--gpus '\"device=0,1\"'").replace(
        "t.py", "--nproc-per-node=8 t.py"
    )
    % GIVEN,
    "compose's shared memory": COMPOSE % "shm_size: 64m",
    "compose's locked memory": COMPOSE
    % "ipc: host\n    ulimits:\n      memlock:\n        soft: 65536\n        hard: 65536",
    "no library of NVML": DOCKER % f"{GIVEN} -e NVIDIA_DRIVER_CAPABILITIES=compute",
    "half of the networks": GKE % json.dumps(RAILS[:4]),
    "half of the networks of Multus": GKE.replace("networking.gke.io/interfaces", MULTUS)
    % "rdma-0, rdma-1,rdma-2,rdma-3",
    "a slow NIC in a script's list": LINK.format("0c:00.0 mlx5_1", 32) + LINK.format("c0:00.0 mlx5_9", 16),
    "a file of the host": DOCKER % f"{GIVEN} -e NCCL_TOPO_FILE=/opt/microsoft/t.xml -v /data:/data",
    "a limit on processors": (POD % 32).replace("        nvidia.com/gpu: 8",
                                                '        cpu: "2"\n        nvidia.com/gpu: 8'),
    "little memory": (POD % 32).replace("nvidia.com/gpu: 8", "memory: 15Gi\n        nvidia.com/gpu: 8"),
    "workers beyond compose's count": COMPOSE.replace("count: all", "count: 2") % "shm_size: '16gb'"
    + "    command: torchrun --nproc-per-node 8 t.py\n",
    "a daemon's shared memory": '{"default-shm-size": "16G"}\n'
    + DOCKER % "--ulimit memlock=-1 --device=/dev/infiniband",
    "a conf with comments": CONF.format("export "),
    "a GPU for each task": TASKS.format(""),
    "a bound GPU": TASKS.format("#SBATCH --gpu-bind=single:1"),
    "versions of NCCL": TORCH.format(18),
    "a NIC that a whole list lacks": GIDS.format(""),
    "switches that redirect": BRIDGE.format("+"),
    "a kernel without GPUDirect": DIRECT.format("", ""),
    "a GPU with ERR!": SMI.replace("HBM3          On ", "HBM3        ERR! ", 1).replace("70W /  700W", "ERR! / ERR!"),
    "a GPU without a handle": LIST + "Unable to determine the device handle for gpu 0000:CB:00.0: Unknown Error\n",
    "a GPU that is not there": f"# p5.48xlarge\n{SMI}",
    "no GPU": "$ nvidia-smi\nNo devices were found\n",
    "a hot GPU by a filter": PERFORMANCE % "Not Active" + PERFORMANCE % "Active",
    "a fabric by a filter": "    Fabric\n        State : Not Started\n",
    "peers without access": LISTED + P2P.replace("%s", "CNS"),
    "a kernel's panic": "[   9.000000] x: y\n[  10.000000] Kernel panic - not syncing: Fatal exception\n",
    "a NIC that does not start": (
        "[   9.000000] mlx5_core 0000:29:00.0: firmware version: 28.42.1000\n"
        "[ 131.000000] mlx5_core 0000:29:00.0: probe_one:2050:(pid 4): mlx5_init_one failed with error code -110\n"
    ),
}  # fmt: skip
SILENT = {
    "enough memory": (POD % 32).replace("nvidia.com/gpu: 8", "memory: 17Gi\n        nvidia.com/gpu: 8"),
    "all EFA devices": POD % 32,
    "half the GPUs and devices": (POD % 16).replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 4"),
    "a machine with one": (POD % 1).replace("p5.48xlarge", "g6.48xlarge"),
    "a shared device": (HOSTDEV % 1)
    .replace("nvidia.com/hostdev", "rdma/rdma_shared_device_a")
    .replace("    volumeMounts:", LOCK),
    "the right to lock memory": (HOSTDEV % 8).replace("    volumeMounts:", LOCK),
    "a part of a manifest": "env:\n- name: NCCL_DEBUG\n  value: INFO\nresources:\n  limits:\n    nvidia.com/gpu: 8\n",
    "all that docker can give": DOCKER % GIVEN, "a privileged container": DOCKER % "--ipc=host --privileged",
    "InfiniBand that is off": (DOCKER % "--ipc=host").replace("NCCL_IB_HCA=mlx5", "NCCL_IB_DISABLE=1"),
    "compose with the host's memory": COMPOSE % "ipc: host\n    ulimits: {memlock: {soft: -1, hard: -1}}",
    "compose with room": COMPOSE % "shm_size: '16gb'",
    "GPUs by CDI": (DOCKER % GIVEN).replace("--gpus all", "--device nvidia.com/gpu=all").replace("docker", "podman"),
    "both kinds of libraries": DOCKER % f"{GIVEN} -e NVIDIA_DRIVER_CAPABILITIES=utility,compute,video",
    "all libraries": DOCKER % f"{GIVEN} -e NVIDIA_DRIVER_CAPABILITIES=all", "all networks": GKE % json.dumps(RAILS),
    "one network of a shared device": GKE.replace("networking.gke.io/interfaces", MULTUS) % "rdma-shared",
    "fast NICs in a script's list": LINK.format("0c:00.0 mlx5_1", 32) + LINK.format("c0:00.0 mlx5_9", 32),
    "a file that a volume brings": DOCKER
    % f"{GIVEN} -e NCCL_TOPO_FILE=/opt/microsoft/t -v /opt/microsoft:/opt/microsoft",
    "room on processors": (POD % 32).replace("nvidia.com/gpu: 8", 'cpu: "90"\n        nvidia.com/gpu: 8'),
    "GPUs of all tasks": TASKS.format("#SBATCH --gpu-bind=none"), "one version of NCCL": TORCH.format(20),
    "a NIC that a part of a list lacks": GIDS.format(" | grep mlx5_0"),
    "switches that do not redirect": BRIDGE.format("-"),
    "root ports that redirect": BRIDGE.format("+").replace("PLX Technology, Inc. PEX", "Intel Device"),
    "a peer-memory module": DIRECT.format("", "nvidia_peermem 16384 0\n"),
    "an open module on an old kernel": DIRECT.format("Open ", ""),
    "the channel of a command": "$ srun sh -c 'ls /dev/nvidia-caps-imex-channels; nvidia-imex-ctl -q'\n" + WELL,
    "peers with access": LISTED + P2P.replace("%s", "OK"), "cool GPUs by a filter": (PERFORMANCE % "Not Active") * 2,
    "a table that is cut": f"# p5.48xlarge\n$ nvidia-smi | head -8\n{WELL}",
    "half of the GPUs": f"# p5.48xlarge, 2 x H100\n{WELL}",
    "a matrix that is cut": "# DGX H100\n"
    + "\t".join(["", *(f"GPU{n}" for n in range(8))])
    + "\nGPU0\t X "
    + "\tNV18" * 7
    + "\nGPU1\tNV18\t X "
    + "\tNV18" * 6
    + "\n",
}  # fmt: skip
