"""Logs of jobs that went well have no cause, whatever release wrote them and whatever launcher is before them."""

from ncclprobe.checks.log.known import understood
from ncclprobe.logs.answer import is_condition
from ncclprobe.logs.job_log import JobLog
from ncclprobe.logs.timeline import not_understood
from ncclprobe.model.causes import Cause
from tests.each_row import each_row
from tests.log import healthy
from tests.log.test_examples import explained, whole


def named(log: JobLog) -> list[Cause]:
    """The causes but those that would only explain that the job was slow: these machines have no RDMA."""
    return [each for each in explained(log) if not is_condition(each)]


@each_row("version", healthy.VERSIONS)
@each_row("launcher", healthy.LAUNCHERS)
def test_a_job_that_went_well_has_no_cause(version: str, launcher: str) -> None:
    assert named(whole(healthy.job(version, launcher=launcher))) == []


@each_row("version", healthy.VERSIONS)
def test_all_ranks_in_one_stream_have_no_cause_either(version: str) -> None:
    ranks = [healthy.of_rank(version, rank, 8).splitlines() for rank in range(8)]
    mixed = "\n".join(line for lines in zip(*ranks, strict=True) for line in lines)
    assert named(whole({"job.log": mixed + "\n" + healthy.TORCH})) == []


@each_row("version", healthy.VERSIONS)
def test_its_warnings_are_all_known_to_be_harmless(version: str) -> None:
    assert list(not_understood(whole(healthy.job(version)), (), understood)) == []


def test_a_warning_that_no_release_is_known_to_live_with_is_counted() -> None:
    log = whole({"a": "n1:7:7 [0] x.cc:1 NCCL WARN Something new went wrong\n"})
    assert [each.count for each in not_understood(log, (), understood)] == [1]


def test_nccl_is_read_in_these_logs() -> None:
    log = whole(healthy.job("2.27.3"))
    assert (log.versions["nccl"], log.world_size, len(log.ranks)) == (("2.27.3",), 4, 4)
