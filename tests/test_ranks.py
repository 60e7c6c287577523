"""The measuring commands over real gloo ranks on loopback: started as each launcher starts them, whole and broken.

Nothing here asserts a speed, or that nobody is slow. What one process can show is in tests/session and tests/probes.
"""

import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from pathlib import Path

import psutil
import pytest
from launching import ENDLESS, SHORT, Launcher, Process, by_hand, by_mpirun, by_srun, ended, free_port

from ncclprobe.host.run_log import FILE
from ncclprobe.model.report import Report
from ncclprobe.report import json as as_json

pytestmark = [pytest.mark.slow, pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")]

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ncclprobe.bandwidth"]
BANDS = '[[expect]]\nop = "all_reduce"\nnbytes = "16K"\nbusbw_GBps = {}\ntolerance = 0.1\nsource = "s"\nwhy = "w"\n'


class Lab(Launcher):
    """Starts ranks, leaves nothing behind, and reads the report."""

    def report(self) -> Report:
        return as_json.read(str(self.report_path))

    def findings(self, check: str) -> list[tuple[str, str]]:
        return [(f.subject, f.message) for v in self.report().checks if v.id == check for f in v.findings]

    def own_ranks(
        self, *argv: str, command: str = "bandwidth", count: int = 2, under: Mapping[str, str] | None = None
    ) -> Process:
        """The command with --nproc, `under` these variables."""
        own = ["-m", "ncclprobe", command, "--backend", "gloo", "--json", str(self.report_path)]
        return self.start([*own, "--nproc", str(count), *argv], under)

    def logged(self) -> str:
        return "".join(log.read_text() for log in self.folder.rglob(FILE))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.clear()


# Each launcher.


@pytest.mark.every_time
def test_what_was_measured_under_mpirun_is_a_baseline_that_is_reached_under_torchrun(lab: Lab) -> None:
    zero, one = lab.ranks(by_mpirun, *SHORT)
    assert [zero.wait(), one.wait()] == [0, 0]
    assert "".join((zero.err, one.out, one.err, *one.progress)) == ""
    assert lab.report().launch.kind == "openmpi"
    judged = ["--expect", str(lab.report_path), "--tolerance", "0.999", "--json", str(lab.folder / "second.json")]
    process = lab.start([*TORCHRUN, "--backend", "gloo", *judged, *SHORT, "-q"])
    assert process.wait() == 0
    assert "torchrun will now print" not in process.err
    report = as_json.read(str(lab.folder / "second.json"))
    assert report.launch.kind == "torchrun"
    assert {m.status for m in report.measurements} <= {"pass", "warn"}  # warn: this machine was busier just now
    assert {m.expectation.basis for m in report.measurements if m.expectation} == {"baseline"}


def test_under_srun_numbers_that_nothing_judges_are_inconclusive_and_stdout_is_nothing_but_json(lab: Lab) -> None:
    own, variables = ["-m", "ncclprobe.bandwidth", "--backend", "gloo", *SHORT], by_srun(free_port())
    processes = [lab.start([*own, "--require-judged", "--json", "-"], variables(rank)) for rank in range(2)]
    assert [process.wait() for process in processes] == [3, 3]
    document = json.loads(processes[0].out)
    assert (document["exit_code"], document["launch"]["kind"]) == (3, "slurm")
    assert {row["status"] for row in document["measurements"]} == {"unjudged"}
    assert any("there is nothing to compare them with" in remark for remark in document["notes"])


def test_a_setting_of_one_rank_alone_is_told_and_fails(lab: Lab) -> None:
    variables = by_srun(free_port())
    own = ["-m", "ncclprobe.bandwidth", "--backend", "gloo", *SHORT, "--json", str(lab.report_path)]
    processes = [lab.start(own, variables(0)), lab.start(own, {**variables(1), "GLOO_DEVICE_TRANSPORT": "TCP"})]
    assert [process.wait() for process in processes] == [4, 4]
    assert "ranks differ in GLOO_DEVICE" in processes[0].err
    ((subject, message),) = lab.findings("run.settings")
    assert (subject, message.partition(" (")[0]) == ("GLOO_DEVICE_TRANSPORT", "not set on rank 0, is TCP on rank 1")


def test_under_torchrun_a_rank_that_is_killed_is_named_and_the_exit_is_called_a_verdict(lab: Lab) -> None:
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--keep", str(lab.folder / "kept")]
    process = lab.start([*TORCHRUN, *own, *ENDLESS])
    lab.until_rows(1)
    lab.rank_of(process, 1).kill()
    assert process.wait() == 1
    said = 'torchrun will now print "exitcode  : 4": that is the verdict FAIL above, not a crash'
    _, announced, below = process.err.partition(said)
    assert announced
    assert "ncclprobe: " not in below
    assert [subject for subject, _ in lab.findings("run.rank-lost")] == ["rank 1"]


@pytest.mark.parametrize(
    ("busbw", "variables", "code", "status", "says"),
    [
        ("9e9", {}, 4, "fail", "at least 8.1e+09 expected"),
        ("1e-6", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, 3, "inconclusive", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ],
)
def test_ranks_of_our_own_are_judged_by_a_file_and_by_what_disturbs_them(
    lab: Lab, busbw: str, variables: dict[str, str], code: int, status: str, says: str
) -> None:
    (lab.folder / "bands.toml").write_text(BANDS.format(busbw))
    process = lab.own_ranks("--expect", str(lab.folder / "bands.toml"), *SHORT, under=variables)
    assert process.wait() == code
    report = lab.report()
    assert [m.status for m in report.measurements] == ["unjudged", status]
    (verdict,) = (v for v in report.checks if v.id == "run.bandwidth")
    assert [f.subject for f in verdict.findings] == ["all_reduce 16 KiB"] * (code == 4)
    assert says in "".join((verdict.why, *(f.message for f in verdict.findings)))
    assert "Traceback" not in process.err


def test_what_is_wrong_with_the_machine_is_told_though_no_rank_came_to_measure(lab: Lab) -> None:
    assert lab.own_ranks(*SHORT, under={"GLOO_SOCKET_IFNAME": "ib9"}).wait() == 4
    ((subject, message),) = lab.findings("env.ifname")
    assert (subject, message.partition(" is ")[0]) == ("GLOO_SOCKET_IFNAME", "'ib9'")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a host name of its own")
def test_a_host_that_does_not_know_its_own_name_can_measure(lab: Lab) -> None:
    """As a plain container."""
    own = f"{sys.executable} -m ncclprobe bandwidth --backend gloo --nproc 2 {' '.join(SHORT)}"
    process = lab.run(["unshare", "--uts", "sh", "-c", f"hostname no-such-name-x1 && exec {own}"])
    code = process.wait()
    if "unshare failed" in process.err:
        pytest.skip(process.err)
    assert (code, process.err) == (0, "")


# Ranks that are lost.


@pytest.mark.parametrize(("rank", "hit", "says"), [(1, "suspend", "heartbeat stopped"), (0, "kill", "by SIGKILL")])
def test_a_rank_of_our_own_that_is_stopped_or_killed_is_named_by_who_started_it(
    lab: Lab, rank: int, hit: str, says: str
) -> None:
    process = lab.own_ranks(*ENDLESS)
    lab.until_rows(1)
    victim = lab.rank_of(process, rank)
    getattr(victim, hit)()
    assert process.wait() == 4
    ((subject, message),) = lab.findings("run.rank-lost")
    assert (subject, lab.report().exit_code, len(lab.report().measurements)) == (f"rank {rank}", 4, 1)
    assert says in message
    assert "all_reduce 16 MiB" in message
    assert f"run.rank-lost  rank {rank}" in process.out
    assert ended(victim)
    if rank == 0:
        assert process.err.startswith("ncclprobe: rank 0 on ")
        assert process.err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_rank_zero_the_others_say_so_and_leave(lab: Lab, number: signal.Signals) -> None:
    """A stopped rank 0 wedges the store that it serves, and with it every client's call."""
    processes = lab.ranks(by_hand(free_port()), *ENDLESS)
    lab.until_rows(1)
    processes[0].popen.send_signal(number)
    assert processes[1].wait() == 4
    (line,) = processes[1].err.splitlines()
    assert line.startswith("ncclprobe: rank 1 on ")
    assert "rank 0" in line
    processes[0].popen.kill()  # as whoever takes the job down does to one that is stopped
    processes[0].wait()
    assert lab.report().exit_code == 3, "the report that rank 0 wrote first says that the run was cut short"


# Signals, and who started the ranks.

MOMENTS: dict[str, tuple[list[str], Callable[[Lab], bool]]] = {
    "import": (ENDLESS, lambda lab: len(lab.left()) == 3),  # the launcher and the ranks
    "rows": (ENDLESS, lambda lab: len(lab.left()) == 3 and '"row"' in lab.logged()),
    "report": (SHORT, lambda lab: '{"end": ' in lab.logged()),
}
"""Options, and whether the moment has come."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_ranks_of_our_own_end_with_who_started_them_and_nothing_is_left(lab: Lab, moment: str) -> None:
    """SIGKILL, as of a shell or a job that is taken down, asks nobody."""
    options, has_come = MOMENTS[moment]
    (lab.folder / "torch.py").write_text("import time\ntime.sleep(1000)\n")
    slow = {"PYTHONPATH": str(lab.folder)} if moment == "import" else {}
    process = lab.own_ranks("--no-transport-detection", *options, under=slow)
    lab.until(lambda: has_come(lab), f"it does not come to {moment}")
    ranks = psutil.Process(process.popen.pid).children(recursive=True)
    process.popen.kill()
    process.wait()
    psutil.wait_procs(ranks, timeout=2.0)
    assert all(map(ended, ranks))  # what the kernel does at any load
    lab.until(lambda: not lab.left(), "something is left")
    if moment == "rows":
        assert (lab.report().exit_code, lab.findings("run.rank-lost")) == (3, [])


def test_ctrl_c_keeps_what_was_measured(lab: Lab) -> None:
    process = lab.own_ranks(*ENDLESS)
    lab.until_rows(1)
    workers = psutil.Process(process.popen.pid).children(recursive=True)
    process.popen.send_signal(signal.SIGINT)
    assert process.wait() == 3
    (lost,) = [v for v in lab.report().checks if v.id == "run.rank-lost"]
    assert (len(lab.report().measurements), lost.status.value, lost.findings) == (1, "unknown", ())
    assert "ended by SIGINT in phase 'all_reduce 16 MiB" in lost.why
    assert all(map(ended, workers))


def test_ctrl_c_before_anything_was_measured_is_130_in_one_line(lab: Lab) -> None:
    process = lab.own_ranks(*ENDLESS)
    lab.until(lambda: len(psutil.Process(process.popen.pid).children()) == 2, "no ranks are started")
    process.popen.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert (process.out, process.err) == ("", "ncclprobe: interrupted; nothing was judged\n")


# Starts that come to nothing.


@pytest.mark.parametrize(
    ("rank", "changes", "code", "says"),
    [
        (1, {}, 4, "reach the store at 127.0.0.1"),
        (1, {"MASTER_ADDR": "no.invalid"}, 4, 'no progress in "resolve the name of rank 0\'s host, no.invalid"'),
        (0, {"MASTER_PORT": "taken"}, 2, "port {} on this host is in use"),
    ],
)
def test_a_rank_that_reaches_nobody_says_what_it_tried(
    lab: Lab, rank: int, changes: dict[str, str], code: int, says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        seat = by_hand(free_port())(rank) | changes
        seat |= {"MASTER_PORT": taken} if "MASTER_PORT" in changes else {}
        process = lab.start(["-m", "ncclprobe.bandwidth", "--backend", "gloo", "--phase-timeout", "2"], seat)
        assert process.wait() == code
    assert says.format(taken) in process.err


# The other commands.


@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_among_pairs_is_named_and_the_others_play_on(lab: Lab, hit: signal.Signals) -> None:
    """It is set aside; its partner of that moment connects anew with the others if it was stopped."""
    ranks = lab.ranks(by_hand(free_port(), 4), "-e", "16M", "--phase-timeout", "15", count=4, command="pairs")
    lab.until(lambda: '{"sample": {"pair":' in lab.logged(), "no pair was measured")
    ranks[2].popen.send_signal(hit)
    assert [rank.wait() for number, rank in enumerate(ranks) if number != 2] == [4] * 3, ranks[0].err
    ((subject, message),) = lab.findings("run.rank-lost")
    assert subject == "rank 2"
    assert "its heartbeat stopped" in message
    assert "phase 'pairs, round" in message
    report = lab.report()
    found = report.localisation
    assert found
    assert (found.complete, [(each.rank, each.gone) for each in found.excluded_ranks]) == (True, [(2, True)])
    assert all("rank 2" in (pair.src, pair.dst) for pair in found.lost)
    one_way = {(row.src, row.dst) for row in report.pairs if not row.both and not row.step}
    assert set(permutations((0, 1, 3), 2)) <= one_way
    assert all(row.wrong == 0 for row in report.pairs)
    assert "rank 2, which is gone" in ranks[0].out


def test_one_rank_copies_within_its_memory_and_that_is_no_pass_where_copies_must_be_judged(lab: Lab) -> None:
    own = ["-m", "ncclprobe", "copies", "--backend", "gloo", "--require-judged", "--json", str(lab.report_path)]
    run = lab.start(own)
    assert run.wait() == 3, run.err
    rows = lab.report().copies
    assert {(row.kind, row.device) for row in rows} >= {("host", "cpu"), ("host", "cpu memcpy")}
    assert all(row.status == "unjudged" and row.min_GBps > 0 for row in rows)
    assert "within host" in run.out
    assert "no expectation for copies is known on this machine" in " ".join(run.out.split())
