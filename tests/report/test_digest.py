"""What is gathered of a report: whose fault a finding is, in words."""

from typing import get_args

import pytest

from ncclprobe.model.findings import ONCE, Action, Blame, Finding, fail
from ncclprobe.model.values import replace
from ncclprobe.report import digest

SLOW = fail("mlx5_3:1", "runs at 200 Gb/s")


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        (
            replace(SLOW, blame="job", action="fix-job"),
            "The job's settings are at fault (read from this machine); correct the job.",
        ),
        (
            replace(SLOW, blame="node", action="retest", confidence=ONCE),
            "This node is at fault (seen once); test again before you act.",
        ),
        (
            replace(SLOW, blame="link", action="repair"),
            "A link of this node is at fault (read from this machine); repair it.",
        ),
        (replace(SLOW, blame="node", nodes=("n3", "n4")), "n[3-4] are at fault (read from this machine)."),
    ],
)
def test_blame_is_a_sentence(finding: Finding, words: str) -> None:
    assert digest.blamed(finding) == words


def test_blame_names_the_nodes_that_are_known() -> None:
    finding = replace(SLOW, blame="link", action="repair")
    assert digest.blamed(finding, ("n0", "n1")) == "A link of n[0-1] is at fault (read from this machine); repair it."
    assert digest.blamed(replace(finding, blame="node"), ("n0",)).startswith("n0 is at fault ")


@pytest.mark.parametrize("blame", get_args(Blame))
@pytest.mark.parametrize("action", get_args(Action))
def test_every_blame_and_action_has_words(blame: Blame, action: Action) -> None:
    words = digest.blamed(replace(SLOW, blame=blame, action=action))
    assert "-" not in words.partition(" (")[0]
    assert (action == "none") is words.endswith(").")
