"""``expect --judge LOG`` without options: what a log says of itself is read, and what it does not say is assumed."""

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import expect
from ncclprobe.expect.recognise import ExpectationContext
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import OPS
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

HEADER = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong"
NCCL_LINE = "n0:70:81 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA"
SIZES = tuple(1 << power for power in range(28, 33))
DIED = "n1: Test NCCL failure common.cu:1204 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '"
H200, L40S, GB300 = "NVIDIA H200", "NVIDIA L40S", "NVIDIA GB300"


@pytest.fixture(autouse=True)
def no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = ExpectationContext(Absent("there is no GPU"), None, "")
    real = expect.machine_of
    monkeypatch.setattr(expect, "machine_of", lambda name, file: real(name, file) if name or file else nothing)


def rows(rates: Sequence[float], ranks: int, op: str = "all_reduce", last: str = "0") -> Iterator[str]:
    """A row for each rate, in GB/s of bus bandwidth; `last` is what stands behind the row in place."""
    own = OPS[op]
    for nbytes, rate in zip(SIZES, rates, strict=False):
        algbw = rate / own.bus_factor(ranks)
        count = nbytes // 4 // (ranks if own.divided else 1)
        one = f"{nbytes / algbw / 1e3:9.1f} {algbw:7.2f} {rate:7.2f}"
        yield f"{nbytes:12} {count:12} float {'sum' if own.reduces else 'none'} -1 {one} 0 {one} {last}"


def devices(gpus: Mapping[int, str], each: int, pid: str = " Pid 7") -> list[str]:
    return [
        f"#  Rank {n:2} Group  0{pid} on n{n // each} device {n % each} [0x{n % each}0] {gpu}"
        for n, gpu in gpus.items()
    ]


def text(rates: Sequence[float], ranks: int, gpu: str = H200, each: int = 8, **more: Any) -> str:
    """A whole log of `ranks`; `above` stands before it, and `listed` are the ranks whose lines it has."""
    listed = more.pop("listed", range(ranks))
    program = more.pop("program", "# Collective test starting: all_reduce_perf")
    average = more.pop("average", sum(rates) / len(rates))
    head = [more.pop("above", ""), program, *devices(dict.fromkeys(listed, gpu), each), HEADER]
    end = ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {average:g}", ""]
    return "\n".join([*head, *rows(rates, ranks, **more), *end])


def judged(tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, *options: str) -> dict[str, Any]:
    path = tmp_path / "run.log"
    path.write_text(log)
    code = expect.main(("--judge", str(path), "--json", "-", *options))
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    return told


def statuses(told: Mapping[str, Any]) -> set[str]:
    return {row["status"] for row in told["rows"]}


FAST, SLOW = (300, 400, 440, 450, 455), (50, 60, 88, 89, 89)


@each_row(
    ("log", "more"),
    [
        (text(FAST, 16, program="[node-a] running a test", listed=(7, 15)), ()),
        (text(FAST, 16, program="", listed=()), ("--machine", "HGX H200", "--nodes", "2")),
        (text(FAST, 16, program="$ mpirun -np 16 ./allreduce_perf -b 256M", listed=(0, 1, 15)), ()),
        (text(FAST, 16, program="AllReduce_perf", listed=(0, 15)), ()),
    ],
    ids=["two of sixteen ranks", "no rank, no program", "a program without hyphen", "a program in capitals"],
)
def test_operation_and_ranks_are_found_however_little_is_said(
    log: str, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = judged(tmp_path, capsys, log, *more)
    assert {(row["op"], row["ranks"], row["nodes"]) for row in told["rows"]} == {("all_reduce", 16, 2)}
    assert statuses(told) == {"pass"}


def test_a_gather_and_an_alltoall_are_told_apart_by_what_was_verified_or_by_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates, quiet = (30, 35, 40, 42, 43), {"program": "# nothing", "each": 2}
    told = judged(tmp_path, capsys, text(rates, 4, op="all_to_all", last="N/A", **quiet))
    assert {row["op"] for row in told["rows"]} == {"all_to_all"}
    both = text(rates, 4, op="all_to_all", **quiet)
    assert {row["op"] for row in judged(tmp_path, capsys, both)["rows"]} == {"all_gather"}
    assert {row["op"] for row in judged(tmp_path, capsys, both, "--op", "all_to_all")["rows"]} == {"all_to_all"}
    with pytest.raises(UsageError, match="is printed, and all_reduce over 4 ranks would be"):
        judged(tmp_path, capsys, both, "--op", "all_reduce")
    unchecked = re.sub(r"(?m)^(?![#\[])(.*)$", lambda row: re.sub(r" 0(?= |$)", " N/A", row[1]), both)
    told = judged(tmp_path, capsys, unchecked)
    assert {(row["op"], row["ranks"], row["status"]) for row in told["rows"]} == {("unknown", 4, "unjudged")}
    assert "all_gather or all_to_all: give --op all_gather" in told["rows"][0]["why"]


MARKS: dict[str, Callable[[int, str], str]] = {
    "mpirun": lambda n, line: f"[1,{n % 16}]<stdout>:{line}",
    "srun": lambda n, line: f" {n % 16}: {line}",
    "kubectl": lambda n, line: f"[pod/nccl-test-launcher-x7/mpi] {line}",
    "kubelet": lambda n, line: f"2026-03-0{1 + n % 9}T10:00:00.123456789Z stdout F {line}",
    "compose": lambda n, line: f"nccl-1  | {line}",
    "kubectl and mpirun": lambda n, line: f"[pod/a/mpi] [1,0]<stdout>: {line}",
    "Ray and mpirun": lambda n, line: f"(head, rank=0, pid=3808) [1,0]<stdout>:{line}",
    "colours": lambda n, line: f"\x1b[32m{line}\x1b[0m",
    "DOS": lambda n, line: line + "\r",
    "a heading of each comment": lambda n, line: line.lstrip("#"),
    "Open MPI 5": lambda n, line: f"[prterun-n0-71@1,0]<stdout>: {line}",
    "Python's logging": lambda n, line: f"2026-11-02 10:11:{n:02},345 - INFO - {line}",
    "syslog": lambda n, line: f"Nov  2 10:11:{n:02} n0 nccl[123]: {line}",
    "numbered lines": lambda n, line: f"{n:4} {line}",
    "CSV": lambda n, line: ",".join(line.split()) if line[:1] != "#" or " size " in line else line,
    "a table of Markdown": lambda n, line: (
        "| " + " | ".join(line.split()) + " |" if line[:1] != "#" or " size " in line else line
    ),
    "decimal commas": lambda n, line: line.replace(".", ",") if line[:1] == " " else line,
}


@each_row("mark", MARKS.values(), ids=MARKS)
def test_marks_colours_and_line_ends_change_nothing(
    mark: Callable[[int, str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "\n".join(mark(n, line) for n, line in enumerate(text(FAST, 16).splitlines()))
    assert judged(tmp_path, capsys, log)["headline"] == "10 rows measured, 10 judged: 10 pass"


LINES = text(FAST, 16).splitlines()
WRAPPED = [line[at : at + 50] for line in LINES for at in range(0, len(line), 50)]


@each_row(
    "lines",
    [
        WRAPPED,
        [line.rstrip() for line in WRAPPED],
        [part for line in LINES for part in ([line[:48], NCCL_LINE, line[48:]] if line[:1] == " " else [line])],
        [line for line in LINES if line != HEADER],
    ],
    ids=["wrapped", "wrapped, without what ends in blanks", "with NCCL's lines inside rows", "without the header"],
)
def test_a_table_is_read_however_it_was_pasted(
    lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = judged(tmp_path, capsys, "\n".join(lines), "--machine", "HGX H200", "--nodes", "2")
    assert told["headline"] == "10 rows measured, 10 judged: 10 pass"


def test_rows_alone_are_shown_and_not_judged_until_a_machine_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "\n".join(rows(FAST, 16))
    told = judged(tmp_path, capsys, log)
    assert {(row["op"], row["ranks"], row["status"]) for row in told["rows"]} == {("all_reduce", 16, "unjudged")}
    assert "this log does not name the GPUs; give --machine" in told["rows"][0]["why"]
    assert statuses(judged(tmp_path, capsys, log, "--machine", "HGX H200", "--nodes", "2")) == {"pass"}
    one = "1048576 262144 float sum -1 10.0 104.86 0.00 0 0.5 2097.15 0.00 0"
    (row, _) = judged(tmp_path, capsys, "\n".join([*devices({0: H200}, 8), one]))["rows"]
    assert "one rank sends nothing" in row["why"]


def test_a_run_that_was_stopped_says_so_and_a_whole_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = text(FAST, 16), "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 10:22 DUE TO TIME LIMIT ***"
    part = whole.partition("# Out")[0]
    assert not judged(tmp_path, capsys, part)["findings"]
    hung = judged(tmp_path, capsys, part + "  8589934592   2147483648 float sum -1")
    assert [each["message"] for each in hung["findings"]] == ["the run hung, or was stopped, in the row of 8 GiB"]
    told = judged(tmp_path, capsys, part + killed)
    assert (told["failed"], told["exit_code"]) == (killed, 3)
    assert judged(tmp_path, capsys, whole + killed)["failed"] is None


def test_assumed_nics_warn_and_never_fail_and_what_would_pass_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = judged(tmp_path, capsys, text(SLOW, 16))
    assert (told["exit_code"], statuses(told)) == (0, {"warn"})
    assert "8 NICs x 400 Gb/s ib; with 2 NICs x 200 Gb/s its rows from 1 GiB would pass" in told["assumed"]
    known = judged(tmp_path, capsys, text(SLOW, 16), "--machine", "8 x H200, 8 x 400 Gb/s ib")
    assert (known["exit_code"], statuses(known), known["assumed"]) == (4, {"fail"}, None)


def test_no_nics_are_named_that_cannot_carry_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rates, words in (((10, 12, 14, 14.5, 14.9), ""), ((2, 3, 4, 4.2, 4.3), "sockets its rows from 1 GiB would")):
        told = judged(tmp_path, capsys, text(rates, 2, "NVIDIA GB10", each=1))
        assert "warn" in statuses(told), rates
        assert words in told["assumed"], rates
        assert words or "would pass" not in told["assumed"]


def test_what_nccl_says_of_its_nics_is_not_assumed_to_be_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = "n0:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
    assert judged(tmp_path, capsys, text(FAST, 16, above=two))["assumed"].startswith("2 NICs x 400 Gb/s roce")
    socket = "n0:1:1 [0] NCCL INFO Using network Socket"
    told = judged(tmp_path, capsys, text((3, 3, 3, 3, 3), 16, above=socket))
    assert "sockets" in told["assumed"]
    assert [each["message"] for each in told["findings"]] == [
        "NCCL used TCP sockets; such nodes usually have 8 NICs x 400 Gb/s ib"
    ]


def test_a_measurement_refutes_an_assumption_and_the_next_description_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates, gpu = (42, 43, 43.5, 43.8, 43.9), "NVIDIA GeForce RTX 5090"
    told = judged(tmp_path, capsys, text(rates, 8, gpu))
    assert told["assumed"] == "P2P, 1 socket (the usual, two sockets, no P2P, cannot be so fast)"
    named = judged(tmp_path, capsys, text(rates, 8, gpu), "--machine", "8 x RTX 5090, P2P")
    assert "write '1 socket' in --machine" in named["findings"][0]["message"]


def test_racks_in_several_domains_are_no_failure_until_somebody_says_that_they_are_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = (250, 300, 340, 352, 357)
    log = text(rates, 16, GB300, each=4, op="all_gather", program="all_gather_perf")
    told = judged(tmp_path, capsys, log)
    assert (told["exit_code"], "fail" in statuses(told)) == (0, False)
    assert "give --domains N, or set NCCL_MNNVL_ENABLE=0" in told["rows"][-1]["why"]
    assert statuses(judged(tmp_path, capsys, log, "--domains", "4")) == {"pass"}
    with pytest.raises(UsageError, match="4 nodes cannot be divided into that many NVLink domains"):
        judged(tmp_path, capsys, log, "--domains", "3")


def test_a_domain_of_nvlink_has_no_more_nodes_than_a_rack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for nodes, words in ((18, "all nodes in one NVLink domain"), (36, "NVLink domains of 18 nodes")):
        told = judged(tmp_path, capsys, text((500, 600, 680, 740, 790), 4 * nodes, GB300, each=4))
        assert words in told["assumed"], nodes
    assert (
        "domain" not in judged(tmp_path, capsys, text((9, 9, 9, 9, 9), 144, GB300, each=4), "--domains", "2")["assumed"]
    )


def test_a_list_that_was_cut_means_boards_of_the_usual_size_and_of_cards_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a100, slow = "NVIDIA A100-SXM4-80GB", (90, 100, 106, 110, 113)
    cases = (
        (a100, 32, range(5), 8, 4),
        (a100, 32, range(2), 8, 4),
        (a100, 16, range(5), 8, 2),
        (a100, 32, range(8), 8, 4),
        (a100, 16, (0, 7, 8, 15), 8, 2),
        (a100, 8, range(5), 8, 1),
        (GB300, 16, (15,), 4, 4),
        (L40S, 32, range(5), 8, None),
        (a100, 12, range(5), 8, None),
    )
    for gpu, ranks, listed, each, nodes in cases:
        told = judged(tmp_path, capsys, text(slow, ranks, gpu, each=each, listed=listed))
        why = told["rows"][0]["why"] or ""
        unknown = "does not show how many GPUs a node has" in why or "unevenly" in why
        assert (unknown, len(told["rows"])) == (nodes is None, 10), (gpu, ranks, listed)
        assert nodes in (None, told["rows"][0]["nodes"]), (gpu, ranks, listed)
        guessed = "8 GPUs per node" in (told["assumed"] or "")
        assert guessed == (gpu == a100 and ranks in (16, 32) and len(listed) < 9 and listed != (0, 7, 8, 15))


def test_gpus_that_the_driver_could_not_name_have_the_name_of_another_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates, unnamed = (560, 640, 700, 740, 760), "NVIDIA Graphics Device"
    first, second = (text(rates, 8, gpu, each=4) for gpu in (unnamed, GB300))
    told = judged(tmp_path, capsys, first)
    assert told["rows"][0]["why"].startswith("not judged: the driver called these GPUs 'NVIDIA Graphics Device'")
    told = judged(tmp_path, capsys, first + second)
    assert {row["table"] for row in told["rows"] if row["status"] == "pass"} == {1, 2}
    assert [each["message"][-60:] for each in told["findings"]] == [
        "taken for NVIDIA GB300, which another table in this log names"[-60:]
    ]
    told = judged(tmp_path, capsys, first + second + text(rates, 8, "NVIDIA B200"))
    assert {row["status"] for row in told["rows"] if row["table"] == 1} == {"unjudged"}


def test_a_machine_that_the_text_names_is_taken_if_it_has_such_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    h100, rates = "NVIDIA H100 80GB HBM3", (213, 264, 298, 318, 331)
    cases = (
        ("two of a3-megagpu-8g here", "a3-megagpu-8g", "pass"),
        ("two of A3_megagpu 8g here", "a3-megagpu-8g", "pass"),
        ("two p4d.24xlarge here", "8 NICs x 400 Gb/s ib", "warn"),
        ("a3-megagpu-8g, or p5.48xlarge", "8 NICs x 400 Gb/s ib", "warn"),
        ("a3-megagpu-8gb", "8 NICs x 400 Gb/s ib", "warn"),
    )
    for above, assumed, status in cases:
        told = judged(tmp_path, capsys, text(rates, 16, h100, above=above))
        assert (assumed in told["assumed"], told["rows"][-1]["status"]) == (True, status), above


def test_gpus_that_a_sentence_names_are_taken_if_no_device_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = (
        ("my 4x H200 box", 4, (330, 346, 357, 360, 362), {"pass"}, 1),
        ("on 2 nodes of 8 \u00d7 NVIDIA H200", 16, FAST, {"pass"}, 2),
        ("8x H200 or 8x B200", 16, FAST, {"unjudged"}, 1),
        ("8x faster, 16x float", 16, FAST, {"unjudged"}, 1),
    )
    for above, ranks, rates, states, nodes in cases:
        told = judged(tmp_path, capsys, text(rates, ranks, above=above, listed=()))
        assert (statuses(told), told["rows"][0]["nodes"]) == (states, nodes), above
        notes = [each["message"] for each in told["findings"] if each["message"].startswith("no device is listed: ")]
        assert len(notes) == ("unjudged" not in states), above


def test_small_rows_are_not_held_to_the_latency_of_nics_that_were_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = text(FAST, 16).replace("268435456     67108864", "1048576       262144")
    slow = re.sub(r"(?m)^( *1048576 +262144 .*)$", "1048576 262144 float sum -1 900 1.17 2.18 0 900 1.17 2.18 0", log)
    assert judged(tmp_path, capsys, slow)["rows"][0]["status"] == "unjudged"
    assert judged(tmp_path, capsys, slow, "--machine", "HGX H200")["rows"][0]["status"] == "warn"


def test_switches_that_cannot_add_are_named_with_their_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "n0:70:81 [0] NCCL INFO NVLS multicast support is not available on dev 0"
    for gpu, rates, notes in (
        (H200, (332, 346, 354, 358, 361), 1),
        ("NVIDIA A100-SXM4-80GB", (220, 226, 230, 232, 233), 0),
    ):
        told = judged(tmp_path, capsys, text(rates, 8, gpu, above=said))
        assert statuses(told) == {"pass"}, gpu
        assert [each["severity"] for each in told["findings"]] == ["warn"] * notes, gpu
        assert all("the lack of NVLS multicast" in each["message"] for each in told["findings"])


def test_data_that_was_not_checked_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word, notes in (("0", 1), ("1", 0)):
        told = judged(tmp_path, capsys, text(FAST, 16, above=f"# nThread 1 nGpus 1 agg iters: 1 validation: {word}"))
        assert [each["severity"] for each in told["findings"]] == ["note"] * notes


def test_a_machine_that_was_assumed_warns_of_no_row_that_reaches_its_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = (186, 192, 195, 198, 200)
    told = judged(tmp_path, capsys, text(rates, 2, "NVIDIA A100-SXM4-80GB"))
    assert (told["assumed"], statuses(told)) == ("GPUs joined by NVSwitch", {"pass"})
    assert "warn" in statuses(
        judged(tmp_path, capsys, text(rates, 2, "NVIDIA A100-SXM4-80GB"), "--machine", "DGX A100")
    )


def test_cards_that_share_the_nics_of_their_nodes_are_held_to_no_fine_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = ("--machine", "2 x L40S, 1 socket, 1 NIC x 100 Gb/s roce")
    for rates, words in (((9.6,) * 5, {"unjudged", "pass"}), ((3.2,) * 5, {"fail"})):
        told = judged(tmp_path, capsys, text(rates, 4, L40S, each=2), *box)
        assert statuses(told) <= words, rates
        assert "(GPUs on PCIe)" in told["rows"][-1]["why"] or "below a third" in told["rows"][-1]["why"]


SETTINGS = {
    "mpirun -np 2 -x NCCL_IB_DISABLE=1 -x NCCL_SOCKET_IFNAME=eth0 ./all_reduce_perf": True,
    "export NCCL_IB_DISABLE=1": True,
    "$ NCCL_DEBUG=INFO NCCL_IB_DISABLE=1 ./all_reduce_perf -g 1": True,
    "CUDA_VISIBLE_DEVICES=0,1 NCCL_IB_DISABLE=1 ./all_reduce_perf -g 1": True,
    "srun --export=ALL,NCCL_DEBUG=INFO,NCCL_IB_DISABLE=1 ./all_reduce_perf": True,
    "docker run -e NCCL_IB_DISABLE='1' image": True,
    "a:12:12 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.": True,
    "# export NCCL_IB_DISABLE=1": False,
    "echo try it with NCCL_IB_DISABLE=1 if this hangs": False,
    "export NCCL_IB_DISABLE=0": False,
}


@each_row(("above", "is_set"), SETTINGS.items())
def test_settings_in_a_log_pass_its_rows_and_are_a_finding_by_their_cost(
    above: str, is_set: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = text((7.8, 8, 8.1, 8.1, 8.1), 2, L40S, each=1, above=above)
    told = judged(tmp_path, capsys, log, "--machine", "1 x L40S, 1 NIC x 200 Gb/s roce")
    found = [each["message"] for each in told["findings"] if each["severity"] == "fail"]
    assert (statuses(told) == {"pass"}, bool(found), told["exit_code"]) == (is_set, is_set, 4)
    assert not is_set or "NCCL_IB_DISABLE=1 in this log costs 65% of all_reduce at 1 GiB" in found[0]


def test_a_setting_of_one_run_is_not_one_of_the_next_and_an_export_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, box = (7.8, 8, 8.1, 8.1, 8.1), ("--machine", "1 x L40S, 1 NIC x 200 Gb/s roce")
    for above, both in (("mpirun -x NCCL_IB_DISABLE=1 all_reduce_perf", False), ("export NCCL_IB_DISABLE=1", True)):
        log = text(slow, 2, L40S, each=1, above=above) + text(
            slow, 2, L40S, each=1, program="# nThread 1 all_reduce_perf"
        )
        found = {each["table"] for each in judged(tmp_path, capsys, log, *box)["findings"]}
        assert found == ({1, 2} if both else {1}), above


def test_several_tables_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "two.log").write_text(text(FAST, 16) + text(SLOW, 16, program="# nThread 1 all_reduce_perf"))
    expect.main(("--judge", str(tmp_path / "two.log")))
    told = capsys.readouterr().out.splitlines()
    assert [line[:33] for line in told if line.startswith("---")] == ["--- all_reduce on 16 ranks, line "] * 2


SWEEPS = {
    (9.8, 10, 3.6, 9.9, 10): "of 1 GiB (out of place) drops to 3.6 GB/s, 2.8x less than the 10 GB/s of 512 MiB",
    (
        9.8,
        10,
        3.6,
        3.5,
        10,
    ): "of 1 GiB to 2 GiB (out of place) drops to 3.5 GB/s, 2.9x less than the 10 GB/s of 512 MiB",
    (9.8, 10, 3.6, 3.5, 3.4): "of 1 GiB to 4 GiB (out of place) drops to 3.4 GB/s, 2.9x less",
    (3, 3, 9.5, 3.1, 3): "of 1 GiB (out of place) jumps to 9.5 GB/s, 3.1x more: its neighbours reach 3 and 3.1 GB/s",
    (3, 4.11, 2.846, 5.49, 6): "of 1 GiB (out of place) drops to 2.846 GB/s, 1.4x less than the 4.11 GB/s of 512 MiB",
    (3, 4.11, 3.3, 5.49, 6): "",
    (3, 4.11, 2.9, 3.9, 5): "",
    (5, 8, 10, 10, 10): "",
    (10, 9, 8, 7.5, 7): "",
}


@each_row(("rates", "words"), SWEEPS.items())
def test_dips_falls_and_jumps_are_named_and_a_smooth_sweep_has_none(
    rates: tuple[float, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [each["message"] for each in judged(tmp_path, capsys, text(rates, 16, "NVIDIA H100 NVL"))["findings"]]
    assert len(found) == (2 if words else 0)
    assert not words or words in found[0]


def test_a_placement_that_drops_less_is_a_note_if_the_other_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = text((220, 225, 230, 232, 234), 4, each=4)
    (whole,) = [line for line in log.splitlines() if line.split()[:1] == [str(2 << 30)]]
    time, algbw, busbw = whole.split()[-4:-1]
    slow = (
        whole[: whole.rindex(time)] + f"{float(time) * 1.42:.1f} {float(algbw) / 1.42:.2f} {float(busbw) / 1.42:.2f} 0"
    )
    (note,) = judged(tmp_path, capsys, log.replace(whole, slow))["findings"]
    assert (note["severity"], "2 GiB (in place) drops to 163" in note["message"]) == ("note", True)


def test_a_table_that_lacks_its_operation_or_ranks_is_read_with_its_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = judged(tmp_path, capsys, "\n".join([HEADER, *rows((110, 212, 338, 364, 367), 960), DIED]))
    assert {(row["op"], row["ranks"], row["status"]) for row in told["rows"]} == {("all_reduce", 0, "unjudged")}
    assert (told["failed"], told["exit_code"]) == (DIED, 4)
    assert "the run failed after the row of 4 GiB" in [each["message"] for each in told["findings"]]
    assert "how many ranks there were: give --ranks N" in told["rows"][0]["why"]
    whole = judged(tmp_path, capsys, "\n".join([HEADER, *rows((110, 212, 338, 364, 367), 960)]), "--ranks", "960")
    assert {row["ranks"] for row in whole["rows"]} == {960}


def test_a_list_below_one_table_belongs_to_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (
        [*devices({n: H200}, 8), HEADER, *rows(FAST, n + 1), "# Out of bounds values : 0 OK"] for n in (15, 1023)
    )
    told = judged(tmp_path, capsys, "\n".join([*first, *second]))
    assert [row["ranks"] for row in told["rows"]] == [16] * 10 + [1024] * 10


def test_wrong_data_that_only_the_summary_counts_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = "\n".join([
        "size count type time algbw busbw error time algbw busbw error",
        "4294967296 134217728 float 29122 129.05 129.05 1e+00 29169 128.84 128.84 1e+00",
        " Out of bounds values : 2 FAILED",
    ])  # fmt: skip
    told = judged(tmp_path, capsys, old)
    assert {(row["op"], row["ranks"], row["status"]) for row in told["rows"]} == {("all_gather", 8, "unjudged")}
    assert (told["exit_code"], told["findings"][0]["severity"]) == (4, "fail")
    assert judged(tmp_path, capsys, old.replace("2 FAILED", "0 OK"))["exit_code"] == 0


def test_ranks_that_share_a_gpu_are_named_and_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = text((2.3, 2.3, 2.3, 2.3, 2.3), 2, "NVIDIA GeForce RTX 5090", each=2)
    twice = re.sub(r"device \d \[0x\d0\]", "device 0 [0000:02:00]", log)
    told = judged(tmp_path, capsys, twice)
    assert statuses(told) == {"unjudged"}
    assert [each["message"][:45] for each in told["findings"]] == ["ranks 0 and 1 are on one GPU, 0000:02:00 of n"]
    for other in (log, twice.replace("0000:02:00", "0x02")):  # a bus without its domain may be that of several
        assert not [each for each in judged(tmp_path, capsys, other)["findings"] if "on one GPU" in each["message"]]


def test_a_row_that_another_writer_broke_is_named_and_the_others_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = text(FAST, 16).splitlines()
    broken = [
        line.replace(" float ", " flNCCLoat ", 1) if line.split()[:1] == [str(1 << 30)] else line for line in lines
    ]
    told = judged(tmp_path, capsys, "\n".join(broken))
    assert told["headline"].startswith("8 rows measured, 8 judged: 8 pass")
    assert any("not read: the row of 1073741824" in each["message"] for each in told["findings"])


def test_an_average_that_is_not_that_of_the_rows_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = judged(tmp_path, capsys, text(FAST, 16, average=99.0))
    (note,) = told["findings"]
    assert (note["severity"], "prints an average of 99 GB/s" in note["message"]) == ("note", True)
    assert not judged(tmp_path, capsys, text(FAST, 16))["findings"]


def test_a_node_of_other_gpus_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = devices(
        {0: "NVIDIA H100 PCIe", 1: "NVIDIA H100 PCIe", 2: "NVIDIA A100 80GB PCIe", 3: "NVIDIA A100 80GB PCIe"}, 2
    )
    log = "\n".join(["all_reduce_perf", *head, HEADER, *rows((1.1, 1.1, 1.1, 1.1, 1.1), 4)])
    messages = [each["message"] for each in judged(tmp_path, capsys, log)["findings"]]
    assert messages == ["n1 has NVIDIA A100 80GB PCIe; n0 has NVIDIA H100 PCIe: the slowest node slows all others"]


def test_gpus_of_others_are_not_judged_with_or_without_their_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for pid, machine in ((" Pid 7", ()), ("", ("--machine", "HGX H200"))):
        head = devices(dict.fromkeys(range(2), "AMD Instinct MI300A"), 8, pid)
        log = "\n".join(["all_reduce_perf", *head, HEADER, *rows((70, 75, 78, 80, 81), 2)])
        told = judged(tmp_path, capsys, log, *machine)
        assert (statuses(told), told["exit_code"]) == ({"unjudged"}, 0)
        assert told["rows"][0]["why"].startswith("not judged: AMD Instinct MI300A is not an NVIDIA GPU")


def test_a_run_that_failed_before_its_first_row_fails_with_its_own_line_and_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = ["all_reduce_perf", *devices(dict.fromkeys(range(8), H200), 8)]
    row = (
        f"{next(rows((1,), 8)).partition(' -1 ')[0]} -1 n0: Test CUDA failure common.cu:389 'an illegal memory access'"
    )
    unhandled = "n0: Test NCCL failure common.cu:1119 'unhandled system error (run with NCCL_DEBUG=INFO …) / '"
    cases = (
        (["n0: Test CUDA failure common.cu:1048 'system not yet initialized'", " .. n0 pid 7: Test failure"],
         "n0: Test CUDA failure common.cu:1048 'system not yet", "nvidia-fabricmanager"),
        (["n0:7:7 [0] misc/ibvwrap.cc:94 NCCL WARN Failed to open libibverbs.so[.1]",
          "n0:7:7 [0] misc/nvmlwrap.cc:74 NCCL WARN Failed to open libnvidia-ml.so.1", unhandled,
          "n1:7:7 [0] transport.cc:1 NCCL WARN Call to connect failed"],
         "NCCL WARN Failed to open libnvidia-ml", ""),
        ([HEADER, row, " .. n0 pid 7: Test failure common.cu:519"],
         "n0: Test CUDA failure common.cu:389 'an illegal", ""),
    )  # fmt: skip
    for said, line, cause in cases:
        told = judged(tmp_path, capsys, "\n".join([*head, *said]))
        failed = told["findings"][-1]
        assert (told["exit_code"], told["rows"]) == (4, []), line
        assert (failed["severity"], failed["message"]) == ("fail", "the run failed before its first row"), line
        assert line in told["failed"], told
        assert cause in told["findings"][0]["message"], told
    told = judged(tmp_path, capsys, "\n".join(head))
    assert (told["exit_code"], [each["severity"] for each in told["findings"]]) == (3, ["warn"])
    assert told["findings"][0]["message"] == "it lists 8 ranks and holds no row: it ended, or hung, before the first"


def test_a_board_of_h800_is_held_to_what_its_switches_reach_and_a_host_path_to_what_is_known_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rates, word in (((200, 205, 210, 213, 215), "pass"), ((155, 160, 162, 162, 162), "fail")):
        told = judged(tmp_path, capsys, text(rates, 8, "NVIDIA H800"))
        assert told["rows"][-1]["status"] == word, rates
    box = "2 x L40S, 2 sockets, no P2P, 2 NICs x 200 Gb/s roce"
    told = judged(tmp_path, capsys, text((9.2, 9.4, 9.5, 9.6, 9.6), 4, L40S, each=2), "--machine", box)
    assert statuses(told) == {"unjudged"}
    assert "through host memory in a node" in told["rows"][-1]["why"]


@each_row(
    ("log", "title"),
    [
        (text(FAST, 16), "PASS · 10 rows measured, 10 judged: 10 pass"),
        (text(SLOW, 16), "WARN · 10 rows measured"),
        ("\n".join(rows(FAST, 16)), "UNKNOWN · 10 rows measured, none judged"),
        (
            "\n".join([*rows(FAST, 16), DIED]),
            "FAIL · 10 rows measured, none judged; 2 findings; the run reports: n1: Test NCCL",
        ),
    ],
)
def test_the_page_is_headed_by_the_worst_row_and_none_judged_is_unknown(log: str, title: str, tmp_path: Path) -> None:
    path, page = tmp_path / "log.txt", tmp_path / "page.html"
    path.write_text(log)
    assert expect.main(("--judge", str(path), "--html", str(page))) == (4 if DIED in log else 0)
    assert title in html.unescape(page.read_text())
