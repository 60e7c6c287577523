"""Which processes are ranks of a job, by their variables or as a program started them, and what two looks read."""

import pytest

from ncclprobe.facts.job import ranks as looks
from ncclprobe.facts.job.ranks import AskedJob
from tests.facts.made_up_looks import Asked
from tests.facts.made_up_ranks import found, process


def test_what_a_rank_says_twice_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str | bytes] = []
    monkeypatch.setattr(looks, "read", lambda text: (taken.append(text), "it is not read")[1])
    said = {("server", 10, "fr_trace_json", 1): "a", ("server", 11, "fr_trace_json", 1): "b"}
    said |= {("server", 10, "fr_trace_json", 2): "a", ("server", 11, "fr_trace_json", 2): "c"}
    both = looks.looks.run(Asked(said), found(process(10, 0), process(11, 1)), AskedJob())
    assert taken == ["a", "b", "c"]
    assert {both.first.servers, both.second.servers} == {("its records were not read: it is not read",) * 2}
