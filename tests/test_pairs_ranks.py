"""`ncclprobe pairs` over real gloo ranks on loopback.

Nothing here asserts a speed, or that nobody is slow.

    in the middle of the tournament   the report, exit code 4 everywhere
    ────────────────────────────────  ──────────────────────────────────────────────────────────────────────────────
    a rank is killed                  names it with host and phase; it is set aside, the others play on to the end
    a rank is stopped                 the same; its partner of that moment connects anew with the others
"""

import importlib.util
import signal
import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from rank_lab import DEADLINE_S, Lab, by_hand, findings, free_port

from ncclprobe.commands.pairs import parse
from ncclprobe.host.run_log import FILE
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Status

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")

SMALL = ["--backend", "gloo", "-e", "64K"]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.clear()


@pytest.mark.slow
def test_every_pair_of_an_odd_number_of_ranks_is_measured_both_ways(lab: Lab) -> None:
    own = ["-m", "ncclprobe", "pairs", *SMALL, "--nproc", "3", "--json", str(lab.report_path)]
    process = lab.start(own)
    code = process.wait()
    report = lab.report()
    for both in (False, True):
        pairs = [(row.src, row.dst) for row in report.pairs if row.both is both and not row.step]
        assert sorted(pairs) == sorted(permutations(range(3), 2))
    row = report.pairs[0]
    assert (row.op, row.nbytes, row.latency_nbytes, row.src_end) == ("sendrecv", 65536, 8, f"rank {row.src}")
    assert row.min_us <= row.time_us <= row.max_us
    assert report.localisation
    assert (report.localisation.nodes, report.localisation.lost, report.localisation.complete) == (3, (), True)
    assert report.measurements == ()
    asked = {v.id for v in report.checks if v.id.startswith("run.") and v.status is not Status.SKIP}
    assert asked == {"run.init", "run.rank-lost", "run.pairs", "run.settings"}
    assert "latency of 8 B" in process.out
    assert "bandwidth of 64 KiB" in process.out
    assert code == report.exit_code


@pytest.mark.parametrize("sizes", [["-b", "0"], ["-b", "1M", "-e", "1K"]])
def test_sizes_that_make_no_pair_are_refused(sizes: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^-b "):
        parse(["--backend", "gloo", "--nproc", "2", *sizes])


def until_a_pair(lab: Lab) -> None:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if any('{"sample": {"pair":' in log.read_text() for log in lab.folder.rglob(FILE)):
            return
        time.sleep(0.05)
    raise AssertionError("no pair was measured")


@pytest.mark.slow
@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_in_the_middle_is_named_and_the_others_play_on(lab: Lab, hit: signal.Signals) -> None:
    own = ["-e", "16M", "--phase-timeout", "15"]
    ranks = lab.ranks(by_hand(free_port(), 4), *own, count=4, command="pairs")
    until_a_pair(lab)
    ranks[2].popen.send_signal(hit)
    assert [rank.wait() for number, rank in enumerate(ranks) if number != 2] == [4] * 3, ranks[0].err
    report = lab.report()
    ((subject, message),) = findings(report, "run.rank-lost")
    assert subject == "rank 2"
    assert "its heartbeat stopped" in message
    assert "phase 'pairs, round" in message
    found = report.localisation
    assert found
    assert found.complete
    aside = {each.rank: each.gone for each in found.excluded_ranks}
    assert aside == {2: True}
    names = {f"rank {rank}" for rank in aside}
    assert all(names & {pair.src, pair.dst} for pair in found.lost)
    one_way = {(row.src, row.dst) for row in report.pairs if not row.both and not row.step}
    assert set(permutations(set(range(4)) - set(aside), 2)) <= one_way
    assert all(row.wrong == 0 for row in report.pairs)
    assert "set aside: " in ranks[0].out
    assert "rank 2, which is gone" in ranks[0].out
