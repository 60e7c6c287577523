"""What differs between kept values and those of now: the message of a test that compares them."""

from collections.abc import Iterable, Iterator

_SHOWN, _WIDTH = 10, 300


def difference(command: str, kept: Iterable[str], now: Iterable[str]) -> str:
    """Return the script that keeps the new values, and the lines that differ, each behind the name of its case.

    A line "== NAME" begins a case.
    """
    before, after = set(_of_cases(kept)), set(_of_cases(now))
    lines = [*((each, "kept ") for each in before - after), *((each, "found") for each in after - before)]
    shown = [f"  {side} {' | '.join(filter(None, each))[:_WIDTH]}" for each, side in sorted(lines)]
    more = [f"  and {len(shown) - _SHOWN} lines more"] if len(shown) > _SHOWN else []
    advice = f"if you meant this, run `.venv/bin/python scripts/{command}`, and read the difference"
    return "\n".join([advice, *shown[:_SHOWN], *more])


def _of_cases(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    name = ""
    for line in lines:
        name = line[3:] if line.startswith("== ") else name
        yield name, line
