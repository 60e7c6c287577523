"""Texts that people paste are judged as far as they show a machine; the rest stays unknown and advisory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.commands import main
from ncclprobe.host import Question, pasted
from tests.each_row import each_row

IBSTAT = """\
$ ibstat
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: {state}
\t\tPhysical state: {physical}
\t\tRate: 400
\t\tBase lid: 42
\t\tLink layer: InfiniBand
"""
IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:0015:5dff:fd34:11eb
\tbase lid:\t 0x33bf
\tstate:\t\t 1: DOWN
\tphys state:\t 3: Disabled
\trate:\t\t 200 Gb/sec (4X HDR)
\tlink_layer:\t InfiniBand
"""
DEVINFO = """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tboard_id:\t\t\tMT_0000000838
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tport_lid:\t\t42
\t\t\tlink_layer:\t\tEthernet
"""
QUERY = """\
==============NVSMI LOG==============

Driver Version                            : 550.127.08
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    Compute Mode                          : Exclusive_Process
    GPU UUID                              : GPU-0000026d-0000-4000-8000-000000000000
    MIG Mode
        Current                           : Disabled
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 8x
"""
LIST = "GPU 0: NVIDIA H200 (UUID: GPU-0000026d-0000-4000-8000-000000000000)\n"
NVLINK = LIST + "\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\t0-55\t0
GPU1\tNV18\t X \tSYS\t56-111\t1
NIC0\tPIX\tSYS\t X \t\t

Legend:

  X    = Self
"""
ADDRESSES = (
    "lo               UNKNOWN        127.0.0.1/8 ::1/128\neth0@if12        UP             10.0.0.5/24\nib0 DOWN\n"
)
ULIMIT = """\
core file size              (blocks, -c) 0
max locked memory           (kbytes, -l) 64
open files                          (-n) 1024
max user processes                  (-u) unlimited
"""
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
FORMS: dict[str, tuple[str, dict[Question, str]]] = {
    "ibstat": (
        IBSTAT.format(state="Initializing", physical="LinkUp"),
        {("read", f"{PORT}/state"): "2: INIT", ("read", f"{PORT}/rate"): "400 Gb/sec (4X NDR)"},
    ),
    "ibstatus": (IBSTATUS, {("read", f"{PORT}/state"): "1: DOWN", ("read", f"{PORT}/lid"): "0x33bf"}),
    "ibv_devinfo": (DEVINFO, {("read", f"{PORT}/state"): "1: DOWN", ("read", f"{PORT}/link_layer"): "Ethernet"}),
    "quoted in a mail": (
        "".join(f"> {line}\n" for line in DEVINFO.splitlines()),
        {("read", f"{PORT}/state"): "1: DOWN"},
    ),
    "srun -l": (
        "".join(f"0: {line}\n" for line in ADDRESSES.splitlines()),
        {("read", "/sys/class/net/eth0/ifindex"): "2"},
    ),
    "nvidia-smi -q": (
        QUERY,
        {
            ("nvml", "nvmlDeviceGetCount"): "1",
            ("nvml", "nvmlDeviceGetName", 0): '"NVIDIA H100 80GB HBM3"',
            ("nvml", "nvmlDeviceGetComputeMode", 0): "3",
            ("nvml", "nvmlDeviceGetCurrPcieLinkWidth", 0): "8",
            ("nvml", "nvmlDeviceGetMaxPcieLinkGeneration", 0): "5",
            ("nvml", "nvmlSystemGetCudaDriverVersion"): "12040",
        },
    ),
    "nvidia-smi -L": (LIST, {("nvml", "nvmlDeviceGetName", 0): '"NVIDIA H200"'}),
    "nvlink -s": (NVLINK, {("run", "nvidia-smi", "nvlink", "-s"): NVLINK}),
    "topo -m": (MATRIX, {("run", "nvidia-smi", "topo", "-m"): MATRIX.replace("\n\n", "\n\n")}),
    "ulimit -a": (
        ULIMIT,
        {
            ("rlimit", "RLIMIT_MEMLOCK"): "[65536, 65536]",
            ("rlimit", "RLIMIT_NOFILE"): "[1024, 1024]",
            ("rlimit", "RLIMIT_NPROC"): "[null, null]",
        },
    ),
    "env": ("HOME=/root\nNCCL_DEBUG=INFO\n", {("env",): '{"HOME": "/root", "NCCL_DEBUG": "INFO"}'}),
    "export": ("export NCCL_IB_HCA='mlx5_0'\n", {("env",): '{"NCCL_IB_HCA": "mlx5_0"}'}),
    "docker run": (
        "docker run --gpus all -e NCCL_DEBUG=INFO -e A=1 image\n",
        {("env",): '{"NCCL_DEBUG": "INFO", "A": "1"}'},
    ),
    "mpirun": ("mpirun -np 16 -x NCCL_DEBUG=INFO -x PATH ./a\n", {("env",): '{"NCCL_DEBUG": "INFO"}'}),
    "Kubernetes": ('env:\n- name: NCCL_DEBUG\n  value: "INFO"\n', {("env",): '{"NCCL_DEBUG": "INFO"}'}),
}


def test_each_form_becomes_the_answers_that_the_machine_would_give() -> None:
    wrong = {}
    for form, (text, must) in FORMS.items():
        found = pasted.answers(text) or {}
        does = {question: found.get(question) for question in must}
        if does != must:
            wrong[form] = {"must": must, "does": does}
    assert wrong == {}


@each_row(
    "text",
    [
        "",
        "hello\n",
        "step 7 loss 2.0\nLR=0.1\nepoch 3\nsaved\n",  # a log that quotes a setting
        "n1:7:7 [0] NCCL INFO NCCL_DEBUG set by environment to INFO.\n" * 3,
        "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: x\n",
        '{"capture": 1}\n',
        "# Ports\n\nState: Active\n",  # notes
    ],
)
def test_a_log_a_note_and_a_capture_are_not_pastes_of_a_machine(text: str) -> None:
    assert pasted.answers(text) is None


@given(st.text())
def test_no_text_is_a_surprise(text: str) -> None:
    pasted.answers(text)


@given(st.lists(st.sampled_from([line for text, _ in FORMS.values() for line in text.splitlines()]), max_size=30))
def test_no_mixture_of_forms_is_a_surprise(lines: list[str]) -> None:
    pasted.answers("\n".join(lines))


def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str], *texts: str) -> tuple[int, str]:
    paths = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    code = main(["doctor", "--no-config", *map(str, paths)])
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())


def test_one_mistake_in_a_block_of_settings_fails_from_the_text_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = doctor(tmp_path, capsys, "NCCL_IB_DISABLE=true\nNCCL_DEBUG=INFO\n")
    assert code == 4
    assert "NCCL_IB_DISABLE is 'true', which NCCL reads as 0" in said


def test_a_port_that_is_down_among_its_kind_is_named_from_the_text_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    up = IBSTAT.format(state="Active", physical="LinkUp")
    eight = "".join(up.replace("mlx5_0", f"mlx5_{n}") for n in range(7))
    down = IBSTAT.format(state="Down", physical="Polling").replace("mlx5_0", "mlx5_7")
    code, said = doctor(tmp_path, capsys, eight + down)
    assert "WARN ib.state mlx5_7:1" in said
    assert "others of its kind are up" in said
    assert code == 0  # no text shows that a GPU lacks it
    code, said = doctor(tmp_path, capsys, eight)
    assert "WARN" not in said


def test_what_a_text_does_not_show_makes_nothing_inconclusive_and_is_not_called_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = doctor(tmp_path, capsys, "NCCL_DEBUG=INFO\nPATH=/usr/bin\n")
    assert code == 0
    assert "What the pasted texts do not show was not judged." in said
    assert "Ready" not in said
    assert "(required)" not in said


def test_texts_of_two_machines_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = doctor(tmp_path, capsys, IBSTAT.format(state="Active", physical="LinkUp"), DEVINFO)
    assert code == 2
    assert "0.txt and" in said
    assert "1.txt differ in read /sys/class/infiniband/mlx5_0/ports/1/state: give texts of one machine" in said
