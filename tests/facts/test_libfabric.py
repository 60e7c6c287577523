"""Where libfabric's fi_pingpong lies, asked only where there are devices for it."""

from typing import Any

import pytest
from conftest import answers

from ncclprobe.checks.env.fixtures import fabric, port
from ncclprobe.facts.plugins import FOLDERS, Libfabric, libfabric
from ncclprobe.model.errors import Denied, Missing
from tests.each_row import each_row

EFA = fabric(port("rdmap79s0", link_layer="Unknown"))
HERE, NOT_HERE = {"read": True, "write": False}, {"read": False, "write": False}


def of(*said: Any) -> dict[tuple[str | int, ...], Any]:
    return {("access", f"{folder}/fi_pingpong"): answer for folder, answer in zip(FOLDERS, said, strict=False)}


@each_row(
    ("said", "path"),
    [
        ((HERE, HERE, HERE), "/opt/amazon/efa/bin/fi_pingpong"),
        ((NOT_HERE, Missing("not there"), HERE), "/usr/bin/fi_pingpong"),
        ((NOT_HERE, NOT_HERE, NOT_HERE), ""),
    ],
)
def test_the_first_folder_that_has_it_counts(said: tuple[Any, ...], path: str) -> None:
    assert libfabric.run(answers(of(*said)), EFA) == Libfabric(path)


def test_where_nothing_needs_it_nothing_is_asked() -> None:
    assert libfabric.run(answers({}), fabric(port("mlx5_0"))) == Libfabric()


def test_a_refusal_is_no_knowledge() -> None:
    with pytest.raises(Denied):
        libfabric.run(answers(of(Denied("no"))), EFA)
