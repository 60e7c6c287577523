"""What a run is judged by where nobody gave it a file."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ncclprobe.commands import bandwidth, pairs
from ncclprobe.engine import collect
from ncclprobe.expect import expected
from ncclprobe.expect.expected import Expecting
from ncclprobe.expect.system import Shape
from ncclprobe.host import Host
from ncclprobe.host.capture import load
from ncclprobe.model.pair_results import PAIRS
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.values import replace
from ncclprobe.session.measure import expectations as module
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.measure.expectations import expecting
from ncclprobe.session.measure.node_snapshot import NodeSnapshot
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.identity import RankIdentity, RunConfig
from ncclprobe.session.ranks.store import Exchange
from tests.each_row import each_row

CAPTURES = Path(__file__).resolve().parents[1] / "captures"
SEAT = RankIdentity("torchrun", 0, 8, 0, 8, 1, "127.0.0.1", 29500)
HERE = ("node",) * 8


class Alone:
    """An exchange in which rank 0 finds `others` beside itself, and every node's card is `card`."""

    def __init__(self, *others: Mapping[str, Any]) -> None:
        self.others, self.rounds = others, 0

    def collect(self, value: Any) -> list[Any]:
        self.rounds += 1
        return [json.loads(json.dumps(value)), *self.others]

    def share(self, value: Any) -> Any:
        return json.loads(json.dumps(value))


def judged_by(
    monkeypatch: pytest.MonkeyPatch, capture: str, *argv: str, hosts: tuple[str, ...] = HERE, backend: str = "nccl",
    parse: Callable[[Sequence[str]], Options] = bandwidth.parse,
) -> Expecting:  # fmt: skip
    collectors = discover("ncclprobe.facts", Collector)
    snapshot = collect.capture_facts(load(CAPTURES / f"{capture}.jsonl"), collectors)
    monkeypatch.setattr(NodeSnapshot, "snapshot", lambda _: snapshot)
    config = RunConfig(cast(Any, backend), len(set(hosts)))
    exchange = cast(Exchange, Alone(*[cast(Any, None)] * (len(hosts) - 1)))
    return expecting(run_of(parse(argv), config, exchange, NodeSnapshot("node"), hosts))


def run_of(
    options: Options, config: RunConfig, exchange: Exchange, look: NodeSnapshot | None, hosts: tuple[str, ...]
) -> RankContext:
    return RankContext(
        options, SEAT, cast(Host, None), config, "cpu", hosts, look, exchange, lambda phase: None, cast(Any, None), None
    )


def test_nccl_on_a_machine_type_is_judged_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged_by(monkeypatch, "hgx-h100", "-b", "8", "-e", "1G", "--op", "all_reduce,all_to_all")
    assert {band.op for band in found.bands} == {"all_reduce", "all_to_all"}
    assert "DGX H100" in found.note
    (largest,) = [band for band in found.bands if band.low_bytes == 1 << 29 and band.op == "all_reduce"]
    assert 300 < largest.expectation.threshold < 450


@each_row(("ranks", "bands", "note"), [(2, True, "as they are now"), (8, False, "no expectation")])
def test_a_machine_that_nobody_named_is_judged_by_its_links_and_more_ranks_than_gpus_are_not(
    monkeypatch: pytest.MonkeyPatch, ranks: int, bands: bool, note: str
) -> None:
    found = judged_by(monkeypatch, "rtx4090-2", hosts=("node",) * ranks)
    assert (bool(found.bands), note in found.note) == (bands, True)


@each_row(("hosts", "GBps", "worst"), [(HERE, (300, 400), "fail"), (("a",) * 4 + ("b",) * 4, (20, 50), "unjudged")])
def test_pairs_are_expected_by_the_nvlinks_of_a_gpu_or_by_one_nic(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], GBps: tuple[float, float], worst: str
) -> None:
    found = judged_by(monkeypatch, "hgx-h100", "-e", "1G", hosts=hosts, parse=pairs.parse)
    [band] = found.bands
    assert (band.op, band.low_bytes) == (PAIRS, 1 << 30)
    assert GBps[0] < band.expectation.value < GBps[1]
    assert (band.expectation.worst, band.expectation.threshold > 0) == (worst, worst == "fail")
    assert band.expectation.known.startswith("not judged") == (worst == "unjudged")


@each_row(
    ("parse", "argv", "hosts", "backend"),
    [
        (pairs.parse, (), ("a", "b"), "gloo"),
        (bandwidth.parse, (), HERE, "gloo"),  # on one node
        (bandwidth.parse, ("--expect", "bands.toml"), HERE, "nccl"),  # a file leaves nothing to expect
    ],
)
def test_of_some_runs_nothing_is_expected(
    monkeypatch: pytest.MonkeyPatch, parse: Any, argv: tuple[str, ...], hosts: tuple[str, ...], backend: str
) -> None:
    assert judged_by(monkeypatch, "hgx-h100", *argv, hosts=hosts, backend=backend, parse=parse) == Expecting()


def test_gloo_between_nodes_is_judged_by_the_slowest_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    from ncclprobe.session.measure import rank_nics

    card = {"node": "n0", "interface": "eth0", "gbps": 10.0, "virtual": False}
    slow = {"node": "n1", "interface": "eth1", "gbps": 1.0, "virtual": False}
    monkeypatch.setattr(rank_nics, "interface", lambda *_: None)
    monkeypatch.setattr(rank_nics, "_interface_info", lambda *_: card)
    exchange = cast(Exchange, Alone(slow, cast(Any, None)))
    link = rank_nics.slowest_link(exchange, SEAT, cast(Host, None), "n0")
    assert link is not None
    assert (link.gbps, link.where, link.known) == (1.0, "eth1 of n1", "reported")
    monkeypatch.setattr(rank_nics, "slowest_link", lambda *_: link)
    found = module.expecting(run_of(bandwidth.parse(("-e", "4M")), RunConfig("gloo", 2), exchange, None, ("n0", "n1")))
    assert found.bands
    assert all(band.low_bytes >= 1 << 20 for band in found.bands)
    assert all(band.expectation.value < 0.125 for band in found.bands)


def test_of_nodes_that_differ_the_slowest_is_expected_and_named() -> None:
    collectors = discover("ncclprobe.facts", Collector)
    seen = expected.describe(collect.capture_facts(load(CAPTURES / "hgx-h100.jsonl"), collectors).facts)
    assert seen.system
    whole = replace(seen, machine=None)
    slow = replace(whole, system=replace(seen.system, nics=4), why="this is the slow one")
    shape = Shape((8, 8))

    def at_1_gib(*nodes: expected.Described) -> tuple[float, str]:
        found = expected.expecting(["all_reduce"], [1 << 30], 4, shape, dict(zip(("n0", "n1"), nodes, strict=True)))
        return found.bands[0].expectation.value, found.note

    alike, differs, both_slow = at_1_gib(whole, whole), at_1_gib(whole, slow), at_1_gib(slow, slow)
    assert both_slow[0] < alike[0]
    assert differs[0] == both_slow[0]
    assert "n1: this is the slow one" in differs[1]
    assert expected.expecting(["all_reduce"], [1 << 30], 4, shape, {"n0": expected.Described(None, why="no GPU")}) == (
        Expecting(note="no expectation: n0: no GPU")
    )
