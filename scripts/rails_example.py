"""Make the captures of four nodes with one wrong GID and one slow rail, for reports/rails.md.

    scripts/rails_example.py FOLDER && cd FOLDER && ncclprobe doctor n*.jsonl --html rails.html

The machines are tests/captures/hgx-h100.jsonl, each made its own; what they saw of their rails is computed by
tests/fake_rails.py, through the plan, the retests and the samples of a real run.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
_LINK_LOCAL = {"gid": "fe80" + 27 * "0" + "1", "gid_index": 0}


def main(folder: Path) -> None:
    """Write n0.jsonl to n3.jsonl."""
    from fake_rails import played
    from fleets.captures import write

    from ncclprobe.checks.rail.fixtures import World
    from ncclprobe.host import SAMPLE
    from ncclprobe.host.capture import dump, load
    from ncclprobe.localise.pairs.samples import End
    from ncclprobe.model.values import asdict

    wrong, slow = End("n1", 3), End("n2", 5)

    def carries(src: End, dst: End, gpu: bool) -> float:
        return 0.0 if wrong in (src, dst) else 0.45 if slow in (src, dst) else 1.0

    folder.mkdir(parents=True, exist_ok=True)
    paths = write(ROOT / "tests" / "captures" / "hgx-h100.jsonl", 4, folder)
    names = tuple(path.stem for path in paths)
    world = World(names, 8, carries=carries, addresses={wrong: _LINK_LOCAL}, ports={wrong: {"gid_index": 0}})
    seen = played(world)
    for path, name in zip(paths, names, strict=True):
        replay = load(path)
        answers = {**replay.answers, (SAMPLE, "rails"): json.dumps(asdict(seen.by_node[name]))}
        ranks = {rank: dict(local.answers) for rank, local in replay.ranks.items()}
        path.write_text(dump(answers, name, ranks=ranks))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
