"""What ranks tell each other before anything is measured, and what all of them do then. Pure; JSON over the store."""

from collections.abc import Sequence

from ncclprobe.model.values import Struct, field
from ncclprobe.session.ranks.identity import Backend


class Card(Struct, frozen=True):
    """One rank's introduction.

    `plan` is a digest of the options that all ranks must share, `gpu` the identity of its GPU (None: it uses none) and
    `gpu_index` its number on the node, `backend` what it would measure with, for which `remark` is due; or None and
    the `error` that keeps it from that. `falsifying` are the variables of its environment that change what is timed.
    """

    host: str
    plan: int
    versions: dict[str, str | None]
    backend: Backend | None = None
    gpu: str | None = None
    remark: str = ""
    error: str = ""
    gpu_index: int | None = None
    falsifying: dict[str, str] = field(default_factory=dict)


class Terms(Struct, frozen=True):
    """Rank 0's decision for all. With an `error` nobody measures; `backend` is then what it may be."""

    backend: Backend
    nodes: int
    remark: str = ""
    error: str = ""


def agree(cards: Sequence[Card], nnodes: int) -> Terms:
    """What the ranks that sent `cards`, in their order, do. Containers on several nodes may share one host name."""
    first = cards[0]
    error = next((card.error for card in cards if card.error), "") or _disagreement(cards)
    return Terms(first.backend or "gloo", max(nnodes, len({card.host for card in cards})), first.remark, error)


def _disagreement(cards: Sequence[Card]) -> str:
    first, seen = cards[0], dict[tuple[str, str], int]()
    for rank, card in enumerate(cards):
        if card.backend != first.backend:
            return (
                f"rank 0 on {first.host} would measure {first.backend} and rank {rank} on {card.host} "
                f"{card.backend}; give every node its GPUs, or ask for --backend gloo"
            )
        if card.plan != first.plan:
            return f"rank {rank} on {card.host} was started with other options than rank 0; start all alike"
        other = rank if card.gpu is None else seen.setdefault((card.host, card.gpu), rank)
        if other != rank:
            return (
                f"ranks {other} and {rank} on {card.host} have the same GPU; start one rank per GPU "
                "(--nproc-per-node=gpu), or ask for --backend gloo"
            )
    return ""
