"""What is a log of the job is told by its form, and not by what a file quotes."""

import json
from pathlib import Path
from typing import Any

from ncclprobe.commands import explain
from ncclprobe.logs.read import is_document
from tests.log.whole import steps

FAILED = "n1:7:9 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
DOCUMENTS = {
    "notes that quote a log": f"# What failed\n\nOn Monday we saw:\n\n```\n{FAILED}```\n\nThen we went home.\n",
    "notes with an indented log": f"## Monday\n\nWe saw\n\n    {FAILED}\nand went home.\n",
    "a script": "#!/bin/bash\nexport NCCL_DEBUG=INFO\ntorchrun train.py\n",
    "a manifest": "# of the job\napiVersion: batch/v1\nkind: Job\nmetadata:\n  name: x\n",
}
LOGS = {
    "NCCL's": FAILED,
    "losses": f"{steps(0, 9)}\n",
    "nccl-tests'": "# nThread 1 nGpus 8 minBytes 8\n#\n# Using devices\n#  Rank  0 Group  0 Pid 7 on n1 device 0\n",
    "with times": "2026-01-02 03:04:05 started\n```\nquoted\n```\n",
    "a traceback's": 'Traceback (most recent call last):\n  File "x.py", line 3, in f\nValueError: x\n## odd\n',
}


def test_documents_and_logs_are_told_apart_by_their_form() -> None:
    assert [name for name, text in DOCUMENTS.items() if not is_document(text.encode())] == []
    assert [name for name, text in LOGS.items() if is_document(text.encode())] == []


def report_of(folder: Path, *names: str) -> dict[str, Any]:
    report = folder.parent / "report.json"
    explain.main([*(str(folder / name) for name in names), "--json", str(report), "-q"])
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_a_document_in_a_folder_is_left_out_and_is_read_if_it_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "notes.md").write_text(DOCUMENTS["notes that quote a log"])
    (folder / "a.log").write_text(f"{steps(0, 9)}\n")
    report = report_of(folder, ".")
    assert (report["causes"], report["outcome"]) == ([], "unknown")
    (note,) = [each for each in report["notes"] if each.startswith("left out: ")]
    assert "notes.md" in note
    assert report_of(folder, "notes.md", "a.log")["causes"][0]["code"] == "iface-missing"


def test_a_capture_among_the_files_is_offered_to_the_doctor(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "a.log").write_text(FAILED)
    capture = min((Path(__file__).resolve().parents[1] / "captures").glob("*.jsonl"))
    (folder / "n1.jsonl").write_text(capture.read_text())
    notes = report_of(folder, ".")["notes"]
    assert [note for note in notes if "ncclprobe doctor" in note and "n1.jsonl" in note]
