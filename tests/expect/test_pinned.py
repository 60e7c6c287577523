"""Settings that change what a collective should reach: the expectation is for them, or judges nothing and says why.

More settings are in tests/data/command_values/weighed.txt.
"""

import pytest

from ncclprobe.expect.bands import once
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.pinned import NOTHING, Pinned, pinned
from ncclprobe.expect.predict import predict
from ncclprobe.expect.tables import machines
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import merge
from ncclprobe.model.measurement import Expectation
from tests.each_row import known

from .boxes import GIB, H100, LATEST, NODE

DGX = machines.find("dgx-h100")
RING = known(predict(H100, NODE, "all_reduce", 8 * GIB, algorithm="Ring")).busbw_GBps


def set_to(**variables: str) -> Pinned:
    return pinned(merge(Environment(variables), ()), LATEST)


def expected(settings: Pinned, op: str = "all_reduce", nbytes: int = 8 * GIB, **more: int) -> Expectation:
    return known(expectation(op, nbytes, NODE, H100, machine=DGX, settings=settings, **more))  # type: ignore[arg-type]


USUAL = expected(NOTHING)


def test_a_pinned_ring_is_expected_at_a_rings_speed_and_passes_there() -> None:
    for value in ("Ring", "^NVLS,NVLSTree,Tree,CollNetDirect,CollNetChain,PAT", "allreduce:ring"):
        found = expected(set_to(NCCL_ALGO=value))
        assert found.value == pytest.approx(RING, rel=1e-3)  # DGX's own small calls say what it waits for
        assert (found.worst, once((RING, RING), found).status) == ("fail", "pass")
        assert f"NCCL_ALGO={value}" in found.why
    assert once((RING, RING), USUAL).status != "pass"
