"""Which processes are ranks of a job, by their variables or as a program started them, and what two looks read."""

import pytest

from ncclprobe.facts.job import ranks as looks
from ncclprobe.facts.job.ranks import AskedJob
from ncclprobe.model.errors import OutOfTime, TimedOut
from tests.facts.made_up_looks import HERE, Asked
from tests.facts.made_up_ranks import found, process


def test_what_a_rank_says_twice_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str | bytes] = []
    monkeypatch.setattr(looks, "read", lambda text: (taken.append(text), "it is not read")[1])
    said = {("server", 10, "fr_trace_json", 1): "a", ("server", 11, "fr_trace_json", 1): "b"}
    said |= {("server", 10, "fr_trace_json", 2): "a", ("server", 11, "fr_trace_json", 2): "c"}
    both = looks.looks.run(Asked(said), found(process(10, 0), process(11, 1)), AskedJob())
    assert taken == ["a", "b", "c"]
    assert {both.first.servers, both.second.servers} == {("its records were not read: it is not read",) * 2}


def test_a_look_that_timeout_cuts_accuses_no_rank() -> None:
    for question in (("server", 10, "fr_trace_json", 2), ("process", 10, 10, 2)):
        with pytest.raises(OutOfTime):
            looks.looks.run(Asked({question: OutOfTime("all that --timeout left")}), HERE, AskedJob())
        late = looks.looks.run(Asked({question: TimedOut("no answer within 1 s")}), HERE, AskedJob())
        assert late.second.servers
