"""What the commands print of recorded jobs and reports, and what is learned of machines, word for word."""

import pytest

from tests.command_values import FILES, KEPT, text
from tests.kept import difference

FEWEST = {"explain-nccl": 20, "explain-silent": 20, "explain-others": 15, "expect": 12, "report": 20, "forms": 60,
          "launchers": 80, "planted": 28, "patterns": 70, "expect-captures": 45, "json": 40, "options": 60,
          "arrivals": 110, "stacks": 16, "training": 18, "assumed": 8, "applies": 130, "drift": 80, "health": 120,
          "told": 20, "wording": 65, "sayings": 80, "stores": 28, "node-lists": 20, "blame": 45, "redactions": 600,
          "answers": 75, "texts": 90, "texts-looks": 2, "texts-ranks": 5, "texts-run": 4,
          "shares": 4, "standing": 300, "logs-others": 110, "logs-reasons": 140,
          "logs-ends": 85, "events": 90, "slow-pairs": 80, "pasted-nodes": 140, "mixed-jobs": 180}  # fmt: skip
FEW = 8
COSTLY = {"altered-hgx-h100", "altered-aws-p4d", "altered-gb200-tray", "altered-guest-rxe-root", "starts",
          "texts", "set-lines", "explain-cases", "drawn-runs", "drawn-systems", "path-fleets"}  # fmt: skip
OFTEN, AT_TIMES = (), (pytest.mark.slow, pytest.mark.every_time)


@pytest.mark.parametrize("name", [pytest.param(each, marks=AT_TIMES if each in COSTLY else OFTEN) for each in FILES])
def test_the_values_that_a_command_prints_and_a_machine_has_are_those_that_were_read(name: str) -> None:
    """A sentence may be rewritten; what it says of which rank, cause, rate or limit may not change unread."""
    kept, now = (KEPT / f"{name}.txt").read_text(encoding="utf-8"), text(name)
    assert kept.split() == now.split(), difference(f"golden.py {name}", kept.splitlines(), now.splitlines())
    assert now.count("== ") >= FEWEST.get(name, FEW)
