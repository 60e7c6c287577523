"""Several captures: one job only if they are, else each by itself; in words that are true of them; cut ones too."""

import json
from pathlib import Path
from typing import Any

import pytest
import zoo
from report.samples import report, verdict

from ncclprobe.commands import main
from ncclprobe.engine import captures
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.launcher import detect
from ncclprobe.model.findings import Evidence, Status, fail
from ncclprobe.model.report import Excerpt
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import replace

MASTER = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
TEN, ELEVEN = "2026-03-01T10:00:00+00:00", "2026-03-01T11:30:00+00:00"


def node(name: str, taken: str = "", **variables: str) -> Snapshot:
    return Snapshot(name, {type(f): f for f in (Environment(dict(variables)), detect(variables))}, taken=taken)


def ranked(rank: int, taken: str = "", **changes: str) -> Snapshot:
    own = {"RANK": str(8 * rank), "NODE_RANK": str(rank), "LOCAL_RANK": "0"}
    return node(f"n{rank}", taken, **MASTER | own | changes)


NODES = [
    [node("n0")], [node("n0"), node("n1")], [node("n0", SLURM_JOB_ID="17"), node("n1", SLURM_JOB_ID="17")],
    [node("n0", SLURM_JOB_ID="17"), node("n1", SLURM_JOB_ID="18")], [node("n0", SLURM_JOB_ID="17"), node("n1")],
    [node("n0", SLURM_JOB_ID="17"), Snapshot("n1", {})], [ranked(0), ranked(1)], [ranked(0, TEN), ranked(1, TEN)],
    [ranked(0, TEN), ranked(1, ELEVEN)], [ranked(0), ranked(1, ELEVEN)], [ranked(0), ranked(0)],
    [ranked(0), ranked(1), ranked(0)], [ranked(0), ranked(1, MASTER_PORT="29501")],
    [ranked(0), ranked(1, MASTER_ADDR="n1")],
    [ranked(0), node("n1", **MASTER)], [ranked(0, MASTER_ADDR=""), ranked(1, MASTER_ADDR="")],
    [ranked(0, NODE_RANK=""), ranked(1, NODE_RANK="")], [ranked(0, RANK=""), ranked(1, RANK="")],
    *([ranked(0, TORCHELASTIC_RUN_ID=one), ranked(1, TORCHELASTIC_RUN_ID=other, MASTER_PORT="1")] for one, other in
      (("a1", "a1"), ("a1", "a2"), ("a1", ".a1."), ("...", "..."), ("", ""))),
]  # fmt: skip
"""Captures, of which tests/data/command_values/one-job.txt says whether they are of one job."""


SOURCES = {
    "statvfs /dev/shm": "/dev/shm in the pasted text", "getrlimit(RLIMIT_MEMLOCK)": "RLIMIT_MEMLOCK in the pasted text",
    "getaddrinfo(n0)": "n0 in the pasted text", "getifaddrs(3): eth0": "eth0 in the pasted text",
    "nvmlDeviceGetName (GPU 0)": "nvidia-smi in the pasted text", "NVML, link by link": "nvidia-smi in the pasted text",
    "NVMLS": "NVMLS", "/proc/meminfo": "/proc/meminfo", "by statvfs /dev/shm": "by statvfs /dev/shm",
}  # fmt: skip


def test_a_report_on_texts_alone_cites_the_text_and_not_a_call() -> None:
    one_rank = "one rank of each node reported, and it is unknown whether the others run"
    found = fail("x", "y", evidence=(*map(Evidence, SOURCES),))
    checks = (verdict(Status.FAIL, found, why=one_rank), verdict(Status.UNKNOWN, why="gone"))
    whole = replace(report(*checks), excerpts=(Excerpt("statvfs /a", "n0", "t", ()),))
    nodes = [Snapshot(name, {}, pasted=True) for name in ("n0", "n1")]
    told = captures.said_of_texts(whole, nodes)
    assert [each.source for each in told.checks[0].findings[0].evidence] == [*SOURCES.values()]
    assert [each.why for each in told.checks] == ["the pasted texts do not show it", "gone"]
    assert [each.source for each in told.excerpts] == ["/a in the pasted text"]
    assert captures.said_of_texts(whole, [*nodes, Snapshot("n2", {})]) == whole


def test_captures_beside_a_log_show_if_the_check_had_found_its_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("hgx-h100", "dgx-1v", "aws-p4d"):
        Path(f"{name}.jsonl").write_bytes((zoo.CAPTURES / f"{name}.jsonl").read_bytes())
    for name in "abcd":
        Path(f"{name}.md").write_bytes((zoo.CAPTURES.parents[1] / "README.md").read_bytes())
    Path("job.log").write_text("n1:7:7 [0] NCCL WARN Bootstrap : no socket interface found\n")
    left = (
        "left out: ./a.md, ./b.md, ./c.md and 1 more, because they look like documents, not logs; name one to read it"
    )
    for machines, nodes in (("dgx-1v.jsonl …", "aws-p4d,dgx-1v,hgx-h100"), ("hgx-h100.jsonl", "aws-p4d,hgx-h100")):
        assert main(["explain", ".", "--json", "-", "--no-config"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        doctor = (
            f"this answer leaves out the findings on these machines: `ncclprobe doctor ./aws-p4d.jsonl ./{machines}`"
        )
        assert found["notes"] == [left, doctor]
        assert found["causes"][0]["checked"] == f" (captures: it passed on {nodes})"
        Path("dgx-1v.jsonl").unlink(missing_ok=True)


def test_the_captures_of_a_folder_are_judged_in_the_order_of_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "fcaedb":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"capture": 1, "node": f"n{name}", "tool": "0.1.0"}) + "\n")
    (tmp_path / "a.txt").write_text("not a capture\n")
    argv = ["doctor", str(tmp_path), "--no-config", "--select", "env.value", "--json", "-"]
    assert main(argv) == 3
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["nodes"]] == [f"n{each}" for each in "abcdef"]


def test_a_cut_capture_is_judged_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (zoo.CAPTURES / "hgx-h100.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "hgx-h100.jsonl"
    path.write_text("".join(whole[:600]) + whole[600][:40])
    assert main(["doctor", str(path), "--no-config", "--json", "-"]) == 3
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    cut = f"599 of {len(whole) - 1} rows are left"
    assert any(cut in note for note in found["notes"])
    blind = [check for check in found["checks"] if check["status"] == "unknown"]
    assert all(cut in check["why"] for check in blind if check["required"])
    assert 0 < len(blind) < len(found["checks"])
