"""What checks of the environment say of machines under settings that a user may write, each line beside the last."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fake_fleet import OURS, learned, node, with_setting
from fake_paths import fleet

from ncclprobe.checks.env.fixtures import ALONE, DOCKER0, ETH0, ETH1, LO, ONE_NODE, TWO_NODES, interface, nccl
from ncclprobe.engine.judge import compare, judge
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Rate
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.names import OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.reach import Flood, Gathering, Paths, Trouble
from ncclprobe.facts.routes import Route, Routes
from ncclprobe.facts.software import Software
from ncclprobe.model.registry import Check, discover
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.checks import test_sync
from tests.checks.cases import values
from tests.command_inputs import DATA

_CHECKS, _RULES = discover("ncclprobe.checks.env", Check), discover("ncclprobe.checks", Check)
_OF_PATHS = [rule for rule in _RULES if rule.run.__module__.endswith(("checks.path", "launch.mesh", "launch.ports"))]
_HOW = ("refused", "filtered", "unreachable", "denied", "hung-up", "silent", "foreign", "stranger", "wrong-peer")
_TAIL = interface("tailscale0", 7, "100.64.0.7", virtual=True)
_DOWN = replace(interface("eth2", 4, "10.2.0.5"), flags=frozenset({"up"}))
_MANY = Interfaces((LO, ETH1, _DOWN, ETH0, interface("eth10", 12, "10.9.0.5"), DOCKER0, _TAIL))
_CLOUDS = {
    "Standard_ND96isr_H100_v5": "azure", "BM.GPU.H100.8": "oracle", "p5.48xlarge": "aws", "p6-b200.48xlarge": "aws",
    "a3-highgpu-8g": "gcp", "a3-megagpu-8g": "gcp", "a4-highgpu-8g": "gcp",
}  # fmt: skip
_LINES = [each.splitlines()[1:] for each in (DATA / "settings.txt").read_text(encoding="utf-8").split("== ")[1:]]


def _set_inputs() -> Iterator[tuple[str, object]]:
    """Yield what is said of each line, and on which machines, without what is said of every line there."""
    clouds, names, devices, parts, files = _LINES
    hosts = {
        "hgx-h100": (TWO_NODES, names + devices + parts), "hgx-h100 alone": (ALONE, devices + parts),
        "l40s-8": (ONE_NODE, parts + devices), "gb200-tray unseen": (Absent("not seen"), parts[:16] + devices),
        "dgx-1v blind": (Launch("slurm", 0, 16, 0, 8, 2), devices + parts),
        **{f"hgx-h100 {cloud}": (TWO_NODES, clouds) for cloud in _CLOUDS}, "aws-p4d": (TWO_NODES, clouds),
        "aws-p4d one": (ONE_NODE, clouds)}  # fmt: skip
    found: dict[str, dict[str, list[str]]] = {}
    for name, (launch, lines) in hosts.items():
        machine, _, more = name.partition(" ")
        facts = {**learned(machine), Launch: launch, Interfaces: _MANY, Software: nccl(2, 27, 7)}
        facts |= {Machine: Machine(cloud=_CLOUDS[more], instance_type=more)} if more in _CLOUDS else {}
        facts |= dict.fromkeys((Interfaces, Software), Absent("hidden")) if more == "blind" else {}
        usual = _told(facts, Settings())
        for line in lines:
            rows = [part.partition("=")[::2] for part in line.split(";")]
            own = {each: Setting(each, value, "environment") for each, value in rows if each}
            told = _told({**facts, Environment: Environment(dict(rows))}, Settings(own))
            new = "\n".join(each for each in told if each not in usual) or "nothing more"
            found.setdefault(line, {}).setdefault(new, []).append(name)
    for line, told_on in found.items():
        yield line, {", ".join(where): [{"": each} for each in told.split("\n")] for told, where in told_on.items()}
    for line in files:
        name, _, value = line.partition("=")
        yield f"in a file: {line}", _told({}, Settings({name: Setting(name, value, "/etc/nccl.conf:2")}))


def _told(facts: Mapping[type, Any], settings: Settings) -> list[str]:
    verdicts = judge([Snapshot("n1", {**facts, Settings: settings})], _CHECKS, Job())
    why = [f"{each.key}: {each.status.value} {each.why}" for each in verdicts if each.why]
    return [f"{each.key}: {values(found)}" for each in verdicts for found in each.findings] + why


_ROLES = ("nccl0", "nccl1", "default", "gloo0")
_WRONG: tuple[Callable[[random.Random], dict[str, object]], ...] = (
    lambda draw: {"rate_gbps": draw.choice((0.002, 0.05, 0.3, 0.9, 1.8, 2.5)), "streams": draw.choice((1, 2))},
    lambda draw: {"rtt_s": draw.choice((6e-4, 4e-3, 6e-3, 0.02, 0.3)), "streams": draw.choice((1, 3))},
    lambda draw: {"resent": draw.choice((20, 58, 70, 300, 900)), "rate_gbps": draw.choice((9.0, 3.0, None))},
    lambda draw: {"outcome": draw.choice(("stalled-out", "stalled-back")), "passes": draw.choice((None, 1280, 1400)),
                  "refused": draw.random() < 0.3, "path_mtu": draw.choice((None, 1400, 1500, 9000))},
    lambda draw: {"outcome": draw.choice((*_HOW, "late", "a kind of tomorrow")), "tries": draw.choice((1, 2, 2)),
                  "detail": f"says {draw.randint(1, 9)}", "rate_gbps": None, "rtt_s": None, "resent": None},
)  # fmt: skip


def _paths_inputs() -> Iterator[tuple[str, object]]:
    """Yield what is found in drawn fleets: one or two faults of some paths, which differ a little from each other."""
    for seed in range(400):
        draw = random.Random(f"paths {seed}")
        nodes, roles = draw.choice((2, 2, 3, 3, 4, 5, 8, 9)), draw.sample(_ROLES, draw.choice((1, 1, 2, 3)))
        faults = [_fault(draw, nodes, roles) for _ in range(draw.choice((1, 1, 2)))]
        change = partial(_path, draw, draw.choice((0.01, 0.3)), faults)
        paths = fleet(nodes, change, roles, silent=draw.choice(((), (), (), (1,))))
        facts: dict[str, dict[type, Any]] = {name: {Paths: each} for name, each in paths.items()}
        for number, known in enumerate(facts.values(), 1):
            if draw.random() < 0.1:
                known[Paths] = replace(known[Paths], floods=(Flood(f"10.0.0.{draw.randint(90, 99)}", 70),))
            speed, mtu, way = draw.choice((0, 10_000, 25_000)), draw.choice((1500, 9000)), draw.choice((0, *(1,) * 9))
            eths = [
                replace(interface(f"eth{n}", 2 + n, f"10.{n}.0.{number}"), mtu=mtu, speed_mbps=speed) for n in (0, 1)
            ]
            own, usual = (f"10.0.0.{number}", f"10.1.0.{number}", "127.0.1.1", "fd00::1"), draw.random() < 0.7
            given = draw.choice(("", "", "eth0", "eth1", "lo", "eth1,eth0"))
            known |= {Interfaces: Interfaces((LO, *eths)), Routes: Routes((Route("10.1.0.0/16", f"eth{way}"),), ())}
            known |= {OwnName: OwnName("h", (own[0] if usual else draw.choice(own),))}
            known |= {Environment: Environment({"GLOO_SOCKET_IFNAME": "" if usual else given})}
        lost = (Trouble("10.1.0.2", "reset", "closed", draw.choice((1, None))),) if draw.random() < 0.2 else ()
        floods = draw.choice(((), (), (Flood("10.0.0.77", 9),)))
        facts["n0"][Gathering] = Gathering(nodes - 1, 2.0, lost=lost, floods=floods)
        yield f"{seed}: {nodes} nodes", _compared([Snapshot(name, each) for name, each in facts.items()], _OF_PATHS)


def _path(draw: random.Random, spread: float, faults: Sequence[Any], one: int, other: int, role: str) -> dict[str, Any]:
    changed = {"rate_gbps": draw.uniform(9 - 9 * spread, 9), "rtt_s": draw.uniform(1e-4, 2e-4)}
    for hits, new in faults:
        changed |= {**new, "tries": draw.randint(1, 3)} if hits(one, other, role) else {}
    return changed


def _fault(draw: random.Random, nodes: int, roles: Sequence[str]) -> tuple[Callable[[int, int, str], bool], Any]:
    """Return which paths a fault hits, and what it makes of them."""
    bad, peer, role = draw.randrange(nodes), draw.randrange(nodes), draw.choice((*roles, ""))
    hits: Callable[[int, int], bool] = draw.choice((
        lambda one, other: one == bad, lambda one, other: other == bad, lambda one, other: bad in (one, other),
        lambda one, other: (one, other) == (bad, peer), lambda one, other: {one, other} == {bad, peer},
        lambda one, other: (one < bad) != (other < bad), lambda one, other: True,
    ))  # fmt: skip
    return lambda one, other, on: hits(one, other) and (not role or on == role), draw.choice(_WRONG)(draw)


def _compared(snapshots: Sequence[Snapshot], rules: Sequence[Check]) -> list[dict[str, str]]:
    verdicts = compare(snapshots, rules, Job())
    found = [f"{each.key}: {values(found)}" for each in verdicts for found in each.findings]
    found += [f"{each.key}: {each.status.value} {each.why}" for each in verdicts if each.why]
    return [{"": each} for each in found if "applies only" not in each]


def _fleets_inputs() -> Iterator[tuple[str, object]]:
    """Yield what is found in fleets of one machine in which some nodes have things that others have not."""
    plants: list[Any] = [plant for _, plant, _ in test_sync.PLANTS.values()]
    plants += [test_sync.DOWN, test_sync.LESS, test_sync.NO_NIC, test_sync.SPLIT, test_sync.library(2, 26, 2)]
    plants += [with_setting("NCCL_IB_HCA", "=mlx5_0,mlx5_3"), with_setting("NCCL_ALGO", "ring", "/etc/nccl.conf:1")]
    plants += [test_sync.devices(lambda each: replace(each, firmware=f"9.{each.name[-1]}"))]
    plants += [test_sync.ports("mlx5_1", rate=Rate(200, 4, "HDR"))]
    kinds = sorted({fact for name in test_sync.PLANTS for fact in test_sync.needed(name)}, key=str)
    for seed in range(150):
        draw = random.Random(f"fleet {seed}")
        machine, size = draw.choice(("hgx-h100", "hgx-h100", "dgx-a100", "gb200-tray", "aws-p4d")), draw.randint(2, 7)
        facts = [node(machine, number) for number in range(size)]
        gone = draw.choice(kinds)
        for plant in (
            *draw.sample(plants, draw.choice((1, 2, 2))),
            lambda own, gone=gone: {**own, gone: Absent("late")}):  # fmt: skip
            for each in draw.sample(range(size), draw.randint(0, size)):
                facts[each] = plant(facts[each])
        snapshots = [Snapshot(f"n{number}", each) for number, each in enumerate(facts)][:: draw.choice((1, -1))]
        yield f"{seed}: {size} {machine}", _compared(snapshots, list(OURS.values()))


FUNCTIONS = {"set-lines": _set_inputs, "path-fleets": _paths_inputs, "unlike-fleets": _fleets_inputs}
