"""Text that people paste, turned into the answers that a machine would have given.

    $ ibstat                           ncclprobe doctor ibstat.txt env.txt
    $ env

Each form is known by its own lines (:mod:`.pasted_forms`, :mod:`.pasted_settings`), so that one file may hold several,
with prompts between them. What a paste shows becomes answers of a capture, and the collectors read those as they read
any; what it does not show stays unknown and advisory. Pastes describe one machine, unless their lines begin with names
of hosts.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.host import NAMED, Question
from ncclprobe.host.pasted_ethtool import ethtool
from ncclprobe.host.pasted_faults import faults
from ncclprobe.host.pasted_forms import FORMS, missing_files
from ncclprobe.host.pasted_gpus import ASK_GPUS, Answers
from ncclprobe.host.pasted_job import described
from ncclprobe.host.pasted_logs import log, unwrapped
from ncclprobe.host.pasted_lspci import lspci
from ncclprobe.host.pasted_scripts import scripts
from ncclprobe.host.pasted_settings import settings
from ncclprobe.model.errors import HostError, Missing
from ncclprobe.model.units import plural

_NO_FILE = Missing("no file of settings was pasted")
_SYSTEM_FILE: Question = ("conf", "/etc/nccl.conf")
_CONF = re.compile(r"(?:.{0,80}[$#>%] ?(?:sudo )?(?:cat|less|head|more) |# {0,4}|==> )[\w./~-]{0,200}/\.?nccl\.conf\b")
"""First line of a pasted settings file: a prompt that shows it, or a comment with its name."""
NO_SETTINGS: Answers = {("env",): "{}", ("home",): _NO_FILE, _SYSTEM_FILE: _NO_FILE}
"""Settings to judge devices with if none were pasted: NCCL's defaults."""

_MOST_LINES = 20_000
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,16}m")
_QUOTED = re.compile(r"(?:> ?)+")
_PREFIXES = tuple(
    map(
        re.compile,
        (
            r"\d{4}-\d\d-\d\dT[0-9:.]{8,20}Z?(?: |$)(?:std(?:out|err) F )?",
            r"# ",
            r"[\w.-]{1,80}\s{1,8}\|(?: |$)",
        ),
    )
)
"""Line prefixes of `kubectl logs --timestamps` and docker compose."""
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,80}): ?")
_LINES_OF_A_HOST = 3
_PROMPT = re.compile(
    r"(?!# )[\w.@:~/\[\]() -]{0,80}[$#>%] ?(?=(?:sudo )?[a-z_.\-/]{2,40}(?:\s|$))|"
    r"# (?=(?:cat|env|printenv|ls|ip|ib\w{2,12}|rdma|show_gids|nvidia-smi|ls\w{2,3}|ulimit|df|ethtool|docker)\b)"
)
"""Shell prompt before a command. A comment looks like the prompt of root."""
_ENV: Question = ("env",)
_ENV_FILE = re.compile(r"--env-file[= ]([\w./~-]{1,120})")
_MEETING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that may be set although a filter did not let them through."""


def forms(text: str) -> dict[str, dict[str, Answers]]:
    """Return the answers of each form in a text, by host ("" without host names) and form; empty if none
    is recognised.
    """
    lines = [_COLOURS.sub("", line).rstrip("\r ") for line in unwrapped(text).splitlines()[:_MOST_LINES]]
    found: dict[str, dict[str, Answers]] = {}
    for host, own in _lines_by_host(_strip_prefixes(lines)).items():
        answers, said = dict(_host_answers(own)), described(own)
        if answers or '"given"' in str(said.get(NAMED, "")):
            found[host] = answers | ({"description": dict(said)} if said else {})
        env = str(answers.get("settings", {}).get(_ENV, "{}"))
        if stated := faults(own, json.loads(env)):
            found.setdefault(host, {})["faults"] = dict(stated)
    return found


def _strip_prefixes(lines: list[str]) -> list[str]:
    """Strip what a mail, a launcher or a container put before the lines."""
    lines = [_QUOTED.sub("", line, count=1) if line.startswith(">") else line for line in lines]
    for prefix in _PREFIXES:
        if all(prefix.match(line) for line in lines if line.strip()):
            lines = [prefix.sub("", line, count=1) for line in lines]
    return lines


def _lines_by_host(lines: list[str]) -> dict[str, list[str]]:
    """Return the lines of each host, as pdsh and `srun -l` print them; all under "" if some line names none."""
    found: dict[str, list[str]] = {}
    for line in filter(str.strip, lines):
        host = _HOST.match(line)
        if host is None:
            return {"": lines}
        found.setdefault(host[1], []).append(line[host.end() :])
    if min(map(len, found.values()), default=0) < _LINES_OF_A_HOST:
        return {"": lines}
    return found if len(found) > 1 or not next(iter(found)).isdecimal() else {"": next(iter(found.values()))}


def _host_answers(lines: Sequence[str]) -> Iterator[tuple[str, Answers]]:
    for name, read in {**FORMS, "lspci": lspci, "ethtool": ethtool, "log": log, "script": scripts}.items():
        if answers := read(lines):
            yield name, answers
    variables: dict[str, str | None] = {}
    taken = _ENV_FILE.findall("\n".join(lines))
    partial = False
    for section in _sections(lines):
        if any(map(_CONF.match, [line for line in section if line.strip()][:1])):
            yield "nccl.conf", {**NO_SETTINGS, _SYSTEM_FILE: "\n".join(section[1:])}
        else:
            literal = bool(section) and section[0].endswith(tuple(f"cat {name}" for name in taken))
            found = settings(section, literal)
            partial = partial or (bool(found) and bool(re.search(r"\benv\b.{0,80}grep", section[0])))
            sourced = bool(section) and bool(re.search(r"\bsource \S{1,200};.{0,80}\benv\b", section[0]))
            variables = {**found, **variables} if sourced else {**variables, **found}
    if variables:
        in_part = partial and any(name in variables for name in (*_MEETING, "LOCAL_WORLD_SIZE", "LOCAL_RANK"))
        variables |= {name: None for name in _MEETING if in_part and name not in variables}
        master = variables.get("MASTER_ADDR") or ""
        gone = missing_files(lines)
        answers = {**gone, **NO_SETTINGS, _ENV: json.dumps(variables), **_resolve(master)}
        yield "settings", answers


def _resolve(name: str) -> Answers:
    """Return what a name resolves to, if that needs no resolver."""
    address = "127.0.0.1" if name == "localhost" else name
    known = re.fullmatch(r"\d{1,3}(?:\.\d{1,3}){3}", address)
    return {("resolve", name): json.dumps({"addresses": [address], "seconds": 0.0})} if known else {}


def _sections(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield the output after each prompt, without Markdown fences."""
    section: list[str] = []
    for line in lines:
        if _PROMPT.match(line) or line.startswith("```"):
            yield section
            section = []
        section.append(line if not line.startswith("```") else "")
    yield section


def joined(parts: Mapping[str, Answers]) -> tuple[Answers, list[str]]:
    """Merge the answers of all pastes, by name, into one machine's, with a line for each contradiction between two.

    Devices and settings add up; for the GPUs the longest text counts. A LID has too many notations to compare.
    """
    whole: Answers = {}
    source: dict[Question | str, str] = {}
    odd: list[str] = []
    for name, own in parts.items():
        for question, answer in own.items():
            before = whole.get(question)
            if isinstance(answer, HostError) and before is not None:
                continue
            if not isinstance(before, HostError | None) and str(before) != str(answer):
                odd += _differing(question, str(before), str(answer), f"{source[question]} and {name}")
                answer = _merge_answers(question, str(before), str(answer))
            whole[question] = answer
            source.setdefault(question, name)
    return whole, [*odd, *_counted_differently(whole, source)]


def _differing(question: Question, before: str, answer: str, pastes: str) -> Iterator[str]:
    if question == _ENV:
        one, two = json.loads(before), json.loads(answer)
        for name in sorted(one.keys() & two.keys()):
            if one[name] != two[name] and None not in (one[name], two[name]):
                yield f"{pastes} differ in {name}: {one[name]!r:.80} and {two[name]!r:.80}"
    elif question[0] in ("read", "rlimit") and not str(question[-1]).endswith("/lid"):
        what = str(question[-1]).removeprefix("/sys/class/infiniband/").replace("/ports/", ":").replace("/", " ")
        yield f"{pastes} differ in {what}: {before!r:.80} and {answer!r:.80}"


def _merge_answers(question: Question, before: str, answer: str) -> str:
    if question == _ENV:
        first, second = json.loads(before), json.loads(answer)
        return json.dumps({**first, **{name: value for name, value in second.items() if value or name not in first}})
    if question == NAMED:
        return json.dumps(json.loads(answer) | json.loads(before))
    if question[0] == "list":
        return json.dumps(list(dict.fromkeys([*json.loads(before), *json.loads(answer)])))
    return max(before, answer, key=len) if question[0] == "run" else before


def _counted_differently(whole: Answers, source: Mapping[Question | str, str]) -> Iterator[str]:
    """Yield a line if two texts show different numbers of GPUs, unless one was cut."""
    if json.loads(str(whole.get(NAMED, "{}"))).get("partial"):
        return
    counts = {
        ASK_GPUS: r"<gpu>()",
        ("run", "nvidia-smi", "-L"): r"(?m)^GPU (\d+): ",
        ("run", "nvidia-smi", "topo", "-m"): r"\bGPU(\d+)\b",
        ("run", "nvidia-smi", "nvlink", "-s"): r"(?m)^GPU (\d+): ",
    }
    told = {}
    for question, each in counts.items():
        if shown := re.findall(each, str(whole.get(question, ""))):
            told[question] = len(shown) if question == ASK_GPUS else len({*shown})
    for question, number in told.items():
        first = next(iter(told))
        if number != told[first]:
            yield f"{source[first]} and {source[question]} show {told[first]} and {plural(number, 'GPU')}"
