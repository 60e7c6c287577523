"""What ranks agree on before they measure: without torch, a store or a process."""

import json
from typing import Any

import pytest

from ncclprobe.model.values import asdict, replace
from ncclprobe.session.ranks.agreement import RankInfo, RunConfig, agree_on

INFO = RankInfo("n0", 7, {"torch": "2.13.0", "nccl": "2.28.9"}, "nccl", "GPU-0")
INFOS = (INFO, replace(INFO, gpu="GPU-1"), replace(INFO, host="n1"))


def test_ranks_that_are_alike_measure() -> None:
    assert agree_on(INFOS, nnodes=2) == RunConfig("nccl", 2)
    assert agree_on([replace(INFO, backend="gloo", gpu=None)] * 2, nnodes=1) == RunConfig("gloo", 1)


def test_containers_with_one_host_name_count_as_the_nodes_that_the_launcher_knows() -> None:
    assert agree_on(INFOS[:2], nnodes=2).nodes == 2


def test_what_rank_zero_must_say_of_its_backend_is_said() -> None:
    assert agree_on([replace(INFO, backend="gloo", gpu=None, note="no GPU")], nnodes=1).note == "no GPU"


def test_ranks_share_a_gpu_where_nccl_takes_them_for_two_nodes_and_that_is_said() -> None:
    apart = [replace(INFO, host_id="a"), replace(INFO, host_id="b")]
    config = agree_on(apart, nnodes=2)
    assert config.error == ""
    assert config.note.startswith("ranks 0 and 1 on n0 share a GPU")
    assert agree_on([replace(INFO, host_id="a")] * 2, nnodes=2).error.startswith(
        "ranks 0 and 1 on n0 have the same GPU"
    )
    assert agree_on([replace(each, host_id="a") for each in INFOS[:2]], nnodes=1) == RunConfig("nccl", 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": "gloo"}, "rank 0 on n0 would measure nccl and rank 1 on n0 gloo"),
        ({"plan": 8}, "rank 1 on n0 was started with other options than rank 0"),
        ({"gpu": "GPU-0"}, "ranks 0 and 1 on n0 have the same GPU"),
        ({"backend": None, "error": "torch can use none"}, "torch can use none"),
    ],
)
def test_ranks_that_cannot_measure_together_are_told_why(change: dict[str, Any], words: str) -> None:
    infos = [INFO, replace(INFOS[1], **change)]
    assert agree_on(infos, nnodes=1).error.startswith(words)


def test_cards_and_terms_travel_as_json() -> None:
    assert RankInfo(**json.loads(json.dumps(asdict(INFO)))) == INFO
    config = agree_on(INFOS, nnodes=2)
    assert RunConfig(**json.loads(json.dumps(asdict(config)))) == config
