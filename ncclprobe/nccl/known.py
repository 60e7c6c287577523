"""What is known of a node when its choices are made, and how a choice says what it lacks or refuses."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from ncclprobe.errors import ParseError, Unlearned
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.software import Software, Version
from ncclprobe.facts.system import System
from ncclprobe.model.nccl_selection import Part
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace

T = TypeVar("T")
_MOST_DIFFERENT = 64
"""Different facts of which a part is remembered: where so many nodes differ, the next one will too."""


class Known(Struct, frozen=True):
    """The facts of a node."""

    facts: Mapping[type, Any]

    def need(self, kind: type[T]) -> T:
        """Return the fact of this type. Raises Unlearned where it is absent."""
        fact = self.maybe(kind)
        if isinstance(fact, Absent):
            raise Unlearned(fact.why)
        return fact

    def maybe(self, kind: type[T]) -> T | Absent:
        fact: T | Absent = self.facts.get(kind, Absent(f"{kind.__name__} was never collected"))
        return fact

    @property
    def settings(self) -> Settings:
        return self.need(Settings)

    @property
    def version(self) -> Version | None:
        """Return the version of the NCCL that a job would load; None, the newest known, where there is none."""
        software = self.maybe(Software)
        return software.nccl_version if isinstance(software, Software) else None

    @property
    def gpus(self) -> Gpus:
        """Return those that NVML can read."""
        gpus = self.need(Gpus)
        return replace(gpus, all=tuple(gpu for gpu in gpus.all if not gpu.lost))

    def set(self, *names: str) -> str:
        """Return those of `names` that are set: ``NCCL_IB_HCA=mlx5 (environment)``; empty: none is."""
        rows = [self.settings.effective[name] for name in names if self.settings.get(name)]
        return ", ".join(f"{row.name}={row.value} ({row.origin})" for row in rows)


class Choosing:
    """Parts that were chosen of other nodes' facts. Nodes of a fleet share equal facts, which are told apart by
    identity; a part is what it was for the facts that it asked for.
    """

    def __init__(self) -> None:
        self._made: dict[Any, list[tuple[Mapping[type, Any], Any]]] = {}

    def part(self, decide: Callable[[Known], Part[T]], facts: Mapping[type, Any]) -> Part[T]:
        """Return what `decide` makes of these facts."""
        before = self._made.setdefault(decide, [])
        for asked, made in before:
            if all(_same(kind, facts.get(kind), fact) for kind, fact in asked.items()):
                return cast(Part[T], made)
        watched = _Watched(facts)
        chosen = part(decide, Known(watched))
        if len(before) < _MOST_DIFFERENT:
            before.append((watched.asked, chosen))
        return chosen


class _Watched(dict[type, Any]):
    """Facts that note which of them were asked for."""

    def __init__(self, facts: Mapping[type, Any]) -> None:
        super().__init__(facts)
        self.asked: dict[type, Any] = {}

    def get(self, kind: type, default: Any = None) -> Any:
        self.asked[kind] = super().get(kind)
        return super().get(kind, default)


def _same(kind: type, one: Any, other: Any) -> bool:
    """Return whether two facts are one. Of the system no more is asked than its architecture; settings are few."""
    if kind is System and isinstance(one, System) and isinstance(other, System):
        return one.machine == other.machine
    return one is other or (kind is Settings and bool(one == other))


def part(decide: Callable[[Known], Part[T]], known: Known) -> Part[T]:
    try:
        return decide(known)
    except (Unlearned, ParseError) as gap:
        return Part(None, str(gap))


def refused(subject: str, why: str) -> Part[Any]:
    return Part((), f"{why}: NCCL does not start", refused=True, subject=subject)
