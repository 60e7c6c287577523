"""The sample "paths" becomes a fact; what another node made up does not."""

import json
from typing import Any

from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.facts import reach
from ncclprobe.facts.reach import MeshListener, Path, Paths
from ncclprobe.host.capture import Replay
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import asdict, replace
from tests.each_row import each_row

SEEN = Paths(
    me=1,
    names={0: "n0", 1: "n1"},
    listeners=(MeshListener("nccl0", "eth0", "10.0.0.2", 40001),),
    rows=(
        Path(0, "nccl0", "eth0", "10.0.0.2", "10.0.0.1", "ok", rtt_s=5e-5, path_mtu=1500, rate_gbps=9.4),
        Path(0, "default", "eth1", "10.1.0.2", "10.1.0.1", "refused", "Connection refused", tries=2),
    ),
    unopened={"nccl1": "Cannot assign requested address"},
)


def learn(sample: Any) -> Any:
    return collect(answers({("sample", "paths"): sample}), [reach.paths])[Paths]


def test_what_a_run_measured_comes_back_as_it_was() -> None:
    assert learn(asdict(SEEN)) == SEEN


def test_nobody_measured_is_unknown() -> None:
    fact = collect(Replay({}), [reach.paths])[Paths]
    assert isinstance(fact, Absent)


@each_row(
    "sample",
    [
        [],
        {},
        {"me": 0},
        {"me": 0, "names": {"x": "n0"}},
        {"me": "0", "names": {}},
        {"me": 0, "names": {}, "rows": [{}]},
    ],
)
def test_another_shape_is_unknown_not_empty(sample: Any) -> None:
    assert isinstance(learn(sample), Absent)


def test_sixty_four_nodes_on_two_interfaces_fit_easily() -> None:
    row = replace(SEEN.rows[0], resent=12, segments=24000, rtt_s=0.000123, detail="x" * 40)
    text = json.dumps(asdict(replace(SEEN, rows=(row,) * 126)))
    assert len(text) < 64 << 10
