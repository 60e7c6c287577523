"""Transports, channels, algorithms and protocols: ours beside what ranks of NCCL 2.30.7 printed on made-up machines."""

from collections import Counter

from expect.nccl_choices import MACHINES, Line, lines, recorded, wanted

OTHERWISE = {
    ("a100-2-2-nodes", "speed and path"): (
        2,
        "the other GPU reaches the only NIC through the first, which ours does not hold",
    ),
    ("a100-2-2-nodes", "algorithm and protocol"): (3, "and LL128 does not go that way"),
    ("l40s-2-3-nodes", "speed and path"): (
        2,
        "two GPUs on two sockets, each with a NIC: NCCL's rings take one path, ours two",
    ),
    ("l40s-2-3-nodes", "algorithm and protocol"): (1, "and a broadcast over one path has less latency"),
}
"""How many lines differ, by machine and kind, and why."""
NOT_KNOWN = {"pro6000-2", "pro6000-4", "pro6000-8"}
"""No speed of NCCL's list fits between AMD's sockets: it takes one channel, of 0.1 GB/s, and ours is not known."""


def said(line: Line) -> tuple[object, object]:
    return tuple(each if not isinstance(each, list) else tuple(each) for each in (line.theirs, line.ours))  # type: ignore[return-value]


def test_each_machine_was_played_to_its_end_with_each_of_its_settings() -> None:
    played = [(row["machine"], row["settings"]) for row in recorded()]
    assert sorted(played, key=str) == sorted(wanted(), key=str)
    assert all({*row["exit_codes"]} == {0} for row in recorded())
    assert (len(played), len(MACHINES)) == (168, 60)


def test_a_line_of_nccls_is_ours_too_but_for_what_is_named() -> None:
    differing = Counter(
        (line.machine, line.kind) for line in lines() if line.ours is not None and len({*said(line)}) > 1
    )
    assert differing == {about: count for about, (count, _) in OTHERWISE.items()}
    assert {line.machine for line in lines() if line.ours is None} == NOT_KNOWN


def where(line: Line) -> str:
    nodes = "nodes" if MACHINES[line.machine].nodes > 1 else "node"
    return f"{nodes}, NVLS" if "NVLS" in line.settings else nodes


def test_so_many_lines_of_a_kind_are_compared() -> None:
    counts = Counter((where(line), line.kind) for line in lines())
    kinds = ("transport", "channels", "speed and path", "algorithm and protocol", "channels of a call")
    assert {place: tuple(counts[place, kind] for kind in kinds) for place, _ in counts} == {
        "node": (1331, 146, 146, 2806, 2806),
        "node, NVLS": (210, 51, 51, 652, 652),
        "nodes": (845, 30, 30, 572, 572),
        "nodes, NVLS": (382, 18, 18, 228, 228),
    }


def test_nvls_is_chosen_where_it_is_on_and_enough_gpus_pull() -> None:
    taken = {row["machine"] for row in recorded() if any("NVLS" in choice[2] for choice in row["choices"])}
    assert {"h100-6-spr", "h100-7-spr", "h100-8-spr", "h100-8-2-nodes"} <= taken
    assert not {"h100-2-spr", "h100-4-spr"} & taken
