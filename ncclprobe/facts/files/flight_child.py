"""Parse flight-recorder dumps: files only in a child process, a running rank's JSON in any process.

A file is a pickle from an untrusted source. C's Unpickler reads it with every lookup of a class or name refused, so the
result is only numbers, texts, lists, tuples and dictionaries. Anything but a dump is refused with a reason. The child
answers in MessagePack: a :class:`~ncclprobe.facts.files.flight_records.FlightDump`, or the reason. A text is never a
pickle: msgspec reads JSON within a bounded size, and starting a child would cost more than the parsing.

The keys are those of torch's FlightRecorder.hpp, format 2.1 (torch 2.4) to 2.10 (torch 2.13).
"""

import pickle
from array import array
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import msgspec

from ncclprobe.facts.files.flight_records import (
    COLUMNS,
    COMPLETED,
    MAX_DUMP_BYTES,
    RETIRED,
    STARTED,
    FlightCall,
    FlightDump,
    FlightFrame,
    FlightGroup,
)
from ncclprobe.host.limited_child import serve_limited

MEMORY_BYTES = 512 << 20
MAX_ENTRIES, MAX_TABLE, MAX_FRAMES, MAX_TEXT, MAX_SHAPES = 100_000, 20_000, 24, 300, 3
MAX_INTEGER = (1 << 63) - 1
Json = Mapping[Any, Any]
DAMAGED = (
    pickle.UnpicklingError,
    msgspec.MsgspecError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions raised by a damaged pickle or JSON, or by a dump that torch did not write."""


class Refusing(Exception):
    """Raised with the reason why these bytes are refused."""


class _DataUnpickler(pickle.Unpickler):
    """C's Unpickler for plain data: it looks up nothing, so nothing can be called."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse: a dump contains no class instances."""
        raise Refusing(f"it asks for {module[:80]}.{name[:80]}: a dump holds only data, so this may be an attack")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse: a dump has no external references."""
        raise Refusing("it refers to an object outside it")


def serve() -> None:
    """Run the child's loop."""
    serve_limited(answer, MAX_DUMP_BYTES, MEMORY_BYTES)


def answer(data: bytes) -> bytes:
    """Return the dump in `data`, or why it was refused, in MessagePack."""
    return msgspec.msgpack.encode(read(data))


def read(data: bytes | str) -> FlightDump | str:
    """Return the dump in `data`, or why it was refused. A str is JSON."""
    if len(data) > MAX_DUMP_BYTES:
        return f"it is longer than {MAX_DUMP_BYTES >> 20} MiB"
    try:
        return dump(loaded(data))
    except Refusing as reason:
        return str(reason)
    except DAMAGED as error:
        return f"it is not in torch's format: {type(error).__name__}: {str(error)[:120]}"
    except MemoryError:
        return f"reading it takes more than {MEMORY_BYTES >> 20} MiB"


def loaded(data: bytes | str) -> Json:
    """Decode `data` as a pickle or JSON. Raises Refusing."""
    try:
        if isinstance(data, bytes) and data[:1] == b"\x80":
            value = _DataUnpickler(BytesIO(data)).load()
        else:
            value = msgspec.json.decode(data)
    except DAMAGED as error:
        raise Refusing(f"it is damaged or cut: {type(error).__name__}: {str(error)[:120]}") from None
    if isinstance(value, list):
        value = {"entries": value}
    if not isinstance(value, dict) or not isinstance(value.get("entries", []), list):
        raise Refusing("it holds no flight recorder's entries")
    if not value.keys() & {"entries", "pg_config", "pg_status"}:
        raise Refusing("it holds no flight recorder's entries")
    return value


def dump(value: Json) -> FlightDump:
    """Convert a dump's dictionary; malformed entries are left out and counted.

    Raises Refusing if no entry is valid.
    """
    table = _Columns()
    entries = value.get("entries", [])
    for entry in entries[-MAX_ENTRIES:]:
        table.add(entry)
    if entries and not table.columns["seq"]:
        raise Refusing(f"none of its {len(entries)} entries is in torch's format")
    columns: dict[str, Any] = {name: column.tobytes() for name, column in table.columns.items()}
    return FlightDump(
        version=_text(value.get("version")),
        library=_text(value.get("comm_lib_version") or value.get("nccl_version")),
        groups=tuple(_groups(table, value)),
        calls=tuple(table.calls),
        stacks=tuple(table.stacks),
        **columns,
        first_record=table.first_record,
        left_out=table.left_out + max(0, len(entries) - MAX_ENTRIES),
    )


class _Columns:
    """The entries of one dump as columns; shared values are stored once."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str, str], int] = {}
        self.ids: dict[int, int] = {}
        self.timeouts_ms: dict[int, int] = {}
        self.calls: list[FlightCall] = []
        self.stacks: list[tuple[FlightFrame, ...]] = [()]
        self.columns = {name: array(code) for name, code in COLUMNS.items()}
        self.first_record, self.left_out = 0, 0
        self._call_index: dict[Any, int] = {}
        self._stack_index: dict[Any, int] = {(): 0}

    def add(self, entry: Any) -> None:
        """Append one entry, its values in column order."""
        try:
            row = self._row(entry)
            self.timeouts_ms[row[0]] = _number(entry.get("timeout_ms"))
            if not self.columns["seq"]:
                self.first_record = _number(entry.get("record_id"))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            self.left_out += 1
            return
        for column, number in zip(self.columns.values(), row, strict=True):
            column.append(number)

    def _row(self, entry: Json) -> tuple[int, ...]:
        name = entry["profiling_name"]
        p2p = bool(entry.get("is_p2p", False))
        seq = entry.get("p2p_seq_id" if p2p else "collective_seq_id", entry.get("seq_id"))
        created, completed = entry.get("time_created_ns"), entry.get("time_discovered_completed_ns")
        state = _STATES.get(entry.get("state", ""), 0) | (RETIRED if entry.get("retired") is True else 0)
        return (
            self._group_of(entry, name),
            self._call_of(entry, name, p2p),
            self._stack_of(entry.get("frames") or ()),
            _number(seq),
            state,
            _number(created),
            _number(completed),
        )

    def _group_of(self, entry: Json, name: str) -> int:
        group = entry.get("process_group") or ("", "")
        key = (name.partition(":")[0], group[0], group[1])
        index = self.groups.get(key)
        if index is None:
            if not all(isinstance(text, str) for text in key) or len(self.groups) >= MAX_TABLE:
                raise ValueError
            index = self.groups.setdefault(key, len(self.groups))
            if isinstance(pg_id := entry.get("pg_id"), int):
                self.ids[index] = pg_id
        return index

    def _call_of(self, entry: Json, name: str, p2p: bool) -> int:
        sizes_in, sizes_out = entry.get("input_sizes", ()), entry.get("output_sizes", ())
        types_in, types_out = entry.get("input_dtypes", ()), entry.get("output_dtypes", ())
        key = (name, p2p, str(sizes_in), str(types_in), str(sizes_out), str(types_out))
        index = self._call_index.get(key)
        if index is None:
            if len(self.calls) >= MAX_TABLE:
                raise ValueError
            self.calls.append(
                FlightCall(
                    op=_text(name.partition(":")[2] or name),
                    p2p=p2p,
                    inputs=_shapes(sizes_in),
                    outputs=_shapes(sizes_out),
                    input_numel=_numel(sizes_in),
                    output_numel=_numel(sizes_out),
                    input_dtype=_types(types_in),
                    output_dtype=_types(types_out),
                )
            )
            index = self._call_index[key] = len(self.calls) - 1
        return index

    def _stack_of(self, frames: Sequence[Json]) -> int:
        key = tuple([(frame["name"], frame["filename"], frame["line"]) for frame in frames[:MAX_FRAMES]])
        index = self._stack_index.get(key)
        if index is None:
            if len(self.stacks) >= MAX_TABLE:
                return 0
            self.stacks.append(tuple(FlightFrame(_text(name), _text(file), _number(line)) for name, file, line in key))
            index = self._stack_index[key] = len(self.stacks) - 1
        return index


_STATES = {"scheduled": 0, "started": STARTED, "completed": STARTED | COMPLETED}


def _groups(table: _Columns, value: Json) -> Iterator[FlightGroup]:
    """Yield the groups in index order, then groups without entries."""
    config, status = _mapping(value.get("pg_config")), _mapping(value.get("pg_status"))
    ranks = {str(name): _ranks(_mapping(each).get("ranks")) for name, each in list(config.items())[:MAX_TABLE]}
    described = {str(name): _text(_mapping(each).get("desc")) for name, each in list(config.items())[:MAX_TABLE]}
    for (backend, name, desc), index in table.groups.items():
        last = _mapping(status.get(str(table.ids.get(index))))
        timeout_s = table.timeouts_ms.get(index, 0) / 1000
        enqueued, started, completed = _last(last)
        yield FlightGroup(
            _text(backend), _text(name), _text(desc), ranks.get(name, ()), enqueued, started, completed, timeout_s
        )
    for name in sorted(ranks.keys() - {name for _, name, _ in table.groups}):
        if ranks[name]:
            yield FlightGroup("", name[:MAX_TEXT], described[name], ranks[name])


def _last(status: Json) -> tuple[int | None, ...]:
    return tuple(
        None if (found := _parse_integer(status.get(f"last_{what}_collective"))) is None or found < 0 else found
        for what in ("enqueued", "started", "completed")
    )


def _parse_integer(value: Any) -> int | None:
    """Return an integer from a pickle, or from the text that JSON has instead."""
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        value = int(value)
    return value if isinstance(value, int) and abs(value) <= MAX_INTEGER else None


def _ranks(value: Any) -> tuple[int, ...]:
    """Parse ``[0, 1, 2]``, which torch writes as text."""
    words = value.strip("[] ").split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
    found = [_parse_integer(word.strip() if isinstance(word, str) else word) for word in words[: 1 << 20]]
    return tuple(rank for rank in found if rank is not None)


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _number(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or not 0 <= value <= MAX_INTEGER:
        raise ValueError
    return value


def _shapes(sizes: Sequence[Sequence[int]]) -> str:
    """Return ``[8, 128]``; for many tensors, the first shapes and the count."""
    shown = ", ".join(str(list(size))[:100] for size in sizes[:MAX_SHAPES])
    return shown if len(sizes) <= MAX_SHAPES else f"{shown}, … ({len(sizes)} tensors)"


def _numel(sizes: Sequence[Sequence[int]]) -> int:
    total = 0
    for size in sizes:
        numel = 1
        for dim in size:
            numel *= _number(dim)
            if numel > MAX_INTEGER:
                raise ValueError
        total += numel
    return _number(total)


def _types(types: Sequence[str]) -> str:
    """Return the tensors' common type, or every type that occurs."""
    return _text("+".join(dict.fromkeys(map(_text, types))))
