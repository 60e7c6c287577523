"""What a run is judged by where nobody gave it a file."""

from pathlib import Path

from ncclprobe.engine import collect
from ncclprobe.expect import expected
from ncclprobe.expect.expected import Expecting
from ncclprobe.expect.system import Shape
from ncclprobe.host.capture import load
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.values import replace

CAPTURES = Path(__file__).resolve().parents[1] / "captures"


def test_of_nodes_that_differ_the_slowest_is_expected_and_named() -> None:
    collectors = discover("ncclprobe.facts", Collector)
    seen = expected.describe(collect.capture_facts(load(CAPTURES / "hgx-h100.jsonl"), collectors).facts)
    assert seen.system
    whole = replace(seen, machine=None)
    slow = replace(whole, system=replace(seen.system, nics=4), why="this is the slow one")
    shape = Shape((8, 8))

    def at_1_gib(*nodes: expected.Described) -> tuple[float, str]:
        found = expected.expecting(["all_reduce"], [1 << 30], 4, shape, dict(zip(("n0", "n1"), nodes, strict=True)))
        return found.bands[0].expectation.value, found.note

    alike, differs, both_slow = at_1_gib(whole, whole), at_1_gib(whole, slow), at_1_gib(slow, slow)
    assert both_slow[0] < alike[0]
    assert differs[0] == both_slow[0]
    assert "n1: this is the slow one" in differs[1]
    assert expected.expecting(["all_reduce"], [1 << 30], 4, shape, {"n0": expected.Described(None, why="no GPU")}) == (
        Expecting(note="no expectation: n0: no GPU")
    )
