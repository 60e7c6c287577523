"""One test over a table: every row is tried, and all that fail are named in one assertion.

    @each_row("text, seconds", [("10 s", 10.0), ("2 min", 120.0)])
    def test_a_time_is_read(text: str, seconds: float) -> None:
        assert units.seconds(text) == seconds

It takes what `pytest.mark.parametrize` takes. Collecting an item costs every worker more than most rows cost to try,
so a table of small rows is one item. Each row has a `tmp_path` and a `monkeypatch` of its own; use `parametrize` if
rows need other fixtures of their own, or take seconds each.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
_SHOWN = 120


def each_row(
    names: str | tuple[str, ...] | list[str], table: Iterable[Any], *,
    ids: Iterable[str | None] | Callable[[Any], Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    """Return a decorator that tries a test on each row of `table`.

    `names`: the parameters that a row fills, as in `parametrize`. `ids`: how the rows are called. An empty table fails.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    told = [(name, values) for name, values in _named(list(table), ids, len(wanted))]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def on_all_rows(**fixtures: Any) -> None:
            failed: dict[str, str] = {}
            for number, (name, values) in enumerate(told):
                try:
                    with _own(fixtures, number) as own:
                        test(**dict(zip(wanted, values, strict=True)), **own)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is told with its row
                    failed[name] = f"{type(error).__name__}: {error}"
            assert told, "the table has no row"
            assert not failed, "\n".join(
                [f"{len(failed)} of {len(told)} rows fail", *(f"[{name}] {why}" for name, why in failed.items())]
            )

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name not in wanted]
        on_all_rows.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return on_all_rows

    return decorate


def some(rows: Iterable[T]) -> list[T]:
    """Return `rows` as a list. Raises AssertionError for none: a loop that asserts nothing passes."""
    found = list(rows)
    assert found, "there is nothing to try"
    return found


def known(value: T | None) -> T:
    """Return a value that there must be."""
    assert value is not None
    return value


@contextlib.contextmanager
def _own(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Yield the fixtures of one row: a folder of its own, output of its own, and a `monkeypatch` undone after it."""
    own = dict(fixtures)
    for capture in own.keys() & {"capsys", "capfd"}:
        own[capture].readouterr()
    if "tmp_path" in own:
        own["tmp_path"] = own["tmp_path"] / str(number)
        own["tmp_path"].mkdir()
    with own["monkeypatch"].context() if "monkeypatch" in own else contextlib.nullcontext() as patch:
        yield {**own, "monkeypatch": patch} if patch else own


def _named(table: list[Any], ids: Any, width: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    given = list(ids) if ids is not None and not callable(ids) else [None] * len(table)
    for number, (row, name) in enumerate(zip(table, given, strict=True)):
        set_of_pytest = hasattr(row, "values") and hasattr(row, "marks") and hasattr(row, "id")
        assert not (set_of_pytest and row.marks), "a row with marks needs parametrize"
        values = tuple(row.values) if set_of_pytest else tuple(row) if width > 1 else (row,)
        name = name or (row.id if set_of_pytest else None)
        if name is None:
            name = "-".join(str(ids(value)) if callable(ids) else repr(value) for value in values)
        yield f"{number}: {name[:_SHOWN]}", values
