"""What stands in the sources that findings cite: which answer of a capture, which lines of it, and how much."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncclprobe.engine import evidence_excerpts, job_files
from ncclprobe.host.job_files import JobFile
from ncclprobe.model.causes import Cause, Consequence
from ncclprobe.model.errors import Denied
from ncclprobe.model.findings import Evidence, Finding, Status, Verdict, fail, note, seen, warn
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row

ANSWERS = {
    ("read", "/etc/nccl.conf"): "# site\nNCCL_NET=IB\nNCCL_DEBUG=INFO\n",
    ("read", "/sys/class/infiniband/mlx5_0/ports/1/rate"): "400 Gb/sec (4X NDR)\n",
    ("read", "/sys/class/infiniband/mlx5_1/ports/1/rate"): "200 Gb/sec (4X HDR)\n",
    ("read", "/sys/bus/pci/devices/0000:5c:00.0/current_link_speed"): "16.0 GT/s PCIe\n",
    ("run", "nvidia-smi", "nvlink", "-s"): "GPU 0: H100\n\t Link 0: 26 GB/s\nGPU 1: H100\n\t Link 0: <inactive>\n",
    ("nvml", "nvmlDeviceGetEccMode", 0): "[1, 1]", ("nvml", "nvmlDeviceGetEccMode", 1): "[0, 0]",
    ("env",): '{"HOME": "/root", "NCCL_ALGO": "Ring", "NCCL_ALGO_X": "1"}',
    ("kernel_log", "NVRM"): '{"lines": [[1.5, "NVRM: boot"], [86.25, "NVRM: Xid (PCI:0000:5b:00): 79"]], "dropped": 0}',
    ("rlimit", "RLIMIT_MEMLOCK"): "[65536, 65536]", ("open", "/dev/infiniband/uverbs0"): Denied("permission denied"),
}  # fmt: skip
XID = "Xid (PCI:0000:5b:00): 79"


RATES, CONF = "/sys/class/infiniband/*/ports/1/rate", "/etc/nccl.conf"
SOURCES = (
    "/sys/class/infiniband/mlx5_1/ports/1/rate", RATES, "/sys/class/infiniband/mlx5_{0,1}/ports/1/rate",
    "/sys/*/*/*/*/1/rate", "/sys/*/*/*/ports/1/rate",
    "/sys/bus/pci/devices/0000:5c:00.0/current_link_{speed,width}", "nvmlDeviceGetEccMode (pending)", "env",
    "getrlimit(RLIMIT_MEMLOCK)", "open /dev/infiniband/uverbs0", "/etc/nccl", "nvmlDeviceGetEcc",
    "nvmlDeviceGetEccMode", "nvidia-smi", "nvidia-smi nvlink -s", "read /etc/nccl.conf", f"{CONF} (2)",
    f"{CONF} two", "environment", "a description of ours",
)  # fmt: skip
LONG: dict[tuple[str, str], Any] = {
    ("read", "/l/exact"): "y" * 400, ("read", "/l/more"): "y" * 401,
    ("read", "/l/long"): "x" * 5000 + "\n" + "line\n" * 1000, ("read", "/l/wide"): ("z" * 399 + "\n") * 30,
    ("read", "/l/tens"): ("z" * 400 + "\n") * 30, ("read", "/l/few"): "".join(f"line {n}\n" for n in range(1, 31)),
    ("sample", "/l/object"): json.dumps({"a": [1], "b": "x" * 110}), ("sample", "/l/short"): '{"a": 1}',
    ("read", "/l/tab"): "a\tb", ("read", "/l/refused"): Denied("d" * 500), ("lines", "/l/none"): "",
}  # fmt: skip


def cited() -> Iterator[tuple[str, object]]:
    """What is quoted of answers, by what a finding cites; kept in tests/data/command_values/excerpts.txt."""
    cases: list[tuple[Finding, str | None]]
    cases = [(kind("GPU1", "is odd", evidence=source), "n0") for source in SOURCES for kind in (fail, note)]
    cases += [(fail(f"mlx5_{n}:1", "is odd", evidence=RATES), "n0") for n in (0, 1)]
    links = "NVML, link by link (nvidia-smi nvlink -s)"
    cases += [(fail(gpu, "x", evidence=links), "n0") for gpu in ("GPU0", "GPU1", "GPU12", "GPUs")]
    for text, line in (("NCCL_NET=IB", 2), ("", 0), ("", 1), ("", 3), ("", 4), ("NCCL_NET…=IB", None),
                       ("NCCL…no", None), ("NET…x", None), ("IB", None), (" IB ", None), ("=IB", None)):  # fmt: skip
        cases += [(fail("NCCL_NET", "is odd", evidence=Evidence(CONF, line, text)), "n0")]
    cases += [(fail("NCCL_ALGO", "is odd", evidence=seen("environment", "NCCL_ALGO=Ring")), "n0"),
              (fail("GPU3", "is odd", evidence=seen("/dev/kmsg", XID)), "n0")]  # fmt: skip
    for nodes, node in (((), "n9"), ((), None), (("n9", "n1"), None), (("n1",), "n0"), (("n0", "n1"), None)):
        cases += [(fail("NCCL_NET", "is odd", evidence=CONF, nodes=nodes), node)]
    cases += [(fail("s", "m", evidence=str(question[1])), "n0") for question in LONG]
    cases += [(fail("s", "m", evidence=seen("/l/few", f"line {n}", n)), "n0") for n in (1, 5, 6, 7, 29, 30)]
    nodes = [Snapshot(name, {}, {}, ANSWERS | LONG) for name in ("n0", "n1")]
    for number, (finding, node) in enumerate(cases):
        verdict = Verdict("a.b", node, Status.FAIL, "t", findings=(finding,))
        found = evidence_excerpts.machine_excerpts([verdict], nodes)
        yield f"{number} {finding.severity.value} {finding.subject}, {node}", [[
            each.node, each.source, each.title, str(each.first), str(each.cited), each.cut,
            *(f"{len(line)} {line[:60]}" for line in each.lines)] for each in found]  # fmt: skip
    answers: dict[tuple[str | int, ...], str] = {("read", f"/proc/{n}"): "1" for n in range(400)}
    for count in (59, 60, 61, 301):
        found_ = [(fail if n > 200 else warn)(f"{n}", "m", evidence=f"/proc/{n}") for n in range(count)]
        many = [Verdict("a.b", "n0", Status.FAIL, "t", findings=(each,)) for each in found_]
        shown = evidence_excerpts.machine_excerpts(many, [Snapshot("n0", {}, {}, answers)])
        yield f"{count} findings", (len(shown), shown[0].source, shown[-1].source)


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


def test_of_twelve_logs_the_first_four_cited_lines_are_shown_wherever_they_are(tmp_path: Path) -> None:
    logs = [tmp_path / f"rank{number}.log" for number in range(13)]
    for log in logs:
        log.write_bytes(b"".join(b"%d\tx%s\r\n" % (n, b"y" * 400 * (n == 50)) for n in range(1, 100)))
    causes = [replace(_cause(str(log), 50), evidence=tuple(Evidence(str(log), n, "") for n in (50, 3, 30, 98, 70)))
              for log in logs]  # fmt: skip
    causes[0] = replace(causes[0], evidence=(), consequences=(Consequence("c", "m", evidence=causes[0].evidence),))
    found = job_files.excerpts(causes, [JobFile(str(log), 1) for log in logs])
    assert [(each.source, each.first, each.cited) for each in found] == [
        (str(logs[0]), 45, (5,)),
        *((str(log), first, (at,)) for log in logs[1:12] for first, at in ((45, 5), (1, 2), (25, 5), (93, 5))),
    ]
    assert found[0].lines == tuple(f"{n}  x" + "y" * 396 * (n == 50) for n in range(45, 56))
