"""A retest is of a row that has a verdict already: what it cannot do takes nothing away."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import ProbeError, UsageError

pytest.importorskip("torch")
from probes.plans import plan

from ncclprobe.probes import sweep
from ncclprobe.session.measure import collectives

NO_ROOM = "64 KiB: two buffers need 128 KiB per rank and rank 1 has only 0 B free; choose smaller sizes (-b and -e)"


class Alone:
    """The exchange of one rank."""

    def collect(self, value: Any) -> list[Any]:
        return [value]

    def share(self, value: Any) -> Any:
        return value


class Recorder:
    """What rank 0 keeps, as far as a sweep fills it. The row fails until it is measured again."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.notes: list[str] = []
        self.progress = SimpleNamespace(expect=lambda rows: None, reach=lambda row, precision: None)
        self.add, self.add_retest, self.note = self.rows.append, self.rows.append, self.notes.append
        self.disturbed = self.skip = lambda found: None

    def failing(self, most: int) -> list[tuple[str, int]]:
        return [("all_reduce", 1 << 16)]


def played(again: Exception | None, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A sweep of one row and one retest, which may be refused."""
    outcomes = iter([None, again])

    def run_once(*_args: Any, **_more: Any) -> Iterator[str]:
        if outcome := next(outcomes):
            raise outcome
        yield "row"

    monkeypatch.setattr(sweep, "run", run_once)
    recorder = Recorder()
    options = SimpleNamespace(repeat=1)
    fields = {
        "plan": plan,
        "exchange": Alone(),
        "set_phase": lambda phase: None,
        "host": Replay({}),
        "options": options,
    }
    collectives.sweep(SimpleNamespace(**fields, recorder=recorder, note=recorder.note))  # type: ignore[arg-type]
    return recorder


def test_a_row_that_has_no_room_to_be_measured_again_keeps_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = played(UsageError(NO_ROOM), monkeypatch)
    assert recorder.rows == ["row"]
    assert recorder.notes == [f"all_reduce 64 KiB was not retested: {NO_ROOM}"]


def test_a_row_that_has_room_is_measured_again_and_a_lost_rank_still_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert played(None, monkeypatch).rows == ["row", "row"]
    with pytest.raises(ProbeError):
        played(ProbeError("rank 1: reset"), monkeypatch)
