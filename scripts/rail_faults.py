"""Plant every fault of a rail between three lab hosts, and write what `ncclprobe rails` said of each, in how long.

    scripts/rail_faults.py [NAME …]    a table on standard output, as in reports/rails.md

The devices are those of tests/fake_verbs.c: bytes really go from process to process, the network between is not real.
Needs root, gcc and rdma-core's headers, as tests/lab does.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab.rails import Planted

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main(names: list[str]) -> int:
    """Play the faults with these names, or all."""
    from tests.lab.rails import FAULTS, build

    print("| planted on rail 1 of n1 | named as | seconds | other nodes blamed | exit codes |\n|---|---|---|---|---|")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for name in names or FAULTS:
            missed += play(name, FAULTS[name], library)
    return missed


def play(name: str, planted: "Planted", library: Path) -> bool:
    """Play one; print its row, and return whether it was missed or another node blamed."""
    from tests.lab import Lab
    from tests.lab.rails import give_rails, try_rails

    with Lab(hosts=3) as lab:
        give_rails(lab, library, planted.rails(lab))
        began = time.monotonic()
        done = try_rails(lab, timeout_s=110.0)
        took = time.monotonic() - began
        path = lab.folder / "report.json"
        report = json.loads(path.read_text()) if path.exists() else {"checks": []}
    found = [
        (verdict["id"], finding["subject"], finding["nodes"], finding["severity"])
        for verdict in report["checks"]
        for finding in verdict["findings"]
        if finding["severity"] != "note"
    ]
    rails = [each for each in found if each[0].startswith("rail.")]
    others = sorted({node for _, _, nodes, _ in rails for node in nodes} - {"n1"})
    named = [f"`{check}` {subject}" for check, subject, _, _ in found]
    codes = " ".join(str(each.code) for each in done.values())
    print(
        f"| {name} | {'; '.join(named) or 'nothing'} | {took:.0f} | {', '.join(others) or '0'} | {codes} |", flush=True
    )
    right = {(check, subject) for check, subject, _, _ in rails}
    return right != ({(planted.check, planted.subject)} if planted.check else set()) or bool(others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
