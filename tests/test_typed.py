"""Whether a fact holds what its type says, whatever JSON it was taken out of."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from ncclprobe.engine.collect import collect, misfit
from ncclprobe.facts.process import SharedMemory
from ncclprobe.host.capture import Replay, load
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field
from tests.each_row import each_row

CAPTURES = sorted((Path(__file__).parent / "captures").rglob("*.jsonl"))


class Part(Struct, frozen=True):
    name: str
    rate: float | Absent
    kind: Literal["a", "b"] = "a"


class Whole(Struct, frozen=True):
    count: int
    parts: tuple[Part, ...] = ()
    pair: tuple[int, str] = (1, "x")
    by_name: Mapping[str, frozenset[int]] = field(default_factory=dict)
    inner: "Whole | None" = None


class Loose(Struct, frozen=True):
    anything: Any = None
    made: Callable[[], int] | None = None
    flag: bool = False
    items: tuple[int, ...] = ()
    rates: tuple[float | None, ...] = ()


BIG = 1 << 64
VALUES: list[Any] = [
    Whole(1), Whole(True), Whole(1, (Part("x", 2), Part("y", Absent("no"), "b"))),
    Whole(1, inner=Whole(2, by_name={"a": frozenset({1})})), Whole(None), Whole(1 << 64), Whole(1.0),
    Whole(1, (Part("x", 2.0), Part(3, 2.0))), Whole(1, (Part("x", float("nan")),)), Whole(1, (Part("x", 1.0, "c"),)),
    Whole(1, (Part("x", 1.0, ["a"]),)), Whole(1, (Part("x", "1"),)), Whole(1, [Part("x", 1.0)]),
    Whole(1, pair=(1, "x", 2)),
    Whole(1, pair=(1, 2)), Whole(1, pair=[1, "x"]), Whole(1, pair=None), Whole(1, by_name={"a": frozenset({"x"})}),
    Whole(1, by_name={3: frozenset({1})}), Whole(1, by_name={3: {"x"}}), Whole(1, by_name={"n" * 50: 3}),
    Whole(1, inner=Whole(2, inner=Whole("3"))), Whole(1, inner="x"), Whole(1, (Part("x", Absent(3)),)),
    Whole(1, by_name=[]), [], "x" * 50, Loose(object(), len, True), Loose(flag=1), Loose(made=3),
    Loose(items=(1, True)),
    *(Loose(items=each) for each in ((1, 2.0), ("1",), (1, None), (1 - BIG, BIG - 1), (1, BIG), (-BIG, 1))),
    *(Whole(each) for each in (BIG - 1, BIG, 1 - BIG, -BIG)),
    *(Loose(rates=each) for each in ((1.0, None), (None, "x"), (BIG,), (BIG - 1,), (-BIG,), (float("inf"),))),
]  # fmt: skip


def wrong(value: Any) -> str:
    """Return what is wrong with a value that should be a Whole, or a Loose if it is one."""
    return misfit(value, Loose if isinstance(value, Loose) else Whole)


@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_every_fact_of_a_real_machine_holds_what_its_type_says(path: Path) -> None:
    facts = collect(load(path), discover("ncclprobe.facts", Collector, {"machine"}))
    assert [fact.why for fact in facts.values() if isinstance(fact, Absent) and "not understood:" in fact.why] == []


@each_row("total", [None, "1", -1.5, [], 1e999, 10**30])
def test_a_number_that_is_none_makes_the_fact_absent(total: Any) -> None:
    said = json.dumps({"total": total, "available": 1})
    host = Replay({("statvfs", "/dev/shm"): said, ("list", "/dev/shm", "nccl-*"): "[]"})
    collectors = [c for c in discover("ncclprobe.facts", Collector, {"machine"}) if c.produces is SharedMemory]
    fact = collect(host, collectors)[SharedMemory]
    assert isinstance(fact, Absent)
    assert "SharedMemory.total_bytes is" in fact.why
