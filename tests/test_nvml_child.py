"""NVML through the child: what it says, and that nobody is held when it does not."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_nvml
import pytest

from ncclprobe.host import nvml_child
from ncclprobe.host.nvml_child import NvmlChild
from ncclprobe.model.errors import Failed, TimedOut

ASK = """
import json, sys
from ncclprobe.model.errors import HostError
from ncclprobe.host.nvml_child import NvmlChild
child, said = NvmlChild(), []
for question in json.loads(sys.argv[1]):
    try:
        said.append(["said", json.loads(child.call(*question, patience_s=float(sys.argv[2])))])
    except HostError as refusal:
        said.append([type(refusal).__name__, str(refusal)])
child.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


def ask(library: Path | None, *questions: list[str | int], patience_s: float = 30, **fake: object) -> list[Any]:
    said: list[Any] = json.loads(fake_nvml.run(library, ASK, json.dumps(questions), str(patience_s), **fake))
    return said


def test_gpus_are_counted_and_named(library: Path) -> None:
    said = ask(library, ["nvmlDeviceGetCount"], ["nvmlDeviceGetName", 7], ["nvmlDeviceGetPciInfo", 7], gpus=8)
    assert said[:2] == [["said", 8], ["said", "Fake H200"]]
    assert said[2][1]["busId"] == "00000000:07:00.0"


def test_a_lost_gpu_does_not_hide_the_others(library: Path) -> None:
    said = ask(library, ["nvmlDeviceGetName", 0], ["nvmlDeviceGetName", 1], ["nvmlDeviceGetName", 2], gpus=3, lost=1)
    assert [kind for kind, _ in said] == ["said", "Failed", "said"]
    assert "GPU is lost" in said[1][1]


def test_one_question_asks_about_many_links(library: Path) -> None:
    ((_, states),) = ask(library, ["nvmlDeviceGetNvLinkState", 0, "0,1,2"], links=2, down="0:1")
    assert states == [1, 0, {"refused": "Failed", "why": "Invalid Argument"}]


def test_one_question_asks_about_many_peers(library: Path) -> None:
    ((_, statuses),) = ask(library, ["nvmlDeviceGetP2PStatus", 0, "1,2", 0], gpus=3, lost=2)
    assert statuses == [0, {"refused": "Failed", "why": "GPU is lost"}]


def test_a_list_of_one_is_a_list(library: Path) -> None:
    assert ask(library, ["nvmlDeviceGetNvLinkState", 0, "0"], ["nvmlDeviceGetNvLinkState", 0, 0], links=1) == [
        ["said", [1]],
        ["said", 1],
    ]


def test_fields_come_in_one_call_each_with_its_own_refusal(library: Path, tmp_path: Path) -> None:
    question: list[str | int] = ["nvmlDeviceGetFieldValues", 1, "164,999,161", "0,1"]
    ((_, values),) = ask(library, question, gpus=2, links=2, log=tmp_path / "log")
    refusal = {"refused": "Failed", "why": "Invalid Argument"}
    assert values == [26562, 26562, refusal, refusal, 100, 101]
    assert (tmp_path / "log").read_text().count("nvmlDeviceGetFieldValues") == 1


def test_the_gpus_of_a_job_tell_of_its_own_processes_alone_and_of_each_value_why_it_is_not_there(library: Path) -> None:
    (_, rows), (_, others) = ask(library, ["gpusOf", 1, "4711"], ["gpusOf", 2, "9"], gpus=2, links=2, busy=0, lost=1)
    assert [row["index"] for row in rows] == [0, 1]
    assert (rows[0]["pci"], rows[0]["pids"], rows[0]["reasons"]) == ("00000000:00:00.0", [4711], 0x88)
    assert others[0]["pids"] == []
    assert rows[0]["busy_percent"]["refused"] == "Missing"
    assert rows[1]["pci"] == {"refused": "Failed", "why": "GPU is lost"}


def test_processes_are_amounts_of_memory_and_nothing_else(library: Path) -> None:
    assert ask(library, ["nvmlDeviceGetComputeRunningProcesses", 0], busy=0) == [["said", [5 << 30]]]


def test_no_driver_is_a_failure_in_nvmls_own_words(library: Path) -> None:
    ((kind, why),) = ask(library, ["nvmlDeviceGetCount"], error=9)
    assert kind == "Failed"
    assert "Driver Not Loaded" in why


def test_no_permission_is_denied(library: Path) -> None:
    assert ask(library, ["nvmlDeviceGetCount"], error=4)[0][0] == "Denied"


def test_a_function_that_an_older_library_lacks_is_missing(library: Path) -> None:
    said = ask(library, ["nvmlDeviceGetSerial", 0], ["nvmlDeviceGetCount"])
    assert [kind for kind, _ in said] == ["Missing", "said"]


def test_a_function_that_nvidia_ml_py_lacks_is_missing(library: Path) -> None:
    assert ask(library, ["nvmlNoSuchFunction"])[0][0] == "Missing"


def test_without_nvidia_ml_py_everything_is_missing(library: Path) -> None:
    said = json.loads(
        fake_nvml.run(
            library, f"import sys; sys.path[:] = {nothing_but_us()!r}\n{ASK}", '[["nvmlDeviceGetCount"]]', "30"
        )
    )
    assert said == [["Missing", "nvidia-ml-py: No module named 'pynvml'"]]


def nothing_but_us() -> list[str]:
    standard = [path for path in sys.path if path and "site-packages" not in path and "tests" not in path]
    return [str(Path(nvml_child.__file__).parents[2]), *standard]


def test_what_the_driver_prints_is_no_answer(library: Path) -> None:
    assert ask(library, ["nvmlDeviceGetCount"], gpus=8, chatty=1) == [["said", 8]]


def test_a_file_in_the_working_directory_is_not_imported(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    away = f"import sys; sys.path[0:1] = [{str(Path(nvml_child.__file__).parents[2])!r}]\n"
    assert json.loads(fake_nvml.run(library, away + ASK, '[["nvmlDeviceGetCount"]]', "30")) == [["said", 1]]


def test_a_wedged_driver_is_abandoned_and_not_asked_again(library: Path) -> None:
    said = ask(library, ["nvmlDeviceGetCount"], ["nvmlDeviceGetName", 0], patience_s=1, hang=1)
    assert [kind for kind, _ in said] == ["TimedOut", "TimedOut"]
    assert said[0] == said[1]


def test_a_driver_that_kills_the_asker_is_survived_and_its_end_told(library: Path) -> None:
    ((kind, why),) = ask(library, ["nvmlDeviceGetCount"], crash=1)
    assert kind == "TimedOut"
    assert "ended by SIGABRT" in why


def test_without_the_library_no_child_is_started() -> None:
    ((kind, why),) = ask(None, ["nvmlDeviceGetCount"])
    if kind == "said":
        pytest.skip("this machine has a real NVML")
    assert kind == "Missing"
    assert "libnvidia-ml.so.1" in why


SCRIPT = """
import sys, time

def ask():
    sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), "little"))

def out(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

def say(text, pause_s=0.0):
    data = len(text).to_bytes(8, "little") + text.encode()
    out(data[:12])
    time.sleep(pause_s)
    out(data[12:])

"""


@pytest.fixture
def child(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[NvmlChild]:
    """A child that runs the test's own script instead of NVML; libc stands in for the library."""
    script = f"{SCRIPT}def serve():\n    {request.param}\n"
    (tmp_path / "instead_of_nvml.py").write_text(script)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(nvml_child, "_LIBRARY", "libc.so.6")
    monkeypatch.setattr(nvml_child, "_SERVER", "instead_of_nvml")
    started = NvmlChild()
    yield started
    started.close()


HALF = "ask(); say('{\"said\": 8}', 0.1); ask()"
LONG = "ask(); say('{\"said\": \"' + 'x' * 500_000 + '\"}'); ask()"


@pytest.mark.parametrize(("child", "length"), [(HALF, 1), (LONG, 500_002)], indirect=["child"])
def test_an_answer_in_pieces_is_put_together(child: NvmlChild, length: int) -> None:
    assert len(child.call("nvmlDeviceGetCount", patience_s=30)) == length


@pytest.mark.parametrize(
    ("child", "words"),
    [
        ("ask(); out(bytes([9, 0, 0])); time.sleep(60)", "no answer within 1 s"),
        ("ask(); out(bytes([9, 0, 0]))", "ended with code 0"),
        ("raise SystemExit(7)", "ended with code 7"),
        ("while True: out(b'x' * 4096)", "longer than 1 MiB"),
        ("ask(); say('Segmentation fault'); ask()", "invalid answer"),
        ("ask(); say('[' * 100_000); ask()", "invalid answer"),
        ('ask(); say(\'{"refused": "Exception"}\'); ask()', "invalid answer"),
        ("ask(); say('{\"refused\": []}'); ask()", "invalid answer"),
    ],
    indirect=["child"],
)
def test_whatever_the_child_does_the_call_returns_and_is_the_last(child: NvmlChild, words: str) -> None:
    for _ in range(2):
        with pytest.raises(TimedOut, match=words.replace("(", r"\(").replace(")", r"\)")):
            child.call("nvmlDeviceGetCount", patience_s=1 if "within" in words else 30)


@pytest.mark.parametrize("child", ['ask(); say(\'{"refused": "Failed", "why": "no"}\'); ask()'], indirect=True)
def test_a_refusal_keeps_the_child(child: NvmlChild) -> None:
    with pytest.raises(Failed, match="no"):
        child.call("nvmlDeviceGetCount", patience_s=30)
    assert child._dead is None
