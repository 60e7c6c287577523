"""The record of a run that a test makes, and the report that it becomes."""

from pathlib import Path
from typing import Any

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import bandwidth as command_line
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.expect.bands import from_toml
from ncclprobe.facts.run.samples import Attendance, LostRank, Participants
from ncclprobe.model.measurement import Band
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report.delivery import Output
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.watchdog.ending import Ending

ROW_OK = replace(ROW, wrong=0)
LOST = Ending(attendance=Attendance(2, (LostRank(1, "h1", "timing", "its heartbeat stopped"),)))


def bands(low: float) -> tuple[Band, ...]:
    entry = f'op = "all_reduce"\nnbytes = "1M"\nbusbw_GBps = 1000\nthreshold_GBps = {low}\nsource = "s"\nwhy = "w"\n'
    return from_toml("[[expect]]\n" + entry, "b")


def recorder(
    path: Path | str, expected: tuple[Band, ...] = (), met: bool = True, quiet: bool = True, **options: Any
) -> Recorder:
    """The record of two ranks that were to measure all_reduce of 1 MiB."""
    output = Output({"json": str(path)}, quiet=quiet)
    asked = replace(command_line.parse(["-b", "1M", "-e", "1M"]), output=output, transport=False, **options)
    question = ask(asked.judging, ("bandwidth",), Job("gloo"), MEASURED)
    found = Recorder(asked, question, Participants("environment", 2, ("h0", "h1"), "gloo"), expected)
    if met:
        found.meet()
    return found


def closed(record: Recorder, path: Path, ending: Ending | None = None) -> Report:
    code = record.close(ending)
    report = as_json.read(str(path))
    assert report.exit_code == code
    return report


def of_run(report: Report) -> dict[str, str]:
    """The status of each check that judges the run and applied to it."""
    own = [v for v in report.checks if v.id.startswith("run.")]
    assert {v.node for v in own} == {None}
    return {v.id: v.status.value for v in own if v.status.value != "skip"}


def why(report: Report, name: str) -> str:
    (verdict,) = [v for v in report.checks if v.id == name]
    return verdict.why


class DictStore(dict[str, str]):
    """A store without a server. Like torch's, it answers in bytes."""

    def set(self, key: str, value: str, /) -> None:
        self[key] = value

    def get(self, key: str, /) -> bytes:  # type: ignore[override]
        return self[key].encode()

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        return [self.get(key) for key in keys]

    def check(self, keys: list[str], /) -> bool:
        return all(key in self for key in keys)

    def delete_key(self, key: str, /) -> bool:
        return self.pop(key, None) is not None
