"""Which processes are ranks of a job, by their variables or as a program started them, and what two looks read."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ncclprobe.engine import running
from ncclprobe.facts.job import ranks as looks
from ncclprobe.facts.job.gpus import gpus
from ncclprobe.facts.job.ranks import AskedJob, LocalRanks
from ncclprobe.facts.kernel_log import OF_GPUS
from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import HostError, OutOfTime, ParseError, TimedOut
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.facts.made_up_ranks import OTHER, found, gpu_row, process


def test_of_several_jobs_a_table_says_whose_they_are_and_what_they_run() -> None:
    own = {**process(10, 0), "owner": "ada", "program": "train.py", "age_s": 60.0}
    lines = running.jobs(found(own, process(11, 1, 10), {**OTHER, "program": "finetune.py"}))
    assert [line.split() for line in lines[:3]] == [
        ["--pid", "user", "ranks", "command", "since", "(UTC)", "master"],
        ["10", "ada", "0-1", "train.py", "1969-12-31", "23:59", "n1:29500"],
        ["30", "1000", "0", "finetune.py", "1970-01-01", "00:00", "n1:29501"],
    ]
    assert running.jobs(found(own)) == []


# Two looks at the ranks.

HERE = LocalRanks((found(process(10, 0)).ranks[0],))
WAIT: dict[tuple[str | int, ...], str | HostError] = {("wait", "5.0"): "", ("wait", "1.0"): ""}


def looked(said: Mapping[tuple[str | int, ...], str | HostError], here: LocalRanks = HERE, **asked: bool) -> Any:
    return looks.looks.run(Replay({**WAIT, **said}, older=True), here, AskedJob(**asked))  # type: ignore[arg-type]


def test_what_a_rank_says_twice_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str | bytes] = []
    monkeypatch.setattr(looks, "read", lambda text: (taken.append(text), "it is not read")[1])
    said = {("server", 10, "fr_trace_json", 1): "a", ("server", 11, "fr_trace_json", 1): "b"}
    said |= {("server", 10, "fr_trace_json", 2): "a", ("server", 11, "fr_trace_json", 2): "c"}
    both = looked(said, found(process(10, 0), process(11, 1)))
    assert taken == ["a", "b", "c"]
    assert {both.first.servers, both.second.servers} == {("its records were not read: it is not read",) * 2}


def test_stacks_of_processes_that_a_rank_started_are_read_if_they_cannot_go_on() -> None:
    frames = [{"name": "recv", "filename": "connection.py", "line": 3}]
    children = [{"state": state, "cpu_s": 1.0, "pid": pid, "name": "w"} for state, pid in (("S", 60), ("D", 61))]
    state = json.dumps({"state": "S", "cpu_s": 1.0, "time_s": 9.0, "children": children})
    said = {("process", 10, 10, look): state for look in (1, 2)}
    for pid in (10, 60, 61):
        said |= {("stacks", pid, look): json.dumps([{"os_thread_id": pid, "frames": frames}]) for look in (1, 2)}
    both = looked(said, stacks=True)
    assert [dict(look.of_children).keys() for look in (both.first, both.second)] == [set(), {61}]
    assert not looked(said).second.of_children


class Asked(Replay):
    """Remembers what is asked of ranks, and at which look."""

    def __init__(self, said: Mapping[tuple[str | int, ...], str]) -> None:
        super().__init__({**WAIT, **said}, older=True)
        self.asked: list[tuple[str, int]] = []

    def ask(self, *question: str | int) -> str:
        """Answer from the capture."""
        if question[0] in ("server", "process", "wait", "dump"):
            self.asked.append((str(question[0]), int(question[-1]) if question[0] != "wait" else 0))
        return super().ask(*question)


def test_records_are_written_down_only_where_they_are_missing_and_not_between_both_looks() -> None:
    unnumbered = replace(HERE, ranks=(replace(HERE.ranks[0], rank=None),))
    usual = [("server", 1), ("process", 1), ("wait", 0), ("process", 2), ("server", 2)]
    served = {("server", 10, "fr_trace_json", look): "[]" for look in (1, 2)}
    for here, said, dumps, wanted in (
        (HERE, {}, False, usual), (HERE, served, True, usual), (unnumbered, {}, True, usual),
        (HERE, {}, True, [usual[0], ("dump", 1), *usual[1:], ("dump", 2)]),
    ):  # fmt: skip
        host = Asked(said)
        looks.looks.run(host, here, AskedJob(dumps=dumps))
        assert host.asked == wanted


def test_a_look_that_timeout_cuts_accuses_no_rank() -> None:
    for question in (("server", 10, "fr_trace_json", 2), ("process", 10, 10, 2)):
        with pytest.raises(OutOfTime):
            looked({question: OutOfTime("all that --timeout left")})
        assert looked({question: TimedOut("no answer within 1 s")}).second.servers


def test_gpus_are_asked_at_both_looks_and_the_kernel_for_xids_where_there_are_gpus() -> None:
    refused = {"refused": "Denied", "why": "Insufficient Permissions"}
    lost = {"refused": "Odd", "why": "GPU is lost"}
    line = [50.0, "NVRM: Xid (PCI:0000:5e:00): 79, pid=9, GPU has fallen off the bus."]
    said = {("nvml", "gpusOf", 1, "10"): gpu_row(pci=lost, nvlink_KiB=[0, 0])}
    said |= {("nvml", "gpusOf", 2, "10"): gpu_row(nvlink_KiB=[refused, 9], power_mW=refused)}
    said |= {("kernel_log", OF_GPUS): json.dumps({"lines": [line, [51.0, "NVRM: loading"]]})}
    both = looked(said)
    (first,), (second,) = both.first.gpus, both.second.gpus
    assert (first.pids, first.nvlink_KiB, first.reasons, first.lost) == (
        *((10,), 0, ("hw-thermal-slowdown",), "NVML: GPU is lost"),
    )
    assert first.pci == Absent("NVML: GPU is lost", "Failed")
    assert second.nvlink_KiB == second.power_mW == Absent("NVML: Insufficient Permissions", "Denied")
    assert (second.busy_percent, second.clock_MHz, second.most_MHz, second.lost) == (100, 345, 1980, "")
    assert [(each.kind, each.code) for each in both.xids] == [("xid", "79")]
    without = looked({})
    assert isinstance(without.second.gpus, Absent)
    assert without.xids == Absent("there is no GPU here")
    for text in ("[{}]", "7", "nonsense", '[{"index": -1}]', gpu_row(busy_percent=-1)):
        with pytest.raises(ParseError):
            gpus(Replay({("nvml", "gpusOf", 1, "10"): text}, older=True), [10], 1)
