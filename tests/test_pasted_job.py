"""What pasted text only names, a machine type or a launch line, is enough to judge settings by."""

from pathlib import Path

import pytest

from ncclprobe.commands import main
from tests.each_row import each_row
from tests.test_pasted import eight_gpus

TWO = "# two p5.48xlarge\n"
A4 = "nodeSelector:\n  node.kubernetes.io/instance-type: a4-highgpu-8g\n"
PRODUCT = "nodeSelector:\n  nvidia.com/gpu.product: NVIDIA-B200\nlimits:\n  nvidia.com/gpu: 8\n"
GRES = "#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:8\n"
SMI, MATRIX, NICS = eight_gpus()
NETDEVS = "$ ibdev2netdev\n" + "".join(
    f"mlx5_{n} port 1 ==> {'eth0' if n == 4 else f'rdma{n}'} (Up)\n" for n in range(9)
)
RAILS = ",".join(f"mlx5_{n}" for n in range(9) if n != 4)
SOME = ",".join(f"mlx5_{n}" for n in range(6) if n != 4)
RUN = "srun -N 2 --ntasks-per-node=8 ./all_reduce_perf -b 1G\n"
ALONE = "torchrun --standalone --nproc-per-node 8 train.py\n"

WRONG = [
    (TWO, "NCCL_P2P_DISABLE=1", RUN, "FAIL", "NCCL_P2P_DISABLE"),
    (TWO, "NCCL_NET=IB", RUN, "FAIL", "NCCL takes only this network, and not EFA"),
    (TWO, "NCCL_SOCKET_IFNAME=lo", RUN, "FAIL", "'lo' is only loopback"),
    (TWO, "OFI_NCCL_PROTOCOL=SENDRECV", RUN, "WARN", "does not spread a GPU's data"),
    (A4, "NCCL_NET=FasTrak", RUN, "FAIL", "and not gIB"),
    (A4, "NCCL_NET=Socket", RUN, "FAIL", "NCCL_NET"),
    (PRODUCT, "NCCL_NVLS_ENABLE=0", ALONE, "WARN", "GB/s at 1 GiB"),
    (GRES, "NCCL_MAX_NCHANNELS=2", RUN, "FAIL", "at 1 GiB"),
    (GRES, "NCCL_IB_DISABLE=1", RUN, "WARN", "traffic between nodes uses TCP"),
    (SMI + NICS, "NCCL_IB_DISABLE=1", RUN, "FAIL", "GB/s at 1 GiB over 2 nodes"),
    (SMI + MATRIX, "NCCL_IB_HCA=mlx5_0", RUN, "FAIL", "1 of 8 NICs"),
    (MATRIX, "NCCL_IB_HCA=mlx4", RUN, "FAIL", "matches no port"),
    (MATRIX.replace("PIX", "PXB"), "NCCL_NET_GDR_LEVEL=PIX", RUN, "WARN", "keeps 8 of 8 GPUs from GPUDirect RDMA"),
    (NETDEVS, f"NCCL_IB_HCA={SOME}", RUN, "WARN", "omits mlx5_6:1, mlx5_7:1, mlx5_8:1 of the same kind"),
    (SMI, "GLOO_SOCKET_IFNAME=^docker0", RUN, "WARN", "is taken for a name"),
    (SMI, "NCCL_COMM_ID=127.0.0.1:9000", RUN, "FAIL", "no other of the 2 nodes can reach"),
    (NICS, "UCX_NET_DEVICES=mlx5_0", RUN, "WARN", "a port is written mlx5_0:1"),
]
RIGHT = [
    (TWO, "NCCL_IB_HCA=mlx5_0", RUN),
    (TWO, "OFI_NCCL_PROTOCOL=RDMA", RUN),
    ("# two p4d.24xlarge\n", "OFI_NCCL_PROTOCOL=SENDRECV", RUN),
    (A4, "NCCL_NET=gIB", RUN),
    (A4, "NCCL_NET_GDR_LEVEL=PIX", RUN),
    (GRES, "NCCL_IB_HCA=mlx5", RUN),
    (MATRIX, "NCCL_NET_GDR_LEVEL=PIX", RUN),
    (MATRIX.replace("PIX", "PXB"), "NCCL_NET_GDR_LEVEL=PIX", ALONE),
    (NETDEVS, f"NCCL_IB_HCA={RAILS}", RUN),
    (SMI, "NCCL_SOCKET_IFNAME=docker0", ALONE),
    (NICS, "UCX_NET_DEVICES=mlx5_0:1,eth0", RUN),
    (SMI + MATRIX, "NCCL_CTA_POLICY=EFFICIENCY|ZERO", RUN),
]


def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, setting: str, run: str) -> tuple[int, str]:
    paste = tmp_path / "a.txt"
    name, _, value = setting.partition("=")
    paste.write_text(f"{machine}\n$ cat run.sh\nexport {name}='{value}'\n{run}")
    code = main(["doctor", str(paste)])
    return code, " ".join(capsys.readouterr().out.split())


@each_row(("machine", "setting", "run", "severity", "words"), WRONG)
def test_a_setting_is_judged_by_the_machine_that_a_text_names(
    machine: str,
    setting: str,
    run: str,
    severity: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = doctor(tmp_path, capsys, machine, setting, run)
    assert (severity in said, words in said, code) == (True, True, 4 if severity == "FAIL" else 0), said[:900]


@each_row(("machine", "setting", "run"), RIGHT)
def test_what_is_right_on_the_machine_that_a_text_names_is_not_reported(
    machine: str, setting: str, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = doctor(tmp_path, capsys, machine, setting, run)
    assert (code, "FAIL" in said, "WARN" in said) == (0, False, False), said[:900]
