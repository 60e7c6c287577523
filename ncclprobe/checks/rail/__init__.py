"""The rails between nodes: RDMA ports, connected as NCCL would, in the words of what both ends chose."""

from ncclprobe.facts.infiniband import gid_text
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.rails import Broken, EndView, Tried, gid_address
from ncclprobe.localise.reach import Suspect
from ncclprobe.model.findings import Certainty
from ncclprobe.model.hostlist import fold, fold_numbers
from ncclprobe.model.registry import applies
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.units import plural


@applies
def asked(rails: Every[Rails | Absent]) -> bool:
    """if rails were tried between nodes."""
    return any(isinstance(each, Rails) for _, each in rails.items())


def subject(each: Broken, rails: Every[Rails]) -> str:
    """Name what is bad: ``n3 rail 1 (mlx5_1:1)``, ``n3``, ``n0 rail 1 -> n3 rail 1``."""
    suspect, numbers = each.suspect, each.rails
    every = max((len(one.ports) for _, one in rails.items()), default=0)
    which = "" if len(numbers) == every > 1 else f" rail {fold_numbers(numbers)}"
    if suspect.kind in ("pair", "direction"):
        return (" <-> " if suspect.kind == "pair" else " -> ").join(f"{node}{which}" for node in suspect.nodes)
    if not suspect.nodes:
        return f"all nodes{which}"
    device = _device(suspect.nodes[0], numbers[0], rails) if len(suspect.nodes) == len(numbers) == 1 else ""
    return f"{fold(suspect.nodes)}{which}{device}"


def name(end: End, rails: Every[Rails]) -> str:
    """Return ``n3 rail 1 (mlx5_1:1)``."""
    return f"{end.node} rail {end.rail}{_device(end.node, end.rail, rails)}"


def _device(node: str, rail: int, rails: Every[Rails]) -> str:
    ports = rails.by_node[node].ports if node in rails.by_node else ()
    return f" ({ports[rail].device}:{ports[rail].port})" if rail < len(ports) else ""


def counted(each: Broken) -> str:
    """Return ``6 of 6 ways``."""
    return f"{len(each.suspect.pairs)} of {each.suspect.tests}"


def certainty(each: Broken) -> Certainty:
    """Return how certain it is: confirmed by several other nodes, or seen only between two."""
    suspect = each.suspect
    partners = len({end.node for way in suspect.pairs for end in way} - set(suspect.nodes))
    with_whom = f"with {partners} other nodes" if partners > 1 else "only between these two"
    how = f"{plural(len(each.tests), 'test')} {with_whom if suspect.nodes else 'between all'}"
    return Certainty("high" if partners > 1 else "medium", how)


def both_ends(each: Tried) -> str:
    """Return the choices of both ends in one line."""
    return " | ".join(choices(seen) for seen in each.seen)


def choices(seen: EndView) -> str:
    """Return what NCCL's rules chose at one end, and what is read from its port."""
    outcome = seen.outcome
    if outcome is None:
        return f"{seen.end.node}: not reported"
    asked, own = outcome.asked, outcome.own
    where = f"{seen.end.node} {asked.device}:{asked.port}"
    told = f"SL {asked.service_level or 0}, TC {asked.traffic_class or 0}, {asked.queue_pairs} QP"
    if own is None:
        return f"{where} GID {asked.gid_index}, P_Key index {asked.pkey_index}, {told}"
    gid = f"GID {own.gid_index} {written(own.gid)}" + (f" ({own.gid_type})" if own.gid_type else "")
    lid = f", LID {own.lid}" if own.lid else ""
    return f"{where} {gid}{lid}, P_Key 0x{own.pkey:04x}, MTU {own.active_mtu}, {told}"


def written(gid: str) -> str:
    """Return a GID as an address: ``::ffff:10.0.0.1``."""
    return gid_text(gid_address(gid))


def named(suspect: Suspect[End], rails: Every[Rails]) -> str:
    """Name the ends that :func:`by_rail` suspects: ``into n3 rail 1 (mlx5_1:1)``, ``rail 1 of all nodes``."""
    if not suspect.nodes:
        numbers = sorted({end.rail for way in suspect.pairs for end in way})
        every = max((len(each.ports) for _, each in rails.items()), default=0)
        return "all rails" if len(numbers) == every else f"rail {fold_numbers(numbers)} of all nodes"
    if suspect.kind == "split":
        nodes, numbers = [end.node for end in suspect.nodes], sorted({end.rail for end in suspect.nodes})
        return f"{fold(nodes)} rail {fold_numbers(numbers)} with all other nodes"
    heading = {"into": "into ", "out of": "out of "}.get(suspect.kind, "")
    return heading + (" -> " if suspect.one_way else " <-> ").join(name(end, rails) for end in suspect.nodes)
