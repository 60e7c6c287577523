"""The commands whose printed values are kept, each with the recorded or made-up input that it looks at.

To add one, add a row to a function of `COMMANDS`, run `scripts/golden.py`, and read what it kept.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

from fake_site import KEY
from fake_site import capture as site_capture
from fleet.made import DAY_S, DOWN, FIRST_S, day_of, lost_by_all
from report import samples
from report.html import made

from ncclprobe import commands
from ncclprobe.commands.arguments import BRIEF
from ncclprobe.commands.demo import DEMOS
from ncclprobe.commands.deploy import FILES
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.values import asdict, replace
from ncclprobe.redact.redactor import Redactor
from ncclprobe.report import json as as_json
from tests import nccl_tests_texts, pasted_cases, pasted_texts, recorded_jobs
from tests.log import single_hosts, single_ranks
from tests.log.whole import cases

TESTS = Path(__file__).parent
DATA, CAPTURES = TESTS / "data", TESTS / "captures"
EVERY_NTH_OF_NCCL = 20
EVERY_NTH_REPORT = 2
SICK = ("acs", "cpu-quota", "gid-link-local", "gpu-lost", "ib-down", "ib-half-rate", "nvlink-down")
MACHINES = ("dgx-h100", "dgx-a100", "a3-megagpu-8g", "p5.48xlarge", "gb200-nvl72", "8 x L40S, 2 sockets, no P2P")
ALL_OPERATIONS = "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,reduce,gather,scatter,sendrecv"
WHAT_IF = (("--gpus-per-node", "4"), ("--gpus-per-node", "8,4,8"))
UNTIMED_FORMS = ("-v", "-q", "--markdown -", "--junit -")
FORMS = (*UNTIMED_FORMS, "--prometheus -")
Rows = Iterator[tuple[str, list[str]]]


def _jobs_inputs(folder: str) -> Rows:
    for job in sorted(DATA.glob(folder)):
        if logs := sorted(job.glob("*.gz")):
            yield job.name, ["explain", *map(str, logs)]


def _nccl_inputs(folder: Path) -> Rows:
    for release in sorted((DATA / "nccl_failures").glob("*.gz")):
        for name, row in list(recorded_jobs.read(release).items())[::EVERY_NTH_OF_NCCL]:
            path = folder / f"{release.name}-{re.sub('[^a-z0-9]+', '-', name)}.log"
            path.write_text("\n".join(row["logs"].values()))
            yield path.stem, ["explain", str(path)]


def _cases_inputs(folder: Path) -> Rows:
    """A sixth of the single lines as whole logs: which of all causes is named, and what to do."""
    tables = single_ranks.TABLES | single_hosts.TABLES
    every = (case for text in tables.values() for case in cases(text))
    for case in (case for case in every if not crc32(case.name.encode()) % 6):
        (path := folder / f"{crc32(case.name.encode())}").mkdir()
        for name, text in case.files.items():
            (path / name).write_text(text)
        yield case.name, ["explain", str(path)]


def _captures_inputs(_: Path) -> Rows:
    sick = [str(CAPTURES / "sick" / f"{name}.jsonl") for name in SICK]
    for path in [str(CAPTURES / "hgx-h100.jsonl"), *sick]:
        yield Path(path).stem, ["doctor", path, "--no-config"]
    yield "apart", ["doctor", *sick, "--no-config"]
    yield "one job", ["doctor", *sick, "--one-job", "--no-config", "-v"]


def _attached_inputs(folder: Path) -> Rows:
    for packed in sorted([*DATA.glob("attach-*.gz"), *DATA.glob("attach-init/*.gz"), *DATA.glob("on_cpu/attach-*.gz")]):
        path = folder / packed.stem
        path.write_bytes(gzip.decompress(packed.read_bytes()))
        yield packed.stem, ["explain", str(path)]
        yield f"{packed.stem}, JSON", ["explain", str(path), "--json", "-"]
    yield "2 nodes", ["explain", *(str(folder / f"attach-2-nodes-n{node}.jsonl") for node in (0, 1)), "--json", "-"]
    yield "3 nodes", ["explain", *map(str, sorted((DATA / "attach-3-nodes").glob("*.jsonl")))]


def _reports_inputs(folder: Path) -> Rows:
    for packed in sorted(DATA.glob("on_cpu/*/report.json.gz")):
        path = folder / f"{packed.parent.name}.json"
        path.write_bytes(gzip.decompress(packed.read_bytes()))
    for path in sorted(folder.glob("*.json"))[::EVERY_NTH_REPORT]:
        yield path.stem, ["report", str(path), "-v"]
    for form in ("--markdown", "--junit", "--prometheus", "--html"):
        yield form, ["report", str(folder / "pairs-2.json"), form, "-"]


def _machines_inputs(_: Path) -> Rows:
    for machine in MACHINES:
        for nodes in ("1", "4"):
            argv = ["expect", "--machine", machine, "--nodes", nodes, "--op", ALL_OPERATIONS, "-b", "1K", "-e", "1G"]
            yield f"{machine}, {nodes}", argv


def _matrices_inputs(folder: Path) -> Rows:
    for capture in sorted(CAPTURES.glob("*.jsonl")):
        for row in map(json.loads, capture.read_text(encoding="utf-8").splitlines()):
            if row.get("ask", [])[:3] == ["run", "nvidia-smi", "topo"] and "said" in row:
                path = folder / f"{capture.stem}.txt"
                path.write_text(row["said"])
                yield capture.stem, ["topo", str(path)]


def _judged_inputs(folder: Path) -> Rows:
    """Rows of nccl-tests, as text and as JSON: as they should be, slow, wrong, of two nodes, of a machine by name."""
    for path in sorted((DATA / "nccl_tests").iterdir()):
        yield path.name, ["expect", "--judge", str(path), "--json", "-"]
    sweep = made.sweep()
    for number, rows in enumerate(nccl_tests_texts.groups(sweep.measurements)):
        for form, render in (("txt", nccl_tests_texts.render_text), ("json", nccl_tests_texts.render_json)):
            path = folder / f"{number}-{rows[0].op}.{form}"
            path.write_text(render(sweep, rows))
            for machine in ("dgx-h100", "8 x H100 PCIe, 4 NICs x 200 Gb/s"):
                argv = ["expect", "--judge", str(path), "--machine", machine]
                yield f"{path.name}, {machine}", argv
                yield f"{path.name}, {machine}, JSON", [*argv, "--json", "-"]


def _expectations_inputs(_: Path) -> Rows:
    """Each captured machine by itself and three of it, and nodes of which not all GPUs are used."""
    for path in sorted(CAPTURES.glob("*.jsonl")):
        for nodes in ("1", "3"):
            argv = ["expect", str(path), "--nodes", nodes, "--op", ALL_OPERATIONS, "-b", "4K", "-e", "4G", "-f", "64"]
            yield f"{path.stem}, {nodes}", argv
    for machine in ("dgx-h100", "p5.48xlarge", "gb200-nvl72"):
        for change in WHAT_IF:
            argv = ["expect", "--machine", machine, "--nodes", "3", *change, "-b", "4K", "-e", "4G", "-f", "64"]
            yield f"{machine} {' '.join(change)}", [*argv, "--json", "-"]


def _written(folder: Path, name: str, report: Report) -> str:
    as_json.write(report, str(folder / f"{name}.json"))
    return str(folder / f"{name}.json")


def _forms_inputs(folder: Path) -> Rows:
    """A report of each kind, in each form."""
    reports = {
        **{"healthy": samples.HEALTHY, "sick": samples.SICK, "inconclusive": samples.INCONCLUSIVE},
        **{"sweep": made.sweep(), "whole": made.whole(), "causes": made.causes(), "pairs": made.pairs()},
        **{"moved": made.moved(), "fleet": made.fleet(12), "day": day_of("n1", 0, DOWN)}}  # fmt: skip
    for name, report in reports.items():
        path = _written(folder, name, report)
        for form in FORMS:
            yield f"{name} {form}", ["report", path, *form.split()]
    for option in ("-v", "-q"):
        yield f"two {option}", ["report", str(folder / "healthy.json"), str(folder / "sick.json"), option]
    for one, other in (("sweep", "whole"), ("whole", "sweep"), ("sick", "day"), ("fleet", "sick")):
        argv = ["compare", str(folder / f"{one}.json"), str(folder / f"{other}.json")]
        yield f"{one} to {other}", argv
        yield f"{one} to {other}, JSON", [*argv, "--tolerance", "0.02", "--json", "-"]
    yield "baseline", ["baseline", str(folder / "sweep.json"), str(folder / "whole.json"), "-o", "-", "--accept-low"]


def _comparisons_inputs(_: Path) -> Rows:
    """A healthy machine beside each sick one that was made of it."""
    for name in (*SICK, "ib-flaps", "gpu-other", "fm-version", "half-set", "gpu-x8", "nic-numa", "net-ofi"):
        path = CAPTURES / "sick" / f"{name}.jsonl"
        yield name, ["compare", str(CAPTURES / "hgx-h100.jsonl"), str(path), "--json", "-"]
    sick = str(CAPTURES / "sick" / "ib-down.jsonl")
    yield "repaired", ["compare", sick, str(CAPTURES / "hgx-h100.jsonl"), "--json", "-"]
    yield "itself", ["compare", sick, sick, "--json", "-"]
    yield "another machine", ["compare", str(CAPTURES / "dgx-a100.jsonl"), str(CAPTURES / "aws-p4d.jsonl")]


def _altered(rows: Sequence[Measurement], factor: float, **changes: Any) -> tuple[Measurement, ...]:
    """Return rows of `factor` times the rate."""
    found = []
    for row in rows:
        time = {name: value / factor for name, value in asdict(row.time_us).items() if isinstance(value, float)}
        low, high = row.interval_us or (row.time_us.typical, row.time_us.typical)
        rates = {"busbw_GBps": row.busbw_GBps * factor, "algbw_GBps": row.algbw_GBps * factor}
        more = {"time_us": replace(row.time_us, **time), "interval_us": (low / factor, high / factor), **rates}
        found.append(replace(row, **{**more, **changes}))
    return tuple(found)


def _rows_inputs(folder: Path) -> Rows:
    """Sweeps of one machine beside each other and a baseline: slower, faster, noisy, without intervals, cut, wrong."""
    sweep = made.sweep()
    rows = sweep.measurements[::5]
    kinds = {
        "usual": rows, "slower": _altered(rows, 0.8), "a little slower": _altered(rows, 0.93),
        "faster": _altered(rows, 1.3), "without intervals": _altered(rows, 0.85, interval_us=None),
        "wide": tuple(replace(row, interval_us=(row.time_us.typical * 0.6, row.time_us.typical * 1.9)) for row in rows),
        "twice": (*rows, *_altered(rows, 0.7)), "cut": rows[: len(rows) // 3], "wrong": _altered(rows, 1.0, wrong=3),
        "nothing": (),
    }  # fmt: skip
    paths = {name: _written(folder, name, replace(sweep, measurements=each)) for name, each in kinds.items()}
    site = str(folder / "site.toml")
    yield "baseline", ["baseline", paths["usual"], paths["a little slower"], "-o", site, "--accept-low"]
    for name, path in paths.items():
        yield f"usual to {name}", ["compare", paths["usual"], path, "--json", "-"]
        yield f"{name} to usual", ["compare", path, paths["usual"]]
        yield f"site to {name}", ["compare", site, path, "--json", "-"]
        yield f"{name} to slower", ["compare", path, paths["slower"], "--tolerance", "0.3", "-q"]
        yield f"baseline of {name}", ["baseline", path, "-o", "-"]


def _fleet_inputs(folder: Path) -> Rows:
    """A store of many days: who fell, when, with which change, and what each of its commands does with that."""
    store = ["--fleet", str(folder / "fleet.db")]
    fallen = [
        day_of("n3", day, rate=391.0 if day < 14 else 330.0, driver="550.54.15" if day < 14 else "560.28.03")
        for day in range(20)
    ]
    flapping = [day_of("n4", day, *([DOWN] if day % 3 == 0 else [])) for day in range(12)]
    steady = [day_of(f"n{node}", day, rate=391.0 + node + day % 3) for node in (5, 6) for day in range(14)]
    reports = [*fallen, *flapping, *steady, day_of("n1", 19), day_of("n2", 19, DOWN), *lost_by_all(6, 16, 9, 0.2)]
    reports.append(replace(day_of("n7", 3), measurements=()))
    paths = [_written(folder, f"{number:03}", each) for number, each in enumerate(reports)]
    clock = mock.patch("time.time", return_value=FIRST_S + 20 * DAY_S)
    with clock, mock.patch("ncclprobe.commands.fleet.by", return_value="me@here"):
        for words in ([], ["ad"], ["add", "r.json", "--exit-code"]):
            yield " ".join(["wrong", *words]), ["fleet", *words, *store]
        yield "add", ["fleet", "add", *paths, *store, "--json", "-"]
        yield "again", ["fleet", "add", *paths[:2], *store]
        yield "again, and the store first", ["fleet", "add", *store, paths[0], "-q"]
        yield "all", ["fleet", *store, "--exit-code"]
        yield "all, JSON", ["fleet", *store, "--json", "-"]
        for node in ("n1", "n2", "n3", "n4", "n5", "w2"):
            yield node, ["fleet", "node", node, *store]
            yield f"{node}, JSON", ["fleet", "node", node, *store, "--json", "-"]
        yield "page", ["fleet", "page", "--html", "-", *store]
        yield "accept", ["fleet", "accept", "n3", *store]
        yield "rename", ["fleet", "rename", "n5", "n50", *store]
        for words in (["n9", "n1"], ["n50", ""], ["n50", "n\n1"], ["n50", "n" * 999], ["n50", "n50"]):
            yield f"rename to {words[1]:.9}", ["fleet", "rename", *words, *store]
        for word in ("accept", "forget", "node"):
            yield f"{word} nothing", ["fleet", word, "n33", *store]
        yield "forget", ["fleet", "forget", "n2", *store]
        yield "after all", ["fleet", *store, "--json", "-"]


def _pseudonyms_inputs(folder: Path) -> Rows:
    """What is left of names and addresses, under one key: the same name is the same pseudonym everywhere."""
    site, hidden = folder / "site.jsonl", folder / "hidden.jsonl"
    site.write_text(site_capture())
    hidden.write_text(Redactor(KEY).capture(site_capture()))
    yield "site", ["doctor", str(site), "--no-config", "-v", "--json", str(folder / "site.json")]
    yield "site, hidden", ["doctor", str(hidden), "--no-config", "-v", "--json", "-"]
    yield "its report", ["report", str(folder / "site.json"), "--redact-key", KEY, "-v"]
    for name, report in (("sick", samples.SICK), ("moved", made.moved())):
        yield name, ["report", _written(folder, name, report), "--redact-key", KEY, "--json", "-"]
    for job in ("peers-blocked", "master-unresolved", "healthy-srun"):
        logs = sorted((DATA / "failures" / job).glob("*.gz"))
        yield job, ["explain", *map(str, logs), "--redact-key", KEY, "--json", "-"]


def _pasted_inputs(folder: Path) -> Rows:
    """What people paste of one machine."""
    for name, text in (pasted_cases.FORMS | pasted_cases.texts_of("pasted-said.txt")).items():
        path = folder / f"{re.sub('[^a-z0-9]+', '-', name)}.txt"
        path.write_text(text)
        yield name, ["doctor", str(path), "--no-config", "--json", "-"]
    cases = {"up": pasted_cases.UP, "devinfo": pasted_texts.DEVINFO, "list": pasted_texts.LIST}
    cases |= {"matrix": pasted_texts.MATRIX, "one": "export A=1\n", "two": "export A=2\n"}
    for name, text in cases.items():
        (folder / f"{name}.txt").write_text(text)
    for names in (("up", "devinfo"), ("devinfo", "up"), ("list", "matrix"), ("up", "list", "one"), ("one", "two")):
        yield " and ".join(names), ["doctor", *(str(folder / f"{name}.txt") for name in names), "--no-config"]


def _jobs_as_json_inputs(folder: Path) -> Rows:
    for name in (
        "straggler", "desync-other-size", "crash-killed", "silent-stopped-2", "healthy-torchrun",
        "rank-twice"):  # fmt: skip
        logs = sorted((DATA / "failures" / name).glob("*.gz"))
        yield name, ["explain", *map(str, logs), "--json", "-"]
        for form in UNTIMED_FORMS:
            yield f"{name} {form}", ["explain", *map(str, logs), *form.split()]
    sick = [str(CAPTURES / "sick" / f"{name}.jsonl") for name in ("ib-down", "acs", "gpu-lost")]
    for path in (*sick, str(CAPTURES / "aws-p4d.jsonl"), str(CAPTURES / "laptop.jsonl")):
        yield f"{Path(path).stem}, JSON", ["doctor", path, "--no-config", "--json", "-"]
    for form in UNTIMED_FORMS:
        yield f"3 machines {form}", ["doctor", *sick, "--no-config", *form.split()]


def _help_inputs(folder: Path) -> Rows:
    """Each default, limit and exit code that the pages of commands state; and what the demos print."""
    for command in sorted(commands.COMMANDS):
        yield command, [command, "--help-all"]
    for command in BRIEF:
        yield f"{command}, in short", [command, "--help"]
    for word in ("add", "node", "page", "accept", "rename", "forget"):
        yield f"fleet {word}", ["fleet", word, "--help"]
    for name in DEMOS:
        yield f"demo {name}", ["demo", name]
    for name in FILES:
        yield f"deploy {name}", ["deploy", name, str(folder)]


COMMANDS: Mapping[str, Callable[[Path], Rows]] = {
    "explain-desync": lambda _: _jobs_inputs("failures/desync-*"),
    "explain-silent": lambda _: _jobs_inputs("failures/[n-z]*"),
    "explain-others": lambda _: _jobs_inputs("failures/[!dn-z]*"),
    "explain-cuda": lambda _: _jobs_inputs("on_cpu/job-*"), "explain-nccl": _nccl_inputs,
    "explain-cases": _cases_inputs, "doctor": _captures_inputs, "attach": _attached_inputs, "report": _reports_inputs,
    "expect": _machines_inputs, "topo": _matrices_inputs, "judge": _judged_inputs,
    "expect-captures": _expectations_inputs, "forms": _forms_inputs, "compare": _comparisons_inputs,
    "rows": _rows_inputs, "fleet": _fleet_inputs, "pseudonyms": _pseudonyms_inputs, "pasted": _pasted_inputs,
    "json": _jobs_as_json_inputs, "help": _help_inputs,
}  # fmt: skip
"""The commands of each file with what they look at; what is compressed is unpacked into a folder."""
