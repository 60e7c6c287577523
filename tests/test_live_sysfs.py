"""Binary files, whole folders and device nodes, as the machine is asked for them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.facts.pci import config_space
from ncclprobe.host.live import LiveHost
from ncclprobe.model.errors import Denied, Missing


@pytest.fixture
def host() -> LiveHost:
    return LiveHost((), lambda name: False)


def test_a_binary_file_is_its_length_and_the_rows_that_are_not_zero(host: LiveHost, tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"\xde\x10" + bytes(14) + bytes(16) + b"\x01")
    said = json.loads(host.ask("bytes", str(tmp_path / "config")))
    assert said == {"length": 33, "rows": {"0x000": "de10" + "00" * 14, "0x020": "01"}}


@given(st.binary(max_size=4096))
def test_the_config_space_that_was_read_is_the_one_that_is_parsed(
    tmp_path_factory: pytest.TempPathFactory, config: bytes
) -> None:
    path = tmp_path_factory.mktemp("pci") / "config"
    path.write_bytes(config)
    assert config_space(LiveHost((), lambda name: False).ask("bytes", str(path))) == config


def test_a_folder_is_its_files_without_those_that_say_nothing(host: LiveHost, tmp_path: Path) -> None:
    for name, text in (("0", "fe80\n"), ("1", "0000\n"), ("2", "0000\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    assert json.loads(host.ask("files", str(tmp_path), "0000")) == {"0": "fe80"}
    assert json.loads(host.ask("files", str(tmp_path))) == {"0": "fe80", "1": "0000", "2": "0000"}


def test_a_file_of_a_folder_that_cannot_be_read_is_null(host: LiveHost) -> None:
    said = json.loads(host.ask("files", "/proc/self"))  # /proc/self/mem cannot be read from its start, by anybody
    assert said["mem"] is None
    assert said["comm"]


@pytest.mark.parametrize("kind", ["files", "bytes", "open"])
def test_what_is_not_there_is_missing(host: LiveHost, kind: str, tmp_path: Path) -> None:
    with pytest.raises(Missing):
        host.ask(kind, str(tmp_path / "absent"))


def test_a_node_opens_or_is_denied(host: LiveHost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.ask("open", "/dev/null") == "true"

    def deny(path: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")  # what a device cgroup says

    monkeypatch.setattr("os.open", deny)
    with pytest.raises(Denied):
        host.ask("open", "/dev/null")
