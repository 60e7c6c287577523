"""Ranks that a program has started itself, by spawn or fork: no variable names them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.facts.job.ranks import AskedJob, LocalRanks, local_ranks
from ncclprobe.host import SAMPLE, live
from ncclprobe.host.capture import Replay
from tests.each_row import some
from tests.facts.test_job import QUESTION, pids, process


def of_spawned(
    *processes: dict[str, Any],
    connections: list[dict[str, Any]],
    pid: int = 0,
    told: Mapping[int, dict[str, int]] | None = None,
    groups: str = "",
) -> LocalRanks:
    """Return the ranks that are found among processes without variables, with these connections.

    `told` are the numbers in variables of processes whose stacks are read, `groups` the ranks of the recorded group.
    """
    said = json.dumps({"time_s": 1.0, "processes": processes})
    own = sorted(each["pid"] for each in processes if each["parent"] == 9 and each.get("state") != "Z")
    kept = {"version": "2.10", "pg_config": {"": {"name": "", "desc": "", "ranks": groups}}, "entries": []}
    answers = {
        ("ranks", pid, *QUESTION): said if pid else json.dumps({"time_s": 1.0, "processes": []}),
        ("ranks", -1): said,
        **{("connections", 0, *asked): json.dumps(connections) for asked in (own, own[:3], own[1:])},
        ("connections", 0, 9): json.dumps([each for each in connections if each["pid"] == 9]),
        ("at_port", 29500, 11): json.dumps([{"pid": 11, "local": "[::]:29500", "peer": "", "state": "listening"}]),
        ("at_port", 40011, 11): json.dumps([]),
        (SAMPLE, "attach"): json.dumps({"pid": pid}),
        **{("numbers", each): json.dumps(numbers) for each, numbers in (told or {}).items()},
        **({("server", own[0], "fr_trace_json", 0): json.dumps(kept)} if groups else {}),
    }
    return local_ranks.run(Replay(answers, older=False), AskedJob(pid, stacks=told is not None))


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


def test_helpers_that_the_parent_has_started_beside_its_ranks_are_no_ranks() -> None:
    parent, ranks, helper = process(9, None), [process(n, None, 9) for n in (11, 12, 13)], process(14, None, 9)
    mesh = [{"pid": a, "local": f"127.0.0.1:{a}", "peer": f"127.0.0.1:{b}"} for a, b in ((12, 13), (13, 12))]
    told: dict[int, dict[str, int]] = {each: {"rank": each - 11} for each in (11, 12, 13)}
    numbered = [(11, 0), (12, 1), (13, 2)]
    rows = [
        (of_spawned(parent, *ranks, helper, connections=[*meets(11, 12, 13), *mesh], pid=9), numbered),
        (of_spawned(parent, *ranks, helper, connections=meets(11, 12, 13), pid=9), [*numbered, (14, 3)]),  # in init
        (of_spawned(parent, *ranks, helper, connections=[], pid=9, told={**told, 9: {"world": 3}}), numbered),
        (of_spawned(parent, *ranks, helper, connections=[], pid=9, told={**told, 9: {"world": 4}}),
         [(11, None), (12, None), (13, None), (14, None)]),
    ]  # fmt: skip
    for known, wanted in some(rows):
        assert pids(known) == wanted


def test_the_ranks_of_a_launcher_that_has_the_variables_of_its_node_are_its_children() -> None:
    launcher, children = process(9, 0, 1, WORLD_SIZE="1"), [process(n, 0, 9, WORLD_SIZE="1") for n in (11, 12, 13)]
    ranks, itself = [(11, 0), (12, 1), (13, 2)], [(9, 0)]
    joined = {"pid": 9, "local": "10.0.0.1:40000", "peer": "n1:29500"}
    rows = [(meets(11, 12, 13), ranks), ([], itself), ([*meets(11, 12, 13), joined], itself)]
    for connections, wanted in some(rows):
        assert pids(of_spawned(launcher, *children, connections=connections, pid=9)) == wanted


def test_programs_that_a_shell_started_are_no_ranks_of_one_job() -> None:
    shell, programs = process(9, None, library=False), [process(n, None, 9) for n in (11, 12, 13)]
    assert pids(of_spawned(shell, *programs, connections=[])) == []


def test_a_rank_that_has_ended_is_counted_and_the_others_keep_their_numbers() -> None:
    parent, living = process(9, None), [{**process(n, None, 9), "age_s": 60.0} for n in (11, 13)]
    zombie, meeting = {**process(12, None, 9, library=False), "state": "Z", "python": True}, meets(11, 13)
    own = {11: {"r": 0, "world": 3}, 13: {"r": 2, "world": 3}, 9: {"r": 2, "world": 3}}
    same = {11: {"rank": 0, "world_size": 3}, 13: {"rank": 0, "world_size": 3}}
    of_two = {11: {"rank": 1, "world_size": 3}, 13: {"rank": 2, "world_size": 3}, 9: {"world_size": 3}}
    of_node = {**of_two, 9: {}}
    young = [{**each, "age_s": 3.0} for each in living]
    rows = [
        (of_spawned(parent, living[0], zombie, living[1], connections=meeting, pid=9), [0, 2], (1,), 0),
        (of_spawned(parent, *living, connections=meeting, pid=9, told=own), [0, 2], (1,), 0),
        (
            of_spawned(
                parent, living[0], zombie, living[1], connections=[], pid=9, told={11: {"rank": 0}, 13: {"rank": 2}}
            ),
            [0, 2],
            (1,),
            0,
        ),
        (of_spawned(parent, *living, connections=meeting, pid=9, told=same), [0, 1], (), 0),
        (of_spawned(parent, *living, connections=[], pid=9, told=of_two), [1, 2], (0,), 0),  # it had the store
        (of_spawned(parent, *living, connections=[], pid=9, told=of_node), [1, 2], (), 0),
        (
            of_spawned(
                parent,
                *living,
                connections=[],
                pid=9,
                told={11: {"rank": 2, "world": 4}, 13: {"rank": 3, "world": 4}, 9: {"world": 4}},
            ),
            [2, 3],
            (),
            0,
        ),  # of a second node
        (of_spawned(parent, *living, connections=meeting, pid=9, groups="[0, 1, 2]"), [None, None], (), 1),
        (of_spawned(parent, *young, connections=meeting, pid=9, groups="[0, 1, 2]"), [None, None], (), 0),
        (of_spawned(parent, *living, connections=meeting, pid=9, groups="[0, 1]"), [0, 1], (), 0),
        (of_spawned(parent, *living, connections=meeting, pid=9), [0, 1], (), 0),
    ]
    assert len(rows) >= 10
    found = [([each.rank for each in known.ranks], known.absent, known.gone) for known, *_ in rows]
    assert found == [tuple(wanted) for _, *wanted in rows]


def test_of_what_a_program_has_in_variables_only_its_ranks_number_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frame(name: str, file: str = "/home/u/t.py", **values: str) -> dict[str, Any]:
        own = [{"name": each, "repr": text} for each, text in values.items()]
        return {"name": name, "filename": file, "line": 1, "locals": own}

    rows = [
        ([frame("step", rank="7"), frame("main", rank="2", token="5", world="3")], {"rank": 2, "world": 3}),
        ([frame("main", rank="<Rank>"), frame("_wrap", "/p/torch/multiprocessing/spawn.py", i="1")], {"rank": 1}),
        ([frame("main", i="4")], {}),
        ([{"name": "main", "filename": "t.py", "line": 1, "locals": None}], {}),
    ]
    monkeypatch.setattr("ncclprobe.host.py_spy.installed", lambda: str(tmp_path / "py-spy"))
    (tmp_path / "py-spy").write_text(f"#!/bin/sh\ncat {tmp_path}/said\n")
    (tmp_path / "py-spy").chmod(0o755)
    for frames, wanted in rows:
        (tmp_path / "said").write_text(json.dumps([{"os_thread_id": 7, "frames": frames}]))
        said = live.LiveHost(set(), lambda _: False).ask("numbers", 7)
        assert json.loads(said) == wanted
