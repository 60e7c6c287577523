"""IMEX: the node list, the state, and that a machine outside a rack is not asked."""

from typing import Any

import pytest
from conftest import answers

from ncclprobe.checks.nvl import TRAY
from ncclprobe.checks.sync.host import EIGHT
from ncclprobe.engine.collect import collect
from ncclprobe.facts import driver
from ncclprobe.facts.driver import NODES, Imex
from ncclprobe.facts.nvml import Gpus
from ncclprobe.host import Question
from ncclprobe.model.errors import Missing, ParseError
from ncclprobe.model.registry import Collector
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

LIST = "# the rack\n10.0.0.1\n\n10.0.0.2  # second\n"


def learned(said: dict[Question, Any], gpus: Gpus = TRAY) -> Imex | Absent:
    given = Collector(run=lambda host: gpus, produces=Gpus)
    found = collect(answers(said), [driver.imex, given])[Imex]
    assert isinstance(found, Imex | Absent)
    return found


def test_the_node_list_and_the_state_are_read() -> None:
    seen = learned({("read", NODES): LIST, ("run", "nvidia-imex-ctl", "-q"): "READY\n"})
    assert seen == Imex(("10.0.0.1", "10.0.0.2"), "READY")


def test_in_a_container_neither_is_known() -> None:
    gone = Missing("not there")
    seen = learned({("read", NODES): gone, ("run", "nvidia-imex-ctl", "-q"): gone})
    assert isinstance(seen, Imex)
    assert isinstance(seen.nodes, Absent)
    assert isinstance(seen.state, Absent)


def test_a_machine_outside_a_rack_is_not_asked() -> None:
    assert learned({}, EIGHT) == Absent("no GPU is part of a cluster of machines", "Failed")


@each_row("text", ["", "\n", "x" * 200])
def test_a_state_that_is_none_is_not_understood(text: str) -> None:
    with pytest.raises(ParseError):
        driver.state(text)


def test_too_long_a_list_is_refused() -> None:
    with pytest.raises(ParseError, match="5000 nodes"):
        driver.nodes("10.0.0.1\n" * 5000)
