"""Texts that people paste are judged as far as they show a machine; the rest stays unknown and advisory."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.commands import main
from ncclprobe.host import Question, pasted
from ncclprobe.model.errors import Missing
from tests.each_row import each_row
from tests.pasted_texts import (
    ADDRESSES,
    CUT,
    DEVINFO,
    ETH0,
    IBSTAT,
    IBSTATUS,
    IFCONFIG,
    IP_ADDR,
    LIST,
    MATRIX,
    NARROW,
    NVLINK,
    PORT,
    QUERY,
    SMI,
    ULIMIT,
)

UP = IBSTAT.format(state="Active", physical="LinkUp")
FORMS: dict[str, tuple[str, dict[Question, str]]] = {
    "ibstat": (
        IBSTAT.format(state="Initializing", physical="LinkUp"),
        {("read", f"{PORT}/state"): "2: INIT", ("read", f"{PORT}/rate"): "400 Gb/sec (4X NDR)"},
    ),
    "ibstatus": (IBSTATUS, {("read", f"{PORT}/state"): "1: DOWN", ("read", f"{PORT}/lid"): "0x33bf"}),
    "ibv_devinfo": (DEVINFO, {("read", f"{PORT}/state"): "1: DOWN", ("read", f"{PORT}/link_layer"): "Ethernet"}),
    "rdma link": (
        "link mlx5_0/1 state DOWN physical_state DISABLED netdev eth1\n",
        {("read", f"{PORT}/state"): "1: DOWN", ("read", f"{PORT}/link_layer"): "Ethernet"},
    ),
    "ibdev2netdev": (
        "mlx5_0 port 1 ==> ib0 (Up)\n",
        {("read", f"{PORT}/state"): "4: ACTIVE", ("read", f"{PORT}/link_layer"): "InfiniBand"},
    ),
    "quoted in a mail": (
        "".join(f"> {line}\n" for line in DEVINFO.splitlines()),
        {("read", f"{PORT}/state"): "1: DOWN"},
    ),
    "srun -l": (
        "".join(f"0: {line}\n" for line in ADDRESSES.splitlines()),
        {("read", "/sys/class/net/eth0/ifindex"): "2"},
    ),
    "nvidia-smi -L": (LIST, {("run", "nvidia-smi", "-L"): LIST}),
    "ip addr": (IP_ADDR, {("read", "/sys/class/net/eth0/ifindex"): "2"}),
    "ifconfig": (IFCONFIG, {("psutil", "net_if_addrs"): json.dumps({"eth0": [ETH0]})}),
    "nvlink -s": (NVLINK, {("run", "nvidia-smi", "nvlink", "-s"): NVLINK}),
    "nvlink -s, cut in a GPU": (
        CUT + CUT.replace("GPU 0", "GPU 1").rpartition("\t")[0] + "...\n",
        {("run", "nvidia-smi", "nvlink", "-s"): CUT},
    ),
    "topo -m": (MATRIX, {("run", "nvidia-smi", "topo", "-m"): MATRIX.replace("\n\n", "\n\n")}),
    "ulimit -a": (
        ULIMIT,
        {
            ("rlimit", "RLIMIT_MEMLOCK"): "[65536, 65536]",
            ("rlimit", "RLIMIT_NOFILE"): "[1024, 1024]",
            ("rlimit", "RLIMIT_NPROC"): "[null, null]",
        },
    ),
    "ulimit of zsh": (
        "-l: locked-in-memory size (kbytes)  64\n-n: file descriptors   1024\n",
        {("rlimit", "RLIMIT_MEMLOCK"): "[65536, 65536]", ("rlimit", "RLIMIT_NOFILE"): "[1024, 1024]"},
    ),
    "df -h": (
        "Filesystem      Size  Used Avail Use% Mounted on\nshm              64M     0   32M   0% /dev/shm\n",
        {("statvfs", "/dev/shm"): '{"total": 67108864, "available": 33554432}'},
    ),
    "show_gids": (
        "DEV\tPORT\tINDEX\tGID\t\t\tIPv4\tVER\tDEV\n"
        "mlx5_0\t1\t0\tfe80:0000:0000:0000:5e25:73ff:feb1:c004\t\t\tv1\teth1\n"
        "mlx5_0\t1\t3\t0000:0000:0000:0000:0000:ffff:c633:6407\t198.51.100.7\tv2\teth1\nn_gids_found=2\n",
        {
            ("list", "/sys/class/infiniband"): '["mlx5_0"]',
            ("read", f"{PORT}/gid_attrs/types/0"): "IB/RoCE v1\n",
            ("read", f"{PORT}/gid_attrs/types/3"): "RoCE v2\n",
            ("read", f"{PORT}/gid_attrs/ndevs/3"): "eth1",
            ("read", f"{PORT}/link_layer"): "Ethernet",
        },
    ),
    "ulimit -l": ("$ ulimit -l\n64\n", {("rlimit", "RLIMIT_MEMLOCK"): "[65536, 65536]"}),
    "/proc/self/limits": (
        "Max locked memory         65536                unlimited            bytes\n",
        {("rlimit", "RLIMIT_MEMLOCK"): "[65536, null]"},
    ),
}
SETTINGS = {
    "docker inspect": (
        '    "Config": {\n        "Env": [\n            "NCCL_DEBUG=INFO",\n            "A=1"\n        ]\n',
        {"NCCL_DEBUG": "INFO", "A": "1"},
    ),
    "env": ("HOME=/root\nNCCL_DEBUG=INFO\n", {"HOME": "/root", "NCCL_DEBUG": "INFO"}),
    "env with a blank": ("A=1\nNCCL_IB_HCA=mlx5_0, mlx5_1\n", {"A": "1", "NCCL_IB_HCA": "mlx5_0, mlx5_1"}),
    "export": ("export NCCL_IB_HCA='mlx5_0'\n", {"NCCL_IB_HCA": "mlx5_0"}),
    "several of a line": (
        "export A=1 B=2  # rails\nexport C=3; export D=4\n",
        {"A": "1", "B": "2", "C": "3", "D": "4"},
    ),
    "csh": ("setenv NCCL_DEBUG INFO\n", {"NCCL_DEBUG": "INFO"}),
    "before a command": ("me@n1:~$ A=on B=2 torchrun --nproc 8 x.py\n", {"A": "on", "B": "2"}),
    "docker run": (
        'docker run --gpus all \\\n  -e A=1 --env B="2" \\\n --env=C=3 image\n',
        {"A": "1", "B": "2", "C": "3"},
    ),
    "above a log": (
        "$ docker run -e A=1 image\n[rank3]: ncclSystemError: C=3\n$ cat e\nexport B=2\nn1:7:7 [0] NCCL INFO ok\n",
        {"A": "1", "B": "2"},
    ),
    "mpirun": ("mpirun -np 16 -x NCCL_DEBUG=INFO -x PATH ./a\n", {"NCCL_DEBUG": "INFO"}),
    "mpirun, with blanks": (
        "mpirun -x NCCL_SOCKET_IFNAME = bond0 -x NCCL_DEBUG=INFO -x PATH ./a\n",
        {"NCCL_SOCKET_IFNAME ": "bond0", "NCCL_DEBUG": "INFO"},
    ),
    "mpirun, an argument on each line": (
        '- mpirun\n- -np\n- "72"\n- -x\n- NCCL_DEBUG=INFO\n- "-x"\n- "NCCL_IB_HCA=mlx5"\n- --mca\n- btl\n',
        {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5"},
    ),
    "a file of --env-file": (
        '$ cat nccl.list\nNCCL_IB_HCA="mlx5_0"\nA=1\n$ cat run.sh\ndocker run --env-file nccl.list -e B="2" image\n',
        {"NCCL_IB_HCA": '"mlx5_0"', "A": "1", "B": "2"},
    ),
    "another file": ('$ cat my.env\nNCCL_IB_HCA="mlx5_0"\n', {"NCCL_IB_HCA": "mlx5_0"}),
    "a list of compose": (
        'services:\n  t:\n    environment:\n      - NCCL_A="INFO"\n      - "NCCL_B=x"\n',
        {"NCCL_A": '"INFO"', "NCCL_B": "x"},
    ),
    "srun": (
        "#SBATCH --export=ALL,C=2\nexport HOST=$(hostname)\nsrun --export=ALL,A=1,B=x,y python t.py\n",
        {"A": "1", "B": "x", "C": "2"},
    ),
    "qsub": ("#PBS -v A=1,B=x,y\nmpiexec python t.py\n", {"A": "1", "B": "x,y"}),
    "a blank before the sign": ("export NCCL_IB_HCA = mlx5_0\nexport A=1\n", {"NCCL_IB_HCA ": "mlx5_0", "A": "1"}),
    "a mapping of our names": ("values:\n  NCCL_A: INFO\n", {"NCCL_A": "INFO"}),
    "a name in small letters": (
        "$ env | egrep 'NCCL|OMPI'\nOMPI_MCA_pml=ob1\nOMPI_MCA_btl_tcp_if_include=eth0\nNCCL_DEBUG=INFO\n",
        {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl_tcp_if_include": "eth0", "NCCL_DEBUG": "INFO"},
    ),
    "Kubernetes": (
        "spec:\n  containers:\n  - name: worker\n    image: i\n    env:\n"
        '    - name: A\n      value: "1"\n    - name: IP\n      valueFrom:\n        fieldRef: x\n',
        {"A": "1"},
    ),
    "Kubernetes in braces": ('- {name: A, value: "yes"}\n', {"A": "yes"}),
    "compose": (
        'services:\n  t:\n    environment:\n      NCCL_A: INFO\n      B1: "on"\n',
        {"NCCL_A": "INFO", "B1": "on"},
    ),
    "Python": ('import os\nos.environ["A"] = "1"\n', {"A": "1"}),
    "Python, unless it is set": ('os.environ.setdefault("A", "1")\n', {"A": "1"}),
    "a dictionary": ('env.update({"NCCL_A": "1", \'UCX_B\': "x,y", "note": "z"})\n', {"NCCL_A": "1", "UCX_B": "x,y"}),
    "JSON": (
        '{"runtime_env": {"env_vars": {"NCCL_A": 1, "TORCH_NCCL_B": "on"}}}\n',
        {"NCCL_A": "1", "TORCH_NCCL_B": "on"},
    ),
    "apptainer": ("apptainer exec --env A=1,B=x,y img.sif python t.py\n", {"A": "1", "B": "x,y"}),
    "conda": ("conda env config vars set NCCL_DEBUG=INFO A=1\n", {"NCCL_DEBUG": "INFO", "A": "1"}),
    "another command of conda": ("conda env create -n x python=3.11\nexport A=1\n", {"A": "1"}),
    "kubectl": ("kubectl set env deploy/t A=1 B=2\n", {"A": "1", "B": "2"}),
    "with time stamps": (
        "2026-09-01T23:52:54.000000Z export A=1\n2026-09-01T23:52:55.000000Z\n",
        {"A": "1"},
    ),
    "a section of several": (
        "$ ibstat\n" + "x y\n" * 20 + "$ env | grep NCCL\nNCCL_DEBUG=INFO\n",
        {"NCCL_DEBUG": "INFO"},
    ),
}


def answers(text: str) -> dict[Question, object]:
    """What all forms in a text of one machine show."""
    rows = [each for own in pasted.forms(text).values() for each in own.values()]
    return {question: answer for each in rows for question, answer in each.items()}


@each_row(("text", "must"), FORMS.values(), ids=FORMS)
def test_each_form_becomes_the_answers_that_the_machine_would_give(text: str, must: dict[Question, str]) -> None:
    found = answers(text)
    assert {question: found.get(question) for question in must} == must


def test_a_pasted_nccl_conf_is_read_as_nccl_reads_the_file() -> None:
    text, question = "NCCL_DEBUG = INFO\nexport NCCL_IB_HCA=mlx5_0", ("conf", "/etc/nccl.conf")
    own = ("# /etc/nccl.conf", "me@n1:~$ cat /etc/nccl.conf", "$ sudo cat ~/.nccl.conf", "==> /etc/nccl.conf <==")
    for first in own:
        found = answers(f"{first}\n{text}\n")
        assert (found.get(question), found.get(("env",))) == (text, "{}"), first
    assert isinstance(answers(f"# as in my nccl.conf\n{text}\n").get(question), Missing)
    conf: Any = answers(f"# /etc/nccl.conf\n{text}")
    both, odd = pasted.joined({"env": {("env",): '{"A": "1"}', question: Missing("")}, "conf": conf})
    assert (both[question], both["env",], odd) == (text, '{"A": "1"}', [])


@each_row(("text", "must"), SETTINGS.values(), ids=SETTINGS)
def test_settings_are_read_in_every_way_in_which_they_are_given(text: str, must: dict[str, str]) -> None:
    assert json.loads(str(answers(text).get(("env",), "{}"))) == must


@each_row(
    "text",
    [
        "",
        "hello\n",
        "step 7 loss 2.0\nLR=0.1\nepoch 3\nsaved\n",  # a log that quotes a setting
        "mpirun -x NCCL_DEBUG=INFO ./a\n" + "n1:7:7 [0] NCCL INFO comm 0x1 rank 0\n",
        "n1:7:7 [0] NCCL INFO NCCL_DEBUG set by environment to INFO.\n" * 3,
        "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: x\n",
        '{"capture": 1}\n',
        "# Ports\n\nState: Active\n",  # notes
    ],
)
def test_a_log_a_note_and_a_capture_are_not_pastes_of_a_machine(text: str) -> None:
    assert not pasted.forms(text)


LINES = st.sampled_from([line for text, _ in FORMS.values() for line in text.splitlines()])


@given(st.text() | st.lists(LINES, max_size=30).map("\n".join))
def test_no_text_and_no_mixture_of_forms_is_a_surprise(text: str) -> None:
    pasted.forms(text)


def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str], *texts: str) -> tuple[int, str]:
    paths = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    code = main(["doctor", "--no-config", *map(str, paths)])
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())


def test_a_port_that_is_down_among_its_kind_is_named_from_the_text_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eight = "".join(UP.replace("mlx5_0", f"mlx5_{n}") for n in range(7))
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


def test_a_matrix_beside_the_gpus_gives_their_links_so_that_a_setting_has_a_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = eight_gpus()
    code, said = doctor(tmp_path, capsys, *machine)
    assert (code, "NVLink 18/18" in said, "1 per GPU" in said) == (0, True, True)
    assert "FAIL" not in said
    for setting in ("NCCL_P2P_LEVEL=LOC", "NCCL_IB_HCA==mlx5_0:1"):
        code, said = doctor(tmp_path, capsys, *machine, f"NCCL_DEBUG=INFO\n{setting}\n")
        assert (setting, code) == (setting, 4)
        assert "GB/s at 1 GiB over 2 nodes" in said
    code, said = doctor(tmp_path, capsys, machine[0], machine[2], "NCCL_DEBUG=INFO\nNCCL_P2P_LEVEL=LOC\n")
    assert (code, "GB/s at 1 GiB" in said) == (4, True)  # eight of them are on one board


def test_what_contradicts_is_named_and_what_adds_up_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = doctor(tmp_path, capsys, UP, DEVINFO)
    assert code == 2
    assert "0.txt (ibstat) and" in said
    assert "1.txt (ibv_devinfo) differ in mlx5_0:1 state: '4: ACTIVE' and '1: DOWN'" in said
    assert "differ in mlx5_0:1 state" in doctor(tmp_path, capsys, f"$ ibstat\n{UP}\n$ ibv_devinfo\n{DEVINFO}")[1]
    code, said = doctor(tmp_path, capsys, "A=1\nNCCL_DEBUG=INFO\n", "docker run -e NCCL_DEBUG=WARN image\n")
    assert (code, "differ in NCCL_DEBUG: 'INFO' and 'WARN'" in said) == (2, True)
    code, said = doctor(tmp_path, capsys, LIST, MATRIX)
    assert (code, "show 1 and 2 GPUs" in said) == (2, True)
    assert doctor(tmp_path, capsys, UP, UP.replace("mlx5_0", "mlx5_1"), "export A=1\n", "docker run -e B=2 i\n")[0] == 0


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
    "one mistake in a block of settings": (
        "NCCL_IB_DISABLE=true\nNCCL_DEBUG=INFO\n",
        "FAIL env.value NCCL_IB_DISABLE is 'true', which NCCL reads as 0",
    ),
    "a variable that nothing filtered": (
        "$ env | sort\nHOME=/root\nLOCAL_WORLD_SIZE=8\nNCCL_DEBUG=INFO\nPATH=/bin\nWORLD_SIZE=16\n",
        "RANK is not set",
    ),
    "numbers of a manifest": (POD, "these are not: NCCL_IB_GID_INDEX: 3"),
    "tasks that each start all workers": (BATCH.format(tasks=8, own=""), "starts 8 workers: 64 in place of 8"),
    "a GPU beyond a container's": (
        COMPOSE.format(seen="2,3"),
        "CUDA_VISIBLE_DEVICES: names GPU 3, but the container has 2",
    ),
    "packets without a buffer": (STATISTICS.format(18430277), "WARN ens3: rx_prio3_discards is 18430277"),
    "an interface of ethtool": (
        "Settings for rdma2:\n\tSpeed: 400000Mb/s\n\tLink detected: yes\n",
        "PASS nothing wrong was found",
    ),
    "a rail that is down": (
        RAILS.replace("ens3f0np0 UP", "ens3f0np0 DOWN"),
        "ens3f0np0 is DOWN, but 7 of its 7 siblings are up",
    ),
    "a rail without an address": (
        RAILS.replace("10.0.6.5/24 ", ""),
        "ens6f0np0 has no IPv4 address, but 7 of its 7 siblings",
    ),
    "a slow slot of a NIC": (
        NIC_SLOT.format(speed=8, width=16),
        "0000:5e:00.0: runs at 8 GT/s x16, but supports 32 GT/s x16",
    ),
    "a narrow slot of a GPU": (GPU_SLOT.format(speed=2.5, width=8), "runs at 2.5 GT/s x8, but supports 32 GT/s x16"),
    "an Xid": (
        DMESG + "[ 90.1] NVRM: Xid (PCI:0000:cb:00): 79, GPU has fallen off the bus.\n".replace("90.1", "90.100000"),
        "FAIL the driver reports Xid 79 of GPU 0000:cb:00",
    ),
    "a fabric manager that failed": (MANAGER, "FAIL the fabric manager did not start"),
    "a pod that no node takes": (
        PENDING,
        "FAIL Kubernetes found no node for a pod: 4 Insufficient vpc.amazonaws.com/efa",
    ),
    "a log in docker's JSON": (
        "".join(json.dumps({"log": f"{line}\n", "stream": "stdout"}) + "\n" for line in ULIMIT.splitlines()),
        "RLIMIT_MEMLOCK: 64 KiB",
    ),
    "a healthy kernel": (DMESG, "PASS nothing wrong was found"),
    "room in shared memory": (
        "Filesystem Size Used Avail Use% Mounted on\nshm 512G 1G 511G 1% /dev/shm\n",
        "PASS nothing wrong was found",
    ),
    "a narrow link": (QUERY, "GPU0: runs at PCIe x8, but GPU and slot support x16"),
    "rows to remap": (
        QUERY + "    Remapped Rows\n        Pending   : Yes\n        Remapping Failure Occurred : No\n",
        "WARN gpu.errors GPU0",
    ),
    "registration that goes on": (
        QUERY + "    Fabric\n        State                             : In Progress\n",
        "the registration of GPU0 with the NVLink fabric is in progress",
    ),
    "nvidia-smi": (SMI, "GPU1: its memory has had 2 uncorrectable errors"),
    "a matrix": (NARROW, "GPU3: 16 NVLinks are up"),
    "locked memory": (ULIMIT, "RLIMIT_MEMLOCK: 64 KiB, if RDMA is used"),
    "a transport that is off": ("docker run -e NCCL_P2P_DISABLE=1 i\n", "which turns NVLink and P2P off"),
    "no port up": (
        "".join(IBSTAT.format(state="Down", physical="Disabled").replace("mlx5_0", f"mlx5_{n}") for n in range(8)),
        "None of the 8 ports is up",
    ),
    "a port without subnet manager": (
        DEVINFO.replace("PORT_DOWN (1)", "PORT_INIT (2)").replace("Ethernet", "InfiniBand"),
        "no subnet manager has configured the port",
    ),
    "the only port is down": (
        DEVINFO,
        "is DOWN: the driver's messages in the kernel log may give the reason. There is no",
    ),
    "a port that is down beside one that is up": (
        UP + IBSTAT.format(state="Down", physical="Polling").replace("mlx5_0", "mlx5_1").replace("400", "10"),
        "PASS nothing failed; notes: mlx5_1:1 is DOWN/Polling",
    ),
    "links of an SXM2 board that are down": (
        "GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-1)\n"
        + "".join(f"\t Link {n}: {'<inactive>' if n in (3, 5) else '25.781 GB/s'}\n" for n in range(6)),
        "WARN GPU3: 4 NVLinks are up, links 3, 5 down",
    ),
    "no NVLink": (MATRIX.replace("NV18", "SYS"), "notes: 2 GPUs: no NVLink connects them: every pair is SYS"),
    "loopback": ("export NCCL_SOCKET_IFNAME=lo\n", "WARN env.ifname NCCL_SOCKET_IFNAME 'lo' is the loopback interface"),
    "quotation marks in a value": (
        '$ cat n.list\nNCCL_IB_HCA="mlx5_0"\n$ docker run --env-file n.list image\n',
        "FAIL env.value NCCL_IB_HCA is '\"mlx5_0\"': the quotation marks are part of the value",
    ),
    "little shared memory": (
        "Filesystem Size Used Avail Use% Mounted on\nshm 64M 0 64M 0% /dev/shm\n",
        "WARN host.shm /dev/shm 64 MiB free of 64 MiB",
    ),
    "a file that is not there": (
        "$ ls /t.xml\nls: cannot access '/t.xml': No such file or directory\n$ cat r\nexport NCCL_TOPO_FILE=/t.xml\n",
        "FAIL env.files NCCL_TOPO_FILE cannot be read: No such file or directory",
    ),
    "NVLink to other nodes that is off": (
        SMI.replace("H100 80GB HBM3", "GB200")
        + "    Fabric\n        State                 : Completed\n        Status                : Success\n"
        + "        CliqueId : 32766\n        ClusterUUID : 8f3a51d2-7c1e-4b60-a1f4-0d2c9b7e5a11\n"
        + "$ cat r.sh\nexport NCCL_CUMEM_ENABLE=0\n",
        "FAIL env.transport NCCL_CUMEM_ENABLE is '0', which leaves the NVLinks to other nodes unused",
    ),
    "a port that is down while others are up": (
        "".join(f"mlx5_{n} port 1 ==> eth{n} ({'Up' if n else 'Down'})\n" for n in range(2))
        + "export NCCL_IB_HCA=mlx5_0\n",
        "is named by NCCL_IB_HCA but its state is DOWN; the variable omits mlx5_1:1, which is up",
    ),
    "a GID that leads nowhere": (
        FORMS["show_gids"][0] + "$ cat r.sh\nexport NCCL_IB_GID_INDEX=0\n",
        "GID 0, chosen by NCCL_IB_GID_INDEX, is link-local RoCE v1; index 3 is RoCE v2 over IPv4",
    ),
    "an interface of containers for gloo": (
        f"$ ip -br addr\n{ADDRESSES}docker0 DOWN 172.17.0.1/16\n$ cat r.sh\nexport GLOO_SOCKET_IFNAME=docker0\n",
        "WARN env.ifname GLOO_SOCKET_IFNAME docker0 is down: other nodes cannot reach gloo groups of this job "
        "through it",
    ),
    "an interface that is down for NCCL": (
        f"$ ip -br addr\n{ADDRESSES}eth7 DOWN 10.1.0.1/16\n$ cat r.sh\nexport NCCL_SOCKET_IFNAME=eth7\n",
        "FAIL env.ifname NCCL_SOCKET_IFNAME 'eth7' is down or has no address; pasted has eth0",
    ),
    "two hosts of pdsh": (
        "".join(
            f"{host}: {line}\n"
            for host, state in (("n1", "Active"), ("n2", "Down"))
            for line in IBSTAT.format(state=state, physical="LinkUp").splitlines()[1:]
        ),
        "on n2",
    ),
}


@each_row(("text", "must"), SAYS.values(), ids=SAYS)
def test_what_is_wrong_is_named_from_the_text(
    text: str, must: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert must in doctor(tmp_path, capsys, text)[1]


IDLE = (
    QUERY.replace("Current                   : 5", "Current                   : 1")
    + "    Performance State                     : P8\n    Clocks Event Reasons\n        Idle : Active\n"
)
UNSAID = {
    "an interface that no text shows": ("export NCCL_SOCKET_IFNAME=eth0\n", "WARN env.ifname"),
    "what a command says for itself": (
        "$ ls /x\nls: cannot access '/x': No such file or directory\n$ cat r\nexport NCCL_DEBUG=WARN\n",
        "FAIL",
    ),
    "strings of a manifest": (POD.replace("3", '"3"'), "Kubernetes refuses"),
    "numbers of a mapping": ("environment:\n  NCCL_IB_GID_INDEX: 3\n  NCCL_DEBUG: WARN\n", "Kubernetes refuses"),
    "one task on each node": (BATCH.format(tasks=1, own=""), "in place of 8"),
    "a step of its own tasks": (BATCH.format(tasks=8, own="--ntasks-per-node=1 "), "in place of 8"),
    "GPUs as a container counts them": (COMPOSE.format(seen="0,1"), "names GPU"),
    "no packet without a buffer": (STATISTICS.format(0), "rx_prio3_discards"),
    "what nvidia-smi -q might show": (SMI, "does not report"),
    "an idle GPU's speed in lspci": (GPU_SLOT.format(speed=2.5, width=16), "runs at 2.5"),
    "two ports that nobody plugged": ("eno1 UP 10.0.0.5/24\neno2 DOWN\neno3 DOWN\neno4 DOWN\n", "is DOWN"),
    "containers' interfaces": (
        "eth0 UP 10.0.0.5/24\n" + "".join(f"veth{n} {'DOWN' if n == 3 else 'UP'}\n" for n in range(8)),
        "is DOWN",
    ),
    "an idle GPU's link": (IDLE, "although it is not idle"),
    "a variable behind a filter": (
        "$ kubectl exec t -- env | sort | egrep 'NCCL|WORLD'\nLOCAL_WORLD_SIZE=8\nNCCL_DEBUG=INFO\nWORLD_SIZE=16\n",
        "RANK is not set",
    ),
    "the address of rank 0 behind a filter": (
        "$ env | grep -E 'NCCL|RANK|WORLD'\nRANK=0\nWORLD_SIZE=16\nNCCL_DEBUG=INFO\n",
        "MASTER_ADDR",
    ),
    "a plugin in folders that nobody listed": ("export NCCL_NET_PLUGIN=spcx\n", "matches no plugin"),
    "a name that a plugin may read": ("export NCCL_NET_PLUGIN=spcx\nexport NCCL_IB_NET_LATENCY=50\n", "WARN"),
    "a variable that a vendor prescribes": ("export IB_RX_QUEUE_LEN=8192\nexport NCCL_IB_SL=0\n", "WARN"),
    "a fact that is not shown": (
        "mlx5_0 port 1 ==> eth0 (Down)\nmlx5_1 port 1 ==> eth1 (Up)\nexport NCCL_IB_HCA=mlx5_0\n",
        "Absent(",
    ),
    "another port, if one is up": (
        "mlx5_0 port 1 ==> eth0 (Down)\nmlx5_1 port 1 ==> eth1 (Up)\nexport NCCL_IB_HCA=mlx5_0\n",
        "There is no other port",
    ),
    "an interface that is up": (
        f"$ ip -br addr\n{ADDRESSES}$ cat r.sh\nexport NCCL_SOCKET_IFNAME=eth0\nexport GLOO_SOCKET_IFNAME=eth0\n",
        "SOCKET_IFNAME '",
    ),
    "all protocols": ("export NCCL_PROTO=LL,LL128,Simple\nexport NCCL_SOCKET_IFNAME=eth0\n", "WARN"),
    "NVLink of a node by itself": (
        SMI + "    Fabric\n        State : Completed\n        ClusterUUID : 00000000-0000-0000-0000-000000000000\n"
        "export NCCL_MNNVL_ENABLE=0\n",
        "NVLinks to other nodes",
    ),
}


@each_row(("text", "no"), UNSAID.values(), ids=UNSAID)
def test_what_a_text_does_not_say_is_not_reported(
    text: str, no: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert no not in doctor(tmp_path, capsys, text)[1]


def test_what_no_text_shows_is_not_called_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text(MATRIX.replace("NV18", "SYS"))
    main(["doctor", "--no-config", "-v", str(path)])
    said = capsys.readouterr().out
    assert {line.split()[1] for line in said.splitlines() if line.startswith("pass ")} == {"gpu.count", "nvl.links"}


def test_a_log_that_reports_an_unknown_failure_is_not_called_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = "[    1.000000] Linux version 6.1\n"
    assert doctor(tmp_path, capsys, starts * 3)[0] == 0
    code, said = doctor(
        tmp_path, capsys, f"{starts}[  9.000000] nvidia 0000:07:00.0: GPU initialization FAILED, giving up\n"
    )
    assert code == 3
    assert "GPU initialization FAILED, giving up" in " ".join(said.split())


def test_labels_of_srun_are_machines_if_there_are_several() -> None:
    lines = MATRIX.splitlines()
    one = "".join(f"0: {line}\n" for line in lines)
    two = "".join(f"{label}: {line}\n" for line in lines for label in (0, 1))
    assert [list(pasted.forms(text)) for text in (one, two)] == [[""], ["0", "1"]]


def test_a_matrix_is_found_behind_the_marks_that_its_own_reader_knows() -> None:
    marked = MATRIX.replace("GPU0\t X", "| GPU0 | X")
    single = "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n"
    for text in (marked, single, MATRIX.replace("\n", "<br>\n")):
        assert "nvidia-smi topo -m" in pasted.forms(text)[""], text
    assert not pasted.forms("GPU0 is lost; GPU1 is not\nGPU0 again\n")


@each_row("whole", [UP, SMI, NVLINK, QUERY])
def test_a_text_that_is_cut_short_makes_nothing_inconclusive(
    whole: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = doctor(tmp_path, capsys, whole[: len(whole) * 2 // 3])
    assert (code != 1, "(required)" in said) == (True, False), said
