"""Machines of the zoo with one fault each: what is planted, and what must be found.

scripts/write_captures.py writes them to tests/captures/sick as ``like`` files: the healthy machine but for the rows
that the fault changes. A finding is written ``severity id subject``.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache

import zoo
from ncclprobe.host import Question
from ncclprobe.model.errors import HostError
from zoo.answers import Answers
from zoo.sick.devices import BUSES, GPUS, RDMA
from zoo.sick.plant import Plant
from zoo.sick.settings import ENVIRONMENT, HOST, LAUNCH

__all__ = ["CAPTURES", "PLANTS", "Plant", "answers", "capture"]

CAPTURES = zoo.CAPTURES / "sick"
PLANTS = {plant.name: plant for plant in (*ENVIRONMENT, *LAUNCH, *RDMA, *GPUS, *BUSES, *HOST)}


@cache
def answers(like: str, *changes: Callable[[Answers], None]) -> Mapping[Question, str | HostError]:
    """What the healthy machine `like` answers after `changes`."""
    return zoo.answers(zoo.MACHINES[like], *changes)


def capture(plant: Plant) -> str:
    """The text of its capture: the rows that are not as the healthy machine's."""
    same = {json.dumps(row) for row in zoo.list_rows(answers(plant.like))}
    rows = [json.dumps(row) for row in zoo.list_rows(answers(plant.like, *plant.changes))]
    rows = [row.replace(*plant.renamed) if plant.renamed[0] else row for row in rows]
    different = [json.loads(row) for row in rows if row not in same]
    header = {"capture": 1, "node": plant.name, "origin": "synthetic", "planted": plant.planted}
    return zoo.lines([header | {"rows": len(different) + 1}, {"like": f"../{plant.like}.jsonl"}, *different])
