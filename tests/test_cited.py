"""What stands in the sources that findings cite: which answer of a capture, which lines of it, and how much."""

import gzip
from pathlib import Path

from ncclprobe.engine import evidence_excerpts, job_files
from ncclprobe.host.job_files import JobFile
from ncclprobe.model.causes import Cause
from ncclprobe.model.errors import Denied
from ncclprobe.model.findings import Evidence, Finding, Status, Verdict, fail, note, seen
from ncclprobe.model.report import Excerpt
from ncclprobe.model.snapshot import Snapshot
from tests.each_row import each_row

ANSWERS = {
    ("read", "/etc/nccl.conf"): "# site\nNCCL_NET=IB\nNCCL_DEBUG=INFO\n",
    ("read", "/sys/class/infiniband/mlx5_0/ports/1/rate"): "400 Gb/sec (4X NDR)\n",
    ("read", "/sys/class/infiniband/mlx5_1/ports/1/rate"): "200 Gb/sec (4X HDR)\n",
    ("read", "/sys/bus/pci/devices/0000:5c:00.0/current_link_speed"): "16.0 GT/s PCIe\n",
    ("run", "nvidia-smi", "nvlink", "-s"): "GPU 0: H100\n\t Link 0: 26 GB/s\nGPU 1: H100\n\t Link 0: <inactive>\n",
    ("nvml", "nvmlDeviceGetEccMode", 0): "[1, 1]",
    ("nvml", "nvmlDeviceGetEccMode", 1): "[0, 0]",
    ("env",): '{"HOME": "/root", "NCCL_ALGO": "Ring", "NCCL_ALGO_X": "1"}',
    ("kernel_log", "NVRM"): '{"lines": [[1.5, "NVRM: boot"], [86.25, "NVRM: Xid (PCI:0000:5b:00): 79"]], "dropped": 0}',
    ("rlimit", "RLIMIT_MEMLOCK"): "[65536, 65536]",
    ("open", "/dev/infiniband/uverbs0"): Denied("permission denied"),
}
XID = "Xid (PCI:0000:5b:00): 79"


def excerpts(finding: Finding, node: str | None = "n0") -> tuple[Excerpt, ...]:
    verdict = Verdict("a.b", node, Status.FAIL, "t", findings=(finding,))
    return evidence_excerpts.machine_excerpts(
        [verdict], [Snapshot("n0", {}, {}, ANSWERS), Snapshot("n1", {}, {}, ANSWERS)]
    )


@each_row(
    ("source", "lines"),
    [
        ("/sys/class/infiniband/mlx5_1/ports/1/rate", ["200 Gb/sec (4X HDR)"]),
        ("/sys/class/infiniband/*/ports/1/rate", ["400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)"]),
        ("/sys/bus/pci/devices/0000:5c:00.0/current_link_{speed,width}", ["16.0 GT/s PCIe"]),
        ("nvmlDeviceGetEccMode (pending)", ["[0, 0]"]),
        ("getrlimit(RLIMIT_MEMLOCK)", ["[65536, 65536]"]),
        ("open /dev/infiniband/uverbs0", ["refused: permission denied"]),
        ("/etc/nccl", []),
        ("nvmlDeviceGetEcc", []),
        ("a description of ours", []),
    ],
)
def test_evidence_leads_to_the_answers_that_it_names_and_to_no_others(source: str, lines: list[str]) -> None:
    found = excerpts(fail("GPU1", "is odd", evidence=source))
    assert [line for each in found for line in each.lines] == lines


def test_the_answer_on_the_findings_own_device_comes_first() -> None:
    found = excerpts(fail("mlx5_1:1", "is slow", evidence="/sys/class/infiniband/*/ports/1/rate"))
    assert [each.lines[0][:3] for each in found] == ["200", "400"]


@each_row(
    ("subject", "evidence", "whole", "cited"),
    [
        ("GPU1", "NVML, link by link (nvidia-smi nvlink -s)", ("nvidia-smi nvlink -s", 0, 4), ["GPU 1: H100"]),
        ("NCCL_NET", seen("/etc/nccl.conf", "NCCL_NET=IB", 2), ("/etc/nccl.conf", 1, 3), ["NCCL_NET=IB"]),
        ("NCCL_ALGO", seen("environment", "NCCL_ALGO=Ring"), ("env", 0, 1), ["NCCL_ALGO=Ring"]),
        ("GPU3", seen("/dev/kmsg", XID), ("NVRM", 0, 2), [f"[86.250000] NVRM: {XID}"]),
    ],
)
def test_of_an_answer_the_lines_of_the_finding_are_marked(
    subject: str, evidence: str | Evidence, whole: tuple[str, int, int], cited: list[str]
) -> None:
    (found,) = excerpts(fail(subject, "is odd", evidence=evidence))
    assert (found.title, found.first, len(found.lines)) == whole
    assert [found.lines[at] for at in found.cited] == cited


def test_a_note_a_node_without_answers_and_a_finding_of_the_run_have_no_excerpt() -> None:
    assert excerpts(note("NCCL_NET", "is set", evidence="/etc/nccl.conf")) == ()
    assert excerpts(fail("NCCL_NET", "is odd", evidence="/etc/nccl.conf"), "n9") == ()
    assert excerpts(fail("NCCL_NET", "is odd", evidence="/etc/nccl.conf"), None) == ()
    of_two = fail("a", "b", evidence="/etc/nccl.conf", nodes=("n9", "n1"))
    assert [each.node for each in excerpts(of_two, None)] == ["n1"]


def test_a_long_answer_is_cut_and_says_by_how_much() -> None:
    snapshot = Snapshot("n0", {}, {}, {("read", "/proc/long"): "x" * 5000 + "\n" + "line\n" * 1000})
    verdict = Verdict("a.b", "n0", Status.FAIL, "t", findings=(fail("s", "m", evidence="/proc/long"),))
    (found,) = evidence_excerpts.machine_excerpts([verdict], [snapshot])
    assert sum(map(len, found.lines)) < 5000
    assert found.cut == f"{1001 - len(found.lines)} other lines not shown"


def test_every_excerpt_of_a_report_has_its_bound() -> None:
    answers: dict[tuple[str | int, ...], str] = {("read", f"/proc/{n}"): "1" for n in range(500)}
    found = [fail(str(n), "m", evidence=f"/proc/{n}") for n in range(500)]
    verdicts = [Verdict("a.b", "n0", Status.FAIL, "t", findings=(each,)) for each in found]
    shown = evidence_excerpts.machine_excerpts(verdicts, [Snapshot("n0", {}, {}, answers)])
    assert len(shown) == evidence_excerpts.MOST


def _cause(name: str, line: int) -> Cause:
    return Cause("c", "log.x", "named", "m", evidence=(Evidence(name, line, "text"),))


@each_row("packed", [False, True])
def test_of_a_log_the_lines_around_the_cited_one_are_shown_also_where_it_is_compressed(
    tmp_path: Path, packed: bool
) -> None:
    path = tmp_path / "rank0.log"
    data = b"".join(b"line %d\n" % n for n in range(1, 101))
    path.write_bytes(gzip.compress(data) if packed else data)
    (found,) = job_files.excerpts([_cause(str(path), 50)], [JobFile(str(path), len(data))])
    assert found.lines == tuple(f"line {n}" for n in range(45, 56))
    assert (found.first, found.cited, found.title) == (45, (5,), f"{path}:50")


def test_the_last_line_of_a_log_without_a_newline_is_shown_and_a_pipe_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"one\ntwo\nlast")
    (found,) = job_files.excerpts([_cause(str(path), 3)], [JobFile(str(path), 12)])
    assert found.lines == ("one", "two", "last")
    assert job_files.excerpts([_cause("-", 3)], [JobFile("-", 0, True)]) == ()
    path.unlink()
    assert job_files.excerpts([_cause(str(path), 3)], [JobFile(str(path), 12)]) == ()
