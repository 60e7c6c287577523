"""A slow row and its reason in one report: what is named beside it, and what is not."""

import shutil
from pathlib import Path
from typing import Any

from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.commands.doctor import main
from ncclprobe.engine.measured import concerns_only, relate
from ncclprobe.host.run_log import RunLog
from ncclprobe.model.findings import Finding, Related, Status, Verdict, fail, note, warn
from ncclprobe.model.measurement import Band
from ncclprobe.model.registry import Check, discover
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from tests.each_row import each_row

CHECKS = discover("ncclprobe.checks", Check)
CAPTURES = Path(__file__).parent / "captures"
SLOW = fail("all_reduce 1 GiB", "bus bandwidth 20 GB/s, at least 400 expected")


def verdict(check: str, node: str | None, *findings: Finding) -> Verdict:
    name, _, part = check.partition("/")
    return Verdict(name, node, Status.FAIL, "", findings=findings, part=part)


LATE = replace(warn("rank 5", "comes late"), nodes=("n1",))
QUOTAS = [verdict("host.cpu/cpu-quota", node, warn(f"cpu.max of {node}", "too little")) for node in ("n0", "n1")]
SETTING = verdict("run.settings", None, fail("NCCL_PROTO", "differs"))


@each_row(
    ("symptom", "others", "causes"),
    [
        (
            verdict("run.bandwidth", None, SLOW),
            [
                verdict("env.forced-algo", "n0", warn("NCCL_ALGO", "is Tree")),
                verdict("sync.network/mtu", None, replace(warn("eth0", "differs"), nodes=("n1",))),
                verdict("pci.link/gpu-width", "n1", fail("GPU3", "x8 of x16")),
            ],
            ["pci.link GPU3", "env.forced-algo NCCL_ALGO", "sync.network eth0"],
        ),
        (  # what slows nothing, and what the run did not use
            verdict("run.bandwidth", None, SLOW),
            [
                verdict("host.timesync", "n0", warn("clock", "no service")),
                verdict("ib.state", "n0", fail("mlx5_9:1", "is DOWN")),
                verdict("ib.rate", "n0", note("mlx5_0:1", "for information")),
            ],
            [],
        ),
        # A symptom on one node is not explained by another node.
        (verdict("run.bandwidth", None, LATE), QUOTAS, ["host.cpu cpu.max of n1"]),
        (verdict("run.rank-lost", None, fail("all ranks", "stalled")), [SETTING], ["run.settings NCCL_PROTO"]),
        (SETTING, [verdict("run.rank-lost", None, fail("all ranks", "stalled"))], []),
        (verdict("ib.rate", "n0", fail("mlx5_0:1", "slow")), [], []),  # a machine's own names none
    ],
)
def test_what_slows_transfers_is_named_beside_a_symptom(
    symptom: Verdict, others: list[Verdict], causes: list[str]
) -> None:
    found = relate([symptom, *others], CHECKS, {"n0": frozenset({"mlx5_9:1"})})
    assert [f"{each.id} {each.subject}" for each in found[0].findings[0].related] == causes


@each_row(
    ("subject", "only"),
    [("mlx5_9:1", True), ("mlx5_9:1, mlx5_0:1", False), ("GPU3", False), ("NCCL_IB_HCA", False), ("mlx5_9", True)],
)
def test_a_finding_is_about_unused_devices_only_where_it_names_no_other(subject: str, only: bool) -> None:
    assert concerns_only(fail(subject, "x"), frozenset({"mlx5_9:1", "mlx5_9"})) is only


def kept_run(folder: Path, *lines: str) -> list[str]:
    """A run over the eight GPUs of a healthy machine, of which `lines` of the capture differ, with a slow row."""
    shutil.copy(CAPTURES / "hgx-h100.jsonl", folder)
    (folder / "node.jsonl").write_text(
        '{"capture": 1, "node": "n0", "taken": "2026-11-22T00:00:00+00:00", "tool": "0.1.0", "origin": "synthetic"}\n'
        '{"like": "hgx-h100.jsonl"}\n' + "".join(f"{line}\n" for line in lines)
    )
    log = RunLog(folder / "run.jsonl")
    log.add("asked", {"ops": ["all_reduce"], "sizes": [1 << 20], "backend": "nccl"})
    log.add(
        "participants", {"kind": "self", "ranks": 8, "hosts": ["n0"] * 8, "backend": "nccl", "gpus": list(range(8))}
    )
    log.add("arrivals", {"expected": 8})
    log.add("expected", as_plain(Band("all_reduce", 1 << 20, 1 << 20, BAND)))
    for place in ("in", "out"):
        row = {
            k: v for k, v in as_plain(replace(ROW, place=place, wrong=0)).items() if k not in ("expectation", "status")
        }
        log.add("row", row)
    log.close()
    return [str(folder / "node.jsonl"), str(folder / "run.jsonl"), "--json", str(folder / "report.json"), "-q"]


def as_plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)


@each_row(
    ("planted", "related"),
    [
        ([], ()),
        (['{"ask": ["env"], "said": "{\\"NCCL_ALGO\\": \\"Tree\\"}"}'], (Related("env.forced-algo", "NCCL_ALGO"),)),
    ],
)
def test_in_a_kept_run_a_planted_setting_and_no_other_stands_beside_the_slow_row(
    planted: list[str], related: tuple[Related, ...], tmp_path: Path
) -> None:
    assert main(kept_run(tmp_path, *planted)) == 4
    (slow,) = [v for v in as_json.read(str(tmp_path / "report.json")).checks if v.id == "run.bandwidth"]
    assert set(related) <= set(slow.findings[0].related)
    assert (slow.node, slow.status, bool(slow.findings[0].related)) == (None, Status.FAIL, bool(related))
