"""``ncclprobe expect``, as its user types it."""

import json
import re
from pathlib import Path

import pytest

from ncclprobe.commands.expect import main
from ncclprobe.expect.tables import machines
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row

CAPTURES = Path(__file__).parent / "captures"
LARGE = ("-b", "1G", "-e", "4G")


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(said(capsys, *argv, "--json", "-"))
    return found


def test_a_named_machine_of_sixteen_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said(capsys, "--machine", "a3-megagpu-8g", "--nodes", "16", "--op", "all_reduce").split())
    assert "16 x 8 NVIDIA H100 80GB HBM3" in text
    assert "8 NICs x 200 Gb/s (tcpxo" in text
    assert "200 GB/s of NICs per node; 0.94 of it is normal" in text
    assert "source: " in text
    assert " NIC " in text
    assert " latency " in text


READ = ("p5.48xlarge", "a3-highgpu-8g", "dgx-b200", "gb200-nvl72", "8 x L40S, 4 NICs x 100 sockets")


@each_row("nodes", ["1", "2", "20"])
@each_row("machine", READ)
def test_every_row_names_its_reason_and_every_line_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], machine: str, nodes: str
) -> None:
    argv = ("--machine", machine, "--nodes", nodes, "--op", "all", "-f", "64")
    lines = said(capsys, *argv).splitlines()
    assert all(len(line) <= 80 or "http" in line for line in lines)
    rows = [line for line in lines if re.match(r" +\d+ [KMG]?i?B +[\d.e-]+ +[\d.e-]+ ", line)]
    assert rows
    noted = {line.split("]")[0] + "]" for line in lines if line.startswith("[")}
    assert all(re.findall(r"\[\d+\]$", row)[0] in noted for row in rows)
    assert sum("Source: " in line for line in " ".join(lines).split("[")) >= len(noted)


def test_no_ring_stands_beside_a_value_that_no_ring_reaches(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "--machine", "dgx-h100", "--nodes", "2", *LARGE)
    rows = found["rows"]
    assert isinstance(rows, list)
    assert all(row["expectation"]["value"] > 400 and row["model"]["algorithm"] == "NVLSTree" for row in rows)


@each_row(("release", "newer"), [("2.31.0", True), ("2.28.9", False)])
def test_a_release_that_is_not_known_here_is_said_so(
    capsys: pytest.CaptureFixture[str], release: str, newer: bool
) -> None:
    argv = ("--machine", "dgx-h100", "--nccl", release, *LARGE)
    assert ("is newer than 2.30.7" in said(capsys, *argv)) is newer
    assert bool(data(capsys, *argv)["notes"]) is newer


def test_what_is_not_known_of_nics_is_no_zero(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said(capsys, "--machine", "a3-highgpu-2g", *LARGE).split())
    assert "1 NIC of unknown rate" in text
    assert "0 Gb/s" not in text


def test_a_capture_is_recognised_and_judged_as_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, str(CAPTURES / "aws-p4d.jsonl"), "--nodes", "2", *LARGE)
    assert found["machine"] == "p4d.24xlarge"
    assert found["ranks"] == 16


def test_a_capture_that_no_type_describes_is_taken_by_its_links(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, str(CAPTURES / "rtx4090-2.jsonl"), *LARGE)
    assert found["machine"] is None
    assert "as they are now" in str(found["why"])
    rows = found["rows"]
    assert isinstance(rows, list)
    assert {row["decides"] for row in rows} <= {"PCIe", "inter-socket"}


def test_without_gpus_nothing_is_expected_and_it_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(CAPTURES / "laptop.jsonl")]) == 3
    text = capsys.readouterr().out
    assert "no expectation is known for GPUs here" in text
    assert "`ncclprobe bandwidth` judges gloo" in text


def test_the_settings_of_the_shell_hold_for_a_named_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--machine", "dgx-h100", "--nodes", "2", "-b", "8G", "-e", "8G")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert " Ring Simple " in said(capsys, *asked)
    assert "settings: NCCL_ALGO=Ring" in said(capsys, *asked)
    monkeypatch.delenv("NCCL_ALGO")
    whole = said(capsys, *asked)
    assert " NVLSTree Simple " in whole
    slower = ("NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_NET_GDR_LEVEL=LOC", "NCCL_IB_HCA=mlx5_0")
    for setting in (*slower, "NCCL_IB_HCA=mlx5", "NCCL_NET_GDR_LEVEL=PIX"):
        name, value = setting.split("=")
        monkeypatch.setenv(name, value)
        text = said(capsys, *asked)
        monkeypatch.delenv(name)
        assert (f"settings: {setting}\n" in text) == (text != whole) == (setting in slower), setting


def test_a_forced_ring_is_expected_and_without_it_what_the_switches_give(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--machine", "dgx-h100", "--algo", "ring", *LARGE)
    assert "settings: NCCL_ALGO=Ring" in text
    assert " Ring Simple " in text
    assert "is right here" not in text
    assert "run again with NCCL_ALGO=Ring" in said(capsys, "--machine", "dgx-h100", *LARGE)


def test_a_ring_of_plain_nvlink_is_not_explained_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is right here" not in said(capsys, "--machine", "dgx-a100", *LARGE)


def test_nodes_may_differ_in_their_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert data(capsys, "--machine", "dgx-a100", "--gpus-per-node", "8,8,4", *LARGE)["gpus_per_node"] == [8, 8, 4]
    assert "3 nodes with 8,8,4" in said(capsys, "--machine", "dgx-a100", "--gpus-per-node", "8,8,4", *LARGE)


def test_another_release_of_nccl_is_expected(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NCCL 2.12.0" in said(capsys, "--machine", "dgx-h100", "--nccl", "2.12", *LARGE)


def test_the_list_names_every_type(capsys: pytest.CaptureFixture[str]) -> None:
    listing = said(capsys, "--list")
    assert max(map(len, listing.splitlines())) <= 80
    assert all(machine.name in listing for machine in machines.table().values())


def test_every_collective_can_be_asked_for_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = data(capsys, "--machine", "dgx-h100", "--nodes", "2", "--op", "all", *LARGE)["rows"]
    assert isinstance(rows, list)
    assert len({row["op"] for row in rows}) == 9
    assert all(row["expectation"]["source"] and row["expectation"]["why"] for row in rows)


@each_row(
    ("argv", "names"),
    [
        (("--machine", "dgx-h10"), "dgx-h10"),
        (("--machine", "dgx-h100", "x.jsonl"), "pass only one"),
        (("no-such-file.jsonl",), "no-such-file"),
        (("--machine", "dgx-h100", "--op", "allreduce"), "allreduce"),
        (("--machine", "dgx-h100", "--gpus-per-node", "9"), "9"),
        (("--machine", "dgx-h100", "--gpus-per-node", "8,8", "--nodes", "3"), "3"),
        (("--machine", "dgx-h100", "--gpus-per-node", "8;8"), "8;8"),
        (("--machine", "dgx-h100", "--gpus-per-node", "1"), "a single GPU"),
        (("--machine", "dgx-h100", "--nodes", "99999999"), "99999999"),
        (("--machine", "dgx-h100", "--nic-rate", "-3"), "-3"),
        (("--machine", "dgx-h100", "--nic-rate", "nan"), "nan"),
        (("--machine", "dgx-h100", "--nic-rate", "200"), "without --topology FILE"),
        (("--machine", "dgx-h100", "--nccl", "newest"), "newest"),
        (("--machine", "dgx-h100", "-b", "2G", "-e", "1G"), "-b"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(argv: tuple[str, ...], names: str) -> None:
    with pytest.raises(UsageError) as refused:
        main(argv)
    assert names in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_gpus_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(CAPTURES / "laptop.jsonl"), "--json", "-"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == []
    assert "NVML" in found["why"]


@each_row(
    ("machine", "nodes", "algorithm", "fails"),
    [
        ("dgx-a100", "1", "nvls", True),
        ("dgx-h100", "1", "nvlstree", True),
        ("dgx-h100", "2", "nvls", True),
        ("dgx-h100", "1", "nvls", False),
        ("dgx-h100", "2", "nvlstree", False),
        ("dgx-a100", "1", "tree", False),
    ],
)
def test_an_algorithm_that_a_machine_has_not_costs_the_call(
    machine: str, nodes: str, algorithm: str, fails: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(("--machine", machine, "--nodes", nodes, "--algo", algorithm, *LARGE))
    text = capsys.readouterr().out
    assert ("the call fails: NCCL has no such all_reduce here" in text) is fails
    assert code == (3 if fails else 0)


def test_a_number_below_the_wire_is_not_excused_for_being_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    rack = said(capsys, "--machine", "gb200-nvl72", "--nodes", "18", "-b", "8G")  # 840 of 900
    assert "is right here" not in rack
    assert "above 450 GB/s" in said(capsys, "--machine", "dgx-h100", *LARGE)
