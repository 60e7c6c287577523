"""How the collectives are bound to torch, old and new."""

import runpy

import pytest
import torch.distributed as dist

from ncclprobe.model.ops import OPS
from ncclprobe.model.registry import discover
from ncclprobe.probes import collectives
from ncclprobe.probes.collectives import Probe
from tests.each_row import each_row

PROBES = discover("ncclprobe.probes", Probe)


@each_row(
    ("bound", "old", "new"),
    [
        ("_all_gather", "all_gather_into_tensor", "all_gather_single"),
        ("_reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    ],
)
def test_the_new_name_is_called_where_there_is_one_and_the_old_one_elsewhere(
    monkeypatch: pytest.MonkeyPatch, bound: str, old: str, new: str
) -> None:
    monkeypatch.setattr(dist, old, "the old one", raising=False)
    monkeypatch.setattr(dist, new, "the new one", raising=False)
    assert runpy.run_path(collectives.__file__)[bound] == "the new one"
    monkeypatch.delattr(dist, new)
    assert runpy.run_path(collectives.__file__)[bound] == "the old one"


@each_row("probe", PROBES, ids=[probe.name for probe in PROBES])
def test_what_a_probe_says_must_be_received_fills_the_receive_buffer_or_nothing(probe: Probe) -> None:
    op = OPS[probe.name]
    shape = op.shape(4096, 4, 4)
    for rank in range(4):
        expected = sum(part.count for part in probe.result(rank, 4, shape.count))
        assert expected in (shape.recv_bytes // 4, 0)
        assert expected or rank != 0


def test_a_probe_is_named_after_its_function() -> None:
    assert collectives.all_reduce.name == "all_reduce"
