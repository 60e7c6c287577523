"""What --help shows: few options, by task, with an example; --help-all shows every one."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from ncclprobe.commands import COMMANDS, GROUPS, main
from ncclprobe.commands.arguments import BRIEF, MOST, Parser
from tests.each_row import each_row

WITH_PARSER = [name for name in COMMANDS if hasattr(importlib.import_module(f"ncclprobe.commands.{name}"), "_parser")]


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 0
    return capsys.readouterr().out


def parser_of(command: str) -> Parser:
    found = importlib.import_module(f"ncclprobe.commands.{command}")._parser()
    assert isinstance(found, Parser)
    return found


def listed(text: str) -> list[str]:
    """The first spelling of every option that stands at the beginning of a line."""
    return re.findall(r"^  (--?[a-z][\w-]*)", text, re.MULTILINE)


@each_row("command", WITH_PARSER)
def test_the_help_of_a_command_shows_few_options_and_the_whole_help_all(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    brief, whole = shown(capsys, command, "--help"), shown(capsys, command, "--help-all")
    assert len(listed(brief)) <= MOST, "choose its options for a newcomer in BRIEF of ncclprobe/commands/arguments.py"
    assert max(len(line) for line in (brief + whole).splitlines()) <= 80
    options = {each for each in parser_of(command)._option_string_actions if each != "--help-all"}
    named, all_named = (set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text)) for text in (brief, whole))
    assert ("--help-all" in brief) is (command in BRIEF)
    assert command in BRIEF or options <= named
    assert options <= all_named


@each_row("command", BRIEF)
def test_the_examples_are_commands_that_the_parser_takes(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options only: what they name need not be there. The folder of --keep is made at once, so not in the checkout."""
    monkeypatch.chdir(tmp_path)
    assert BRIEF[command].examples
    for example in BRIEF[command].examples:
        words = shlex.split(example.partition(" -- ")[0])  # behind it stands the user's own command
        place = next(n for n, word in enumerate(words) if word.removeprefix("ncclprobe.") in COMMANDS)
        parser_of(words[place].removeprefix("ncclprobe.")).parse_args(words[place + 1 :])


def test_every_command_stands_in_one_group_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for group, commands in GROUPS.items():
        below = text.partition(f"\n{group}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in below] == list(commands)
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)


def test_help_and_version_are_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    both = (["help"], ["--help"]), (["help", "help"], ["--help"]), (["help", "version"], ["--help"])
    for words, options in (*both, (["version"], ["--version"])):
        assert main(words) == main(options) == 0
        printed = capsys.readouterr().out
        assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]
    assert shown(capsys, "help", "doctor") == shown(capsys, "doctor", "--help")
    assert main(["help", "doctro"]) == 2
    assert "did you mean doctor" in capsys.readouterr().err


def test_an_error_is_folded_on_a_terminal_and_one_line_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wrong = ["doctor", "--backend", "ncl"]
    assert main(wrong) == 2
    whole = capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(wrong) == 2
    folded = capsys.readouterr().err
    assert (whole.count("\n"), len(whole) > 80) == (1, True)
    assert max(map(len, folded.splitlines())) <= 80
    assert folded.split() == whole.split()
