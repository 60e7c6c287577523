"""``--hosts``: which hosts, what each is told, and what becomes of one that fails. ssh is tests/fake_ssh.py."""

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from report.samples import HEALTHY

from ncclprobe.commands import hosts, main, over_ssh
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report.delivery import Output
from ncclprobe.session.ssh import here, there
from ncclprobe.wire import SECRET_BYTES

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 60.0
HOSTFILES = {
    "n1 slots=8\nn2 slots=8 max_slots=9\n": ["n1", "n2"], "# of the cluster\n\nn1:8\n n2:4 # slow\n": ["n1", "n2"],
    "gpu[07-09]\n": ["gpu07", "gpu08", "gpu09"], "a,b\nroot@c": ["a", "b", "root@c"],
    "fd77::5\n10.0.0.7": ["fd77::5", "10.0.0.7"],
}  # fmt: skip


def named(tmp_path: Path, words: Sequence[str]) -> tuple[str, ...]:
    parser = argparse.ArgumentParser()
    hosts.options(parser)
    parser.set_defaults(fleet=None)
    return hosts.named(parser.parse_args(words)).names


def test_host_files_of_mpirun_and_ranges_of_slurm_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, wrong = tmp_path / "hosts", {}
    for text, names in HOSTFILES.items():
        file.write_text(text)
        if (found := [*named(tmp_path, ["--hostfile", str(file)])]) != names:
            wrong[text] = found
    assert wrong == {}
    assert named(tmp_path, ["--hosts", "a,n[1-2]"]) == ("a", "n1", "n2")
    monkeypatch.setenv("NCCLPROBE_HOST", "1")  # it was started on one of them
    assert named(tmp_path, ["--hosts", "a,n[1-2]", "--remote-python", "p"]) == ()


def answered(*gpus: int) -> list[here.Call]:
    """Hosts h0, h1, … that have answered, with so many GPUs."""
    import selectors

    calls = [here.Call(f"me@h{number}", selectors.DefaultSelector()) for number in range(len(gpus))]
    for call, count in zip(calls, gpus, strict=True):
        call.hello = there.Hello("1", count, 20_000, "")
    return calls


ALONE = over_ssh.Started(hosts.Hosts(("h0", "h1"), "python"), (), 60.0, Output())
CALLS: dict[str, tuple[list[here.Call], over_ssh.Started]] = {
    "two nodes": (answered(8, 8), ALONE), "two nodes, kept": (answered(8, 8), replace(ALONE, keep=Path("kept"))),
    "one node": (answered(8), ALONE), "nobody": ([], ALONE),
    **{f"ranks of {gpus}": (answered(*gpus), replace(ALONE, ranks=lambda each: max(each, 1)))
       for gpus in ((2, 0, 3), (3, 1), (4,), (1,), (0,))},
}  # fmt: skip
"""Hosts that answered; tests/data/command_values/host-orders.txt has what each starts."""
CALLS["an address"] = (answered(2, 1), CALLS["two nodes"][1])
CALLS["an address"][0][0].hello = there.Hello("1", 2, 30_000, "10.0.0.7")
CALLS["an address"][0][1].host = "n@m@h1"


def test_the_token_is_on_no_command_line() -> None:
    orders = over_ssh.host_orders(CALLS["two nodes"][1], answered(8, 8), ["doctor"], 60.0, {})
    (token,) = {variables["NCCLPROBE_TOKEN"] for order in orders for variables in order.ranks}
    assert len(token) >= SECRET_BYTES
    assert not any(token in word for order in orders for word in order.words)
    assert "NCCLPROBE" not in " ".join(here.command("h0", "/opt/a b/python", 30.0))
    assert "'/opt/a b/python'" in here.command("h0", "/opt/a b/python", 30.0)[-1]


def test_how_long_a_host_may_take_follows_timeout() -> None:
    assert "ConnectTimeout=1" in here.command("h0", "python", 1.0)


def ssh_here(folder: Path) -> dict[str, str]:
    """Variables with which `ssh` is the one of the tests."""
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "tests/fake_ssh.py"}" "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join((str(folder), os.environ["PATH"]))
    return {"PATH": path, "PYTHONPATH": str(ROOT), "FAKE_SSH_LOG": str(folder / "log")}


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in ssh_here(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_host_that_fails_is_a_finding_in_its_own_words_and_the_others_are_judged(
    ssh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--hosts", "down1,fit,bare,old,dies,loud", "--backend", "gloo"]
    code = main(["doctor", *asked, "--json", "r.json", "--keep", "kept"])
    report = json.loads(Path("r.json").read_text())
    out, err = capsys.readouterr()
    assert code == report["exit_code"] == 3, (out, err)
    words = {
        "down1": "No route to host", "bare": "No module named", "old": "it has ncclprobe 0.0.1, and this is ",
        "dies": "exit code -9", "loud": "it printed more than 1 MiB",
    }  # fmt: skip
    assert {*report["missing_nodes"]} == {*words}
    assert len(report["nodes"]) == 1
    found = [one for check in report["checks"] if check["id"] == "sync.nodes" for one in check["findings"]]
    told = {each["subject"]: each["message"] for each in found}
    assert {name: text for name, text in words.items() if text not in told[name]} == {}
    assert "No route to host" in out
    assert [path.suffix for path in Path("kept").iterdir()] == [".jsonl"]
    assert report["command"].startswith("ncclprobe doctor --hosts")


def test_without_a_host_that_answers_nothing_is_judged_and_too_large_an_order_is_refused(
    ssh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--hosts", "hang", "-q", "--json", "r.json", "--timeout", "4"]) == 3
    report = json.loads(Path("r.json").read_text())
    assert (report["nodes"], report["missing_nodes"]) == ([], ["hang"])
    assert "no answer within 1 s, a quarter of --timeout" in json.dumps(report["checks"])
    Path("own.toml").write_text("# a comment\n" * (there.ORDER_BYTES // 10))
    capsys.readouterr()
    assert main(["doctor", "--hosts", "fit", "--config", "own.toml"]) == 2
    assert f"at most {there.ORDER_BYTES} are passed on" in capsys.readouterr().err


ATTACHED = [
    gzip.decompress((ROOT / "tests" / "data" / f"attach-2-nodes-n{node}.jsonl.gz").read_bytes()).decode()
    for node in (0, 1)
]


class Answering(here.Calls):
    """Two hosts with 8 GPUs and none, which do at once what they are told, and one without a route."""

    outcomes_of: Sequence[there.Outcome] = ()

    def greet(self, timeout_s: float, progress: Callable[[str], None]) -> list[here.Call]:
        self.all[0].hello, self.all[1].hello = there.Hello("1", 8, 20_000), there.Hello("1", 0, 20_001)
        for call in self.all[2:]:
            call.fail("ssh", "No route to host")
        return self.all[:2]

    def outcomes(self, calls: Sequence[here.Call], deadline: float) -> None:
        self._say("a rank says")
        for call, outcome in zip(calls, self.outcomes_of, strict=False):
            call.outcome = outcome


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[there.Order]:
    """What the hosts are told to start."""
    told: list[there.Order] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(over_ssh, "Calls", Answering)
    monkeypatch.setattr(here.Call, "order", lambda _, order: told.append(order))
    return told


def test_the_hosts_of_a_job_keep_their_looks_and_one_report_names_the_rank(
    orders: list[there.Order], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [there.Outcome((0,), "", {"n.jsonl": text}, node + 1) for node, text in enumerate(ATTACHED)]
    monkeypatch.setattr(Answering, "outcomes_of", found)
    argv = ["attach", "--hosts", "me@h0,h1,h2", "--exit-code", "--stacks", "--json", "r.json"]
    assert main([*argv, "--keep", "kept"]) == 4
    report, said = json.loads(Path("r.json").read_text()), capsys.readouterr()
    assert [(order.words[:-1], order.ranks, order.keep) for order in orders] == [
        (("attach", "--exit-code", "--stacks", "--timeout"), ({"NCCLPROBE_HOST": "1"},), True)
    ] * 2
    assert 50 < float(orders[0].words[-1]) < 60
    stuck = [(each["name"], each["ranks"]) for each in report["classes"]]
    assert (stuck, report["standing"]["word"]) == ([("stuck outside", [2]), ("waiting", [0, 1, 3])], "STUCK")
    assert (report["missing_nodes"], report["notes"][-1]) == (["h2"], "h2 was not examined (No route to host)")
    left = "ncclprobe: --hosts: 3 captures are left out: together they are too large"
    assert {"a rank says", left} <= {*said.err.splitlines()}
    kept = {path.name: path.read_text() for path in Path("kept").iterdir()}
    assert kept == {"me@h0-n.jsonl": ATTACHED[0], "h1-n.jsonl": ATTACHED[1]}
    assert main([*argv, "--keep", "hidden", "--redact-key", "k" * 20, "-q"]) == 4
    assert "a rank says" not in capsys.readouterr().err
    hidden = {path.name: path.read_text() for path in Path("hidden").iterdir()}
    assert sorted(hidden) == ["host0.jsonl", "host1.jsonl"]
    assert not any(json.loads(text.split("\n")[0])["node"] in ("n0", "n1") for text in hidden.values())
    monkeypatch.setattr(Answering, "outcomes_of", [])
    assert main(argv) == 2
    words = "--hosts: no rank of a job was found on any host (h2: No route to host)"
    assert capsys.readouterr().err.splitlines()[-1] == f"ncclprobe: {words}"


def test_a_command_on_hosts_starts_a_rank_per_gpu_and_delivers_the_first_hosts_report(
    orders: list[there.Order], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = there.Outcome((0,), as_json.render(HEALTHY), {"n0.jsonl": "a", "n1.jsonl": "b"}, 2)
    monkeypatch.setattr(Answering, "outcomes_of", [first, there.Outcome((0,), "", {"other.jsonl": "c"})])
    argv = ["--hosts", "h0,h1,h2", "--json", "r.json", "--timeout", "9", "--keep", "kept"]
    peers = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "h0", "--master-port", "20000"]
    for words, ranks in {
        "accept --level full": (8, 1), "pairs --rounds 3": (8, 1), "doctor --backend gloo --path /d": (0, 0),
        "rails --force": (0, 0), "bandwidth": (8, 1), "bandwidth --backend gloo": (1, 1), "bandwidth --nproc 3": (3, 3),
    }.items():  # fmt: skip
        orders.clear()
        assert main([*words.split(), *argv, *["--no-config"] * (ranks == (0, 0))]) == 3, words
        assert tuple(len([each for each in order.ranks if "RANK" in each]) for order in orders) == ranks
        assert [(order.report, order.keep) for order in orders] == [(True, True), (False, False)]
        told, more = [*orders[0].words], ["--no-config", "--timeout"] if ranks == (0, 0) else ["--timeout"]
        place = told.index("--timeout") + 1
        assert told[:place] == [*words.replace(" --nproc 3", "").split(), *more]
        assert told[place + 1 :] == (peers if ranks == (0, 0) else [])
    report = as_json.read("r.json")
    assert report.command == f"ncclprobe bandwidth --nproc 3 {' '.join(argv)}"
    assert (report.nodes, report.missing_nodes) == (HEALTHY.nodes, ("h2",))
    assert {path.name: path.read_text() for path in Path("kept").iterdir()} == first.kept
    left = "ncclprobe: --keep: 2 captures are left out, because together they are too large"
    assert capsys.readouterr().err.splitlines()[-1] == left
    monkeypatch.setattr(Answering, "outcomes_of", [there.Outcome((5, 7), "no report")])
    assert main(["bandwidth", *argv, "-q"]) == 3
    found = [(each.subject, each.message) for each in as_json.read("r.json").checks[-1].findings]
    assert ("h0", "ended before it reported: exit code 5, 7, and no report") in found


@pytest.mark.slow
def test_an_interruption_ends_every_ssh_and_is_130(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "ncclprobe", "doctor", "--hosts", "hang1,hang2", "--backend", "gloo"],
        env=os.environ | ssh_here(tmp_path), stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    end_s = time.monotonic() + DEADLINE_S
    while not (log := tmp_path / "log").exists() or len(log.read_text().splitlines()) < 2:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    pids = [int(line.split()[0]) for line in log.read_text().splitlines()]
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == 130, err
    assert err == "ncclprobe: interrupted; nothing was judged\n"
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.slow
def test_what_runs_on_a_host_ends_with_its_caller(tmp_path: Path) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-m", "ncclprobe.session.ssh.there"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert agent.stdin
    assert agent.stdout
    assert agent.stdout.readline().startswith("ncclprobe-host {")
    waits = "doctor --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --master-port 20001 --wait 90 --timeout 200"
    agent.stdin.write(json.dumps({"words": waits.split(), "ranks": [{"NCCLPROBE_TOKEN": "x" * 32}]}) + "\n")
    agent.stdin.flush()
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    end_s = time.monotonic() + DEADLINE_S
    while not (pids := children.read_text().split()):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    rest, _ = agent.communicate(timeout=DEADLINE_S)  # which closes its standard input
    assert agent.returncode == 0
    assert rest == ""
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
