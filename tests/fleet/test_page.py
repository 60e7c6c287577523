"""The page of a fleet: node by day, as the store has it, and no larger than a browser bears."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from fleet.made import DAY_S, DOWN, FIRST_S, day_of, filled
from ncclprobe.commands import main
from ncclprobe.fleet import store
from ncclprobe.model.fleet import Day, NodeDays, NodeStanding
from ncclprobe.report.html import days as page
from tests.each_row import each_row

NOW_S = FIRST_S + 30 * DAY_S
MARKUP = "</script><img src=x onerror=alert(1)>"


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return dict(json.loads(found[1]))


def large(nodes: int, sick: float) -> list[NodeDays]:
    """Nodes of 90 days, of which this share of days, and of nodes today, is not ok."""
    rng, today, found = random.Random(1), int(NOW_S // DAY_S), []
    for number in range(nodes):
        ill, tested = rng.random() < sick, dict[int, Day]()
        for back in range(90):
            state = "failing" if (ill and back < 5) or rng.random() < sick else "ok"
            words = (f"ib.state mlx5_{rng.randrange(8)}:1: is DOWN; its siblings are ACTIVE",) if state != "ok" else ()
            source = f"/shared/ncclprobe/new/gpu-node-{number:04}-{back:02}.json"
            tested[today - back] = Day(state, words, NOW_S - back * DAY_S, source)  # type: ignore[arg-type]
        why = "ib.state mlx5_3:1: is DOWN; its siblings are ACTIVE (5 tests)" if ill else ""
        stands = NodeStanding(f"gpu-node-{number:04}", "failing" if ill else "ok", NOW_S - 5 * DAY_S if ill else None,
                              why, 90, NOW_S)  # fmt: skip
        found.append(NodeDays(stands, tested))
    return found


def test_each_day_has_its_worst_state_and_what_was_found(tmp_path: Path) -> None:
    sick = [day_of("n3", day, rate=391.0 if day < 14 else 330.0) for day in range(24)]
    down = [day_of("n7", day, *([DOWN] if day in (20, 21) else [])) for day in range(18, 24)]
    path = tmp_path / "fleet.db"
    filled(path, *sick, *down)
    with store.opened(path, 30.0) as fleet:
        found = {each.standing.name: each.days for each in fleet.days(FIRST_S + 10 * DAY_S)}
    first = int(FIRST_S // DAY_S)
    assert [found["n3"][first + day].state for day in range(10, 24)] == ["ok"] * 4 + ["degraded"] * 10
    assert found["n3"][first + 20].words[0].startswith("all_reduce 1 GiB: 391 → 330 GB/s")
    assert min(found["n3"]) == first + 10
    assert [found["n7"][first + day].state for day in range(18, 24)] == ["ok", "ok", "failing", "failing", "ok", "ok"]
    assert found["n7"][first + 20].words == ("ib.state mlx5_3:1: is DOWN; its siblings are ACTIVE",)
    assert found["n7"][first + 20].source == "/r/26.json"


def test_the_command_writes_a_page_with_the_worst_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: FIRST_S + 24 * DAY_S)
    path, written = tmp_path / "fleet.db", tmp_path / "fleet.html"
    filled(path, *(day_of("n1", day) for day in range(20, 24)), day_of("n7", 23, DOWN))
    assert main(["fleet", "page", "--html", str(written), "--fleet", str(path)]) == 0
    assert capsys.readouterr().out == f"2 nodes written to {written}\n"
    assert main(["fleet", "page", "--html", str(written), "--fleet", str(path), "--exit-code", "-q"]) == 4
    found = data(written.read_text())
    assert found["names"] == ["n7", "n1"]
    (cell,) = found["cells"].values()
    assert f'<a href="{found["texts"][cell[0]]}">' in written.read_text()  # the report on the node that is not ok
    assert [row.strip() for row in found["rows"]] == ["0", "5555"]
    assert [found["texts"][cell[0]], found["texts"][cell[2]]] == [
        "/r/4.json", "ib.state mlx5_3:1: is DOWN; its siblings are ACTIVE"]  # fmt: skip
    before = path.read_bytes()
    assert main(["fleet", "page", "--html", str(path), "--fleet", str(path)]) == 2
    assert "is not overwritten, because this command also reads it" in capsys.readouterr().err
    assert path.read_bytes() == before


@each_row("sick", [0.02, 1.0])
def test_two_thousand_nodes_of_ninety_days_are_below_a_megabyte_and_a_half(sick: float) -> None:
    text = page.render(large(2000, sick), NOW_S, 90, "/shared/fleet.db")
    assert len(text.encode()) < 1_500_000
    assert len(data(text)["rows"]) == 2000


def test_names_and_findings_with_markup_stay_data() -> None:
    (node,) = large(1, 1.0)
    day = Day("failing", (MARKUP,), NOW_S, MARKUP)
    stands = NodeStanding(MARKUP, "failing", NOW_S, MARKUP, 1, NOW_S)
    text = page.render([NodeDays(stands, dict.fromkeys(node.days, day))], NOW_S, 90, MARKUP)
    assert "<img" not in text
    assert data(text)["texts"] == [MARKUP]
