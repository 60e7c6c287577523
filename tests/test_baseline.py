"""``ncclprobe baseline``: files in, a site's expectation out, and what is refused on the way."""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.run.rows import ROW, bandwidth
from ncclprobe.commands import main
from ncclprobe.commands.bandwidth import parse
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.engine.judge import judge
from ncclprobe.expect.baselines import load
from ncclprobe.facts.run.samples import Expected, Notes, Participants
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Status, Verdict
from ncclprobe.model.measurement import Band, Expectation, Fingerprint, Judged
from ncclprobe.model.report import Report, Tool
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.session.measure.expectations import compare_with, fingerprint_of
from ncclprobe.session.measure.recorder import Recorder
from tests.each_row import each_row
from tests.nccl_tests_texts import render_json, render_text

MACHINE = Fingerprint({"gpu": "8 x NVIDIA H100"}, "abc", {"nccl": "2.28.9"})


def report(*rates: float, **changes: Any) -> Report:
    rows = tuple(replace(ROW, busbw_GBps=rate, nbytes=1 << (20 + n), **changes) for n, rate in enumerate(rates))
    return Report(
        tool=Tool("ncclprobe", "0"), started="2026-01-02T03:04:05+00:00", duration_s=1.0, command="",
        status=Status.PASS, exit_code=0, measurements=rows, fingerprint=MACHINE,
    )  # fmt: skip


def saved(path: Path, one: Report) -> str:
    as_json.write(one, str(path))
    return str(path)


def test_runs_are_kept_under_the_fingerprint_of_their_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [saved(tmp_path / f"{n}.json", report(100 + n, 200)) for n in range(3)]
    assert main(["baseline", *runs, "-o", str(tmp_path / "site.json")]) == 0
    (site,) = load(str(tmp_path / "site.json")).values()
    assert [row.busbw_GBps for row in site.rows] == [101, 200]
    assert site.print() == MACHINE
    assert "2 rows of 3 runs written to" in capsys.readouterr().out


def test_what_the_report_itself_expected_more_of_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    band = Expectation(400.0, 350.0, "GB/s", "model", "links", "model")
    path = saved(tmp_path / "a.json", report(100, expectation=band, status="pass"))
    assert main(["baseline", path, "-o", str(tmp_path / "site.json")]) == 3
    assert "this machine should reach 350 at least" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "site.json").exists()


def test_what_is_written_is_exit_0_though_some_rows_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = replace(report(100), measurements=(ROW, replace(ROW, nbytes=2 * ROW.nbytes, wrong=3)))
    path = saved(tmp_path / "a.json", whole)
    assert main(["baseline", path, "-o", str(tmp_path / "site.json")]) == 0
    assert "3 elements were wrong" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_is_given_twice_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, copy = saved(tmp_path / "a.json", report(100)), saved(tmp_path / "b.json", report(100))
    assert main(["baseline", path, path, copy, "-o", str(tmp_path / "site.json")]) == 0
    text = capsys.readouterr().out
    assert text.count("counted once") == 2
    assert "\n1 row of one run written" in text


def test_a_machine_by_name_sets_the_least(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = replace(report(1.0), measurements=(replace(ROW, nbytes=1 << 30, busbw_GBps=20.0),))
    path = saved(tmp_path / "a.json", slow)
    assert main(["baseline", path, "--machine", "dgx-h100", "-o", str(tmp_path / "s.json")]) == 3
    assert "20 GB/s, and this machine should reach" in capsys.readouterr().out


def test_an_old_run_of_nccl_tests_is_a_baseline(tmp_path: Path) -> None:
    own = report(91.75, time_us=replace(ROW.time_us, mean=20.0))
    (tmp_path / "a.json").write_text(render_json(own, own.measurements))
    (tmp_path / "a.log").write_text(render_text(own, own.measurements))
    for name in ("a.json", "a.log"):
        assert main(["baseline", str(tmp_path / name), "-o", str(tmp_path / "site.json")]) == 0
        (site,) = load(str(tmp_path / "site.json")).values()
        assert site.rows[0].busbw_GBps == pytest.approx(91.75, rel=1e-3)


def test_the_file_goes_to_standard_output_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", saved(tmp_path / "a.json", report(100)), "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "ncclprobe.baseline/1"


@each_row("text", ["", "{", '{"a": 1}', "hello\n", "\x00\x01"])
def test_a_file_of_another_kind_is_refused_in_one_line(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text(text)
    assert main(["baseline", str(tmp_path / "x"), "-o", str(tmp_path / "s.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


class Record(Recorder):
    """A recorder that shows what it was told."""

    def __init__(self) -> None:
        asked = parse(["--baseline", "sites"])
        who = Participants("single", 8, ("n0",) * 8, "nccl")
        super().__init__(asked, ask(asked.judging, (), Job(), MEASURED), who)
        self.meet()

    @property
    def said(self) -> tuple[tuple[str, ...], tuple[Band, ...]]:
        facts = self.facts()
        return facts[Notes].texts, facts[Expected].bands

    def passes(self) -> bool:
        """Whether a row that was expected is enough, as it was when it was kept."""
        return self.judged(100.0).status is Status.PASS

    def judged(self, GBps: float) -> Verdict:
        self.add(replace(ROW, busbw_GBps=GBps, wrong=0))
        (verdict,) = judge((), [bandwidth], Job(), self.facts())
        return verdict


def sites(tmp_path: Path, fingerprint: Fingerprint | None = MACHINE) -> str:
    path = saved(tmp_path / "run.json", replace(report(100), fingerprint=fingerprint))
    (tmp_path / "sites").mkdir()
    assert main(["baseline", path, "-o", str(tmp_path / "sites" / "s.json")]) == 0
    return str(tmp_path / "sites")


def test_a_folder_gives_the_baseline_of_this_machine_and_says_what_changed(tmp_path: Path) -> None:
    record, folder = Record(), sites(tmp_path)
    compare_with(record, load(folder), folder, replace(MACHINE, software={"nccl": "2.29.1"}))
    notes, bands = record.said
    assert (len(bands), record.passes()) == (1, True)
    assert notes[0].endswith("was taken: nccl: 2.28.9 -> 2.29.1")


def test_a_slow_row_names_the_setting_that_the_baseline_was_taken_without(tmp_path: Path) -> None:
    record, folder = Record(), sites(tmp_path, replace(MACHINE, software={"settings": "none"}))
    now = fingerprint_of({}, Participants("torchrun", 2, ("n0", "n0"), "nccl", settings={"NCCL_MAX_NCHANNELS": "1"}))
    compare_with(record, load(folder), folder, replace(MACHINE, software=now.software))
    (finding,) = record.judged(10.0).findings
    assert "settings: none -> NCCL_MAX_NCHANNELS=1" in finding.message


def test_no_baseline_is_no_pass(tmp_path: Path) -> None:
    record, folder = Record(), sites(tmp_path)
    compare_with(record, load(folder), folder, Fingerprint({"gpu": "8 x NVIDIA A100"}))
    notes, bands = record.said
    assert (bands, record.passes()) == ((), False)
    assert notes[0].startswith("no baseline: ")
    assert notes[0].endswith("gpu: 8 x NVIDIA H100 -> 8 x NVIDIA A100 (baseline -> now)")


def test_a_baseline_without_a_machine_judges_and_says_so(tmp_path: Path) -> None:
    record, folder = Record(), sites(tmp_path, None)
    compare_with(record, load(folder), folder, MACHINE)
    notes, bands = record.said
    assert (len(bands), record.passes()) == (1, True)
    assert "does not name its machine" in notes[0]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no baseline"):
        load(str(tmp_path))


@each_row("changes", [{"nbytes": 10**400}, {"busbw_GBps": 1e-320}, {"nodes": 0}, {"noise": 0.9999999}])
def test_a_number_out_of_range_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(sites(tmp_path))
    document = json.loads((folder / "s.json").read_text())
    document["rows"][0].update(changes)
    (folder / "s.json").write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["compare", str(folder / "s.json"), str(tmp_path / "run.json")]) == 2
    assert capsys.readouterr().err.endswith("row 1: a number is out of range\n")


def test_a_run_without_a_collective_is_refused_and_compared_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = str(Path(__file__).parent.parent / "reports" / "four-hosts-one-bad-nic.json")
    assert main(["baseline", pairs, "-o", str(tmp_path / "site.json")]) == 2
    assert (
        "contains no collective; give reports of `ncclprobe bandwidth`, or logs of nccl-tests"
        in capsys.readouterr().err
    )
    assert main(["compare", pairs, pairs]) == 3
    assert "pairs and copies are not compared" in " ".join(capsys.readouterr().out.split())


def test_a_page_recommends_a_baseline_only_for_collectives() -> None:
    from ncclprobe.report.html import render

    pairs = as_json.read(str(Path(__file__).parent.parent / "reports" / "four-hosts-one-bad-nic.json"))
    unjudged = replace(pairs, status=Status.PASS, exit_code=0, checks=(), judged=Judged(0, 78))
    assert "ncclprobe baseline" not in render(unjudged)
    assert "baselines contain only collectives" in render(unjudged)
