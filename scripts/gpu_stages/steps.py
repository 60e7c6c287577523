"""The steps of a stage and what came of them, written as they come, so that a stage that is cut short loses nothing."""

import json
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["good", "bad", "failed", "refused", "late"]
"""good: as it should be. bad: it ran, and something differs. failed: it broke. refused: this machine does not have what
it needs. late: no time was left for it."""
FAILURES = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    AssertionError,
    ImportError,
    subprocess.SubprocessError,
)
"""What a step may raise without ending its stage."""
STEPS, BEGUN = "steps.jsonl", "begun"
"""Files of a stage: its steps, and the name of the one that was begun and has not ended."""
STANDINS = "standins"
_LEAST_S = 5.0
_TRACE_LINES = 6


class Refused(RuntimeError):
    """A step that this machine cannot do, and why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step found, as JSON, and what is not as it should be."""

    found: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One line of steps.jsonl. `why`: of what is not good, in a sentence each."""

    name: str
    status: Status
    seconds: float
    why: tuple[str, ...] = ()
    found: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """What all stages share. `variables` is the whole environment of what they start, `out` where results go.

    `standins` is the folder of what replaces a driver in a rehearsal.
    """

    out: Path
    rehearse: bool
    root: Path
    variables: Mapping[str, str]
    mark: str

    @property
    def standins(self) -> Path:
        """The folder of what replaces a driver in a rehearsal."""
        return self.out / STANDINS

    @property
    def backend(self) -> Literal["nccl", "gloo"]:
        """What ranks measure with."""
        return "gloo" if self.rehearse else "nccl"


class StepLog:
    """The steps of one stage, in its folder. A step that an earlier call has written is not run again."""

    def __init__(self, context: Context, folder: Path, deadline_s: float) -> None:
        self._context, self.folder = context, folder
        self._late = time.monotonic() + deadline_s
        folder.mkdir(parents=True, exist_ok=True)
        self._steps = {step.name: step for step in read(folder)}

    @property
    def recorded(self) -> tuple[Step, ...]:
        """All that were run, in their order."""
        return tuple(self._steps.values())

    def left_s(self) -> float:
        """What is left of the stage's time."""
        return self._late - time.monotonic()

    def run(self, name: str, function: Callable[..., Outcome], *arguments: Any, least_s: float = _LEAST_S) -> Step:
        """Run one step, `function(context, folder, *arguments)`, and record it; its folder is its own.

        Where less than `least_s` is left, it is not begun.
        """
        if name in self._steps:
            return self._steps[name]
        folder, started = self.folder / name, time.monotonic()
        if self.left_s() < least_s:
            step = Step(name, "late", 0.0, (f"{self.left_s():.0f} s were left, and it takes {least_s:.0f}",))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            (self.folder / BEGUN).write_text(name)
            step = _run(name, lambda: function(self._context, folder, *arguments), folder, started)
        self._steps[name] = step
        if step.status != "late":  # a later call may have the time
            with (self.folder / STEPS).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(step)) + "\n")
            (self.folder / BEGUN).unlink()
        print(f"  {step.status:8} {step.seconds:6.1f} s  {name}  {'; '.join(step.why)[:160]}", flush=True)
        return step


def _run(name: str, function: Callable[[], Outcome], folder: Path, started: float) -> Step:
    try:
        outcome = function()
    except Refused as refusal:
        return Step(name, "refused", _since(started), (str(refusal),))
    except FAILURES as error:
        (folder / "failed.txt").write_text(traceback.format_exc())
        where = traceback.format_exc().strip().splitlines()[-_TRACE_LINES:]
        return Step(name, "failed", _since(started), (f"{type(error).__name__}: {error}",), {"trace": where})
    return Step(name, "bad" if outcome.problems else "good", _since(started), outcome.problems, outcome.found)


def _since(started: float) -> float:
    return round(time.monotonic() - started, 2)


def read(folder: Path) -> list[Step]:
    """The steps that a stage has written into `folder`; a half last line is dropped."""
    path, found = folder / STEPS, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found.append(Step(**{**row, "why": tuple(row["why"])}))
    return found
