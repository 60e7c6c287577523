"""Compare the arguments that ranks gave to one call of torch.distributed, as their stacks show them."""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.model.values import grouped

_DISTRIBUTED = "/torch/distributed/"
_SOURCE, _TARGET = ("src", "group_src"), ("dst", "group_dst")
_COMPARED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("broadcast", "broadcast_object_list", "scatter", "scatter_object_list"), _SOURCE),
    **dict.fromkeys(("reduce", "gather", "gather_object"), _TARGET),
    "new_group": ("ranks", "group_name"),
    "init_process_group": ("init_method", "world_size", "group_name", "hostname", "port", "backend"),
}
"""Arguments that have to be equal on all ranks; torch counts the groups of a program, and names them so."""
_WORDS = {"group_name": "its group", "ranks": "a group of ranks", "hostname": "address"}
_MOST_TEXT = 60


def arguments(stack: Sequence[FlightFrame]) -> Mapping[str, str]:
    """Return the known arguments of a call of torch.distributed; those of its outer function count.

    `group_name` and the store's address are known further inside.
    """
    found: dict[str, str] = {}
    for frame in reversed(stack):
        if _DISTRIBUTED in frame.filename:
            found = {**getattr(frame, "values", {}), **found}
    return found


def differing(call: str, given: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
    """Return for each rank its arguments of `call` that are not the same on all ranks; empty: none is known."""
    apart = [
        name
        for name in _COMPARED.get(call, ())
        if len({values.get(name) for values in given.values()}) > 1 and all(name in each for each in given.values())
    ]
    shown = [name for name in apart if name not in ("group_src", "group_dst")] or apart
    found = {rank: ", ".join(_spell_argument(name, values[name]) for name in shown) for rank, values in given.items()}
    by_rank = grouped((values["rank"], rank) for rank, values in given.items() if call == _INIT and "rank" in values)
    twice = {rank: f"the same rank={number}" for number, ranks in by_rank.items() if len(ranks) > 1 for rank in ranks}
    return found if shown else twice


_INIT = "init_process_group"


def _spell_argument(name: str, value: str) -> str:
    value = value if len(value) <= _MOST_TEXT else f"…{value[-_MOST_TEXT:]}"
    return f"{_WORDS[name]} {value}" if name in _WORDS else f"{name}={value}"


def of_peer(stack: Sequence[FlightFrame]) -> str:
    """Return the peer and the tag of a send or receive: `` from rank 1, tag 31``; empty if unknown."""
    values = {**arguments(stack), **{k: v for frame in stack[:1] for k, v in getattr(frame, "values", {}).items()}}
    return "".join(_peer_words(values))


def crossed(given: Mapping[int, Mapping[str, str]]) -> tuple[int, str, str] | None:
    """Return the rank that receives from one that sends nothing to it, while another does, and why it gets nothing;
    None: none is known to.

    `given` are the arguments of those that are in a send or receive.
    """
    sends = {rank: values["dst"] for rank, values in given.items() if "dst" in values}
    for rank, values in given.items():
        to_it = {each: given[each] for each, target in sends.items() if target == str(rank)}
        source = int(values["src"]) if values.get("src", "").isdecimal() else -1
        if source < 0 or not to_it:
            continue
        if source not in to_it:
            why = f"rank {rank} receives from rank {source}, which sends nothing to it; rank {min(to_it)} does"
            return rank, why, "p2p-peer"
        tags = values.get("tag"), to_it[source].get("tag")
        if None not in tags and tags[0] != tags[1]:
            return rank, f"rank {rank} receives tag {tags[0]} from rank {source}, which sends tag {tags[1]}", "p2p-tag"
    return None


def address(stack: Sequence[FlightFrame]) -> str:
    """Return the store that a program calls in init, as its arguments give it: ``127.0.0.1:29500``; empty: unknown."""
    values = arguments(stack)
    if {"hostname", "port"} <= values.keys():
        return f"{values['hostname']}:{values['port']}"
    scheme, _, place = values.get("init_method", "").partition("tcp://")
    return place.partition("?")[0] if not scheme else ""


def _peer_words(values: Mapping[str, str]) -> Iterator[str]:
    peers = ((" from rank", "src"), (" with rank", "peer"), (" to rank", "dst"))
    yield from [f"{word} {values[name]}" for word, name in peers if values.get(name, "").isdecimal()][:1]
    if values.get("tag", "0").isdecimal() and values.get("tag", "0") != "0":
        yield f", tag {values['tag']}"
