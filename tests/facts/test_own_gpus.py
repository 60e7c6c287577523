"""Ranks that see one GPU each: together they are the node that one process sees which may use all of them."""

import json
from pathlib import Path

from ncclprobe.engine.collect import capture_facts
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.facts.rank import OwnGpus
from ncclprobe.host import Question
from ncclprobe.host.capture import Answers, Replay, dump, load, parse
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.session.measure.node_snapshot import NodeSnapshot, node_captures, pack, replayed_nodes, share_gpus

COLLECTORS = discover("ncclprobe.facts", Collector, {"machine"})
NODE = load(Path(__file__).parents[1] / "captures" / "hgx-h100.jsonl")
GPUS = 8


def of_rank(rank: int, variables: dict[str, str], gpus: tuple[int, ...]) -> Answers:
    """What a rank is answered that may use these GPUs alone."""
    found: dict[Question, object] = {}
    for question, answer in NODE.answers.items():
        if question[0] == "nvml" and len(question) > 2 and isinstance(question[2], int):
            if question[2] in gpus and question[1] != "nvmlDeviceGetP2PStatus":
                found[(*question[:2], gpus.index(question[2]), *question[3:])] = answer
        elif question[:2] != ("run", "nvidia-smi"):
            found[question] = answer
    launch = {"RANK": rank, "WORLD_SIZE": GPUS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": GPUS}
    found[("env",)] = json.dumps({name: str(value) for name, value in launch.items()} | variables)
    found["nvml", "nvmlDeviceGetCount"] = str(len(gpus))
    return found  # type: ignore[return-value]


def node_of(ranks: dict[int, Answers]) -> Snapshot:
    return capture_facts(
        Replay(ranks[0], "n0", older=False, ranks={rank: own for rank, own in ranks.items() if rank}), COLLECTORS
    )


def test_the_gpus_of_all_ranks_are_the_nodes_whoever_saw_them_and_in_the_order_of_their_addresses() -> None:
    whole = capture_facts(NODE, COLLECTORS)
    backwards = {rank: of_rank(rank, {"CUDA_VISIBLE_DEVICES": "0"}, (GPUS - 1 - rank,)) for rank in range(GPUS)}
    node = node_of(backwards)
    assert node.facts[Gpus] == whole.facts[Gpus]
    assert node.facts[NvLinks] == whole.facts[NvLinks]
    assert node.facts[Environment].get("CUDA_VISIBLE_DEVICES") is None  # it names GPU 0 of rank 0 alone
    known = node.facts[PeerAccess].read.values()
    assert len(known) == GPUS * (GPUS - 1)
    assert all(isinstance(status, Absent) and "of its own" in status.why for status in known)
    uuids = [gpu.uuid for gpu in whole.facts[Gpus].all]
    assert {rank: facts[OwnGpus].uuids for rank, facts in node.ranks.items()} == {
        rank: (uuids[GPUS - 1 - rank],) for rank in range(GPUS)
    }


def test_what_ranks_answered_is_kept_as_it_was_and_merged_again_where_it_is_read() -> None:
    ranks = [of_rank(rank, {}, (rank,)) for rank in range(3)]
    received = [[rank == 0, pack(dump(answers, "n0"))] for rank, answers in enumerate(ranks)]
    captures = node_captures(["n0"] * 3, received)
    assert ("nvml", "nvmlDeviceGetUUID", 1) not in parse(captures[0][1], "n0").answers
    (node,) = replayed_nodes(captures)
    assert [gpu.index for gpu in node.facts[Gpus].all] == [0, 1, 2]


class Recorded:
    """The exchange of rank 0 of three on two nodes, as the others would answer."""

    def __init__(self, others: list[object]) -> None:
        self.others = others
        self.scattered: list[object] = []

    def collect(self, value: object) -> list[object]:
        return [value, *self.others]

    def scatter(self, values: list[object]) -> object:
        self.scattered = values
        return values[0]


def test_each_nodes_first_rank_learns_of_its_own_nodes_gpus() -> None:
    mine, neighbour, stranger = (pack(dump(of_rank(rank, {}, (rank,)), "n")) for rank in range(3))
    assert None not in (mine, neighbour, stranger)
    exchange = Recorded([[False, neighbour], [True, None], [False, stranger]])
    look = NodeSnapshot("n0")
    look._found = Snapshot("n0", {}), dict(of_rank(0, {}, (0,)))
    share_gpus(exchange, look, "n0", ["n0", "n0", "n1", "n1"])  # type: ignore[arg-type]
    assert exchange.scattered == [[[1, neighbour]], [], [[3, stranger]], []]
    assert len(look.snapshot().facts[Gpus].all) == 2
