"""A machine that a text only names, a setting, and a launch line: what is wrong, and what is right."""

from tests.pasted_cases import eight_gpus


def word(one: int, two: int) -> str:
    return " X " if one == two else "PIX" if one // 2 == two // 2 else "NODE" if one // 4 == two // 4 else "SYS"


TWO = "# two p5.48xlarge\n"
A4 = "nodeSelector:\n  node.kubernetes.io/instance-type: a4-highgpu-8g\n"
GIB = "image: us-docker.pkg.dev/gce-ai-infra/gpudirect-gib/nccl-plugin-gib-diagnostic:v1.1.1\n"
PRODUCT = "nodeSelector:\n  nvidia.com/gpu.product: NVIDIA-B200\nlimits:\n  nvidia.com/gpu: 8\n"
GRES = "#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:8\n"
SMI, MATRIX, NICS = eight_gpus()
NETDEVS = "$ ibdev2netdev\n" + "".join(
    f"mlx5_{n} port 1 ==> {'eth0' if n == 4 else f'rdma{n}'} (Up)\n" for n in range(9)
)
GIDS = "$ show_gids\nmlx5_0 1 3 0000:0000:0000:0000:0000:ffff:0ae0:002c 10.224.0.44 v2 rdma0\n"
RAILS = ",".join(f"mlx5_{n}" for n in range(9) if n != 4)
SOME = ",".join(f"mlx5_{n}" for n in range(6) if n != 4)
PERF = "./all_reduce_perf -b 1G\n"
LISTED = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})\n" for n in range(8))
FILTERED = "".join(f"CA 'mlx5_{n}'\n\t\tState: Active\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n" for n in range(8))
CARDS = "\t".join(["", *(f"GPU{n}" for n in range(8)), "CPU Affinity", "NUMA Affinity"]) + "".join(
    f"\nGPU{one}\t" + "\t".join(word(one, two) for two in range(8)) + f"\t0-31\t{one // 4}" for one in range(8)
)
ADDRESSES = "$ ip -br addr\nlo UNKNOWN 127.0.0.1/8\neth0 UP 10.0.0.5/24\n"
JOINED = "    Fabric\n        State : Completed\n        Status : Success\n        ClusterUUID : %s\n"
PAIR = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-31\t0\nGPU1\tPHB\t X \t0-31\t0\n"
LSMOD = "nvidia_uvm 2076672 0\nnvidia 11591680 2 nvidia_uvm\nib_core 516096 1 mlx5_ib\n"
RUN = "srun -N 2 --ntasks-per-node=8 ./all_reduce_perf -b 1G\n"
ALONE = "torchrun --standalone --nproc-per-node 8 train.py\n"
WRONG = [
    (TWO, "NCCL_P2P_DISABLE=1", RUN), (TWO, "NCCL_NET=IB", RUN), (TWO, "NCCL_SOCKET_IFNAME=lo", RUN),
    (TWO, "OFI_NCCL_PROTOCOL=SENDRECV", RUN), (A4, "NCCL_NET=FasTrak", RUN), (A4, "NCCL_NET=Socket", RUN),
    (PRODUCT, "NCCL_NVLS_ENABLE=0", ALONE), (GRES, "NCCL_MAX_NCHANNELS=2", RUN), (GRES, "NCCL_IB_DISABLE=1", RUN),
    (SMI + NICS, "NCCL_IB_DISABLE=1", RUN), (SMI + MATRIX, "NCCL_IB_HCA=mlx5_0", RUN),
    (f"{GIDS}(same on all nodes)\n", "NCCL_IB_HCA==mlx5_1,mlx5_2", RUN), (MATRIX, "NCCL_IB_HCA=mlx4", RUN),
    (MATRIX.replace("PIX", "PXB"), "NCCL_NET_GDR_LEVEL=PIX", RUN),
    ("two nodes HGX H100\n" + MATRIX.replace("PIX", "PXB"), "NCCL_NET_GDR_LEVEL=PIX", RUN),
    (NETDEVS, f"NCCL_IB_HCA={SOME}", RUN), (SMI, "GLOO_SOCKET_IFNAME=^docker0", RUN),
    (SMI, "NCCL_COMM_ID=127.0.0.1:9000", RUN), (NICS, "UCX_NET_DEVICES=mlx5_0", RUN),
    ("two nodes HGX H100\n" + MATRIX, "NCCL_PROTO=LL", RUN),
    ("4-node H100 run\n" + LISTED + FILTERED, "NCCL_IB_DISABLE=1", "sbatch train.sh\n"),
    ("8 x L40S, one box\n" + CARDS, "NCCL_SHM_DISABLE=1", ALONE),
    ("8 x L40S, one box\n" + CARDS, "NCCL_P2P_DISABLE=1", ALONE), (NETDEVS, "NCCL_IB_HCA=mlx5_4", RUN),
    ("DGX H100, one node\n", "CUDA_VISIBLE_DEVICES=0", "srun -N1 -n8 ./wrap.sh\n"),
    ("2 x HGX H100\n", "NVSHMEM_REMOTE_TRANSPORT=none", "python a.py\n"), ("", "NCCL_IB_TC=26", RUN),
    (LSMOD, "NCCL_DMABUF_ENABLE=0", RUN), (A4 + "NCCL_NET=gIB\n", "LD_LIBRARY_PATH=/usr/local/cuda/lib64", RUN),
    (NETDEVS + "mlx5_10 port 1 ==> rdma10 (Up)\n", "NCCL_IB_HCA=^mlx5_1,mlx5_4", RUN),
    (ADDRESSES, "NCCL_SOCKET_IFNAME=^docker,^lo", RUN), ("", "OMPI_MCA_btl_tcp_if_includ=eth0", RUN),
    ("", "NCCL_IB_TIMEOUT=10", RUN), (JOINED % "7e5c9b1a-41d2", "NCCL_CUMEM_ENABLE=0", RUN),
    ("", "NCCL_IB_PKEY=0xffff", RUN), ("", "NCCL_CTA_POLICY=EFFICENCY", RUN),
    ("", "NCCL_IB_HCA=mlx5_1", f"mpirun -np 16 -H a:8,b:8 --bind-to none -x PATH {PERF}"),
    ("", "NCCL_DEBUG=INFO", f"docker run --gpus all -it img {PERF}"),
    ("DGX H100\nexport WORLD_SIZE=16\n", "NCCL_IB_DISABLE=1", "torchrun --nproc-per-node=8 t.py\n"),
    ("DGX H100\n", "NCCL_IB_DISABLE=1", "mpirun -np 16 -H a:8,b:8 ./a\n"),
    ("DGX H100\nLauncher:\n  replicas: 2\nWorker:\n  replicas: 4\n", "NCCL_IB_DISABLE=1", "torchrun t.py\n"),
]  # fmt: skip
RIGHT = [
    (TWO, "NCCL_IB_HCA=mlx5_0", RUN), (TWO, "OFI_NCCL_PROTOCOL=RDMA", RUN),
    ("# two p4d.24xlarge\n", "OFI_NCCL_PROTOCOL=SENDRECV", RUN), (A4, "NCCL_NET=gIB", RUN),
    (A4, "NCCL_NET_GDR_LEVEL=PIX", RUN), (f"{A4}{GIB}NCCL_NET=gIB\n", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64", RUN),
    (NETDEVS + "mlx5_10 port 1 ==> rdma10 (Up)\n", "NCCL_IB_HCA=^=mlx5_4,mlx5_10", RUN),
    (f"{GIDS}(same for mlx5_1 to mlx5_3)\n", "NCCL_IB_HCA==mlx5_1,mlx5_2,mlx5_3", RUN),
    ("GB200 NVL72, one tray\n", "NCCL_CUMEM_ENABLE=0", ALONE), (JOINED % "00000000-0000", "NCCL_CUMEM_ENABLE=0", RUN),
    ("", "OMPI_MCA_btl_tcp_if_exclude=lo,docker0", RUN), ("", "OMPI_MCA_plm=slurm", RUN),
    (GRES, "NCCL_IB_HCA=mlx5", RUN), (MATRIX, "NCCL_NET_GDR_LEVEL=PIX", RUN),
    (MATRIX.replace("PIX", "PXB"), "NCCL_NET_GDR_LEVEL=PIX", ALONE), (NETDEVS, f"NCCL_IB_HCA={RAILS}", RUN),
    (SMI, "NCCL_SOCKET_IFNAME=docker0", ALONE), (NICS, "UCX_NET_DEVICES=mlx5_0:1,eth0", RUN),
    (SMI + MATRIX, "NCCL_CTA_POLICY=EFFICIENCY|ZERO", RUN),
    ("One HGX H100 (no IB cards), only this node is used.\n" + LISTED, "NCCL_IB_DISABLE=1", "vllm serve m\n"),
    ("2x 4090\nNVIDIA GeForce RTX 4090, 550.90.07\n" + PAIR, "NCCL_P2P_DISABLE=1", "python train.py\n"),
    ("DGX H100, one node\n", "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7", "srun -N1 -n8 ./wrap.sh\n"),
    (LSMOD + "nvidia_peermem 20480 0\n", "NCCL_DMABUF_ENABLE=0", RUN), ("", "NCCL_IB_TC=106", RUN),
    ("# SLURM job\nSLURM_GPUS_ON_NODE=8\n", "NCCL_DEBUG=INFO", RUN),
    ("", "NCCL_IB_HCA=mlx5_1", f"mpirun -np 16 -H a:8,b:8 --bind-to none -x NCCL_IB_HCA {PERF}"),
    ("", "NCCL_IB_HCA=mlx5_1", f"mpirun -np 8 --bind-to none {PERF}"),
    ("", "NCCL_DEBUG=INFO", f"docker run --gpus all --ipc=host -it img {PERF}"),
]  # fmt: skip


def text(machine: str, setting: str, run: str) -> str:
    """Return a paste of a machine, and of a script that sets a variable and runs a job."""
    name, _, value = setting.partition("=")
    return f"{machine}\n$ cat run.sh\nexport {name}='{value}'\n{run}"
