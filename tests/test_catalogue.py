"""``ncclprobe checks`` and ``ncclprobe explain``: nothing is left out, and nothing disagrees with the check itself."""

import json
import subprocess
import sys

import pytest

from ncclprobe.commands import checks, explain
from ncclprobe.engine import diagnose, entries
from ncclprobe.errors import UsageError
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nvml import Gpu
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.rules import Check
from ncclprobe.model.snapshot import Absent, Job

CHECKS = sorted(diagnose.every_check(), key=lambda check: check.id)
every_check = pytest.mark.parametrize("check", CHECKS, ids=[check.id for check in CHECKS])


def test_the_catalogue_has_every_check_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main([]) == 0
    *rows, _blank, last = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[1::2]] == [check.id for check in CHECKS]
    assert [row.split(maxsplit=1)[1] for row in rows[2::2]] == [check.right for check in CHECKS]
    assert last.startswith(f"{len(CHECKS)} checks")


def test_the_catalogue_as_json_says_what_a_check_needs(capsys: pytest.CaptureFixture[str]) -> None:
    checks.main(["--json"])
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    memlock = rows["host.memlock"]
    assert (memlock["required"], memlock["facts"]) == (True, ["Memlock", "Fabric", "Process"])
    assert memlock["applies"].startswith("to jobs on GPUs")


@every_check
def test_an_explanation_shows_examples_that_do_what_it_says(check: Check) -> None:
    text = "\n".join(entries.explanation(check))
    triggers, _, does_not = text.partition("example that does not:")
    assert "-> FAIL" in triggers or "-> WARN" in triggers or "-> NOTE" in triggers
    assert "-> FAIL" not in does_not
    assert "-> WARN" not in does_not
    assert "-> " in does_not
    for heading in ("passes: ", "why: ", "fix: ", "decided: ", "standing: ", "needs: ", "silenced: "):
        assert f"\n{heading}" in text


def test_an_explanation_names_facts_condition_standing_and_sources() -> None:
    check = next(check for check in CHECKS if check.id == "launch.master-loopback")
    text = " ".join(" ".join(entries.explanation(check)).split())
    assert "Master: Resolve MASTER_ADDR by getaddrinfo(3)" in text
    assert "applies: only where MASTER_ADDR is set" in text
    assert "standing: required" in text
    assert "when launch.master-resolve fails" in text
    memlock = next(check for check in CHECKS if check.id == "host.memlock")
    assert "nccl-tests#206" in " ".join(entries.explanation(memlock)).partition("sources:")[2]


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("env.bool-words", "did you mean env.bool-word?"),
        ("bool-word", "did you mean env.bool-word?"),
        ("?\x1b", "lists"),
    ],
)
def test_an_id_that_does_not_exist_brings_the_nearest_one(wanted: str, hint: str) -> None:
    with pytest.raises(UsageError, match="no such check") as refusal:
        explain.main([wanted])
    assert hint in str(refusal.value)
    assert "\x1b" not in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Launch("torchrun", 0, 16), "Launch(kind='torchrun', rank=0, world_size=16)"),
        (Job(), "Job()"),
        (Gpu(3, "NVIDIA H200"), "Gpu(index=3, name='NVIDIA H200')"),
        (Absent("denied"), "not known (denied)"),
        (tuple(range(64)), "[0..63]"),
        ((1, 2, 3, 5, 7), "[1, 2, 3, 5, … 5 in all]"),
        (frozenset({"up", "running"}), "['running', 'up']"),
        ({"a": Severity.FAIL}, "{'a': FAIL}"),
        (Status.PASS, "PASS"),
        ((), "[]"),
    ],
)
def test_facts_are_shown_without_their_defaults(value: object, text: str) -> None:
    assert entries.shown(value) == text


@pytest.mark.parametrize(("argv", "code"), [(("checks",), 0), (("explain", "host.shm"), 0), (("explain", "x.y"), 2)])
def test_the_commands_exist(argv: tuple[str, ...], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "ncclprobe", *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_a_variable_is_explained_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(["NCCL_IB_TIMEOUT"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("NCCL_IB_TIMEOUT\n")
    assert "type:     int 0..31" in told
    assert "scope:    may differ between ranks" in told
    assert "src/transport/net_ib/connect.cc:15" in told
