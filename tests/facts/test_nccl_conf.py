"""Configuration files, and which source of a value wins."""

from ncclprobe.checks.env.fixtures import nccl
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import LONGEST_FIELD, LONGEST_LINE, SYSTEM_FILE, conf_paths, merge, nccl_conf, parse_conf
from ncclprobe.model.errors import Missing, NotCaptured
from ncclprobe.model.report import Setting
from tests.each_row import each_row

GETLINE = (2, 29, 7)  # the last release that reads lines of any length and keeps carriage returns


@each_row(
    ("text", "settings"),
    [
        ("", ()),
        ("NCCL_DEBUG=INFO", (Setting("NCCL_DEBUG", "INFO", "f:1"),)),
        ("# a note\n\nNCCL_DEBUG=WARN\n", (Setting("NCCL_DEBUG", "WARN", "f:3"),)),
        ("NCCL_DEBUG = INFO\n", (Setting("NCCL_DEBUG ", " INFO", "f:1"),)),
        (" # NCCL_DEBUG=INFO\n", (Setting(" # NCCL_DEBUG", "INFO", "f:1"),)),
        ("#NCCL_DEBUG=INFO\n", ()),
        ('NCCL_NET="IB"  # why\n', (Setting("NCCL_NET", '"IB"  # why', "f:1"),)),
        ("NCCL_NET_FORCE_MERGE=a=b\n", (Setting("NCCL_NET_FORCE_MERGE", "a=b", "f:1"),)),
        ("NCCL_DEBUG=\n", (Setting("NCCL_DEBUG", "", "f:1"),)),
        ("NCCL_DEBUG\n=INFO\n", ()),
        ("A=1\nA=2\n", (Setting("A", "1", "f:1"), Setting("A", "2", "f:2"))),
        ("A=1\0B=2\nC=3", (Setting("A", "1", "f:1"), Setting("C", "3", "f:2"))),
    ],
)
@each_row("version", [None, GETLINE])
def test_a_file_defines_what_nccl_reads_in_it(
    text: str, settings: tuple[Setting, ...], version: tuple[int, int, int] | None
) -> None:
    assert parse_conf(text, "f", version) == settings


@each_row(
    ("version", "value"),
    [(None, "1"), ((2, 30, 3), "1"), (GETLINE, "1\r")],
    ids=["newest", "2.30.3", "2.29.7"],
)
def test_a_carriage_return_is_part_of_the_value_before_2_30(version: tuple[int, int, int] | None, value: str) -> None:
    assert parse_conf("A=1\r\n", "f", version) == (Setting("A", value, "f:1"),)


def test_a_comment_before_2_26_defines_a_variable_with_its_sign() -> None:
    assert parse_conf("#A=1\n# a note\n", "f", (2, 25, 1)) == (Setting("#A", "1", "f:1"),)
    assert parse_conf("#A=1\n", "f", (2, 26, 2)) == ()


def test_only_one_carriage_return_is_removed() -> None:
    assert parse_conf("A=1\r\r\n", "f") == (Setting("A", "1\r", "f:1"),)


def test_names_and_values_are_cut() -> None:
    (setting,) = parse_conf("n" * 1100 + "=" + "v" * 1100, "f")
    assert (setting.name, setting.value) == ("n" * LONGEST_FIELD, "v" * LONGEST_FIELD)


def test_the_rest_of_a_line_too_long_is_a_line_of_its_own() -> None:
    line = "A=" + "x" * (LONGEST_LINE - 2) + "B=2"
    assert [setting.name for setting in parse_conf(line, "f")] == ["A", "B"]
    assert [setting.name for setting in parse_conf(line, "f", GETLINE)] == ["A"]


def test_a_line_that_just_fits_has_no_rest() -> None:
    assert len(parse_conf("A=" + "x" * (LONGEST_LINE - 2) + "\nB=2", "f")) == 2


@each_row(
    ("environment", "home", "version", "paths"),
    [
        ({}, "/home/me", None, ("/home/me/.nccl.conf", SYSTEM_FILE)),
        ({}, None, None, (SYSTEM_FILE,)),
        ({"NCCL_CONF_FILE": ""}, "/home/me", None, ("/home/me/.nccl.conf", SYSTEM_FILE)),
        ({"NCCL_CONF_FILE": "/site.conf"}, "/home/me", None, ("/site.conf", SYSTEM_FILE)),
        ({"NCCL_CONF_FILE": "/site.conf"}, "/home/me", (2, 23, 4), ("/site.conf", SYSTEM_FILE)),
        ({"NCCL_CONF_FILE": "/site.conf"}, "/home/me", (2, 22, 3), ("/home/me/.nccl.conf", SYSTEM_FILE)),
    ],
)
def test_the_file_named_takes_the_place_of_the_users(
    environment: dict[str, str], home: str | None, version: tuple[int, int, int] | None, paths: tuple[str, ...]
) -> None:
    assert conf_paths(environment, home, version) == paths


class Answers:
    """A host that answers what it was given, and has nothing else."""

    def __init__(self, **said: str) -> None:
        self.said = said

    def ask(self, *question: str | int) -> str:
        name = "_".join(map(str, question)).replace("/", "_").replace(".", "_")
        if name not in self.said:
            raise Missing(f"{question}: not there")
        return self.said[name]


@each_row(
    ("version", "read", "other"),
    [
        ((2, 29, 7), "/etc/me/.nccl.conf", "/home/me/.nccl.conf"),
        ((2, 30, 3), "/home/me/.nccl.conf", "/etc/me/.nccl.conf"),
    ],
)
def test_the_home_is_the_password_files_before_2_30_3_and_the_other_is_named(
    version: tuple[int, int, int], read: str, other: str
) -> None:
    there = {"access__home_me__nccl_conf": '{"read": true}', "access__etc_me__nccl_conf": '{"read": true}'}
    host = Answers(home="/etc/me", **there)
    found = nccl_conf.run(host, Environment({"HOME": "/home/me"}), nccl(*version))
    assert found.files[0].path == read
    assert found.other_home == other


def test_a_home_that_both_agree_on_or_that_has_no_file_is_not_named() -> None:
    agreed = nccl_conf.run(Answers(home="/home/me"), Environment({"HOME": "/home/me"}), nccl(2, 29, 7))
    empty = nccl_conf.run(Answers(home="/etc/me"), Environment({"HOME": "/home/me"}), nccl(2, 29, 7))
    assert agreed.other_home == empty.other_home == ""


def test_a_capture_without_the_password_file_takes_the_variable() -> None:
    class Old(Answers):
        def ask(self, *question: str | int) -> str:
            if question == ("home",):
                raise NotCaptured("home")
            return super().ask(*question)

    found = nccl_conf.run(Old(), Environment({"HOME": "/home/me"}), nccl(2, 21, 5))
    assert found.files[0].path == "/home/me/.nccl.conf"


def test_the_first_definition_wins() -> None:
    user = parse_conf("A=user\nB=user\nB=later\nE=user", "/home/me/.nccl.conf")
    system = parse_conf("A=system\nB=system\nC=system\n", SYSTEM_FILE)
    merged = merge(Environment({"A": "shell", "E": ""}), [user, system])
    assert {name: (s.value, s.origin) for name, s in merged.effective.items()} == {
        "A": ("shell", "environment"),
        "B": ("user", "/home/me/.nccl.conf:2"),
        "C": ("system", "/etc/nccl.conf:3"),
        "E": ("", "environment"),
    }
    assert [s.origin for s in merged.overridden if s.name == "B"] == ["/home/me/.nccl.conf:3", "/etc/nccl.conf:2"]
