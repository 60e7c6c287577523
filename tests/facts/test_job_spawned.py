"""Ranks that a program has started itself, by spawn or fork: no variable names them."""

import json
from typing import Any

from ncclprobe.facts.job.ranks import AskedJob, LocalRanks, local_ranks
from ncclprobe.host import SAMPLE
from ncclprobe.host.capture import Replay
from tests.facts.test_job import QUESTION, pids, process


def of_spawned(*processes: dict[str, Any], connections: list[dict[str, Any]], pid: int = 0) -> LocalRanks:
    """Return the ranks that are found among processes without variables, with these connections."""
    said = json.dumps({"time_s": 1.0, "processes": processes})
    own = sorted(each["pid"] for each in processes if each["parent"] == 9)
    answers = {
        ("ranks", pid, *QUESTION): said if pid else json.dumps({"time_s": 1.0, "processes": []}),
        ("ranks", -1): said,
        ("connections", 0, *own): json.dumps(connections),
        ("at_port", 29500, 11): json.dumps([{"pid": 11, "local": "[::]:29500", "peer": "", "state": "listening"}]),
        ("at_port", 40011, 11): json.dumps([]),
        (SAMPLE, "attach"): json.dumps({"pid": pid}),
    }
    return local_ranks.run(Replay(answers, older=False), AskedJob(pid))


def meets(pid: int, *others: int) -> list[dict[str, Any]]:
    """Return the connections of `pid`, which serves a store, with itself and `others`."""
    ends = [(each, f"127.0.0.1:{40000 + each}") for each in (pid, *others)]
    return [
        {"pid": owner, "local": local, "peer": peer}
        for each, end in ends
        for owner, local, peer in ((each, end, "127.0.0.1:29500"), (pid, "127.0.0.1:29500", end))
    ]


def test_spawned_ranks_are_numbered_as_they_began_if_the_first_serves_the_store() -> None:
    parent, ranks = process(9, None), [process(n, None, 9) for n in (12, 11, 13)]
    numbered = [(11, 0), (12, 1), (13, 2)]
    rows: list[tuple[list[dict[str, Any]], int, list[tuple[int, int | None]]]] = [
        (meets(11, 12, 13), 9, numbered),
        (meets(11, 12, 13), 0, numbered),  # no process was named
        (meets(11), 9, numbered),  # the others have not come yet
        (meets(12, 11, 13), 9, [(11, None), (12, None), (13, None)]),  # another began first than rank 0
        (meets(12, 11, 13), 0, [(11, None), (12, None), (13, None)]),
        ([], 9, [(11, None), (12, None), (13, None)]),
        ([*meets(11), *meets(12)], 9, [(11, None), (12, None), (13, None)]),  # which one is the store is not known
        ([], 0, [(11, None), (12, None), (13, None)]),  # rank 0 may never have reached init
    ]
    assert len(rows) >= 8
    for connections, pid, wanted in rows:
        known = of_spawned(parent, *ranks, connections=connections, pid=pid)
        assert pids(known) == wanted, (connections, pid)
        assert {each.launch.master_port for each in known.ranks} <= {29500 if (11, 0) in wanted else None, 29500}


def test_programs_that_a_shell_started_are_no_ranks_of_one_job() -> None:
    shell, programs = process(9, None, library=False), [process(n, None, 9) for n in (11, 12, 13)]
    assert pids(of_spawned(shell, *programs, connections=[])) == []
