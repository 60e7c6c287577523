"""``ncclprobe explain FILE…`` as its users see it: text, JSON, page, Markdown, exit codes; and what it refuses."""

import gzip
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import explain, main
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row

NO_INTERFACE = "node1:77:77 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found\n"
UNHANDLED = "[rank3]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error\n"
WATCHDOG = (
    "[rank{r}]:[E1122 10:00:0{r}.5 ProcessGroupNCCL.cpp:607] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600001 milliseconds "
    "before timing out.\n"
)


def written(folder: Path, **texts: str) -> str:
    for name, text in texts.items():
        (folder / f"{name}.log").write_text(text)
    return str(folder)


def test_one_screen_says_cause_line_fault_remedy_and_what_would_have_found_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written(tmp_path, rank3=NO_INTERFACE + UNHANDLED))
    monkeypatch.setenv("COLUMNS", "80")
    assert explain.main([".", "--no-color"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 25
    assert " ".join(lines[:2]).startswith("CAUSE  rank 3, node1: NCCL found no usable interface")
    assert "[iface-missing]" in " ".join(lines[:2])
    assert "     ./rank3.log:1: Bootstrap : no socket interface found" in lines[1:3]
    for part in ("The job's settings or its program are at fault; ", "what to do: ", "what followed:"):
        assert any(line.startswith(f"   {part}") for line in lines), part
    last = "The check that finds this before the next launch: `ncclprobe doctor` env.ifname"
    assert " ".join(lines[-2:]).strip() == last


def test_json_says_timeline_ranks_and_what_was_not_understood(tmp_path: Path) -> None:
    written(tmp_path, rank3=NO_INTERFACE + UNHANDLED, rank4="[rank4]: x.cc:1 ERROR what is this\n")
    for _ in range(2):  # the second is written over the first
        explain.main([*(f"{tmp_path}/rank{n}.log" for n in (3, 4)), "--json", f"{tmp_path}/report.json", "-q"])
    report = json.loads((tmp_path / "report.json").read_text())
    assert [each["rank"] for each in report["ranks"]] == [3, 4]
    ids = ["log.interface/no-interface", "log.nccl-failed/nccl-returned-an-error"]
    assert [each["id"] for each in report["timeline"]][:2] == ids
    assert (report["status"], report["exit_code"], report["files"]) == ("fail", 0, ["2 logs"])


_NARROWED = "[rank0]: RuntimeError: CUDA error: unspecified launch failure\n"


@each_row("text", [NO_INTERFACE, _NARROWED], ids=["named", "one of several"])
def test_a_saved_report_is_rendered_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    saved = tmp_path / "explained.json"
    explain.main([written(tmp_path, rank3=text), "--json", str(saved), "--no-color"])
    first = capsys.readouterr().out
    assert main(["report", str(saved), "--no-color"]) == 0
    assert capsys.readouterr().out == first


def test_what_to_collect_is_said_where_the_cause_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explain.main([written(tmp_path, a=WATCHDOG.format(r=0) + WATCHDOG.format(r=1)), "-v"])
    told = capsys.readouterr().out
    assert told.startswith("UNKNOWN")
    for step in ("TORCH_NCCL_TRACE_BUFFER_SIZE=2000", "journalctl -k"):
        assert step in told
    assert "NCCL_DEBUG=INFO" not in told, "a collective that ran says nothing of NCCL's initialisation"


def test_page_and_markdown_hold_cause_and_timeline_and_escape_what_logs_say(tmp_path: Path) -> None:
    folder = written(tmp_path, rank3=NO_INTERFACE + UNHANDLED.replace("x.cpp", "<script>alert(1)</script>"))
    page, markdown = tmp_path / "a.html", tmp_path / "a.md"
    explain.main([folder, "-q", "--html", str(page), "--markdown", str(markdown)])
    html = page.read_text()
    assert [each for each in ("iface-missing", "<svg", "alert(1)", ">cause</text>") if each not in html] == []
    assert (html.count("<script"), html.count("<script>alert")) == (1, 0)  # the page's own
    assert markdown.read_text().startswith("## rank 3, node1: NCCL found no usable interface")


def test_redaction_reaches_hosts_that_logs_alone_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = NO_INTERFACE.replace("node1", "gpu-blue-17") + "gpu-blue-18:1:1 [0] NCCL INFO NET/IB : No device found.\n"
    explain.main([written(tmp_path, a=log), "--json", "-", "--redact-key", "a long key nobody knows"])
    told = capsys.readouterr().out
    assert "gpu-blue" not in told
    assert "iface-missing" in told


def test_a_report_of_the_same_nodes_says_whether_the_check_found_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = Path(__file__).parents[1] / "captures" / "hgx-h100.jsonl"
    explain.main([written(tmp_path, rank3=NO_INTERFACE), str(capture), "--no-color"])
    assert " ".join(capsys.readouterr().out.split()).endswith("(captures: it did not apply on hgx-h100)")


@each_row("said", [b"", b"\x7fELF\x01\x02\x03" + bytes(range(32)) * 40])
def test_a_file_that_says_nothing_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Any) -> None:
    (tmp_path / "a").write_bytes(said)
    assert main(["explain", str(tmp_path / "a")]) == 2
    assert "mentions a failed job" in capsys.readouterr().err


@each_row("compressed", [False, True])
def test_a_pipe_is_a_log_too(tmp_path: Path, compressed: bool) -> None:
    content = gzip.compress(NO_INTERFACE.encode()) if compressed else NO_INTERFACE.encode()
    command = [sys.executable, "-m", "ncclprobe", "explain", "-q"]
    done = subprocess.run([*command, "-"], input=content, capture_output=True, timeout=60)
    assert done.stdout.startswith(b"node1: NCCL found no usable interface")
    script = f"{shlex.join(command)} <(cat {tmp_path}/a)"
    (tmp_path / "a").write_bytes(content)
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60)
    assert done.stdout.startswith(b"node1: NCCL found no usable interface")


@each_row("option", ["--json", "--html", "--markdown"])
def test_a_log_is_never_written_over_by_a_report(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, rank0=NO_INTERFACE, rank1=UNHANDLED)
    assert main(["explain", option, f"{tmp_path}/rank0.log", f"{tmp_path}/rank1.log"]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert (tmp_path / "rank0.log").read_text() == NO_INTERFACE


def test_of_a_long_line_the_end_is_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = f"UserWarning: Unexpected error {'x' * 400} Error 802: system not yet initialized\n"
    assert explain.main([written(tmp_path, rank0=long + UNHANDLED), "--no-color"]) == 0
    assert "Error 802: system not yet initialized" in " ".join(capsys.readouterr().out.split())


OWN = (
    "\tour-prolog\t\tFATAL\tthe prolog found a bad GPU\tprolog.sh\tcause gpu-hw-error\t"
    "PROLOG: GPU {number} of {host} is out"
)


def of_a_site(folder: Path, table: str) -> str:
    (folder / "ours.tsv").write_text(f"# ours\n{table}\n")
    (folder / "ours.toml").write_text(f'messages = "{folder}/ours.tsv"\n')
    return str(folder / "ours.toml")


def test_a_site_says_what_its_own_programs_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = f"{written(tmp_path, job='step 1 loss 2' + chr(10) + 'PROLOG: GPU 3 of n7 is out' + chr(10))}/job.log"
    assert explain.main([log, "--config", of_a_site(tmp_path, OWN), "--no-color"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "CAUSE  n7: the prolog found a bad GPU [gpu-hw-error]"
    assert main(["explain", log, "--no-config"]) == 0
    assert "bad GPU" not in capsys.readouterr().out  # the table is forgotten with the run that named it


@each_row(
    ("table", "says"),
    [
        ("x\ty", "has 2 columns; 8 are needed"),
        (OWN.replace("cause gpu-hw-error", "bad"), "'bad' is not a meaning"),
        (OWN.replace("cause gpu-hw-error", "cause"), "'cause' is not a meaning"),
        (OWN.rpartition("\t")[0] + "\t{text}: {number}", "no word of three letters"),
    ],
)
def test_a_sites_table_that_is_of_no_such_form_is_refused_with_its_line(tmp_path: Path, table: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"ours.tsv:2: .*{says}"):
        explain.main([written(tmp_path, job=NO_INTERFACE), "--config", of_a_site(tmp_path, table)])


def test_a_report_to_attach_holds_the_answer_and_no_name_of_a_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle.json"
    logs = written(tmp_path, rank3=(NO_INTERFACE + UNHANDLED).replace("node1", "secret-host-7"))
    assert explain.main([logs, "--report", str(bundle), "--no-color"]) == 0
    shown = capsys.readouterr()
    assert "secret-host-7" in shown.out
    assert shown.err.endswith(
        f"ncclprobe: {bundle} contains the answer and the lines behind it, with pseudonyms for names and addresses; "
        f"look it through (`ncclprobe report {bundle}`) before you attach it to an issue\n"
    )
    first = json.loads(bundle.read_text())["causes"][0]
    assert (first["code"], first["evidence"][0]["text"]) == ("iface-missing", "Bootstrap : no socket interface found")
    assert "secret-host-7" not in bundle.read_text()
    with pytest.raises(UsageError, match="this command also reads it"):
        explain.main([logs, "--report", f"{logs}/rank3.log"])


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files and folders that no one may open: root may open all."""
    names: set[str] = set()

    def guarded(real: Any) -> Any:
        def call(path: Any = ".", *args: Any, **more: Any) -> Any:
            if not isinstance(path, int) and Path(os.fsdecode(path)).name in names:
                raise PermissionError(13, "Permission denied", os.fsdecode(path))
            return real(path, *args, **more)

        return call

    for name in ("open", "scandir"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    return names


@pytest.mark.parametrize("closed", ["rank2.log", "locked"])
def test_one_that_cannot_be_read_is_named_and_the_others_answer(
    closed: str, shut: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.log").write_text(NO_INTERFACE)
    (tmp_path / "locked").mkdir()
    shut.add(closed)
    assert main(["explain", str(tmp_path), "--no-color"]) == 0
    said = capsys.readouterr()
    for part in ("iface-missing", closed, "Permission denied"):
        assert part in " ".join(said.out.split())  # however the lines are broken


def test_a_closed_folder_alone_is_named(shut: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "locked").mkdir()
    shut.add("locked")
    assert main(["explain", str(tmp_path / "locked")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("locked: cannot be read: Permission denied")
