"""``python -m ncclprobe.probes.verbs``: one rail between two hosts, each with a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fake_verbs
import pytest
from fake_verbs import device

from ncclprobe.probes.verbs.__main__ import main

TOKEN = {"NCCLPROBE_TOKEN": "of this test alone"}


@pytest.mark.slow
def test_two_hosts_test_one_rail_and_each_prints_what_it_saw(tmp_path: Path) -> None:
    """The one that listens takes any free port, and says which."""
    library = fake_verbs.build(tmp_path)
    settings = {
        **os.environ,
        **TOKEN,
        **fake_verbs.environment(library, tmp_path, device("left", 1), device("right", 2)),
    }

    def end(*words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "ncclprobe.probes.verbs", "--gid-index", "3", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=settings)

    with end("--listen", "0", "--device", "right") as there:
        assert there.stderr
        port = there.stderr.readline().split()[-1]
        with end("--call", "127.0.0.1", port, "--device", "left", "--messages", "20", "--directions", "out,in") as here:
            seen = [json.loads(each.communicate(timeout=100)[0]) for each in (here, there)]
    assert [each["failures"] for each in seen] == [[], []]
    assert [each["arrivals"][0]["direction"] for each in seen] == ["in", "out"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--listen", "0", "--device", "d"), "NCCLPROBE_TOKEN must be set"),
        (("--listen", "0", "--device", "d", "--gid-index", "x"), "gid_index"),
        (("--listen", "0"), "device"),
        (("--call", "h", "1", "--device", "d", "--directions", "up"), "directions"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    if "TOKEN" in said:
        monkeypatch.delenv("NCCLPROBE_TOKEN", raising=False)
    else:
        monkeypatch.setenv("NCCLPROBE_TOKEN", "x")
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
