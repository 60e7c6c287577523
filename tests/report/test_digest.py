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
        (replace(SLOW, blame="job", action="fix-job"), "the job's settings (read from this machine); correct them"),
        (
            replace(SLOW, blame="node", action="retest", confidence=ONCE),
            "this node (seen once); test again before you act",
        ),
        (replace(SLOW, blame="link", action="repair"), "a link of this node (read from this machine); repair it"),
        (replace(SLOW, blame="node", nodes=("n3", "n4")), "these nodes (read from this machine)"),
    ],
)
def test_blame_is_a_sentence(finding: Finding, words: str) -> None:
    assert digest.blamed(finding) == words


def test_a_finding_of_several_nodes_does_not_say_this_node() -> None:
    finding = replace(SLOW, blame="node", action="repair")
    assert digest.blamed(finding, ("n0", "n1")) == "these nodes (read from this machine); repair it"
    assert digest.blamed(finding, ("n0",)) == "this node (read from this machine); repair it"


@pytest.mark.parametrize("blame", get_args(Blame))
@pytest.mark.parametrize("action", get_args(Action))
def test_every_blame_and_action_has_words(blame: Blame, action: Action) -> None:
    words = digest.blamed(replace(SLOW, blame=blame, action=action))
    assert "-" not in words.partition(" (")[0]
    assert (action == "none") is words.endswith(")")
