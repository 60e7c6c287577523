"""``ncclprobe expect``, as its user types it."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands.expect import main
from ncclprobe.expect.tables import machines
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row

CAPTURES = Path(__file__).parent / "captures"
LARGE, DGX = "-b 1G -e 4G", "--machine dgx-h100"
RING, RIGHT = " Ring Simple ", "is right here"
LAPTOP, FAILS = f"{CAPTURES}/laptop.jsonl", "the call fails: NCCL has no such all_reduce here"


def said(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> str:
    assert main(shlex.split(line)) == code
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, f"{line} --json -", code))
    return found


@each_row(
    ("line", "code", "words"),
    [
        (
            "--machine a3-megagpu-8g --nodes 16 --op all_reduce", 0,
            "16 x 8 NVIDIA H100 80GB HBM3 | 8 NICs x 200 Gb/s (tcpxo | 200 GB/s of NICs per node; 0.94 of it is normal"
            " | source: | NIC | latency ",
        ),
        (f"{DGX} --nccl 2.31.0 {LARGE}", 0, "is newer than 2.30.7"),
        (f"{DGX} --nccl 2.28.9 {LARGE}", 0, "no is newer than"),
        (f"{DGX} --nccl 2.12 {LARGE}", 0, "NCCL 2.12.0"),
        (f"--machine a3-highgpu-2g {LARGE}", 0, "1 NIC of unknown rate | no 0 Gb/s"),  # not known is no zero
        (LAPTOP, 3, "expectation is known for GPUs here | `ncclprobe bandwidth` judges gloo"),
        (f"{DGX} --algo ring {LARGE}", 0, f"settings: NCCL_ALGO=Ring |{RING}| no {RIGHT}"),
        (f"{DGX} {LARGE}", 0, "run again with NCCL_ALGO=Ring | above 450 GB/s"),
        # A ring of plain NVLink, and a number below the wire (840 of 900), are not explained away.
        (f"--machine dgx-a100 {LARGE}", 0, f"no {RIGHT}"),
        ("--machine gb200-nvl72 --nodes 18 -b 8G", 0, f"no {RIGHT}"),
        (f"--machine dgx-a100 --gpus-per-node 8,8,4 {LARGE}", 0, "3 nodes with 8,8,4"),
        # An algorithm that a machine has not costs the call.
        (f"--machine dgx-a100 --nodes 1 --algo nvls {LARGE}", 3, FAILS),
        (f"{DGX} --nodes 1 --algo nvlstree {LARGE}", 3, FAILS),
        (f"{DGX} --nodes 2 --algo nvls {LARGE}", 3, FAILS),
        (f"{DGX} --nodes 1 --algo nvls {LARGE}", 0, f"no {FAILS}"),
        (f"{DGX} --nodes 2 --algo nvlstree {LARGE}", 0, f"no {FAILS}"),
        (f"--machine dgx-a100 --nodes 1 --algo tree {LARGE}", 0, f"no {FAILS}"),
    ],
)  # fmt: skip
def test_the_page_says_what_is_expected_and_why(
    line: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(said(capsys, line, code).split())
    for each in words.split(" | "):
        assert (each[3:] not in text) if each[:3] == "no " else each.strip() in text, each


@each_row("nodes", ["1", "2", "20"])
@each_row("machine", ["p5.48xlarge", "a3-highgpu-8g", "dgx-b200", "gb200-nvl72", "8 x L40S, 4 NICs x 100 sockets"])
def test_every_row_names_its_reason_and_every_line_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], machine: str, nodes: str
) -> None:
    lines = said(capsys, f"--machine '{machine}' --nodes {nodes} --op all -f 64").splitlines()
    assert all(len(line) <= 80 or "http" in line for line in lines)
    rows = [line for line in lines if re.match(r" +\d+ [KMG]?i?B +[\d.e-]+ +[\d.e-]+ ", line)]
    assert rows
    noted = {line.split("]")[0] + "]" for line in lines if line.startswith("[")}
    assert all(re.findall(r"\[\d+\]$", row)[0] in noted for row in rows)
    assert sum("Source: " in line for line in " ".join(lines).split("[")) >= len(noted)


def test_json_has_the_machine_its_rows_and_what_decides_them(capsys: pytest.CaptureFixture[str]) -> None:
    two = data(capsys, f"{DGX} --nodes 2 {LARGE}")  # no ring stands beside a value that no ring reaches
    assert all(row["expectation"]["value"] > 400 and row["model"]["algorithm"] == "NVLSTree" for row in two["rows"])
    assert [bool(data(capsys, f"{DGX} --nccl {release} {LARGE}")["notes"]) for release in ("2.31.0", "2.28.9")] == [
        1,
        0,
    ]
    known = data(capsys, f"{CAPTURES}/aws-p4d.jsonl --nodes 2 {LARGE}")
    assert (known["machine"], known["ranks"]) == ("p4d.24xlarge", 16)
    links = data(capsys, f"{CAPTURES}/rtx4090-2.jsonl {LARGE}")  # that no type describes
    assert (links["machine"], "as they are now" in links["why"]) == (None, True)
    assert {row["decides"] for row in links["rows"]} <= {"PCIe", "inter-socket"}
    assert data(capsys, f"--machine dgx-a100 --gpus-per-node 8,8,4 {LARGE}")["gpus_per_node"] == [8, 8, 4]
    rows = data(capsys, f"{DGX} --nodes 2 --op all {LARGE}")["rows"]
    assert len({row["op"] for row in rows}) == 9
    assert all(row["expectation"]["source"] and row["expectation"]["why"] for row in rows)
    none = data(capsys, LAPTOP, 3)
    assert (none["rows"], "NVML" in none["why"]) == ([], True)


def test_the_settings_of_the_shell_hold_for_a_named_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = f"{DGX} --nodes 2 -b 8G -e 8G"
    whole = said(capsys, asked)
    assert " NVLSTree Simple " in whole
    slower = ("NCCL_ALGO=Ring", "NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_NET_GDR_LEVEL=LOC", "NCCL_IB_HCA=mlx5_0")
    for setting in (*slower, "NCCL_IB_HCA=mlx5", "NCCL_NET_GDR_LEVEL=PIX"):
        name, value = setting.split("=")
        monkeypatch.setenv(name, value)
        text = said(capsys, asked)
        monkeypatch.delenv(name)
        assert (f"settings: {setting}\n" in text) == (text != whole) == (setting in slower), setting
        assert (RING in text) == ("ALGO" in name)


def test_the_list_names_every_type(capsys: pytest.CaptureFixture[str]) -> None:
    listing = said(capsys, "--list")
    assert all(machine.name in listing for machine in machines.table().values())


@each_row(
    ("line", "names"),
    [
        ("--machine dgx-h10", "dgx-h10"),
        (f"{DGX} x.jsonl", "pass only one"),
        ("no-such-file.jsonl", "no-such-file"),
        (f"{DGX} --op allreduce", "allreduce"),
        (f"{DGX} --gpus-per-node 9", "9"),
        (f"{DGX} --gpus-per-node 8,8 --nodes 3", "3"),
        (f"{DGX} --gpus-per-node '8;8'", "8;8"),
        (f"{DGX} --gpus-per-node 1", "a single GPU"),
        (f"{DGX} --nodes 99999999", "99999999"),
        (f"{DGX} --nic-rate -3", "-3"),
        (f"{DGX} --nic-rate nan", "nan"),
        (f"{DGX} --nic-rate 200", "without --topology FILE"),
        (f"{DGX} --nccl newest", "newest"),
        (f"{DGX} -b 2G -e 1G", "-b"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(line: str, names: str) -> None:
    with pytest.raises(UsageError) as refused:
        main(shlex.split(line))
    assert names in str(refused.value)
    assert "\n" not in str(refused.value)
