"""`ncclprobe bandwidth` over two real ranks: gloo on loopback, started as each launcher starts them, whole and broken.

Nothing here asserts a speed.
"""

import gzip
import importlib.util
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from rank_lab import ENDLESS, SHORT, Lab, by_hand, by_mpirun, by_srun, ended, findings, free_port

from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct
from ncclprobe.report import json as as_json

pytestmark = [pytest.mark.slow, pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.clear()


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(tmp_path_factory.mktemp("shared"))
    yield found
    found.clear()


class Healthy(Struct, frozen=True):
    """A sweep that ended well, as mpirun would start it."""

    codes: list[int]
    out: str
    silent: str
    report: Report
    path: Path


@pytest.fixture(scope="module")
def healthy(shared_lab: Lab) -> Healthy:
    processes = shared_lab.ranks(by_mpirun, *SHORT, "--op", "all_reduce,all_gather")
    codes = [process.wait() for process in processes]
    others = processes[1].out + processes[1].err + processes[0].err + "".join(processes[1].progress)
    return Healthy(codes, processes[0].out, others, shared_lab.report(), shared_lab.report_path)


@pytest.mark.every_time
def test_a_healthy_sweep_passes_though_nothing_judges_its_numbers(healthy: Healthy) -> None:
    assert healthy.codes == [0, 0]
    assert [(m.op, m.place, m.nbytes) for m in healthy.report.measurements] == [
        ("all_reduce", "in", 1024),
        ("all_reduce", "in", 16384),
        ("all_gather", "out", 1024),
        ("all_gather", "in", 1024),
        ("all_gather", "out", 16384),
        ("all_gather", "in", 16384),
    ]
    of_run = {v.id: v.status.value for v in healthy.report.checks if v.id.startswith("run.")}
    del of_run["run.straggler"]  # this machine may be busy
    assert {name for name, status in of_run.items() if status == "pass"} == {
        *("run.init", "run.rank-lost", "run.data", "run.settings")
    }
    assert set(of_run.values()) == {"pass", "skip"}
    assert {v.node for v in healthy.report.checks if v.id.startswith("run.")} == {None}
    assert any(remark.startswith("6 rows measured, none judged") for remark in healthy.report.notes)


def test_what_the_machine_looks_like_is_beside_what_it_measured_and_advisory(healthy: Healthy) -> None:
    machine = [v for v in healthy.report.checks if not v.id.startswith("run.")]
    assert len(machine) > 50
    assert not any(v.required for v in machine)


def test_rows_carry_what_was_measured_and_how(healthy: Healthy) -> None:
    row = healthy.report.measurements[0]
    assert (row.backend, row.mode, row.ranks, row.nodes, row.iters, row.batches) == ("gloo", "blocking", 2, 1, 5, 5)
    assert row.library.name == "gloo"
    assert row.wrong == 0
    assert row.time_us.median is not None
    assert row.busbw_GBps > 0


def keys_by_place(value: Any, place: str = "row") -> dict[str, set[frozenset[str]]]:
    """Return the keys of the objects at each place of `value`: one set of keys where all rows have the same."""
    found: dict[str, set[frozenset[str]]] = {place: {frozenset(value)}} if isinstance(value, dict) else {}
    inner = value.items() if isinstance(value, dict) else (("", each) for each in value)
    for name, each in inner:
        deeper = keys_by_place(each, f"{place}.{name}".rstrip(".")) if isinstance(each, dict | list) else {}
        for at, keys in deeper.items():
            found.setdefault(at, set()).update(keys)
    return found


GONE = {"affinity", "path_rates", "published", "remedy"}
"""Members of the recordings that no report has any more."""


@pytest.mark.parametrize("recorded", ["bandwidth-4", "bandwidth-nproc", "bandwidth-bfloat16-avg", "bandwidth-graph"])
def test_the_report_of_an_nccl_run_has_the_keys_of_a_gloo_runs_row_by_row(healthy: Healthy, recorded: str) -> None:
    """Members that are younger than the recording have their defaults once today's code has written it again."""
    path = Path(__file__).parent / "data" / "on_cpu" / recorded / "report.json.gz"
    raw = gzip.decompress(path.read_bytes()).decode()
    again = as_json.render(as_json.parse(raw, recorded))
    old, nccl, gloo = (json.loads(text) for text in (raw, again, healthy.path.read_text()))
    assert set(old) - GONE <= set(nccl) == set(gloo)
    assert GONE.isdisjoint(nccl)
    for part in ("measurements", "first_call", "launch", "nodes", "checks", "areas"):
        before, on_gpus, on_cpus = (keys_by_place(report[part]) for report in (old, nccl, gloo))
        both = on_gpus.keys() & on_cpus.keys()
        assert {place: on_gpus[place] for place in both} == {place: on_cpus[place] for place in both}, part
        gone = {
            key
            for place in both & before.keys()
            for own in before[place]
            for now in on_cpus[place]
            for key in own - now
        }
        assert gone <= GONE, part
        if part == "measurements":
            assert both >= {"row", *(f"row.{name}" for name in ("time_us", "library", "transport", "samples", "skew"))}


def test_rank_zero_alone_speaks_and_its_table_comes_once(healthy: Healthy) -> None:
    assert healthy.silent == ""
    assert healthy.out.count("busbw") == 2  # above its column, and in the last line
    assert healthy.out.count("all_reduce ") == 3
    assert healthy.report.launch.kind == "openmpi"


def test_no_check_finds_fault_with_what_the_run_set_itself(healthy: Healthy) -> None:
    found = [each.subject for verdict in healthy.report.checks for each in verdict.findings]
    assert [subject for subject in found if subject.startswith("TORCH_")] == []


def test_numbers_that_nothing_judges_are_inconclusive_where_they_must_be_judged_and_stdout_is_nothing_but_json(
    lab: Lab,
) -> None:
    own = ["-m", "ncclprobe.bandwidth", "--backend", "gloo", *SHORT, "--require-judged", "--json", "-"]
    variables = by_srun(free_port())
    processes = [lab.start(own, variables(rank)) for rank in range(2)]
    assert [process.wait() for process in processes] == [3, 3]
    document: dict[str, Any] = json.loads(processes[0].out)
    assert (document["exit_code"], document["launch"]["kind"]) == (3, "slurm")
    assert {row["status"] for row in document["measurements"]} == {"unjudged"}
    assert any("there is nothing to compare them with" in remark for remark in document["notes"])


def test_a_setting_of_one_rank_alone_is_told_and_fails(lab: Lab) -> None:
    variables = by_srun(free_port())
    own = ["-m", "ncclprobe.bandwidth", "--backend", "gloo", *SHORT, "--json", str(lab.report_path)]
    processes = [lab.start(own, variables(0)), lab.start(own, {**variables(1), "GLOO_DEVICE_TRANSPORT": "TCP"})]
    assert [process.wait() for process in processes] == [4, 4]
    assert "ranks differ in GLOO_DEVICE" in processes[0].err
    (verdict,) = [each for each in lab.report().checks if each.id == "run.settings"]
    assert [(each.subject, each.message.partition(" (")[0]) for each in verdict.findings] == [
        ("GLOO_DEVICE_TRANSPORT", "not set on rank 0, is TCP on rank 1")
    ]


def test_torchrun_and_a_baseline_that_is_reached(lab: Lab, healthy: Healthy) -> None:
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--expect", str(healthy.path), "--tolerance", "0.999"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ncclprobe.bandwidth"]
    process = lab.start([*launcher, *own, *SHORT, "-q"])
    assert process.wait() == 0
    assert "torchrun will now print" not in process.err
    report = lab.report()
    assert report.launch.kind == "torchrun"
    assert {m.status for m in report.measurements} <= {"pass", "warn"}  # warn: this machine was busier just now
    assert {m.expectation.basis for m in report.measurements if m.expectation} == {"baseline"}


def test_a_rank_killed_under_torchrun_is_named_and_the_exit_is_called_a_verdict(lab: Lab) -> None:
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--keep", str(lab.folder / "kept")]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ncclprobe.bandwidth"]
    process = lab.start([*launcher, *own, *ENDLESS])
    lab.until_rows(1)
    lab.rank_of(process, 1).kill()
    assert process.wait() == 1
    assert 'torchrun will now print "exitcode  : 4": that is the verdict FAIL above, not a crash' in process.err
    assert [subject for subject, _ in findings(lab.report(), "run.rank-lost")] == ["rank 1"]


def test_ranks_of_our_own_and_an_expectation_that_fails(lab: Lab) -> None:
    bands = lab.folder / "bands.toml"
    bands.write_text(
        '[[expect]]\nop = "all_reduce"\nnbytes = "16K"\nbusbw_GBps = 9e9\ntolerance = 0.1\n'
        'source = "wishlist"\nwhy = "test"\n'
    )
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--expect", str(bands), "--nproc", "2"]
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own, *SHORT])
    assert process.wait() == 4
    report = lab.report()
    assert [m.status for m in report.measurements] == ["unjudged", "fail"]
    ((subject, message),) = findings(report, "run.bandwidth")
    assert subject == "all_reduce 16 KiB"
    assert "at least 8.1e+09 expected" in message
    assert "wishlist" in process.out
    assert "Traceback" not in process.err


def test_what_is_wrong_with_the_machine_is_told_though_no_rank_of_our_own_came_to_measure(lab: Lab) -> None:
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--nproc", "2"]
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own, *SHORT], {"GLOO_SOCKET_IFNAME": "ib9"})
    assert process.wait() == 4
    ((subject, message),) = findings(lab.report(), "env.ifname")
    assert (subject, message.partition(" is ")[0]) == ("GLOO_SOCKET_IFNAME", "'ib9'")


def test_a_rank_killed_in_the_middle_is_named_with_its_phase_and_the_rows_are_kept(lab: Lab) -> None:
    processes = lab.ranks(by_hand(free_port()), *ENDLESS)
    lab.until_rows(1)
    time.sleep(0.2)  # for the next phase to begin; it is told at once, not with the next heartbeat
    processes[1].popen.kill()
    assert processes[0].wait() == 4
    report = lab.report()
    ((subject, message),) = findings(report, "run.rank-lost")
    assert subject == "rank 1"
    assert "heartbeat stopped" in message
    assert "all_reduce 16 MiB" in message
    assert [m.nbytes for m in report.measurements] == [1024]
    assert (report.status.value, report.exit_code) == ("fail", 4)
    assert "rank 1" in processes[0].out


def test_a_stopped_rank_is_named_though_its_peer_hangs_and_none_of_our_own_is_left(lab: Lab) -> None:
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--nproc", "2"]
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own, *ENDLESS])
    lab.until_rows(1)
    second = lab.rank_of(process, 1)
    second.suspend()
    assert process.wait() == 4
    assert [subject for subject, _ in findings(lab.report(), "run.rank-lost")] == ["rank 1"]
    assert ended(second)


def test_a_rank_zero_of_our_own_that_is_killed_is_named_by_who_started_it(lab: Lab) -> None:
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--nproc", "2"]
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own, *ENDLESS])
    lab.until_rows(1)
    lab.rank_of(process, 0).kill()
    assert process.wait() == 4
    report = lab.report()
    ((subject, message),) = findings(report, "run.rank-lost")
    assert (subject, report.exit_code, len(report.measurements)) == ("rank 0", 4, 1)
    assert "ended by SIGKILL" in message
    assert "all_reduce 16 MiB" in message
    assert process.err.startswith("ncclprobe: rank 0 on ")
    assert process.err.count("\n") == 1
    assert "run.rank-lost  rank 0" in process.out


_MOMENTS: dict[str, tuple[list[str], Callable[[Lab], bool]]] = {
    "import": (ENDLESS, lambda lab: len(lab.left()) == 3),  # the launcher and the ranks
    "rows": (ENDLESS, lambda lab: len(lab.left()) == 3 and '"row"' in read(lab.folder)),
    "report": (SHORT, lambda lab: '{"end": ' in read(lab.folder)),
}
"""Options, and whether the moment has come."""


def read(folder: Path) -> str:
    return "".join(log.read_text() for log in folder.rglob("run.jsonl"))


@pytest.mark.parametrize("moment", _MOMENTS)
def test_ranks_of_our_own_end_with_who_started_them_and_nothing_is_left(lab: Lab, moment: str) -> None:
    """SIGKILL, as of a shell or a job that is taken down, asks nobody."""
    options, has_come = _MOMENTS[moment]
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--nproc", "2", "--no-transport-detection"]
    slow = {"PYTHONPATH": str(lab.folder)} if moment == "import" else {}
    (lab.folder / "torch.py").write_text("import time\ntime.sleep(1000)\n")
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own, *options], {"TMPDIR": str(lab.folder), **slow})
    lab.until(lambda: has_come(lab), f"it does not come to {moment}")
    ranks = psutil.Process(process.popen.pid).children(recursive=True)
    process.popen.kill()
    process.wait()
    psutil.wait_procs(ranks, timeout=2.0)
    assert all(map(ended, ranks))  # what the kernel does at any load
    lab.until(lambda: not lab.left(), "something is left")
    if moment == "rows":
        (lost,) = [v for v in lab.report().checks if v.id == "run.rank-lost"]
        assert (lab.report().exit_code, lost.findings) == (3, ())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a host name of its own")
def test_a_host_that_does_not_know_its_own_name_can_measure(lab: Lab) -> None:
    """As a plain container."""
    own = f"{sys.executable} -m ncclprobe bandwidth --backend gloo --nproc 2 {' '.join(SHORT)}"
    argv = ["unshare", "--uts", "sh", "-c", f"hostname no-such-name-x1 && exec {own}"]
    process = lab.start(["-c", f"import os; os.execvp('unshare', {argv})"])
    code = process.wait()
    if "unshare failed" in process.err:
        pytest.skip(process.err)
    assert (code, process.err) == (0, "")


def test_an_output_that_nobody_reads_costs_nothing(lab: Lab) -> None:
    """As of ``| head -1``."""
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--nproc", "2"]
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own, *SHORT])
    assert process.popen.stdout is not None
    process.popen.stdout.close()
    process.popen.stdout = None
    assert process.wait() == 0
    assert process.err == ""
    parts = [line.split(":")[1].strip() for line in process.progress]
    assert parts == ["torch, process group and first calls", "collectives, 2 rows"]
    assert len(lab.report().measurements) == 2


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


def test_a_rank_that_never_arrives_is_named(lab: Lab) -> None:
    processes = lab.ranks(by_hand(free_port(), ranks=3), *SHORT, "--phase-timeout", "6")
    assert [process.wait() for process in processes] == [4, 4]
    report = lab.report()
    assert [subject for subject, _ in findings(report, "run.init")] == ["rank 2"]
    assert {v.id for v in report.checks if v.status.value == "pass" and v.id.startswith("run.")} == set()


@pytest.mark.parametrize("own_ranks", [False, True])
def test_a_torch_that_takes_for_ever_is_nobodys_fault(lab: Lab, own_ranks: bool) -> None:
    """As from a cold network file system: the phase has all of --timeout, and no rank says 4."""
    (lab.folder / "torch.py").write_text("import time\ntime.sleep(1000)\n")
    slow, limits = {"PYTHONPATH": str(lab.folder)}, ["--timeout", "8", "--phase-timeout", "0.5"]
    if own_ranks:
        processes = [lab.start(["-m", "ncclprobe", "bandwidth", "--backend", "gloo", "--nproc", "2", *limits], slow)]
    else:
        seats = by_hand(free_port())
        processes = lab.ranks(lambda rank: seats(rank) | slow, *SHORT, *limits)
    assert {process.wait() for process in processes} == {3}
    for process in processes:
        words = " ".join((process.out + process.err).split())  # however the lines are broken
        assert "--timeout ran out" in words
        assert "import torch" in words
        assert "raise --timeout" in words


_SLOW_ON_ONE = """
import os, sys, time
if os.environ.get("RANK") == "{rank}":
    time.sleep(1000)
found = list(sys.path)
sys.path[:] = [folder for folder in found if folder != os.path.dirname(__file__)]
del sys.modules["torch"]
import torch
sys.path[:] = found  # what this process starts is told the same path
"""


@pytest.mark.parametrize(("slow_rank", "own_ranks"), [(0, False), (1, True)])
def test_a_torch_that_takes_longer_on_one_rank_is_nobodys_fault(lab: Lab, slow_rank: int, own_ranks: bool) -> None:
    """The others wait for longer than a phase, because the process that they wait for runs."""
    (lab.folder / "torch.py").write_text(_SLOW_ON_ONE.format(rank=slow_rank))
    slow, limits = {"PYTHONPATH": str(lab.folder)}, ["--timeout", "12", "--phase-timeout", "0.5"]
    if own_ranks:
        own = ["-m", "ncclprobe", "bandwidth", "--backend", "gloo", "--nproc", "2", "--json", str(lab.report_path)]
        processes = [lab.start([*own, *limits], slow)]
    else:
        seats = by_hand(free_port())
        processes = lab.ranks(lambda rank: seats(rank) | slow, *SHORT, *limits)
    assert {process.wait() for process in processes} == {3}
    assert lab.report().measurements == ()
    assert findings(lab.report(), "run.init") == []


def test_a_rank_zero_that_never_comes_keeps_nobody_waiting(lab: Lab) -> None:
    own = ["-m", "ncclprobe.bandwidth", "--backend", "gloo", "--phase-timeout", "3"]
    process = lab.start(own, by_hand(free_port())(1))
    assert process.wait() == 4
    assert "reach the store at 127.0.0.1" in process.err


def test_a_name_that_does_not_resolve_is_said(lab: Lab) -> None:
    seat = by_hand(free_port())(1) | {"MASTER_ADDR": "no-such-host.invalid"}
    process = lab.start(["-m", "ncclprobe.bandwidth", "--backend", "gloo", "--phase-timeout", "1"], seat)
    assert process.wait() == 4
    assert 'no progress in "resolve the name of rank 0\'s host, no-such-host.invalid"' in process.err


def test_ctrl_c_keeps_what_was_measured(lab: Lab) -> None:
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--nproc", "2"]
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own, *ENDLESS])
    lab.until_rows(1)
    workers = psutil.Process(process.popen.pid).children(recursive=True)
    process.popen.send_signal(signal.SIGINT)
    assert process.wait() == 3
    report = lab.report()
    assert len(report.measurements) == 1
    (lost,) = [v for v in report.checks if v.id == "run.rank-lost"]
    assert (lost.status.value, lost.findings) == ("unknown", ())
    assert "ended by SIGINT in phase 'all_reduce 16 MiB" in lost.why
    assert all(map(ended, workers))


def test_ctrl_c_before_anything_was_measured_is_130_in_one_line(lab: Lab) -> None:
    process = lab.start(["-m", "ncclprobe", "bandwidth", "--backend", "gloo", "--nproc", "2", *ENDLESS])
    end_s = time.monotonic() + 30.0
    while len(psutil.Process(process.popen.pid).children()) < 2:
        assert time.monotonic() < end_s
        time.sleep(0.02)
    process.popen.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert (process.out, process.err) == ("", "ncclprobe: interrupted; nothing was judged\n")


def test_ranks_with_other_options_are_told_instead_of_waiting_for_each_other(lab: Lab) -> None:
    seats = by_hand(free_port())
    processes = [
        lab.start(["-m", "ncclprobe.bandwidth", "--backend", "gloo", *SHORT, "-n", str(5 + rank)], seats(rank))
        for rank in range(2)
    ]
    assert processes[0].wait() == 2
    processes[1].popen.terminate()  # as torchrun would
    assert processes[1].wait() == 2
    assert "rank 1 on " in processes[0].err
    assert "different options from rank 0" in processes[0].err
    assert processes[0].err.count("\n") == 1
    assert processes[1].err == ""


def test_a_port_in_use_is_named(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        own = ["-m", "ncclprobe.bandwidth", "--backend", "gloo", *SHORT]
        process = lab.start(own, by_hand(port)(0))
        assert process.wait() == 2
    assert f"port {port} on this host is in use" in process.err


def test_a_setting_that_falsifies_measuring_makes_judged_rows_inconclusive_and_is_named(lab: Lab) -> None:
    bands = lab.folder / "bands.toml"
    bands.write_text('[[expect]]\nop = "all_reduce"\nnbytes = "16K"\nbusbw_GBps = 1e-6\nsource = "low"\nwhy = "test"\n')
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--expect", str(bands), "--nproc", "2", *SHORT]
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own], {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert process.wait() == 3
    report = lab.report()
    assert [m.status for m in report.measurements] == ["unjudged", "inconclusive"]
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL on every rank" in report.measurements[1].inconclusive_why
    (verdict,) = (v for v in report.checks if v.id == "run.bandwidth")
    assert verdict.status.value == "unknown"
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in verdict.why
    assert any("TORCH_DISTRIBUTED_DEBUG=DETAIL" in text for text in report.notes)
