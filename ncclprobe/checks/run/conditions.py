"""Which runs a check applies to: the options of the run decide."""

from ncclprobe.facts.run.samples import Participants, RunRequest
from ncclprobe.model.registry import applies


@applies
def collectives(asked: RunRequest) -> bool:
    """if collectives were to be measured."""
    return "collectives" in asked.what


@applies
def pairs_of_ranks(asked: RunRequest) -> bool:
    """if pairs of ranks were to be measured."""
    return "pairs" in asked.what


@applies
def copies_within_nodes(asked: RunRequest) -> bool:
    """if copies within nodes were to be measured."""
    return "copies" in asked.what


@applies
def groups_of_ranks(asked: RunRequest) -> bool:
    """if groups of ranks were to be measured."""
    return asked.groups


@applies
def counters_of_nics(asked: RunRequest, participants: Participants) -> bool:
    """if bytes were to cross nodes and NICs were to be counted."""
    return asked.nic_traffic and participants.nodes > 1


@applies
def rungs_of_the_ladder(asked: RunRequest) -> bool:
    """if the ladder from one rank to all nodes was to be climbed."""
    return "ladder" in asked.what
