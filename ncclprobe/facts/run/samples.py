"""Samples to types: what a run log holds may come from another tool or a killed process, so all of it is validated."""

import json
from typing import Any, TypeVar

import msgspec

from ncclprobe.errors import NotCaptured, ParseError
from ncclprobe.host import SAMPLE, Host

T = TypeVar("T")


def every(host: Host, name: str, kind: type[T], none: str = "") -> tuple[T, ...]:
    """Return all samples called `name`, as `kind`, in their order. Raises ParseError, NotCaptured where there is none.

    `none`: what the reader is told then.
    """
    try:
        text = host.ask(SAMPLE, name)
    except NotCaptured as gap:
        raise NotCaptured(none or str(gap)) from None

    try:
        values: Any = json.loads(text)
        return msgspec.convert(values, tuple[kind, ...], str_keys=True)  # type: ignore[valid-type]
    except (ValueError, msgspec.ValidationError) as error:
        raise ParseError(f"sample {name}: {error}") from None


def any_of(host: Host, name: str, kind: type[T]) -> tuple[T, ...]:
    """As :func:`every`, empty where there is none: of samples that only some runs have. Raises ParseError."""
    try:
        return every(host, name, kind)
    except NotCaptured:
        return ()


def last(host: Host, name: str, kind: type[T], none: str = "") -> T:
    """Return the newest sample called `name`. Raises as :func:`every` does."""
    return every(host, name, kind, none)[-1]
