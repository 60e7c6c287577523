"""Rails: a node's side over real connections between two nodes of one process, above a stand-in, and plans."""

import asyncio
import contextlib
import fnmatch
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address
from typing import Any

import msgspec
import pytest

from ncclprobe.checks.ib.fixtures import NDR, PLAIN
from ncclprobe.cluster.mesh.listeners import Listeners, MeshInterface, reserve_listeners
from ncclprobe.cluster.rails import node as of_node
from ncclprobe.cluster.rails.node import RailEnds, RailJob, RailNode, RailsOrder, Start
from ncclprobe.commands import main, rails
from ncclprobe.engine.diagnose import every_check
from ncclprobe.facts.infiniband import Fabric, Gid, Port, RdmaDevice
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.reach import RailRow
from ncclprobe.facts.software import Software
from ncclprobe.model import bounds
from ncclprobe.model.errors import Missing
from ncclprobe.model.rails import RailChannel, RailOutcome, RailPort, RailTest
from ncclprobe.model.snapshot import Snapshot
from tests.each_row import each_row, some

KEY = bytes(32)
GIDS = (Gid(3, IPv6Address("::ffff:10.0.0.1"), "RoCE v2"),)
RAILS = tuple(
    RdmaDevice(name, (Port(name, 1, "ACTIVE", "LinkUp", NDR, link_layer="Ethernet", gids=GIDS),), pci="0000:10:00.0")
    for name in ("mlx5_0", "mlx5_1")
)
FACTS: dict[type, Any] = {Fabric: Fabric(RAILS), Settings: PLAIN, Software: Software({})}


class NoCounters:
    def ask(self, *question: str | int) -> str:
        raise Missing(str(question))


async def agree(
    port: RailPort, test: RailTest, *, leads: bool, channel: RailChannel, deadline: float,
    before: Callable[[str], Awaitable[None]] | None = None,
) -> RailOutcome:  # fmt: skip
    """Tell the other end which port this one has, and note its answer."""
    if before:
        await before("out")
    await channel.send({"device": port.device, "leads": leads}, deadline)
    heard = await channel.receive(deadline)
    assert heard["leads"] is not leads
    return RailOutcome(asked=port, events=(heard["device"],))


async def never(port: RailPort, test: RailTest, **how: Any) -> RailOutcome:
    """Hang, as a driver does that a child does not shield from."""
    await asyncio.Event().wait()
    raise AssertionError


def job(listeners: Listeners, number: int = 1, **changes: Any) -> RailJob:
    where = listeners.addresses[0]
    known = {"to": 1, "rail": 0, "other": 0, "leads": True, "queue_pairs": 2, "test": RailTest(seconds=1.0)}
    if changes.get("leads", True):
        known |= {"address": where.address, "port": where.port}
    return RailJob(number=number, **{**known, **changes})


def order(*jobs: RailJob, seconds: float = 8.0) -> RailsOrder:
    return RailsOrder("test", seconds, jobs)


@pytest.fixture(autouse=True)
def _on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_node, "check_other", lambda address: None)  # both nodes are 127.0.0.1 here
    monkeypatch.setattr(of_node, "_LOOK_S", 0.0)


def play(scene: Callable[[RailNode, RailNode], Awaitable[Any]], run: Any = agree) -> Any:
    async def both() -> Any:
        listeners = [reserve_listeners([MeshInterface("nccl0", "lo", "127.0.0.1")], n, f"n{n}") for n in (0, 1)]
        nodes = [RailNode(Snapshot(f"n{n}", FACTS), NoCounters(), each, run) for n, each in enumerate(listeners)]
        for each in listeners:
            each.listen(KEY)
        try:
            return await scene(*nodes)
        finally:
            for each in listeners:
                each.close()
            await asyncio.sleep(0)

    return asyncio.run(both())


def rows(answer: dict[str, Any]) -> list[RailRow]:
    return msgspec.convert(answer["rows"], list[RailRow])


def test_both_ends_of_each_test_meet_over_a_connection_of_their_own() -> None:
    async def scene(one: RailNode, other: RailNode) -> Any:
        leading = [job(other.listeners, number, rail=number, other=number) for number in (0, 1)]
        answering = [job(other.listeners, number, to=0, rail=number, other=number, leads=False) for number in (0, 1)]
        assert one.ports[0].timeout == 20
        return await asyncio.gather(one.follow(order(*leading)), other.follow(order(*answering)))

    for answer in some(play(scene)):
        seen = rows(answer)
        assert [(row.number, row.rail, row.outcome.events) for row in seen] == [
            (0, 0, ("mlx5_0",)),
            (1, 1, ("mlx5_1",)),
        ]
        assert {(row.outcome.asked.queue_pairs, row.outcome.asked.timeout) for row in seen} == {(2, 14)}
        assert not any(row.outcome.failures for row in seen)
        assert {(row.together, row.step, row.patience_s) for row in seen} == {(1, 0, 1.0)}


@each_row(
    ("changes", "leads", "run", "words"),
    [
        ({"to": 0}, False, agree, "the other node did not connect for this test"),
        ({"to": 7}, True, agree, "127.0.0.1 is another node's"),
        ({"number": 99}, True, agree, "hung up"),  # none that the other node expects
        ({}, True, never, "the test did not end by its deadline"),
    ],
)
def test_a_test_whose_ends_do_not_meet_says_why_in_time(
    changes: dict[str, Any], leads: bool, run: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_node, "_GREETING_S", 0.2)

    async def scene(one: RailNode, other: RailNode) -> Any:
        return await one.follow(order(job(other.listeners, **{"leads": leads, **changes}), seconds=1.5))

    (row,) = rows(play(scene, run))
    ((found, text),) = [(each.kind, each.text) for each in row.outcome.failures]
    assert (found, words in text) == ("channel", True), text


def test_a_node_lists_its_rails_and_leaves_out_what_it_does_not_have_or_expect() -> None:
    async def scene(one: RailNode, other: RailNode) -> Any:
        other.visits.expect(5)
        other.visits.done(5)
        for number in (99, "x", 5):  # a caller for a test that none expects, or none any more, is hung up on
            await asyncio.wait_for(other.visits.receive(number, None), 5)  # type: ignore[arg-type]
        assert (await one.follow(order(job(other.listeners, rail=2))))["rows"] == []
        return await one.follow(RailsOrder("list", 5.0))

    ends = msgspec.convert(play(scene), RailEnds)
    assert [port.device for port in ends.ports] == ["mlx5_0", "mlx5_1"]
    assert (ends.rates_gbps, ends.gpus, ends.moved_gbps) == ((400.0, 400.0), (False, False), {})


@each_row(("tests", "fits"), [(bounds.RAIL_PORTS, True), (bounds.RAIL_PORTS + 1, False)])
def test_an_order_of_too_many_tests_is_none(tests: int, fits: bool) -> None:
    jobs = [{"number": 1, "to": 1, "rail": 0, "other": 0, "leads": True, "queue_pairs": 1, "test": {}}]
    with contextlib.nullcontext() if fits else pytest.raises(msgspec.ValidationError):
        msgspec.convert({"do": "test", "seconds": 1, "jobs": jobs * tests}, RailsOrder)


def test_rails_begin_a_step_together_and_do_not_wait_for_one_that_left() -> None:
    async def scene() -> list[str]:
        start, order_of_events = Start(3), []

        async def rail(name: str, wait_s: float) -> None:
            await asyncio.sleep(wait_s)
            order_of_events.append(f"{name} ready")
            await start("out")
            order_of_events.append(f"{name} goes")

        async def leaves() -> None:
            await asyncio.sleep(0.02)
            order_of_events.append("c left")
            start.leave()

        await asyncio.gather(rail("a", 0.0), rail("b", 0.01), leaves())
        return order_of_events

    events = asyncio.run(scene())
    assert events[:3] == ["a ready", "b ready", "c left"]
    assert {*events[3:]} == {"a goes", "b goes"}


def test_one_node_without_others_is_refused_and_what_is_judged_is_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rails"]) == 2
    assert "this is only one" in capsys.readouterr().err
    ids = [name for check in every_check() for name in (check.id, check.key)]
    assert [pattern for pattern in rails._SELECT if not fnmatch.filter(ids, pattern)] == []
