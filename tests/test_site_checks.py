"""A site's own checks: found where they are installed or configured, told apart, and unable to break a run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ncclprobe.commands import checks as command
from ncclprobe.commands import explain
from ncclprobe.engine import promises, site, suppressions
from ncclprobe.engine.diagnose import MACHINE, Judging, ask, diagnose, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.facts.memory import Memory
from ncclprobe.model import additions, bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode, Status, Verdict
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.report import json as as_json
from tests.each_row import each_row

EXAMPLE = Path(__file__).resolve().parents[1] / "docs" / "examples" / "site-checks"
SMALL = Snapshot("n0", {Memory: Memory(8 << 30, 8 << 30)})


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation's example, installed as a site would, without a network."""
    pytest.importorskip("setuptools")
    pytest.importorskip("pip")
    source, target = tmp_path_factory.mktemp("source") / "acme", tmp_path_factory.mktemp("site-packages")
    shutil.copytree(EXAMPLE, source)
    options = ("--quiet", "--no-index", "--no-build-isolation", "--no-deps", "--target", str(target))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target


def run(target: Path, cwd: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    plain = {name: value for name, value in os.environ.items() if "NCCL_" not in name}  # settings change the rates
    env = {**plain, "PYTHONPATH": os.pathsep.join((str(target), str(EXAMPLE.parents[2])))}
    command = [sys.executable, "-m", "ncclprobe", *argv]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


def test_an_installed_distributions_findings_are_in_the_report_with_its_name(acme: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = run(acme, tmp_path, "doctor", "--local", "--backend", "gloo", "--json", str(path), "--select", "site-acme.*")
    assert done.returncode in (ExitCode.OK, ExitCode.FAIL), done.stderr
    report = as_json.read(str(path))
    assert {verdict.id for verdict in report.checks} == {"site-acme.host-memory", "site-acme.kernel"}
    assert "site-acme.* are checks of acme-ncclprobe 1.2, not of ncclprobe" in report.notes
    assert "acme-ncclprobe 1.2" in done.stdout


def test_an_installed_distributions_checks_and_machines_are_tried_and_known(acme: Path, tmp_path: Path) -> None:
    tried = run(acme, tmp_path, "checks", "--test", "acme")
    assert (tried.returncode, tried.stdout.splitlines()[-1]) == (
        ExitCode.OK,
        "2 checks of acme-ncclprobe 1.2, 0 break a promise",
    )
    asked = ["--machine", "ACME H100, 4 NICs", "--nodes", "2", "-b", "1G", "-e", "1G", "--json", "-"]
    known = run(acme, tmp_path, "expect", *asked)
    assert json.loads(known.stdout)["rows"][0]["expectation"]["source"] == "acceptance of 2026-03-02, 40 pairs of nodes"


def test_nothing_of_the_working_directory_is_run(acme: Path, tmp_path: Path) -> None:
    """``python -m`` puts it first on the path: a distribution lies there, and a module of the installed one's name."""
    evil = tmp_path / "acme_ncclprobe"
    evil.mkdir()
    for name in ("__init__", "checks"):
        (evil / f"{name}.py").write_text("raise SystemExit(99)")
    metadata = tmp_path / "evil-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[ncclprobe.checks]\nevil = acme_ncclprobe.checks\n")
    done = run(acme, tmp_path, "checks", "--json", "-")
    listed = {row["id"] for row in json.loads(done.stdout)["checks"]}
    assert {each for each in listed if each.startswith("site-")} == {"site-acme.host-memory", "site-acme.kernel"}


def test_entry_points_are_sorted_by_name_and_only_folders_that_are_trusted_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"b-1.dist-info": "[ncclprobe.checks]\nzeta = b.z\n[other]\nx = y\n", "d-3": "[ncclprobe.checks]\nno = d\n",
            "c-2.egg-info": "[ncclprobe.checks]\nalpha = c.a\n",
            "m-4.dist-info": "[ncclprobe.machines]\nm = m.m\n"}  # fmt: skip
    for name, text in said.items():
        (tmp_path / "x" / name).mkdir(parents=True)
        (tmp_path / "x" / name / "entry_points.txt").write_text(text)
        (tmp_path / "x" / name / ("PKG-INFO" if "egg" in name else "METADATA")).write_text(
            f"Metadata-Version: 2.1\nName: {'' if name[0] == 'm' else name[0]}\nVersion: {name[2]}\n")  # fmt: skip
    (tmp_path / "x" / "e-5.dist-info").mkdir()  # without entry points
    path = [str(tmp_path / "x"), str(tmp_path / "no.zip")]
    monkeypatch.setattr(sys, "path", ["", *path, path[0]])
    monkeypatch.chdir(tmp_path)
    checks, machines = ([(each.name, each.module, each.origin) for each in additions.installed(group)]
                        for group in (additions.CHECKS, additions.MACHINES))  # fmt: skip
    assert checks == [("alpha", "c.a", "c 2"), ("zeta", "b.z", "b 1")]
    assert machines == [("m", "m.m", "m-4 4")]
    monkeypatch.chdir(tmp_path / "x")
    assert additions.trusted_path() == path[1:]
    shutil.rmtree(tmp_path / "x")
    assert additions.trusted_path() == [*path, path[0]]


CHECK = '''
from ncclprobe.facts.memory import Memory
from ncclprobe.model.findings import fail
from ncclprobe.model.registry import check

@check(bad=lambda: [(Memory(1, 1),)], good=lambda: [(Memory(64 << 30, 1),)])
def little_memory(memory: Memory):
    """The node has little memory.

    Right: the node has much memory.
    Why: little memory is little, which every reader of this reason will see.
    Fix: buy some.
    """
    {body}
'''
OBJECTS = 'yield from [fail("memory", "is little", evidence="x", action="repair")] * (memory.total_bytes < 9 << 30)'


def written(folder: Path, body: str = OBJECTS, name: str = "bios") -> Path:
    path = folder / f"{name}.py"
    path.write_text(CHECK.replace("{body}", body))
    path.chmod(0o644)
    return path


def said(path: Path) -> Verdict:
    (verdict,) = judge([SMALL], site.load_file(path), Job())
    return verdict


def test_a_files_checks_have_its_name_before_their_own(tmp_path: Path) -> None:
    (found,) = site.load_file(written(tmp_path, name="rack_power"))
    assert (found.id, found.origin) == ("site-rack-power.little-memory", str(tmp_path / "rack_power.py"))
    assert list(promises.broken(found)) == []
    assert said(written(tmp_path)).status is Status.FAIL
    (found,) = site.load_file(written(tmp_path, name="env"))  # no prefix of ours can be taken
    assert found.id == "site-env.little-memory"


CONDITION = '''import applies, check

@applies
def ours(memory: Memory) -> bool:
    """to our nodes."""
    raise {raised}
'''


def conditional(raised: str) -> str:
    """Return a check whose condition raises."""
    text = CHECK.replace("{body}", OBJECTS).replace("import check\n", CONDITION.format(raised=raised))
    return text.replace("@check(", "@check(applies=ours, ")


BROKEN = {
    "raises": (CHECK.replace("{body}", "raise KeyError('x'); yield"), "the check itself failed: KeyError: 'x'"),
    "raises what is no Exception": (CHECK.replace("{body}", "raise SystemExit(0); yield"),
                                    "itself failed: SystemExit: 0"),
    "yields no finding": (CHECK.replace("{body}", "yield 'memory is little'"), "it yielded str instead of a finding"),
    "yields a finding that is none": (CHECK.replace("{body}", "yield fail(3, 'is little')"),
                                      "Expected `str`, got `int`"),
    "does not end": (CHECK.replace("{body}", "import time\n    time.sleep(60); yield"),
                     "the check did not finish within 0.2 s"),
    "finds too much": (CHECK.replace("{body}", "yield from [fail('a', 'b')] * 9"),
                       "the check returned more than 5 findings"),
    "its condition raises": (conditional("KeyError('x')"), "the check itself failed: KeyError: 'x'"),
    "its condition leaves": (conditional("SystemExit(3)"), "the check itself failed: SystemExit: 3"),
    "its file does not parse": ("def", "its import raises SyntaxError"),
    "its file raises": ("class Own(Exception): pass\nraise Own('no licence')", "its import raises Own: no licence"),
    "its file says much": (f"raise ValueError({'x' * 300!r})", f"its import raises ValueError: {'x' * 200}."),
    "its file leaves": ("raise SystemExit(0)", "its import raises SystemExit: 0"),
    "its file does not end": ("import time\ntime.sleep(60)", "its import did not finish within 0.2 s"),
    "its file holds no check": ("x = 1", "it contains no check"),
    "its file holds ours": ("from ncclprobe.checks.pci.links import gpu_width", "it contains no check"),
}  # fmt: skip


@each_row(("text", "why"), BROKEN.values(), ids=BROKEN)
def test_a_check_that_breaks_is_unknown_and_one_that_cannot_be_loaded_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    monkeypatch.setattr(bounds, "SITE_CHECK_S", 0.2 if "sleep" in text else 30.0)
    monkeypatch.setattr(bounds, "SITE_LOAD_S", 0.2 if "sleep" in text and "check" not in text else 30.0)
    monkeypatch.setattr(bounds, "SITE_FINDINGS", 5)
    path = written(tmp_path)
    path.write_text(text)
    verdict = said(path)
    loaded = "@check" in text
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, not loaded)
    assert verdict.id == ("site-bios.little-memory" if loaded else "site-bios.load")
    assert why in f"{verdict.why}."
    if not loaded:
        (check,) = site.load_file(path)
        assert check.title == f"The checks of {path} cannot be loaded"
        assert check.right == f"the checks of {path} can be loaded"
        assert check.why == "A site that relies on its own checks must not pass because they are missing."
        out = "To leave them out, pass --ignore 'site-bios.*'."
        assert check.fix == f"Run `ncclprobe checks --test bios` to see why. {out}"


def test_a_file_of_a_wrong_name_and_too_many_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = written(folder, name="x" * 39 + ".Y")
    (check,) = site.load_file(long)
    why = f"{'x' * 39 + '.'!r} is not a valid name: use lower-case letters, digits and hyphens"
    assert (check.id, said(long).why) == ("site-unnamed.load", f"{long}: {why}")
    written(folder, name="_hidden")
    monkeypatch.setattr(bounds, "SITE_FILES", 2)
    assert [check.id for check in site.checks(None, f"{folder}/.")] == ["site-bios.little-memory", "site-unnamed.load"]
    monkeypatch.setattr(bounds, "SITE_FILES", 1)
    with pytest.raises(UsageError, match=r"/checks/\.\./checks: more than 1 files of checks$"):
        site.checks(None, f"{folder}/../checks")


def test_two_checks_of_one_id_are_none(folder: Path) -> None:
    written(folder, name="rack-1")
    written(folder, name="rack_1")
    found = {check.id: check for check in site.checks(None, str(folder)) if "rack" in check.id}
    assert [*found] == ["site-rack-1.load"]
    (verdict,) = judge([SMALL], [*found.values()], Job())
    assert "two checks are called site-rack-1.little-memory" in verdict.why


def config(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of checks that only this user can change, and one on the way to it that is so too."""
    tmp_path.chmod(0o755)
    made = tmp_path / "checks"
    made.mkdir(mode=0o755)
    written(made)
    return made


def test_a_configured_folders_checks_are_asked_and_may_be_accepted(folder: Path, tmp_path: Path) -> None:
    entry = '[[ignore]]\ncheck = "site-bios.*"\nreason = "known"\n'
    for text, status in (("", Status.FAIL), (entry, Status.PASS)):
        options = Judging(select=("site-bios.*",), config=config(tmp_path, f'checks = "{folder}"\n{text}'))
        question = ask(options, ("doctor",), Job(backend="gloo", local=True), MACHINE)
        assert [check.id for check in question.checks] == ["site-bios.little-memory"]
        report = diagnose(question, [SMALL])
        assert report.checks[0].status is status
        assert f"site-bios.* are checks of {folder / 'bios.py'}, not of ncclprobe" in report.notes


@pytest.mark.parametrize(("level", "mode"), [(0, 0o777), (0, 0o1777), (1, 0o775)])
def test_a_folder_that_others_may_write_is_not_run(folder: Path, level: int, mode: int) -> None:
    (folder, *folder.parents)[level].chmod(mode)
    with pytest.raises(UsageError, match="lets other users write to it"):
        site.checks(None, str(folder))


def test_a_file_that_others_may_write_is_not_run(folder: Path) -> None:
    (folder / "bios.py").chmod(0o664)
    (verdict,) = judge([SMALL], [check for check in site.checks(None, str(folder)) if "bios" in check.id], Job())
    assert (verdict.id, verdict.status) == ("site-bios.load", Status.UNKNOWN)
    assert "its mode 0664 lets other users write to it" in verdict.why


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_of_another_user_is_not_run(folder: Path) -> None:
    os.chown(folder, 1000, 1000)
    with pytest.raises(UsageError, match="because uid 1000 owns it"):
        site.checks(None, str(folder))


@each_row("named", ["checks", "./checks", "~/checks", "no such folder", "/no/such/folder"])
def test_a_folder_is_named_in_full_and_is_there(named: str) -> None:
    with pytest.raises(UsageError, match=r"give an absolute path|cannot be read"):
        site.checks(None, named)


def test_the_file_of_the_working_directory_names_no_code(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = config(tmp_path, f'checks = "{folder}"\n').rename(tmp_path / suppressions.NAME)
    with pytest.raises(UsageError) as refused:
        suppressions.load(None, lambda folder: every_check(None, folder))
    why = "checks and messages are not allowed in a file of the working directory: pass --config ./ncclprobe.toml"
    assert str(refused.value) == f"ncclprobe.toml: {why}"
    assert suppressions.load(path, lambda folder: every_check(None, folder)).checks == str(folder)
    path.chmod(0o666)
    with pytest.raises(UsageError, match="lets other users write to it"):
        suppressions.load(path, lambda folder: every_check(None, folder))


def test_what_is_tried_can_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    path.write_text("import no_such_module")
    assert command.main(["--test", str(path)]) == ExitCode.FAIL
    why = "its import raises ModuleNotFoundError: No module named 'no_such_module'"
    failed = f"fails  site-bios.load  The checks of {path} cannot be loaded\n       {path}: {why}\n"
    assert capsys.readouterr().out == f"{failed}1 check of {path}, 1 breaks a promise\n"
    assert command.main(["--test", str(written(tmp_path, name="x"))]) == ExitCode.OK
    fine = "ok     site-x.little-memory  The node has little memory\n"
    assert capsys.readouterr().out == f"{fine}1 check of {tmp_path / 'x.py'}, 0 break a promise\n"


WRONG = "its examples raise TypeError; `ncclprobe checks --test` shows the place"


@pytest.mark.parametrize(("example", "said"), [("Memory(1, 1)", "example of what it finds:"), ("Memory(1)", WRONG)])
def test_a_configured_folders_check_is_explained_without_an_example_that_is_wrong(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], example: str, said: str
) -> None:
    path = folder / "bios.py"
    path.write_text(path.read_text().replace("bad=lambda: [(Memory(1, 1),)]", f"bad=lambda: [({example},)]"))
    chosen = config(tmp_path, f'checks = "{folder}"\n')
    assert explain.main(["site-bios.little-memory", "--config", str(chosen)]) == ExitCode.OK
    assert said in capsys.readouterr().out
