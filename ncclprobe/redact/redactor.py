"""Redact captures and reports: names, addresses, GUIDs, UUIDs and serials of a site become pseudonyms.

Everything that is judged stays: interfaces, devices, PCI addresses, versions, counters, sizes, settings. The same
original has the same pseudonym everywhere, on every node whose capture was redacted under the same key.

Names are collected before they are replaced: those that the capture or report itself calls a host, domain or user, and
those that a text calls a user. A name that any machine may have (``localhost``, ``ubuntu``) identifies nobody and
stays.
Names that appear only in free text are recognised by their form, or by the word before them: see :mod:`.identifiers`.
"""

import itertools
import json
import re
import secrets
import shlex
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TypeVar

from ncclprobe.host import SAMPLE
from ncclprobe.model.errors import REFUSALS
from ncclprobe.model.hostlist import expand
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct, replace
from ncclprobe.redact import roles
from ncclprobe.redact.identifiers import (
    IDENTIFIER,
    LOGINS,
    Identifiers,
    hosts,
    mail_domains,
    structure,
    without_keys,
)
from ncclprobe.redact.pseudonyms import Pseudonyms
from ncclprobe.redact.public import SOURCE, is_everyones_own, is_public, renamed, strange
from ncclprobe.redact.spellings import (
    Spellings,
    hosts_by_form,
    listed_nodes,
    names_by_form,
    owners,
    users,
    without_secrets,
)

T = TypeVar("T")
_COMMON_WORDS = (
    "localhost localdomain localhost4 localhost6 ip6-localhost ip6-loopback ip6-localnet ip6-mcastprefix ip6-allnodes"
    " ip6-allrouters ip6-allhosts broadcasthost kubernetes host docker container captured node nodes guest host machine"
    " server master worker test root nobody user users admin home data shared ubuntu debian centos rocky redhat fedora"
    " alpine linux nvidia cuda nccl torch pytorch python conda amazon aws google azure oracle hpcx tcpx gib local lib"
    " lib64 usr opt etc hosts site-packages mlx5 gpu nic ib roce rank link fabric image job unknown none true false all"
    " any auto default eth lo com net org edu gov io internal lan svc cluster pod compute"
)
_COMMON = frozenset(_COMMON_WORDS.split())
"""Names that identify no one: replacing them would hide nothing and spoil words and paths."""

_KERNEL_PATH = re.compile(r"(?<![\w/.-])/(?:proc|dev|sys(?!/fs/cgroup))/(?:[^\s\"',;:]|:(?!/))*")
"""Here every word is the kernel's: ``/proc/sys/vm`` is not a host called vm. (But users name cgroups.)"""

_NODES = r"[A-Za-z0-9][\w.-]{0,63}(?:\[\d{1,9}(?:[-,]\d{1,9}){0,9999}\][\w.-]{0,63}){1,4}"
_WORDS = re.compile(r"[^\W_]+(?:[._-]+[^\W_]+)*")
_NAME = re.compile(rf"(?P<nodes>{_NODES})|{_WORDS.pattern}")
_HOST_OF_ADDRESS = re.compile(r"ip-\d{1,3}(?:-\d{1,3}){3}")  # ip-10-0-0-5: how AWS names a host

_DEVICES = (("psutil", "net_if_stats"), ("list", "/sys/class/infiniband"))
_HOST_VARIABLE = re.compile(
    r"(?:PET_)?MASTER_ADDR|PET_RDZV_ENDPOINT|PMIX_NAMESPACE|NCCL_COMM_ID|NCCL_RAS_ADDR|NCCL_HOSTID"
    r"|\w*(?:NODELIST|NODENAME|HOST|HOSTNAME|IPADDR|CLUSTER_NAME)"
)
_USER_VARIABLE = re.compile(r"USER|LOGNAME|\w*_USER")
_PLUGIN_VARIABLE = re.compile(r"NCCL_\w{0,40}_PLUGIN")
_RUN_VARIABLE = re.compile(r"TORCHELASTIC_RUN_ID|PET_RDZV_ID|PBS_JOBID|LSB_JOBID|OMPI_MCA_ess_base_jobid")
_JOB_VARIABLE = re.compile(
    r"(?:SLURM|SBATCH)_(?:JOB_)?(?:NAME|ACCOUNT|RESERVATION)|PBS_JOBNAME|LSB_(?:JOBNAME|PROJECT_NAME)"
)
_NFS = re.compile(r" - nfs4? ([\w.-]+):/")  # a source in /proc/self/mountinfo
_SERVER = re.compile(r"(?i:nfs|lustre|ceph|smb|cifs)[^\n]{0,40}?\bserver:? '?([\w.-]{1,255})")  # in the kernel's words
_FILE_NAME = re.compile(r"/|[^.]\.[A-Za-z]\w*$")
_FILE_PARTS = re.compile(r"((?:.*/)?)([^/]*?)((?:\.[A-Za-z][A-Za-z0-9]{0,9})?)", re.DOTALL)
_SERIAL_FILE = re.compile(r"/\w*(?:serial|serial[_-]number|asset_tag)$")
_OURS = "schema tool started status severity id title blame action place mode op dtype redop backend library kind basis"
_WORDS_OF_OURS = frozenset((*_OURS.split(), "level", "unit", "versions", "coverage", "transport"))
"""Fields of a report that hold our own words and versions."""


class Redactor:
    """Replaces identifiers under one key. It learns all names in its input before it replaces any."""

    def __init__(self, key: str | bytes) -> None:
        self._new = Pseudonyms(key.encode(errors="surrogatepass") if isinstance(key, str) else key)
        self._forms = Identifiers(self._new, self._user)
        self._spellings = Spellings(self._new)
        self._names: dict[str, Callable[[str], str]] = {}
        self._domains: set[str] = set()
        self._devices: set[str] = set()  # /etc/hosts may call a host ib0
        self._file_sections = False  # the sources of a report are files, whose names the site chose
        self._longest = {"i": 9}  # by how names begin: pieces of the longest one known, or of ip-10-0-0-5

    def text(self, text: str) -> str:
        """Replace every identifier and every known name in `text`."""
        self._learn_text(text)
        plain = self._spellings.text(roles.without_secrets(without_secrets(without_keys(text))))
        return _replace_around(_KERNEL_PATH, plain, lambda path: self._forms.text(path[0]), self._paths)

    def capture(self, text: str) -> str:
        """Redact a capture's text; keep its rows. Never raises: a line that is not a row is free text."""
        rows = [_parse_row(line) for line in text.split("\n")]
        for row in rows:
            if isinstance(row, dict):
                self._learn_row(row)
        return "\n".join(json.dumps(self._row(row)) if isinstance(row, dict) else self.text(row) for row in rows)

    def report(self, report: Report) -> Report:
        """Redact every text of a report; keep verdicts and numbers.

        The contents of its sources are dropped: a log holds names that cannot be distinguished from other words. A
        redacted
        capture keeps its answers, and a report on it shows them.
        """
        for node in report.nodes:
            self._learn_host(node.name)
            self._learn_host(node.hostname)
        compared = (name for verdict in report.checks for finding in verdict.findings for name in finding.nodes)
        of_logs = {*(each.host for each in report.ranks), *(each.host for each in report.timeline)}
        for name in (*report.missing_nodes, *compared, *of_logs):
            self._learn_host(name)
        for environment in report.environment.values():
            self._learn_variables({setting.name: setting.value for setting in environment.settings})
        for text in _texts(report):
            self._learn_text(text)
        self._file_sections = bool(report.files)
        redacted = self._redact_fields(replace(report, excerpts=()))
        return replace(redacted, command=self._command(report.command))

    def _command(self, command: str) -> str:
        """Redact a command line and its file names: what `explain` was given, operands, what looks like a file.

        The word after an option counts as a file if it has a folder or a suffix, which ``--op all_reduce`` has not.
        """
        try:
            words = shlex.split(self.text(command))
        except ValueError:  # not one that this program wrote
            return self.text(command)
        told = words[:2]
        for before, word in itertools.pairwise(words[1:]):
            option, _, value = word.partition("=") if word.startswith("-") else ("", "", word)
            named = words[1] == "explain" or not (option or before.startswith("-")) or _FILE_NAME.search(value)
            value = self._named_file(value) if named else value
            told.append(f"{option}={value}" if option and value else option or value)
        return shlex.join(told)

    def _named_file(self, path: str) -> str:
        folders, stem, suffix = _FILE_PARTS.fullmatch(path).groups()  # type: ignore[union-attr]
        return f"{self._redact_path(folders)}{self._redact_file_name(stem)}{suffix}"

    # What the names are.

    def _learn_row(self, row: dict[str, Any]) -> None:
        ask, value = row.get("ask"), row.get("said")
        self._learn_host(row.get("node"))
        for measured in row[SAMPLE].values() if isinstance(row.get(SAMPLE), dict) else ():
            self._learn_sample(measured)
        for text in _texts(structure(value) or value if isinstance(value, str) else row):
            self._learn_text(text)
        if not isinstance(ask, list) or not all(isinstance(part, str | int) for part in ask):
            return
        if ask[:1] == ["resolve"] and len(ask) > 1:
            self._learn_host(ask[1])
        if isinstance(value, str):
            self._learn_answer(tuple(ask), value)

    def _learn_sample(self, measured: Any) -> None:
        """Learn the nodes by rank in ``paths`` and the name of rank 0 in ``reach``."""
        if isinstance(measured, dict):
            names = measured.get("names")
            for name in (measured.get("target"), *(names.values() if isinstance(names, dict) else ())):
                self._learn_host(name)

    def _learn_answer(self, ask: tuple[Any, ...], value: str) -> None:
        seen = structure(value)
        if ask == ("uname",) and isinstance(seen, dict):
            self._learn_host(seen.get("hostname"))
            self._learn_host(seen.get("node"))
        elif ask == ("env",) and isinstance(seen, dict):
            self._learn_variables(seen)
        elif ask == ("home",):
            self._learn_variables({"HOME": value})
        elif ask[:1] == ("conf",):
            lines = (line.partition("=") for line in value.split("\n"))
            self._learn_variables({name.strip(): value.strip() for name, _, value in lines})
        elif ask in _DEVICES and isinstance(seen, dict | list):
            self._devices |= {name.lower() for name in seen if isinstance(name, str)}
        elif ask == ("read", "/etc/hosts"):
            for line in value.split("\n"):
                for name in line.partition("#")[0].split()[1:]:
                    self._learn_host(name)
        elif ask == ("read", "/etc/resolv.conf"):
            for line in value.split("\n"):
                words = line.split()
                for name in words[1:] if words[:1] in (["search"], ["domain"]) else ():
                    self._learn_domain(name)
        elif ask[:1] == ("kvp",):
            self._learn_host(value)
        elif ask[:1] == ("json",) and isinstance(seen, dict):
            for key in ("group-name", "host-id", "placementGroupId"):
                for name in (v for k, v in seen.items() if k.endswith(f".{key}") and isinstance(v, str)):
                    self._learn(name, self._new.name)
        elif ask == ("read", "/proc/self/mountinfo"):
            for name in _NFS.findall(value):
                self._learn_host(name)

    def _learn_text(self, text: str) -> None:
        for name in hosts(text):
            self._learn_told(name)
        for name in hosts_by_form(text):
            self._learn_host(name)
        for name in _SERVER.findall(text):
            if not is_public(name):
                self._learn_host(name.strip("."))
        for name in users(text):
            self._learn(name, self._new.user)
        for role, name in roles.names(text):
            if role == "host":
                self._learn_variables({"NODELIST": name})
            else:
                self._learn(name, self._new.user if role == "user" else self._new.name)
        for name in names_by_form(text):
            self._learn(name, self._new.name)
        for nodes in listed_nodes(text):
            self._learn_variables({"NODELIST": nodes})
        for name in owners(text):
            self._learn(name, self._new.name)
        self._domains.update(name.lower() for name in mail_domains(text))
        for match in LOGINS.finditer(text):
            login = next(filter(None, match.groups())).strip(".-")
            parts = re.findall(r"[a-z]{2,}", login.lower())
            if len(login) > 2 and not all(map(is_public, parts)):
                self._learn(login, self._new.user)
            host = match["host"] or match["at"] or match["of_key"] or ""
            if len(host) > 2:
                self._learn_host(host)

    def _learn_told(self, name: str) -> None:
        """Learn a host from free text, but its domain only as a whole, because labels may be words."""
        short, _, domain = name.partition(".")
        if "-" in short or any(map(str.isdigit, short)):
            self._learn(short, self._new.host)
        if domain:
            self._domains.update((name.lower(), domain.lower()))

    def _learn_plugins(self, value: str) -> None:
        """Learn a site's names of its own plugins: the words of a file's name that are not NCCL's."""
        for entry in value.split(","):
            for own in strange(entry.strip().rpartition("/")[2]):
                self._learn(own, self._new.name)

    def _learn_variables(self, variables: dict[str, Any]) -> None:
        for name, value in variables.items():
            if not isinstance(value, str):
                continue
            if name in ("SLURM_TOPOLOGY_ADDR", "NCCLPROBE_PLACEMENT"):
                for part in re.split(r"[./]", value):  # switches and the node, which have no domain
                    self._learn_host(part)
            elif _HOST_VARIABLE.fullmatch(name):
                for match in _NAME.finditer(IDENTIFIER.sub(" ", value)):
                    for host in _expand_nodes(match["nodes"]) if match["nodes"] else (match[0],):
                        self._learn_host(host)
            elif _PLUGIN_VARIABLE.fullmatch(name):
                self._learn_plugins(value)
            elif _RUN_VARIABLE.fullmatch(name):
                self._learn_run(value)
            elif _JOB_VARIABLE.fullmatch(name):
                self._learn(value, self._new.name)
            elif _USER_VARIABLE.fullmatch(name) or name == "HOME":
                self._learn(value.rstrip("/").rpartition("/")[2], self._new.user)

    def _learn_run(self, value: str) -> None:
        """Learn a run's id if it is a name; the server of its queue follows a number. A plain number stays."""
        number, _, server = value.partition(".")
        if number.isdigit():
            self._learn_host(server)
        elif _WORDS.fullmatch(value) and not IDENTIFIER.fullmatch(value):
            self._learn(value, self._new.name)

    def _learn_host(self, name: object) -> None:
        """Learn a host's name, short or qualified; ignore an address or a phrase."""
        if not isinstance(name, str) or is_everyones_own(name):
            return
        if _WORDS.fullmatch(name) and not IDENTIFIER.fullmatch(name):
            short, _, domain = name.partition(".")
            self._learn(short, self._new.host)
            self._learn_domain(domain)

    def _learn_domain(self, name: str) -> None:
        name = name.strip(".").lower()
        *labels, last = name.split(".")
        if labels:
            self._domains.add(name)
        for label in labels or [last]:
            self._learn(label, self._new.host)

    def _learn(self, name: str, pseudonym: Callable[[str], str]) -> None:
        pieces = _pieces(name)
        known = name.lower() in _COMMON or is_everyones_own(name)
        if known or name.isdigit() or len(pieces) > 64 or not name:
            return
        self._names.setdefault(name.lower(), pseudonym)
        self._longest[_first_letter(name)] = max(self._longest.get(_first_letter(name), 0), len(pieces))

    # Where they stand.

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        ask, value = row.get("ask", []), row.get("said")
        ours = isinstance(ask, list) and bool(ask) and row.get("refused") in (None, *REFUSALS)
        kept = ("ask", "said", "refused") if ours and isinstance(value, str | None) else ()
        new = {key: each if key in kept else self._redact_fields(each) for key, each in row.items()}
        if "capture" in row:
            return new | {"redacted": True, "origin": row.get("origin"), "tool": row.get("tool")}
        if kept:
            new["ask"] = [self._redact_question_part(part, ask[0]) for part in ask]
        if kept and isinstance(value, str):
            new["said"] = self._answer(tuple(ask), value)
        return new

    def _redact_question_part(self, part: Any, kind: Any) -> Any:
        """Redact a question's part: paths and names come from the machine, patterns and commands from us."""
        if kind == "among" and part != kind:
            return self._redact_file_name(part)
        named = isinstance(part, str) and (part.startswith("/") or (kind == "resolve" and part != kind))
        return self.text(part) if named else part

    def _answer(self, ask: tuple[Any, ...], value: str) -> str:
        kind, what = ask[0], str(ask[1]) if len(ask) > 1 else ""
        if kind == "packages" or (kind == "nvml" and what.endswith("Version")):
            return value  # of versions some look like addresses
        if kind == "bytes":
            return self._forms.config_space(value)
        if kind in ("list", "link") and _KERNEL_PATH.match(what):
            return self._walk(value, self._forms.text)
        if kind in ("list", "ld_cache", "elf", "elf_objects", "among"):
            return self._walk(
                value, self._redact_file_name, keys=lambda key: self._redact_file_name(key) if ".so" in key else key
            )
        if what in ("/proc/net/route", "/proc/net/ipv6_route"):
            return "\n".join(map(self._forms.route, value.split("\n")))
        if what.startswith("/proc/net/tcp"):
            return self._forms.sockets(value)
        if _SERIAL_FILE.search(what) or (kind == "nvml" and "Serial" in what):
            return self._walk(value, self._forms.serial)
        if kind == "uname":
            return self._walk(value, self.text, only=("node", "hostname"))
        if what.startswith("nvmlDeviceGetGpuFabricInfo"):
            return self._forms.cluster(value)
        return self._walk(value, self.text)

    def _walk(
        self,
        value: str,
        renamed: Callable[[str], str],
        only: tuple[str, ...] = (),
        keys: Callable[[str], str] | None = None,
    ) -> str:
        """Redact an answer, text or JSON: apply `renamed` to its strings, or only to the values of keys in `only`, and
        `keys` to
        its keys.
        """
        seen = structure(value)
        if seen is None:
            return renamed(value)
        if only and isinstance(seen, dict):
            new: Any = {key: renamed(v) if key in only and isinstance(v, str) else v for key, v in seen.items()}
        else:
            new = _map_strings(seen, renamed, keys or self._forms.text)
        return value if new == seen else json.dumps(new)

    def _redact_fields(self, value: T, field: str = "") -> T:
        """Redact the texts of a report, or of a part; the keys of ``environment`` are names of nodes."""
        new: Any = value
        if field in _WORDS_OF_OURS or isinstance(value, Enum):
            return value
        if isinstance(value, str):
            of_file = field == "source" and self._file_sections and _FILE_NAME.search(value)
            new = self._named_file(value) if of_file else self.text(value)
        elif isinstance(value, tuple | list):
            new = type(value)(self._redact_fields(item) for item in value)
        elif isinstance(value, dict):
            new = {self.text(str(key)): self._redact_fields(item) for key, item in value.items()}
        elif isinstance(value, Struct):
            new = replace(
                value, **{name: self._redact_fields(getattr(value, name), name) for name in value.__struct_fields__}
            )
        return new  # type: ignore[no-any-return]

    def _paths(self, text: str) -> str:
        return _replace_around(PATH, text, lambda path: self._redact_path(path[0]), self._free)

    def _redact_path(self, text: str) -> str:
        """Replace the parts of a path that are not on every machine; what follows /home is a user."""
        kept = SOURCE.search(text)
        if kept:
            return f"{self._redact_path(text[: kept.start()]) if kept.start() else ''}{kept[0]}"
        parts = text.split("/")
        users = [at for at in range(2, len(parts)) if parts[at - 1] in ("home", "Users")][:1]
        return "/".join(
            self._user(part) if at in users else self._redact_file_name(part) for at, part in enumerate(parts)
        )

    def _redact_file_name(self, text: str) -> str:
        """Replace known names, identifiers and words unique to the site in the name of a file or folder."""
        if "/" in text:
            return self.text(text)
        return renamed(self._free(text), self._new.name)

    def _free(self, text: str) -> str:
        return _replace_around(IDENTIFIER, text, self._forms.one, lambda between: _NAME.sub(self._name, between))

    def _user(self, name: str) -> str:
        if name.lower() in _COMMON or not _pieces(name):
            return name
        return self._names.get(name.lower(), self._new.user)(name)

    def _name(self, match: "re.Match[str]") -> str:
        return self._redact_node_list(match["nodes"]) if match["nodes"] else self._replace_known_name(match)

    def _replace_known_name(self, match: "re.Match[str]") -> str:
        """Replace the longest known name in a run of words joined by dots, dashes and underscores."""
        value = match[0]
        if is_everyones_own(value):
            return value
        if domain := self._redact_qualified_name(value):
            return domain
        pieces, at = _pieces(value), 0
        new: list[str] = []
        while at < len(pieces):
            longest = min(self._longest.get(_first_letter(pieces[at]), 0), len(pieces) - at)
            for length in range(longest, 0, -1):
                if pseudonym := self._pseudonym("".join(pieces[at : at + length])):
                    new.append(pseudonym)
                    at += length
                    break
            else:
                new.append(pieces[at])
                at += 1
        return "".join(new)

    def _pseudonym(self, name: str) -> str:
        known = self._names.get(name.lower())
        if known and name.lower() not in self._devices:
            return known(name)
        return self._new.host(name) if name.startswith("ip-") and _HOST_OF_ADDRESS.fullmatch(name) else ""

    def _redact_qualified_name(self, value: str) -> str:
        """Replace a name in a known domain, label by label, except the last label and those of every cluster."""
        labels = value.split(".") if len(value) < 256 else []
        for at in range(len(labels) - 1):
            if ".".join(labels[at:]).lower() in self._domains:
                return ".".join([*map(self._label, labels[:-1]), labels[-1]])
        return ""

    def _label(self, label: str) -> str:
        return label if label.lower() in _COMMON else self._names.get(label.lower(), self._new.host)(label)

    def _redact_node_list(self, value: str) -> str:
        """Expand and replace ``gpu[001-004]``, if it means hosts."""
        first = re.sub(r"\[(\d+)[^]]*\]", r"\1", value)
        if not self._pseudonym(first.partition(".")[0]):
            return _WORDS.sub(self._replace_known_name, value)
        return ",".join(_WORDS.sub(self._replace_known_name, host) for host in _expand_nodes(value))


def random_key() -> str:
    """Return 32 random hexadecimal digits."""
    return secrets.token_hex(16)


def _replace_around(
    pattern: "re.Pattern[str]", text: str, hit: Callable[["re.Match[str]"], str], between: Callable[[str], str]
) -> str:
    """Replace each match in `text` by `hit` of it, and the text between matches by `between` of it."""
    new, end = [], 0
    for match in pattern.finditer(text):
        new += [between(text[end : match.start()]), hit(match)]
        end = match.end()
    return "".join([*new, between(text[end:])])


def _texts(value: object) -> Iterator[str]:
    """Yield every text in a report or a row, or in a part of one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        value = [*value, *value.values()]
    for item in value if isinstance(value, tuple | list) else ():
        yield from _texts(item)


def _parse_row(line: str) -> dict[str, Any] | str:
    """Return a row of a capture, or the line if it is not one."""
    row = structure(line)
    return row if isinstance(row, dict) else line


def _map_strings(value: Any, renamed: Callable[[str], str], key: Callable[[str], str]) -> Any:
    """Apply `renamed` to the strings of JSON and `key` to its objects' keys."""
    if isinstance(value, str):
        return renamed(value)
    if isinstance(value, list):
        return [_map_strings(item, renamed, key) for item in value]
    if isinstance(value, dict):
        return {key(name): _map_strings(item, renamed, key) for name, item in value.items()}
    return value


def _first_letter(name: str) -> str:
    """Return the first character, case-folded; the key by which known names are indexed."""
    return name[0].casefold()[0]


def _pieces(name: str) -> list[str]:
    """Split into words and separators, in order: ``gpu``, ``-``, ``001``."""
    return re.findall(r"[^\W_]+|[\W_]+", name)


def _expand_nodes(value: str) -> tuple[str, ...]:
    """Return the hosts of ``gpu[001-003,7]``; the text itself if it is not such a list, or one of absurd length."""
    try:
        return expand(value)
    except ValueError:
        return (value,)


PATH = re.compile(r"(?<![\w./-])/(?:[^/\s\"',;:|<>\\][^\s\"',;:|<>\\]{0,4094})?")
"""An absolute path in a text, without what a search path or a mount puts before or after it."""
