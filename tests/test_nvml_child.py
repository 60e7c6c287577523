"""NVML through the child, against a fake ``libnvidia-ml.so.1`` of our own that drives the real nvidia-ml-py."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_nvml.c"

ASK = """
import json, sys, time
from ncclprobe.errors import HostError
from ncclprobe.nvml_child import NvmlChild
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
    """A folder with the fake library, compiled once."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed: the fake libnvidia-ml.so.1 cannot be built")
    folder = tmp_path_factory.mktemp("nvml")
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    output = str(folder / "libnvidia-ml.so.1")
    subprocess.run(["gcc", "-Wall", "-Werror", "-shared", "-fPIC", soname, "-o", output, str(SOURCE)], check=True)
    return folder


def ask(library: Path | None, *questions: list[str | int], patience_s: float = 30, **fake: str) -> list[list[object]]:
    environment = {**os.environ, **{f"FAKE_NVML_{name.upper()}": value for name, value in fake.items()}}
    if library:
        environment["LD_LIBRARY_PATH"] = str(library)
    command = [sys.executable, "-c", ASK, json.dumps(questions), str(patience_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    answers: list[list[object]] = json.loads(done.stdout)
    return answers


def test_gpus_are_counted_and_named(library: Path) -> None:
    said = ask(library, ["nvmlDeviceGetCount"], ["nvmlDeviceGetName", 7], ["nvmlDeviceGetPciInfo", 7], gpus="8")
    assert said[:2] == [["said", 8], ["said", "Fake H200"]]
    assert said[2][1]["busId"] == "00000000:07:00.0"  # type: ignore[index]


def test_a_lost_gpu_does_not_hide_the_others(library: Path) -> None:
    said = ask(library, *(["nvmlDeviceGetName", n] for n in range(3)), gpus="3", lost="1")
    assert [row[0] for row in said] == ["said", "Failed", "said"]
    assert "GPU is lost" in str(said[1][1])


def test_no_driver_is_a_failure_in_nvmls_own_words(library: Path) -> None:
    ((kind, why),) = ask(library, ["nvmlDeviceGetCount"], error="9")
    assert kind == "Failed"
    assert "Driver Not Loaded" in str(why)


def test_no_permission_is_denied(library: Path) -> None:
    assert ask(library, ["nvmlDeviceGetCount"], error="4")[0][0] == "Denied"


def test_a_function_that_an_older_library_lacks_is_missing(library: Path) -> None:
    said = ask(library, ["nvmlDeviceGetGpuFabricInfoV", 0], ["nvmlDeviceGetCount"])
    assert [row[0] for row in said] == ["Missing", "said"]


def test_a_function_that_nvidia_ml_py_lacks_is_missing(library: Path) -> None:
    assert ask(library, ["nvmlNoSuchFunction"])[0][0] == "Missing"


def test_a_wedged_driver_is_abandoned_and_not_asked_again(library: Path) -> None:
    said = ask(library, ["nvmlDeviceGetCount"], ["nvmlDeviceGetCount"], patience_s=1, hang="1")
    assert [row[0] for row in said] == ["TimedOut", "TimedOut"]


def test_a_driver_that_kills_the_asker_is_survived(library: Path) -> None:
    ((kind, why),) = ask(library, ["nvmlDeviceGetCount"], crash="1")
    assert (kind, "died" in str(why)) == ("TimedOut", True)


def test_without_the_library_no_child_is_started() -> None:
    ((kind, why),) = ask(None, ["nvmlDeviceGetCount"])
    if kind == "said":
        pytest.skip("this machine has a real NVML")
    assert (kind, "libnvidia-ml.so.1" in str(why)) == ("Missing", True)
