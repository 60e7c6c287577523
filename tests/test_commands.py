"""The commands as their users run them: real processes, their output, their exit codes."""

import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ncclprobe import __version__
from ncclprobe.cluster import gather
from ncclprobe.commands import main
from ncclprobe.engine.captures import spoken
from ncclprobe.model import bounds
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from tests.each_row import each_row

ROOT = Path(__file__).resolve().parent.parent
HGX, SAVED = (str(ROOT / path) for path in ("tests/captures/hgx-h100.jsonl", "reports/four-hosts-one-bad-nic.json"))
UNSET = ("NCCL_", "TORCH", "SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_")


def ncclprobe(*argv: str, cwd: Path | None = None, **variables: str) -> "subprocess.CompletedProcess[str]":
    return started(["-m", "ncclprobe", *argv], cwd, variables)


def started(words: list[str], cwd: Path | None, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(UNSET)}
    env = {**inherited, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **variables}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, cwd=cwd, env=env)


def script(text: str, *argv: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a few lines of Python, outside of any job."""
    return started(["-c", text, *argv], None, variables)


def test_the_version_is_said_before_anything_slow_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from ncclprobe.start import program; program()", "--version"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == f"ncclprobe {__version__}\n"
    assert "ncclprobe.start" in done.stderr
    assert not {name for name in ("argparse", "msgspec", "pathlib", "typing") if f" {name}\n" in done.stderr}


def test_a_module_that_torchrun_starts_is_its_command_and_an_import_starts_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr("ncclprobe.start.program", lambda *words: started.append(words))
    names = ["accept", "bandwidth", "copies", "doctor", "pairs", "workload", "__main__"]
    for run_name, expected in (
        ("imported", []),
        ("__main__", [(name,) if name != names[-1] else () for name in names]),
    ):
        for name in names:
            runpy.run_module(f"ncclprobe.{name}", run_name=run_name)
        assert started == expected


def test_a_machine_without_a_visible_gpu_is_inconclusive_for_an_nccl_job_and_passes_for_a_gloo_job() -> None:
    done = ncclprobe("doctor", "--backend", "gloo")
    assert done.returncode == 0, done.stdout
    assert "\nPASS  nothing wrong was found\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "Ready for gloo jobs on 1 node. (exit 0)"
    done = ncclprobe("doctor", "--local", "--backend", "gloo", "--select", "gpu.count")
    assert done.returncode == 3
    assert "nothing was judged: gpu.count: applies only to jobs on GPUs" in done.stdout
    assert done.stdout.splitlines()[-1] == "Nothing was judged: the selected checks do not apply here. (exit 3)"
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    done = ncclprobe("doctor")
    assert done.returncode == 3
    assert "gpu.smi-canary (required) and 1 advisory check\n        nvidia-smi: not there" in done.stdout
    no_gpu = "no GPU was found, so this node can only run gloo jobs; if it is meant for them, add "
    assert f"\nUNKNOWN  {no_gpu}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Could not confirm readiness for NCCL jobs")


def test_a_planted_setting_is_found_and_named_with_its_place_and_may_be_suppressed(tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text("# site\nNCCL_IB_DISABLE=true\n")
    conf, planted = {"NCCL_CONF_FILE": f"{tmp_path}/nccl.conf"}, {"NCCL_IB_DISABLE": "true"}
    done = ncclprobe("doctor", "--backend", "gloo", "--json", f"{tmp_path}/r.json", **conf)
    assert done.returncode == 4
    assert f"{tmp_path}/nccl.conf:2" in done.stdout.replace("\n             ", "")
    report = as_json.read(f"{tmp_path}/r.json")
    (finding,) = (f for verdict in report.checks for f in verdict.findings if f.severity == "fail")
    assert (finding.subject, finding.blame, finding.action) == ("NCCL_IB_DISABLE", "job", "fix-job")
    assert "reads as 0" in finding.message
    assert ncclprobe("report", f"{tmp_path}/r.json").returncode == 4
    (line,) = ncclprobe("doctor", "--backend", "gloo", "-q", **planted).stdout.splitlines()
    assert line.startswith("FAIL env.value NCCL_IB_DISABLE")
    assert line.endswith(f" (on {socket.gethostname()}, exit 4)")
    done = ncclprobe("doctor", "--backend", "gloo", "--ignore", "env.value=NCCL_IB_DISABLE", **planted)
    assert done.returncode == 0
    assert "suppressed: env.value on NCCL_IB_DISABLE" in done.stdout


def test_other_nodes_of_the_job_that_nobody_looked_at_make_it_inconclusive() -> None:
    job = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "29500"}
    secret = {"NCCLPROBE_TOKEN": "a secret of this test"}
    for variables, unknown in ((secret, "sync.nodes"), ({}, "launch.unproven")):
        given = ("--backend", "gloo", "--timeout", "30", "--wait", "1")
        done = ncclprobe("doctor", *given, **job, **variables, MASTER_ADDR="192.0.2.1")
        assert done.returncode == 3
        assert "\nUNKNOWN  node 1 did not report; " in done.stdout
        assert f"{unknown} (required)" in done.stdout
    assert ncclprobe("doctor", "--backend", "gloo", "--local", **job, MASTER_ADDR="192.0.2.1").returncode == 0


def test_one_rank_speaks_for_its_node_and_one_that_nobody_speaks_for_does_not_pass() -> None:
    job = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    silent = ncclprobe("doctor", "--local", LOCAL_RANK="1", **job)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    lonely = ncclprobe("doctor", "--timeout", "2", LOCAL_RANK="1", **job)
    assert (lonely.returncode, lonely.stdout) == (3, "")
    assert "rank 1: local rank 0 of this node is missing" in lonely.stderr
    half = ncclprobe("doctor", "--backend", "gloo", RANK="0")
    assert half.returncode == 4
    assert "launch.vars  WORLD_SIZE" in half.stdout


def test_the_body_of_a_batch_script_is_told_and_may_look_at_its_own_node() -> None:
    body = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_PROCID": "0"}
    told = ncclprobe("doctor", "--backend", "gloo", **body)
    assert told.returncode == 0
    assert "WARN  launch.vars  SLURM_STEP_ID" in told.stdout
    assert "srun" in told.stdout
    assert "launch.vars" not in ncclprobe("doctor", "--backend", "gloo", "--local", "-q", **body).stdout


def test_a_capture_taken_here_replays_to_the_same_verdicts(tmp_path: Path) -> None:
    planted = {"NCCL_IB_DISABLE": "true", "NCCL_SOCKET_IFNAME": "no-such-interface", "NCCL_BUFFSIZE": "4M"}
    capture, live, replay = (str(tmp_path / name) for name in ("c.jsonl", "live.json", "replay.json"))
    assert ncclprobe("capture", "-o", capture, **planted).returncode == 0
    first = ncclprobe("doctor", "--json", live, **planted)
    second = ncclprobe("doctor", capture, "--json", replay)
    assert first.returncode == second.returncode == 4
    # two looks: the kernel's log has aged between them
    looks = [spoken(as_json.read(path)) for path in (live, replay)]
    one, other = (re.sub(r"begins \d+ \w+ ago", "begins some time ago", repr(each.checks)) for each in looks)
    assert one == other
    assert looks[0].environment == looks[1].environment


def test_a_capture_is_private_names_what_to_do_with_it_and_is_judged_once(tmp_path: Path) -> None:
    done = ncclprobe("capture", cwd=tmp_path)
    (path,) = tmp_path.iterdir()
    number, words = done.stdout.removeprefix(f"{path.name}: ").split(" ", 1)
    assert (int(number) > 50, words) == (True, f"answers; judge them with `ncclprobe doctor {path.name}`\n")
    assert path.name == f"{re.sub('[^A-Za-z0-9_.-]', '_', socket.gethostname())}.jsonl"
    assert path.stat().st_mode & 0o077 == 0
    cut = ncclprobe("capture", "-o", "cut.jsonl", "--timeout", "0.001", cwd=tmp_path)
    assert re.fullmatch(
        r"cut\.jsonl: incomplete: \d+ questions were not asked: time, threads or memory ran out\n", cut.stderr
    )
    assert (cut.returncode, cut.stdout) == (3, "")
    done = ncclprobe("doctor", str(path), str(path))
    assert done.returncode == 2
    assert done.stderr == (f"ncclprobe: {path}: a second capture of node {socket.gethostname()}; "
                           "`ncclprobe compare OLD NEW` says what changed\n")  # fmt: skip


HEAVY = {"torch", "numpy", "rich", "pynvml"}
FORMS = {"junitparser", "prometheus_client", "jinja2", "xml", "ncclprobe.report.junit", "ncclprobe.report.nodes"}
COMPANY = {"asyncio", "ncclprobe.cluster.gather"}


@each_row(
    ("argv", "names"),
    [
        (["--version"], HEAVY),
        (["doctor", "--backend", "gloo", "-q"], HEAVY | FORMS | COMPANY),
        (["capture", "-o", "-"], HEAVY),
        *((["bandwidth", *more], HEAVY) for more in (["--help"], ["-f", "1"], ["--op", "x"], [])),
    ],
)
def test_looking_never_imports_what_is_heavy_or_nobody_asked_for(argv: list[str], names: set[str]) -> None:
    done = script(
        "import contextlib, sys\n"
        "from ncclprobe.commands import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(sys.argv[1:])\n"
        f"print(*({names} & set(sys.modules)), file=sys.stderr)\n",
        *argv,
    )
    assert (done.returncode, names & {*done.stderr.split()}) == (0, set())


def test_a_bug_of_ours_is_exit_1_and_keeps_its_traceback(tmp_path: Path) -> None:
    done = script(
        "import sys, ncclprobe.commands.doctor\n"
        "def broken(*_): raise ZeroDivisionError('oh')\n"
        "ncclprobe.commands.doctor.observed = broken\n"
        "from ncclprobe.commands import main\n"
        "sys.exit(main(['doctor']))\n",
        TMPDIR=str(tmp_path),
    )
    assert done.returncode == 1
    (kept,) = tmp_path.glob("ncclprobe-*.traceback")
    why = f"a bug of ncclprobe, not of this machine: ZeroDivisionError('oh'); traceback in {kept}"
    assert done.stderr == f"ncclprobe: {why}\n"
    assert "ZeroDivisionError: oh" in kept.read_text()


def test_a_closed_pipe_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # its reader has left
    try:
        command = [sys.executable, "-m", "ncclprobe", "checks"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writing)
    assert done.returncode == 141  # as a program that SIGPIPE ends
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_what_cannot_be_printed_is_not_passed_over() -> None:
    for argv in (["--version"], ["--help"], ["accept", "--help"]):
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-m", "ncclprobe", *argv]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), argv


def test_a_report_can_be_read_where_the_terminal_knows_no_utf8() -> None:
    said = ncclprobe("doctor", HGX, PYTHONIOENCODING="ascii").stdout
    assert "8 x H100 80GB HBM3 - driver 550.127.08 - NVLink 18/18" in said
    assert said.isascii()
    assert "\\x" not in said


@each_row("form", ["json", "junit", "markdown"])
def test_what_nccl_writes_in_a_rank_is_kept_out_of_the_report_that_goes_to_standard_output(form: str) -> None:
    """To descriptor 1, as NCCL does with NCCL_DEBUG=INFO."""
    ours = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    found = script(
        "import os, sys\n"
        "from ncclprobe.commands import bandwidth, measuring\n"
        "class Rank:\n"
        "    def __init__(self, *run): pass\n"
        "    def run(self):\n"
        "        os.write(1, b'NCCL INFO cudaDriverVersion 13000\\n')\n"
        "        print('the report')\n"
        "        return 0\n"
        "measuring.Rank = Rank\n"
        f"sys.exit(bandwidth.main(['--backend', 'gloo', '--{form}', '-']))\n",
        **ours,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "the report\n", "NCCL INFO cudaDriverVersion 13000\n")


TEN_RAILS = "rails --nnodes 10 --wait 90 --force --full-bisection --exit whole --keep kept"
RAILS = {"ib.losses", "ib.perm", "ib.rate", "ib.roce", "ib.state", "pci.link", "sync.env", "sync.identity",
         "sync.limits", "sync.network", "sync.nodes"}  # fmt: skip
SHORT = "--wait 26: other nodes are waited for 25 s at most, 0.5 of --timeout 50"


@each_row(
    ("line", "own", "after", "wait_s", "rails", "notes"),
    [
        ("doctor --nnodes 9 --backend gloo --path /d --timeout 50 --wait 26",
         "--backend gloo --timeout 50 --path /d", [], 26.0, None, (SHORT,)),
        ("doctor --nnodes 2 --timeout 50 --wait 25", "--backend nccl --timeout 50", [], 25.0, None, ()),
        (TEN_RAILS, "--backend nccl --timeout 180 --force --full-bisection", ["  … and so on, up to --node-rank 9"],
         90.0, (True, bounds.HOST_NAMES), ()),
        ("rails --nnodes 3", "--backend nccl --timeout 180", [], 180.0, (False, 16), ()),
    ],
)  # fmt: skip
def test_node_0_of_several_prints_what_to_start_and_judges_them_all(
    line: str, own: str, after: list[str], wait_s: float, rails: tuple[bool, int] | None, notes: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found: list[tuple[gather.NodePlace, Report]] = []

    def assemble(part: gather.NodePlace) -> int:
        found.append((part, part.judge([Snapshot("n0", {}), Snapshot("n1", {})], ["n2"], ["a note"])))
        return 3

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NCCLPROBE_TOKEN", raising=False)
    monkeypatch.setattr(gather, "assemble", assemble)
    here = ["--master-addr", "127.0.0.1", "--master-port", "29500"]
    command, *words = line.split()
    assert main([command, "--node-rank", "0", *here, "-q", "--no-config", *words]) == 3
    first, *lines = capsys.readouterr().err.splitlines()
    nodes, token = int(words[1]), lines[0].split()[0]
    told = [
        f"  {token} ncclprobe {command} --nnodes {nodes} --node-rank {n} {' '.join(here)} {own}" for n in range(1, 9)
    ]
    assert first == "ncclprobe: start the other nodes now, each with its own command:"
    assert (len(token) > 40, lines) == (True, told[: nodes - 1] + after)
    ((part, report),) = found
    asked = (part.rails.force, part.rails.budget.at_once) if part.rails else None
    assert (part.times.wait_s, part.keep, asked) == (wait_s, Path("kept") if "--keep" in words else None, rails)
    assert [name for _, name in part.given] == ["flags", "asked_paths"][: 1 + ("--path" in words)]
    assert (report.missing_nodes, report.notes) == (("n2",), ("a note", *notes))
    ids = {verdict.id for verdict in report.checks}
    kinds = {name.partition(".")[0] for name in ids - RAILS}
    assert ids >= RAILS
    assert kinds == {"rail", "launch", "path"} if rails else len(kinds) > 8
    failed = replace(report, exit_code=4)
    leaves = {name: int(share.exit_code) for name, share in part.leaves(failed).items()}
    assert leaves == {"n0": 4, "n1": 4 if "whole" in words else 3}
    monkeypatch.setattr("ncclprobe.report.delivery.deliver", lambda *_: 2)
    assert main([command, "--node-rank", "0", *here, "-q", "--no-config", *words]) == 2
