"""What an assistant gets from `ncclprobe mcp`: scripted sessions of the protocol's own client."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclprobe.commands import mcp as served
from ncclprobe.engine.explain_pages import entry
from ncclprobe.model.errors import UsageError

sdk = pytest.importorskip("mcp", reason="pip install mcp")

ROOT = Path(__file__).resolve().parent.parent
FAILURES = ROOT / "tests" / "data" / "failures"
LOGS = {
    "nccl-no-interface": "iface-missing", "crash-raises": "ValueError", "straggler": "timeout-straggler",
    "desync-other-operation": "collective-desync", "rank-never-came": "world-size-mismatch",
}  # fmt: skip
"""Recorded jobs, and a word that the answer must have."""
ENV = "export NCCL_IB_DISABLE=true\n"
Answer = tuple[bool, str]


def asked(reader: served.Reader, calls: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Answer]:
    """Call tools in one session; returns for each whether it failed, and its text."""

    async def session() -> dict[str, Answer]:
        async with sdk.Client(served.server(reader)) as client:
            found = {}
            for name, (tool, arguments) in calls.items():
                result = await client.call_tool(tool, arguments)
                found[name] = (bool(result.is_error), "".join(each.text for each in result.content))
            return found

    return asyncio.run(session())


def test_logs_are_explained_from_their_files_and_name_the_cause() -> None:
    reader = served.Reader([FAILURES], redact=True)
    found = asked(reader, {name: ("explain", {"paths": [name]}) for name in LOGS})
    assert {name: text for name, (failed, text) in found.items() if failed or LOGS[name] not in text} == {}
    assert ".log.gz:5:" in found["nccl-no-interface"][1]


def test_what_is_pasted_is_judged_and_looked_up() -> None:
    log = "n7:11:11 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
    tests = (ROOT / "tests" / "data" / "nccl_tests" / "all_reduce.txt").read_text()
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("explain", {"text": log}, "iface-missing"), ("doctor", {"text": ENV}, "NCCL_IB_DISABLE"),
        ("doctor", {"text": ENV, "backend": "gloo"}, "gloo"),
        ("expect", {"machine": "dgx-h100", "nodes": 2}, "it fails; published"),
        ("expect", {"machine": "8 x H100 PCIe, 2 sockets", "sizes": [64]},
         "8 x H100 PCIe, 2 sockets, 1 nodes: composed"),
        ("judge", {"text": tests, "machine": "dgx-h100"}, "; the text against DGX H100"),
        ("lookup", {"name": "NCCL_TIMEOUT"}, "read"), ("lookup", {"name": "iface-missing"}, "log.interface"),
    ]  # fmt: skip
    found = asked(served.Reader([], redact=True), {wanted: (tool, given) for tool, given, wanted in rows})
    assert {wanted: each for wanted, each in found.items() if each[0] or wanted not in each[1]} == {}


def test_names_are_pseudonyms_unless_they_are_asked_for() -> None:
    log = "gpu-blue-17:11:11 [0] NCCL WARN Bootstrap : no socket interface found on gpu-blue-17 10.20.30.40\n"
    for redact in (True, False):
        (answer,) = asked(served.Reader([], redact=redact), {"it": ("explain", {"text": log})}).values()
        assert ("gpu-blue-17" in answer[1]) is not redact


def test_only_files_below_the_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "secret.log").write_text("NCCL WARN secret\n")
    (tmp_path / "mine" / "link.log").symlink_to(tmp_path / "secret.log")
    (tmp_path / "mine" / "pipe").symlink_to("/dev/stdin")
    reader = served.Reader([tmp_path / "mine"], redact=False)
    given = ("../secret.log", "link.log", ".", "*", "-", "/etc/passwd", "pipe", "no\0name", str(tmp_path))
    found = asked(reader, {path: ("explain", {"paths": [path]}) for path in given})
    assert {path: each for path, each in found.items() if not each[0] or "secret\n" in each[1]} == {}
    none = asked(served.Reader([], redact=False), {"it": ("doctor", {"paths": ["x"]})})
    assert "--folder DIR" in none["it"][1]


def test_a_file_that_becomes_a_link_while_it_is_read_shows_nothing_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, secret = tmp_path / "mine", tmp_path / "secret.log"
    mine.mkdir()
    secret.write_text("n0:1:1 [0] NCCL WARN secret\n")
    log = mine / "run.log"
    reader = served.Reader([mine], redact=False)
    for when in ("copy_below", "_refuse_references"):
        log.unlink(missing_ok=True)
        log.write_text("n0:1:1 [0] NCCL WARN Bootstrap : no socket interface found\n")
        real = getattr(served, when)

        def swapped(*given: Any, real: Any = real) -> Any:
            log.unlink()
            log.symlink_to(secret)
            return real(*given)

        with monkeypatch.context() as patched:
            patched.setattr(served, when, swapped)
            (answer,) = asked(reader, {"it": ("explain", {"paths": ["run.log"]})}).values()
        assert "secret" not in answer[1].replace("secret.log", ""), (when, answer)
        assert answer[0] is (when == "copy_below")


def test_what_cannot_be_asked_is_an_error_in_a_line_and_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    long = f"too long: at most {served.MOST_TEXT} characters or 256 paths"
    none = "below the folders that may be read (none: start it with ncclprobe mcp --folder DIR); or give text"
    wrong: dict[str, tuple[str, dict[str, Any]]] = {
        "give text or paths, one of them": ("explain", {"text": " "}),
        "give text or paths, one of them\n": ("doctor", {"text": "x", "paths": ["x"]}),
        long: ("explain", {"text": "x" * (served.MOST_TEXT + 1)}),
        f"{long}\n": ("explain", {"paths": ["x"] * 257}),
        f"{'x' * 200}: no such file of at most 256 MiB {none}": ("explain", {"paths": ["x" * 300] * 256}),
        f"x: no such file of at most 256 MiB {none}": ("judge", {"path": "x"}),
        "pasted: contains no nccl-tests table (a header with size, count, type … and rows below it)":
            ("judge", {"text": "hello"}),
        "'dgx-z900' is not a known machine type": ("expect", {"machine": "dgx-z900"}),
        "'NCCL_IBB_TIMEOT_XYZ' is not a known check, cause or variable": ("lookup", {"name": "NCCL_IBB_TIMEOT_XYZ"}),
        "backend is nccl or gloo": ("doctor", {"text": ENV, "backend": "mpi"}),
    }  # fmt: skip
    found = asked(served.Reader([], redact=True), wrong)
    told = {name: f"Error executing tool {tool}: {name.strip()}" for name, (tool, _) in wrong.items()}
    assert {name: each for name, each in found.items() if not each[0] or not each[1].startswith(told[name])} == {}
    with pytest.raises(UsageError, match="is not a folder"):
        served.main(["--folder", "/no/such/folder"])
    monkeypatch.setattr(served, "MOST_ANSWER", 200)
    (answer,) = asked(served.Reader([], redact=True), {"it": ("lookup", {"name": "NCCL_"})}).values()
    whole = "\n".join(entry("NCCL_", "variable"))
    assert answer[1] == f"{whole[:200]}\n… {len(whole) - 200} characters more"
    monkeypatch.setattr(served, "MOST_ANSWER", len(whole))
    (answer,) = asked(served.Reader([], redact=False), {"it": ("lookup", {"name": " NCCL_\n"})}).values()
    assert answer == (False, whole)


def test_what_is_served_is_below_the_folders_and_redacted_unless_declined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[served.Reader] = []
    runs = SimpleNamespace(run=lambda way: readers.append(way))
    monkeypatch.setattr(served, "server", lambda reader: readers.append(reader) or runs)
    for words, redacts in (([], True), (["--no-redact", "--folder", f"{tmp_path}/.", "--folder", "/"], False)):
        assert served.main(words) == 0
        reader, way = readers[-2:]
        assert (reader.redactor is not None, way) == (redacts, "stdio")
        assert reader.folders == [Path(word).resolve() for word in words[2::2]]


def test_it_serves_over_standard_input_and_output_as_a_program() -> None:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def session() -> tuple[set[str], str]:
        own = StdioServerParameters(command=sys.executable, args=["-m", "ncclprobe", "mcp"], cwd=str(ROOT))
        async with sdk.Client(stdio_client(own)) as client:
            tools = (await client.list_tools()).tools
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
            result = await client.call_tool("lookup", {"name": "NCCL_IB_TIMEOUT"})
            return {tool.name for tool in tools}, result.content[0].text

    names, text = asyncio.run(asyncio.wait_for(session(), 100))
    assert names == {"doctor", "expect", "explain", "judge", "lookup"}
    assert text.startswith("NCCL_IB_TIMEOUT")


def test_a_capture_brings_in_no_file_outside_the_folders(tmp_path: Path) -> None:
    whole = (ROOT / "tests" / "captures" / "hgx-h100.jsonl").read_text()
    overlay = '{"capture": 1, "node": "n1"}\n{"\\u006cike": "../secret.jsonl"}\n'
    inside = tmp_path / "given"
    inside.mkdir()
    for path, text in (("secret.jsonl", whole), ("given/overlay.jsonl", overlay), ("given/whole.jsonl", whole)):
        (tmp_path / path).write_text(text)
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "overlay": ("doctor", {"paths": ["overlay.jsonl"]}),
        "overlay in explain": ("explain", {"paths": ["overlay.jsonl"]}),
        "pasted overlay": ("doctor", {"text": overlay}),
        "whole": ("doctor", {"paths": ["whole.jsonl"]}),
    }
    found = asked(served.Reader([inside], redact=True), calls)
    assert {name: failed for name, (failed, _) in found.items()} == {name: name != "whole" for name in calls}
    words = "jsonl: a 'like' row names another file; give a whole capture"
    assert found["overlay"][1].endswith(f"overlay.{words}")
    assert (
        found["pasted overlay"][1]
        == "Error executing tool doctor: pasted: a 'like' row names another file; give a whole capture"
    )
