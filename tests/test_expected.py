"""``ncclprobe expect``, as its user types it."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands.expect import main
from tests.each_row import each_row

CAPTURES = Path(__file__).parent / "captures"
LARGE, DGX = "-b 1G -e 4G", "--machine dgx-h100"
LAPTOP, RING = f"{CAPTURES}/laptop.jsonl", " Ring Simple "


def said(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> str:
    assert main(shlex.split(line)) == code
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, f"{line} --json -", code))
    return found


LINES = (
    "--machine a3-megagpu-8g --nodes 16 --op all_reduce", f"{DGX} --nccl 2.31.0 {LARGE}",
    f"{DGX} --nccl 2.28.9 {LARGE}", f"{DGX} --nccl 2.12 {LARGE}", f"--machine a3-highgpu-2g {LARGE}",
    "--list", LAPTOP, f"{LAPTOP} --json -", f"{DGX} --algo ring {LARGE}", f"{DGX} {LARGE}", f"{DGX} {LARGE} --json -",
    # A ring of plain NVLink, and a number below the wire (840 of 900), are not explained away.
    f"--machine dgx-a100 {LARGE}", "--machine gb200-nvl72 --nodes 18 -b 8G",
    f"--machine dgx-a100 --gpus-per-node 8,8,4 {LARGE}", f"--machine dgx-a100 --gpus-per-node 8,8,4 {LARGE} --json -",
    # An algorithm that a machine has not costs the call.
    *(f"{machine} --nodes {nodes} --algo {algorithm} {LARGE}" for machine, nodes, algorithm in (
        ("--machine dgx-a100", 1, "nvls"), (DGX, 1, "nvlstree"), (DGX, 2, "nvls"), (DGX, 1, "nvls"),
        (DGX, 2, "nvlstree"), ("--machine dgx-a100", 1, "tree"))),
    f"{DGX} --nodes 2 {LARGE} --json -", f"{DGX} --nodes 2 --op all {LARGE} --json -",
    f"{CAPTURES}/aws-p4d.jsonl --nodes 2 {LARGE} --json -", f"{CAPTURES}/rtx4090-2.jsonl {LARGE} --json -",
)  # fmt: skip
"""What is printed for each is in tests/data/command_values/expected-lines.txt."""


@each_row("nodes", ["1", "2", "20"])
@each_row("machine", ["p5.48xlarge", "a3-highgpu-8g", "dgx-b200", "gb200-nvl72", "8 x L40S, 4 NICs x 100 sockets"])
def test_rows_name_their_reason_and_lines_fit(capsys: pytest.CaptureFixture[str], machine: str, nodes: str) -> None:
    lines = said(capsys, f"--machine '{machine}' --nodes {nodes} --op all -f 64").splitlines()
    assert all(len(line) <= 80 or "http" in line for line in lines)
    rows = [line for line in lines if re.match(r" +\d+ [KMG]?i?B +[\d.e-]+ +[\d.e-]+ ", line)]
    assert rows
    noted = {line.split("]")[0] + "]" for line in lines if line.startswith("[")}
    assert all(re.findall(r"\[\d+\]$", row)[0] in noted for row in rows)
    assert sum("Source: " in line for line in " ".join(lines).split("[")) >= len(noted)
