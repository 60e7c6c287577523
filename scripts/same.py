#!/usr/bin/env python3
"""Do two commits say the same? Play what is recorded through both, and show each difference.

    .venv/bin/python scripts/same.py BASE [--only GLOB] [--most N] [--keep DIR]

The inputs are those of BASE: every captured machine, healthy or sick; a fleet of 16 with one sick node; the recorded
run; every recorded failure; every machine type that `expect` knows. Each is judged by the code of BASE and by the code
of this checkout, as it lies here: exit code, text at 80 columns, standard error, and the JSON, HTML (its text),
JUnit, Markdown and Prometheus files. Times of the day, durations and temporary paths are left out. Exits with 1 if
anything differs. What needs hosts, ranks or root (the rows
of scripts/lab) is not played: there two runs of one commit differ.
"""

import argparse
import difflib
import fnmatch
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
CASE_S, PLAY_S = 120, 1800.0
FORMATS = {"json": "--json", "html": "--html", "junit": "--junit", "md": "--markdown", "prom": "--prometheus"}
FLEET, SICK = 16, 3
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?"
    r"|(?<=[( ])[0-9.]+ m?s(?=[ ,.)]|$)|(?<=duration_s\": )[0-9.]+|(?<=time=\")[0-9.]+"
    r"|(?<=_timestamp_seconds)\{.*|(?<=_duration_seconds)\{.*",
    re.MULTILINE,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Play both and print the differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", metavar="BASE", help="the commit to compare with")
    parser.add_argument("--only", default="*", metavar="GLOB", help="cases to play, such as 'doctor sick/*'")
    parser.add_argument(
        "--most", type=int, default=40, metavar="N", help="lines shown of a file (default: %(default)s)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave both sets of outputs here")
    parser.add_argument("--play", type=Path, nargs=2, help=argparse.SUPPRESS)  # in a child: code and outputs
    options = parser.parse_args(argv)
    if options.play:
        code, outputs = options.play
        return play(Path(options.base), code, outputs, options.only)
    with tempfile.TemporaryDirectory() as scratch:
        inputs, kept = Path(scratch) / "base", options.keep or Path(scratch)
        unpack(options.base, inputs)
        outputs = {"base": kept / "said-by-base", "here": kept / "said-here"}
        children = [
            start(inputs, code, outputs[name], options.only) for name, code in (("base", inputs), ("here", ROOT))
        ]
        try:
            codes = [child.wait(PLAY_S) for child in children]
        finally:
            for child in children:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
        if any(codes):
            return 2
        return compare(outputs["base"], outputs["here"], options.most)


def unpack(commit: str, folder: Path) -> None:
    """Write the files of `commit` to `folder`."""
    said = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=PLAY_S)
    with tarfile.open(fileobj=io.BytesIO(said.stdout)) as archive:
        archive.extractall(folder, filter="data")


def start(inputs: Path, code: Path, outputs: Path, only: str) -> "subprocess.Popen[bytes]":
    """Start the process that plays all cases with one commit's code."""
    command = [sys.executable, __file__, "--only", only, str(inputs), "--play", str(code), str(outputs)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "TORCH", "SLURM"))}
    return subprocess.Popen(
        command, cwd=inputs, env={**plain, "COLUMNS": "80", "PYTHONHASHSEED": "0"}, start_new_session=True
    )


def cases(inputs: Path, scratch: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the command line of each case."""
    captures = inputs / "tests" / "captures"
    for path in sorted(captures.rglob("*.jsonl")):
        yield f"doctor {path.relative_to(captures).with_suffix('')}", ["doctor", str(path)]
    yield "doctor fleet", ["doctor", *map(str, fleet(captures, scratch))]
    recorded = str(inputs / "tests" / "data" / "run.jsonl")
    yield "doctor run", ["doctor", str(captures / "hgx-h200.jsonl"), recorded]
    failures = inputs / "tests" / "data" / "failures"
    for folder in sorted(each for each in failures.iterdir() if each.is_dir()):
        yield f"explain {folder.name}", ["explain", str(folder)]
    yield "explain all", ["explain", str(failures)]
    for machine in sorted((inputs / "ncclprobe" / "expect" / "tables" / "machines").glob("*.toml")):
        for nodes in ("1", "64"):
            yield f"expect {machine.stem} {nodes}", ["expect", "--machine", machine.stem, "--nodes", nodes]


def fleet(captures: Path, scratch: Path) -> list[Path]:
    """Write the captures of a fleet, one of them with a port that is down; return their paths."""
    shutil.copy(captures / "hgx-h100.jsonl", scratch)
    planted = (captures / "sick" / "ib-down.jsonl").read_text(encoding="utf-8").splitlines()[2:]
    paths = [scratch / f"n{number}.jsonl" for number in range(FLEET)]
    for number, path in enumerate(paths):
        header = {"capture": 1, "node": path.stem, "origin": "synthetic"}
        rows = [json.dumps(header), json.dumps({"like": "hgx-h100.jsonl"}), *(planted if number == SICK else [])]
        path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return paths


def play(inputs: Path, code: Path, outputs: Path, only: str) -> int:
    """Run every case with the code in the folder `code`; write what it says under `outputs`."""
    sys.path.insert(0, str(code))
    from ncclprobe.commands import main as command

    assert Path(sys.modules["ncclprobe"].__path__[0]).parent == code, "another ncclprobe was imported"
    with tempfile.TemporaryDirectory() as scratch:
        for name, argv in cases(inputs, Path(scratch)):
            if not fnmatch.fnmatch(name, only):
                continue
            folder = outputs / name.replace("/", "-").replace(" ", "-")
            folder.mkdir(parents=True)
            wanted = {} if argv[0] == "expect" else FORMATS
            flags = [word for suffix, flag in wanted.items() for word in (flag, str(folder / f"file.{suffix}"))]
            child = os.fork()
            if not child:
                speak(lambda argv=[*argv, *flags]: command(argv), folder)
            (folder / "exit").write_text(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
            plain({str(folder): "OUT", scratch: "TMP", str(inputs): "BASE", str(code): "BASE"}, folder)
    return 0


def speak(command, folder: Path) -> NoReturn:  # type: ignore[no-untyped-def]
    """Run `command` in this process, which ends with its exit code; its words go to files in `folder`."""
    signal.alarm(CASE_S)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o644), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = command()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Text(HTMLParser):
    """The text of a page, a line for each run of it; neither its scripts nor its style."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.lines.append(" ".join(data.split()))


def plain(names: Mapping[str, str], folder: Path) -> None:
    """Take out of the files in `folder` what differs between two runs of one commit."""
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":
            page = _Text()
            page.feed(text)
            text = "\n".join(page.lines)
        elif path.suffix == ".json":
            text = json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False)
        for found, name in names.items():
            text = text.replace(found, name)
        path.write_text(_TIMES.sub("TIME", text), encoding="utf-8")


def compare(base: Path, here: Path, most: int) -> int:
    """Print how the files of two folders differ; return 1 if they do."""
    files = sorted({path.relative_to(top) for top in (base, here) for path in top.rglob("*") if path.is_file()})
    differing = [name for name in files if _text(base / name) != _text(here / name)]
    for name in differing:
        pair = _text(base / name).splitlines(), _text(here / name).splitlines()
        shown = list(difflib.unified_diff(*pair, f"base {name}", f"here {name}", n=1, lineterm=""))
        print("\n".join(shown[:most]))
        if len(shown) > most:
            print(f"… {len(shown) - most} lines more")
    played, sick = ({name.parts[0] for name in names} for names in (files, differing))
    print(f"{len(played)} cases, {len(files)} files; {len(differing)} files of {len(sick)} cases differ")
    return int(bool(differing))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
