"""Whether a fact holds what its type says, whatever JSON it was taken out of."""

import json
from collections.abc import Mapping
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


@each_row(
    ("value", "wrong"),
    [
        (Whole(1), ""),
        (Whole(True), ""),
        (Whole(1, (Part("x", 2), Part("y", Absent("no"), "b"))), ""),
        (Whole(1, inner=Whole(2, by_name={"a": frozenset({1})})), ""),
        (Whole(None), ".count is NoneType 'None'"),
        (Whole(1 << 64), ".count is int '18446744073709551616'"),
        (Whole(1.0), ".count is float '1.0'"),
        (Whole(1, (Part("x", 2.0), Part(3, 2.0))), ".parts[1].name is int '3'"),
        (Whole(1, (Part("x", float("nan")),)), ".parts[0].rate is float 'nan'"),
        (Whole(1, (Part("x", 1.0, "c"),)), ".parts[0].kind is str 'c'"),
        (Whole(1, [Part("x", 1.0)]), ".parts is list"),
        (Whole(1, pair=(1, "x", 2)), ".pair is tuple"),
        (Whole(1, pair=(1, 2)), ".pair[1] is int '2'"),
        (Whole(1, by_name={"a": frozenset({"x"})}), ".by_name['a']"),
        (Whole(1, inner=Whole(2, inner=Whole("3"))), ".inner.inner.count is str '3'"),
        (Whole(1, (Part("x", Absent(3)),)), ".parts[0].rate.why is int '3'"),
        (Whole(1, by_name=[]), ".by_name is list"),
        ([], " is list '[]'"),
    ],
)
def test_the_first_value_of_another_type_is_named(value: Any, wrong: str) -> None:
    found = misfit(value, Whole)
    assert found.startswith(wrong)
    assert bool(found) == bool(wrong)


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
