"""`ncclprobe topo`: what is printed of a saved text, and what is said where there is no matrix."""

import json
import os
from pathlib import Path

import pytest
from fake_topo import Printed

from ncclprobe.commands import main
from ncclprobe.model.values import replace
from tests.each_row import each_row

MACHINE = Printed(
    2, 1, (("X", "NV18", "PIX"), ("NV18", "X", "SYS"), ("PIX", "SYS", "X")), (("0-7", "0"), ("8-15", "1"))
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "topo.txt"
    path.write_text(MACHINE.text())
    return path


def test_json_is_what_the_contract_says(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", str(saved), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "ncclprobe.topology/1",
        "matrices": [
            {
                "kind": "topo-m",
                "gpus": ["GPU0", "GPU1"],
                "nics": ["mlx5_2"],
                "links": {
                    "GPU0": {"GPU0": "X", "GPU1": "NV18", "mlx5_2": "PIX"},
                    "GPU1": {"GPU0": "NV18", "GPU1": "X", "mlx5_2": "SYS"},
                    "mlx5_2": {"GPU0": "PIX", "GPU1": "SYS", "mlx5_2": "X"},
                },
                "cpu_affinity": ["0-7", "8-15"],
                "numa_affinity": ["0", "1"],
                "gpu_numa_id": [None, None],
                "incomplete": [],
                "capability": "",
            }
        ],
        "findings": [],
        "unknown": [],
        "status": "pass",
        "exit_code": 0,
    }


def test_text_shows_the_matrix_and_the_nics_near_each_gpu(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", str(saved)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == ["topo-m: 2 GPUs, 1 NIC", "        GPU0  GPU1  mlx5_2", "GPU0    X     NV18  PIX"]
    assert out[7:9] == ["GPU0  0-7   0     -         PIX: mlx5_2", "GPU1  8-15  1     -         SYS: mlx5_2"]
    assert out[-3:] == ["  nothing", "", "PASS  (exit 0)"]


WEAK = replace(
    MACHINE, gpus=3, nics=0, tails=(("0-7", "0"),) * 3,
    links=(("X", "NV16", "NV16"), ("NV16", "X", "NV18"), ("NV16", "NV18", "X")),
)  # fmt: skip


def test_text_ends_with_what_looks_wrong_and_a_failure_is_4(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_text(WEAK.text())
    assert main(["topo", str(saved)]) == 4
    told = capsys.readouterr().out.partition("what looks wrong")[2].splitlines()
    assert told[2] == "  FAIL    nvl.links GPU0: 16 NVLinks are up; its siblings have 18"
    assert told[3].startswith("          fix: reset the GPUs")
    assert told[-1] == "FAIL  (exit 4)"


def test_findings_are_in_json_too(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_text(WEAK.text())
    assert main(["topo", str(saved), "--json", "-"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["exit_code"]) == ("fail", 4)
    (finding,) = told["findings"]
    assert (finding["check"], finding["matrix"], finding["subject"]) == ("nvl.links", 1, "GPU0")
    assert finding["evidence"] == [{"source": str(saved), "line": None, "text": ""}]


def test_a_warning_is_4_only_where_that_is_asked_for(saved: Path) -> None:
    far = replace(
        MACHINE, gpus=3, nics=3, tails=(("0-7", "0"),) * 3,
        links=(("X", "NODE", "NODE", "PIX", "NODE", "SYS"), ("NODE", "X", "NODE", "NODE", "PIX", "SYS"),
               ("NODE", "NODE", "X", "NODE", "NODE", "SYS"), ("PIX", "NODE", "NODE", "X", "NODE", "SYS"),
               ("NODE", "PIX", "NODE", "NODE", "X", "SYS"), ("SYS", "SYS", "SYS", "SYS", "SYS", "X")),
    )  # fmt: skip
    saved.write_text(far.text())
    assert main(["topo", str(saved)]) == 0
    assert main(["topo", str(saved), "--fail-on", "warn"]) == 4


def test_what_is_missing_is_said(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_text("\n".join(MACHINE.text().splitlines()[:2]) + "\n")
    assert main(["topo", str(saved)]) == 3
    assert "incomplete: row GPU1 is missing" in capsys.readouterr().out.splitlines()


@each_row(
    ("text", "cause"),
    [
        ("", "the text is empty"),
        ("Failed to run topology matrix\n", "nvidia-smi itself failed"),
        ("\0\xff", "no `nvidia"),
    ],
)
def test_a_text_that_must_be_refused_ends_with_2_and_its_cause(
    text: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(text, encoding="latin-1")
    assert main(["topo", str(path)]) == 2
    assert cause in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", str(tmp_path)]) == 2
    assert f"{tmp_path}: cannot be read" in capsys.readouterr().err


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["topo", str(tmp_path / "pipe")]) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_without_a_file_this_machine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["topo"]) == 2
    assert "give a file" in capsys.readouterr().err
    command.write_text("#!/bin/sh\n[ \"$*\" = 'topo -m' ] && printf '\\tGPU0\\nGPU0\\t X \\n'\n")
    command.chmod(0o755)
    assert main(["topo"]) == 0
    assert capsys.readouterr().out.startswith("topo-m: 1 GPU, 0 NICs")


def test_a_matrix_wider_than_the_terminal_comes_in_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    gpus, nics = [f"GPU{n}" for n in range(8)], [f"rocep{n}s0f0" for n in range(8)]
    rows = ["\t".join(["", *gpus, *nics])]
    rows += ["\t".join([a, *("X" if a == b else "NODE" for b in (*gpus, *nics))]) for a in (*gpus, *nics)]
    (tmp_path / "wide.txt").write_text("\n".join(rows) + "\n")
    main(["topo", str(tmp_path / "wide.txt")])
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 80
    matrix = printed[: next(n for n, line in enumerate(printed) if "nearest NICs" in line)]
    heads = [line.split() for line in matrix if line.startswith("    ") and set(line.split()) <= {*gpus, *nics}]
    assert [name for head in heads for name in head] == gpus + nics
    near = printed[len(matrix) : len(matrix) + len(gpus)]
    assert max(map(len, near)) > 80 - len(nics[0]) - 2, "NICs that fit stand on a line"
