"""Place ranks: the node and rail of each, with the NIC that carries its bytes where that is known."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ncclprobe.localise.pairs.samples import End, Layout
from ncclprobe.model.pair_results import Nic
from ncclprobe.model.values import Struct


class Placement(Struct, frozen=True):
    """The `ends` by rank, the name of each, the resulting layout of the fabric, and the ranks of each node.

    `note`: what the reader must know of how rails were numbered.
    """

    hosts: tuple[str, ...]
    ends: tuple[End, ...]
    names: Mapping[End, str]
    layout: Layout
    note: str = ""

    @property
    def nodes(self) -> dict[str, list[int]]:
        """Return the ranks of each node, in the order of the nodes."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for rank, host in enumerate(self.hosts):
            found[host].append(rank)
        return dict(found)

    @property
    def single(self) -> bool:
        """Return whether there is only one node, so that its ranks take the place of nodes."""
        return len(set(self.hosts)) == 1

    @property
    def rails(self) -> dict[str, list[int]]:
        """Return the rails of each node, or of each rank where these take the place of nodes."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for end in self.ends:
            found[end.node].append(end.rail)
        return dict(found)


def place_ranks(hosts: Sequence[str], nics: Sequence[Nic | None] = ()) -> Placement:
    """Return the placement of ranks on `hosts`, with these NICs (empty: not known).

    A rail is the number of a NIC where every rank has one of its own and all nodes have the same numbers, or some could
    never meet; else the rank's position on its node.
    """
    if len(set(hosts)) == 1:
        ends_of_ranks = tuple(End(f"rank {rank}") for rank in range(len(hosts)))
        return Placement(tuple(hosts), ends_of_ranks, {end: str(end) for end in ends_of_ranks}, Layout())
    known = [nic for nic in nics if nic is not None]
    numbers = _by_nic(hosts, known) if known and len(known) == len(hosts) else None
    ends = tuple(End(host, rail) for host, rail in zip(hosts, numbers or _places(hosts), strict=True))
    names = {end: str(end) for end in ends}
    if nics:
        names = {end: f"{end} ({nic.name})" if nic else str(end) for end, nic in zip(ends, nics, strict=True)}
    shared = bool(known) and numbers is None
    several = max(end.rail for end in ends) > 0
    note = "a rail is the place of a rank on its node here: ranks share NICs, or these are not known everywhere"
    return Placement(tuple(hosts), ends, names, Layout(rails=not shared), note if shared and several else "")


def _by_nic(hosts: Sequence[str], nics: Sequence[Nic]) -> list[int] | None:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for host, nic in zip(hosts, nics, strict=True):
        numbers[host].append(nic.index)
    distinct = all(len(set(each)) == len(each) for each in numbers.values())
    same_numbers = len({tuple(sorted(each)) for each in numbers.values()}) == 1
    return [nic.index for nic in nics] if distinct and same_numbers else None


def _places(hosts: Sequence[str]) -> list[int]:
    seen: defaultdict[str, int] = defaultdict(int)
    places = []
    for host in hosts:
        places.append(seen[host])
        seen[host] += 1
    return places
