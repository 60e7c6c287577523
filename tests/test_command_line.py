"""What a newcomer meets: help, completion, the demos, plain words, and one clear line for whatever is mistyped."""

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclprobe.commands import COMMANDS, completion, main
from ncclprobe.commands.arguments import BRIEF, MOST, Parser
from ncclprobe.commands.demo import DEMOS
from ncclprobe.engine import diagnose
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


DEADLINE_S = 60.0
CASES = {
    "ncclprobe doc": ["doctor"], "ncclprobe --v": ["--version"], "ncclprobe doctor --expect-g": ["--expect-gpus"],
    "ncclprobe doctor --backend ": ["nccl", "gloo"], "ncclprobe doctor --local a": ["a file.jsonl", "again.jsonl"],
    "ncclprobe doctor --json aga": ["again.jsonl"], "ncclprobe doctor --keep f": ["folder"],
    "ncclprobe doctor --timeout ": [], "ncclprobe explain ib.sta": ["ib.state"],
    "ncclprobe explain aga": ["again.jsonl"], "ncclprobe bandwidth --select run.band": ["run.bandwidth"],
    "ncclprobe fleet add aga": ["again.jsonl"], "ncclprobe completion ": ["bash", "zsh", "fish"],
    "ncclprobe checks ": [],
}  # fmt: skip
"""What is typed, and what may follow in a folder with two files and a folder."""


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Write the completion of a shell beside what may be completed."""
    assert completion.main([shell]) == 0
    path = folder / "completion"
    path.write_text(capsys.readouterr().out)
    for name in ("a file.jsonl", "again.jsonl"):
        (folder / name).touch()
    (folder / "folder").mkdir()
    return path


@each_row("shell", ["bash", "zsh", "fish"])
def test_it_has_every_command_and_every_option_that_help_shows(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, missing, seen = script(shell, tmp_path, capsys).read_text(), [], 0
    for name in COMMANDS:
        parser = importlib.import_module(f"ncclprobe.commands.{name}")._parser()
        shown = set(re.findall(r"^ {2}(?:-\w[^,]*, )?(--[a-z][\w-]*)", parser.format_help(), re.MULTILINE))
        seen += len(shown)
        of_command = [line for line in text.split("\n") if name in line] if shell != "zsh" else [text]
        spelt = {f"-l {each[2:]} " if shell == "fish" else each for each in shown}
        missing += [(name, each) for each in spelt if not any(each in f"{line} " for line in of_command)]
    assert not missing
    assert seen > 150
    ids = " ".join(sorted({check.id for check in diagnose.every_check()}))
    assert ids.startswith("data.content data.file-system data.path data.rate env.danger env.debug env.files ")
    ways = {
        "bash": [f'_ncclprobe_ids() {{ compgen -W "{ids}" -- "$1"; compgen -f -- "$1"; }}'],
        "zsh": [f"_ncclprobe_ids() {{ compadd {ids}; _files }}", ":Print it for this shell.:(bash zsh fish)"],
        "fish": [f"set -g _ncclprobe_ids {ids}",
                 "(string join \\n $_ncclprobe_ids; __fish_complete_path (commandline -ct))"],
    }  # fmt: skip
    assert [each for each in ways[shell] if each not in text] == []


def test_bash_completes_words_options_values_files_and_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script("bash", tmp_path, capsys)
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    play = (
        'source ./completion\nwhile IFS= read -r line; do read -ra COMP_WORDS <<<"$line"\n'
        '[[ $line = *" " ]] && COMP_WORDS+=("")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()\n'
        "_shtab_ncclprobe 2>/dev/null\n"
        '(IFS="|"; echo "${COMPREPLY[*]}"); done\n'
    )
    done = subprocess.run([bash, "--norc", "-c", play], input="".join(f"{line}\n" for line in CASES), cwd=tmp_path,
                          capture_output=True, text=True, timeout=DEADLINE_S)  # fmt: skip
    assert done.stderr == ""
    found = [line.split("|") if line else [] for line in done.stdout.split("\n")[:-1]]
    assert {line: sorted(words) for line, words in zip(CASES, found, strict=True)} == {
        line: sorted(words) for line, words in CASES.items()
    }


@each_row("name", DEMOS)
def test_a_demo_fits_a_terminal_and_leaves_nothing(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it prints is in tests/data/command_values/help.txt."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", name]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert (Path.cwd(), list(tmp_path.iterdir())) == (tmp_path, [])


def test_the_files_of_a_demo_can_be_kept_and_give_the_same_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["demo", "sick-node", "--keep", str(tmp_path / "kept")]) == 0
    capsys.readouterr()
    assert main(["doctor", str(tmp_path / "kept" / "sick-node.jsonl")]) == 4
    assert "pci.link" in capsys.readouterr().out


ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "data" / "wrong-inputs.md"
ROWS = [
    tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:3])
    for line in PAGE.read_text().splitlines()
    if line.startswith("| `ncclprobe ")
]
_ELSEWHERE = re.compile(
    r"[0-9.]+ [KMGT]iB that|with \d+ CPUs, can run at most \d+ ranks|'|(?<=not TOML: ).*|(?<=/1 report: ).*"
)
"""What another machine, Python or library says in other words."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are not what a command wants."""
    made = tmp_path_factory.mktemp("wrong")
    (made / "broken.json").write_text("{\n")
    (made / "text.txt").write_text("hello\n")
    (made / "folder").mkdir()
    (made / "empty").touch()
    (made / "bad.toml").write_text("[[expect]]\nop = 3\n")
    (made / "other.toml").write_text('[[accept]]\nid = "x"\n')
    shutil.copy(ROOT / "reports" / "four-hosts-one-bad-nic.json", made / "run.json")
    shutil.copy(ROOT / "tests" / "captures" / "hgx-h100.jsonl", made / "node.jsonl")
    os.mkfifo(made / "pipe")
    return made


def command_of(row: tuple[str, ...]) -> str:
    word = row[0].strip("`").split()[1]
    return word if word in COMMANDS else "others"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted({*map(command_of, ROWS)}))
def test_a_wrong_input_has_one_clear_line(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(ROWS) >= 390
    monkeypatch.chdir(folder)
    wrong: dict[str, tuple[int, str, str]] = {}
    for command, answer in [row for row in ROWS if command_of(row) == name]:
        if Path("/dev/nvidia0").exists() and "nccl" in command.split():
            continue  # this machine has a GPU
        code = main(shlex.split(command.strip("`"))[1:])
        said = capsys.readouterr()
        if (code, said.out, _ELSEWHERE.sub("#", said.err)) != (2, "", _ELSEWHERE.sub("#", f"ncclprobe: {answer}\n")):
            wrong[command] = (code, said.out, said.err)
    assert wrong == {}


def test_a_name_that_no_shell_can_give_and_a_folder_without_permission_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: (str(path), mode) != (str(tmp_path), os.W_OK))
    see = "; see ncclprobe doctor --help"
    for argv, why in (
        (["doctor", "--json", "a\0b"], f"--json: a\\x00b: cannot be written: its name contains a NUL{see}"),
        (["doctor", "--json", "r"],
         f"--json: r: cannot be written, because you have no permission for {tmp_path}; choose another path{see}"),
        (["report", *["r"] * 401], "401 reports; give 400 at most"),
        (["compare", "no\x1b[31m\nsuch", "b"], "no\\x1b[31m\\nsuch: cannot be read: No such file or directory"),
    ):  # fmt: skip
        assert main(argv) == 2
        assert capsys.readouterr().err == f"ncclprobe: {why}\n"


PHRASES = {
    "is no X: write 'is not an X'": r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer|more|less|fewer)\w",
    "a trailing alone: write 'only'": r"(?<!by it)\balone(?=[.,;:)]|$)",
    "a clause with of which: write two sentences": r", (?:\w+ )?(?:of|by|with|for|from|in|over|through) wh(?:ich|om)\b",
    "things report, people tell": r"\b(?:tells|told)\b",
    "ranks join, nodes arrive": r"\b(?:did not come|does not come|comes? late|came late|ha[ds] not come)\b",
    "is or appears, not stands": r"\bstands?\b(?!-| (?:in|for)\b)",
    "where for a condition: write 'if'": r"^Where\b|[.;] Where (?!are|is)",
}
"""Frozen. What a machine can see of the style sheet for user text; each with what to write instead."""
ALLOWED = {
    " of which X is free": "torch's own words",
    "X X alone": "the name of a measurement",
    "groups alone, batch": "the name of a measurement",
}


def test_no_message_and_no_explanation_of_a_check_has_a_phrase_that_reads_as_translated() -> None:
    modules = sorted((ROOT / "ncclprobe").rglob("*.py"))
    shown = [(f"{path.relative_to(ROOT)}:{line}", text) for path in modules for line, text in _messages(path)]
    assert len(shown) > 3000
    shown += [(each.id, text) for each in diagnose.every_check() for text in (each.title, each.right, each.why,
              each.fix)]  # fmt: skip
    found = [
        f"{where}: {phrase}: {text[max(found.start() - 40, 0) : found.end() + 40]!r}"
        for where, text in shown
        for phrase, pattern in PHRASES.items()
        if (found := re.search(pattern, text)) and not any(each in text for each in ALLOWED)
    ]
    assert found == []


def _messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that have several words, as written: no docstring, SQL or pattern."""
    source = path.read_text()
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        if text.count(" ") > 1 and not re.search(r"\b(?:SELECT|UPDATE|INSERT|DELETE)\b|\(\?", text):
            yield node.lineno, text
