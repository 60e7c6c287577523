"""A small corpus of saved outputs, through the commands that judge one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from fake_topo import Printed

SIX = Printed(2, 1, (("X", "NV12", "PXB"), ("NV12", "X", "PXB"), ("PXB", "PXB", "X")), (("0-15", "0", "N/A"),) * 2)


def entry(file: str, expected: Any) -> dict[str, Any]:
    return {
        "file": file,
        "kind": "topo-m",
        "complete": True,
        "expect_error": expected is None,
        "expected": expected,
    }


def expected(machine: Printed) -> dict[str, Any]:
    read = machine.matrix()
    rows = [list(read.links[name].values()) for name in (*read.gpus, *read.nics)]
    links = {
        "gpu_gpu": [row[: machine.gpus] for row in rows[: machine.gpus]],
        "gpu_nic": [row[machine.gpus :] for row in rows[: machine.gpus]],
        "nic_nic": [row[machine.gpus :] for row in rows[machine.gpus :]],
    }
    columns = {name: list(getattr(read, name)) for name in ("cpu_affinity", "numa_affinity", "gpu_numa_id")}
    return {"gpu_count": machine.gpus, "nic_names": list(read.nics), "links": links, **columns}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A matrix that is whole, and a text that must be refused."""
    (tmp_path / "index.json").write_text(json.dumps([entry("001-two.txt", expected(SIX)), entry("002-none.txt", None)]))
    (tmp_path / "001-two.txt").write_text(SIX.text())
    (tmp_path / "002-none.txt").write_text("No devices were found\n")
    return tmp_path


def run(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, ROOT / "scripts" / "corpus.py", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_every_text_is_read_exactly_or_refused_rightly(corpus: Path) -> None:
    done = run(corpus)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("refused: 002-none.txt: ")


def test_a_text_that_is_read_otherwise_is_wrong(corpus: Path) -> None:
    (corpus / "001-two.txt").write_text(SIX.text().replace("NV12", "NV4"))
    done = run(corpus)
    assert (done.returncode, "wrong: 001-two.txt: GPU to GPU" in done.stdout) == (1, True)


def test_a_healthy_matrix_raises_no_alarm(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import judge

    judge._corpus(corpus)
    assert "corpus, 2 texts without: 1 hold what checks look at, 0 alarm" in capsys.readouterr().out
