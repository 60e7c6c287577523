"""NCCL's configuration files, the settings that they and the environment yield, and the files that these name.

Source: NCCL src/misc/param.cc:28 setEnvFile and :52 initEnvFunc (v2.30.7); differences before 2.30.3 from that file in
v2.29.7, and before 2.26 from v2.25.1. The environment wins over the files, and the first definition over later ones.

NCCL opens named files as the job's user, so results hold for jobs that the same user starts here.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.field import learn
from ncclprobe.facts.loader import Loader
from ncclprobe.facts.software import Software, Version, reaches
from ncclprobe.host import WITHHELD, Host
from ncclprobe.model.errors import Denied, Failed, HostError, Missing
from ncclprobe.model.registry import collector
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field, replace

SYSTEM_FILE = "/etc/nccl.conf"

LONGEST_LINE = 4095
"""Characters read at once since 2.30.3 (fgets into 4096): the rest of a longer line becomes its own line."""

LONGEST_FIELD = 1023
"""Characters kept of a name and of a value. (NCCL counts bytes, which is the same for ASCII.)"""

_FGETS = (2, 30, 3)
_CONF_FILE_VARIABLE = (2, 23)
_COMMENTS = (2, 26)


class ConfFile(Struct, frozen=True):
    """A file that NCCL looks for. `refused`: why it cannot be read; NCCL then continues silently without it."""

    path: str
    refused: Absent | None = None


class Settings(Struct, frozen=True):
    """The settings that NCCL would read: `effective` by name, and `overridden` definitions, which lose to earlier ones.

    `skipped` are lines of files without a ``=``, which define nothing: each has a name and its place. `files` are the
    files that NCCL looks for, strongest first. If $HOME and the password file disagree, `other_home` is a file in the
    home that this NCCL does not use. An environment plugin (NCCL >= 2.28.7) takes precedence over all of this and
    cannot be seen from outside.
    """

    effective: Mapping[str, Setting] = field(default_factory=dict)
    overridden: tuple[Setting, ...] = ()
    files: tuple[ConfFile, ...] = ()
    other_home: str = ""
    skipped: tuple[Setting, ...] = ()

    def get(self, name: str) -> str | None:
        """Return the value that NCCL would read for `name`, or None if it is unset or withheld."""
        setting = self.effective.get(name)
        return setting.value if setting else None

    def named(self, *prefixes: str) -> list[Setting]:
        """Return the effective settings whose names start with one of `prefixes`, ordered by name."""
        return [setting for name, setting in sorted(self.effective.items()) if name.startswith(prefixes)]


@collector
def nccl_conf(host: Host, environment: Environment, software: Software | Absent) -> Settings:
    """Read the environment and both configuration files, merged as the installed (or else the newest) NCCL does."""
    return settings_of(host, environment, software.nccl_version if isinstance(software, Software) else None)


def settings_of(host: Host, environment: Environment, version: Version | None) -> Settings:
    """Return the settings that NCCL of this version (None: the newest) reads in this environment."""
    here, other = _homes(host, environment, version)
    paths = conf_paths(environment.variables, here, version)
    texts = [_text(host, path) for path in paths]
    known = [(text, path) for text, path in zip(texts, paths, strict=True) if isinstance(text, str)]
    defined = [parse_conf(text, path, version) for text, path in known]
    skipped = tuple(each for text, path in known for each in undefined(text, path))
    files = [ConfFile(p, t if isinstance(t, Absent) else None) for t, p in zip(texts, paths, strict=True)]
    passed_over = f"{other}/.nccl.conf" if other and here != other else ""
    if not (passed_over and _readable(host, passed_over)):
        passed_over = ""
    return replace(merge(environment, defined), skipped=skipped, files=tuple(files), other_home=passed_over)


def _homes(host: Host, environment: Environment, version: Version | None) -> tuple[str | None, str | None]:
    """Return the home folder that this NCCL uses, and the other candidate; None: there is none, or it is unknown.

    From 2.30.3 it is $HOME, before that the entry in the password file (src/misc/param.cc:19 userHomeDir, v2.29.7).
    """
    variable = environment.variables.get("HOME")
    try:
        entry: str | None = host.ask("home")
    except Missing:
        entry = None
    except HostError:
        return variable, None
    return (variable, entry) if reaches(version, _FGETS) else (entry, variable)


def _readable(host: Host, path: str) -> bool:
    try:
        return bool(json.loads(host.ask("access", path))["read"])
    except HostError:
        return False


def _text(host: Host, path: str) -> str | Absent:
    """Read a file's recordable text. If this user cannot open it, NCCL cannot either and continues without it."""
    try:
        return host.ask("conf", path)
    except (Missing, Denied, Failed) as refusal:  # Failed: a directory
        return Absent(str(refusal), type(refusal).__name__)


def conf_paths(
    variables: Mapping[str, str | None], home: str | None, version: Version | None = None
) -> tuple[str, ...]:
    """Return the files that NCCL reads for a user with this home, strongest first.

    A non-empty NCCL_CONF_FILE (since 2.23) replaces ~/.nccl.conf even if that file cannot be opened.
    """
    named = variables.get("NCCL_CONF_FILE") if reaches(version, _CONF_FILE_VARIABLE) else None
    if named:
        return named, SYSTEM_FILE
    return (f"{home}/.nccl.conf", SYSTEM_FILE) if home is not None else (SYSTEM_FILE,)


def parse_conf(text: str, path: str, version: Version | None = None) -> tuple[Setting, ...]:
    """Return the definitions in a file, in order, with ``path:line`` as origin. Never fails.

    A line is cut at its first ``=``; without one it is skipped. Nothing is trimmed or unquoted, so ``NCCL_DEBUG =
    INFO`` defines a variable whose name ends in a blank. ``#`` counts in column 0 only, and before 2.26 nowhere: there
    ``#NCCL_NET=IB`` defines ``#NCCL_NET``. `text` must still contain its carriage returns: versions before 2.30.3 keep
    them as part of the value. A line without a name defines nothing (setenv refuses it).
    """
    settings, comments = [], reaches(version, _COMMENTS)
    for number, line in _lines(text, version):
        name, equals, value = line.partition("=")
        if name and equals and not (comments and line.startswith("#")):
            kept = None if value == WITHHELD else value[:LONGEST_FIELD]
            settings.append(Setting(name[:LONGEST_FIELD], kept, f"{path}:{number}"))
    return tuple(settings)


def undefined(text: str, path: str) -> Iterator[Setting]:
    """Yield the lines that define nothing because they lack a ``=``: ``setenv NAME VALUE``, ``NAME: VALUE``."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and "=" not in line and not line.startswith("#"):
            yield Setting(line.strip()[:LONGEST_FIELD], None, f"{path}:{number}")


def _lines(text: str, version: Version | None) -> Iterator[tuple[int, str]]:
    """Yield numbered lines as NCCL reads them; like a C string, each ends at its first NUL."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not reaches(version, _FGETS):
            yield number, line.partition("\0")[0]
            continue
        for start in range(0, len(line), LONGEST_LINE):
            yield number, line[start : start + LONGEST_LINE].partition("\0")[0].removesuffix("\r")


def merge(environment: Environment, files: Sequence[Sequence[Setting]]) -> Settings:
    """Merge the environment with each file's settings, given in the order of `conf_paths`. The first definition wins.

    An empty value in the environment is a definition too.
    """
    offered = [Setting(name, value, "environment") for name, value in environment.variables.items()]
    effective: dict[str, Setting] = {}
    overridden = []
    for setting in (*offered, *(setting for file in files for setting in file)):
        if effective.setdefault(setting.name, setting) is not setting:
            overridden.append(setting)
    return Settings(effective, tuple(overridden))


class TopologyFile(Struct, frozen=True):
    """The file of NCCL_TOPO_FILE. `addresses`: the PCI functions of its gpu and nic elements, in lower case.

    `whole`: it begins with <system and ends with </system>, as NCCL requires; `version` is the attribute of <system>.
    """

    path: str
    whole: bool = True
    version: str = "1"
    addresses: tuple[str, ...] = ()


class NamedFiles(Struct, frozen=True):
    """Files that variables name. `topology`: None if NCCL_TOPO_FILE is not set.

    `graph`: why NCCL rejects the file of NCCL_GRAPH_FILE; empty: it accepts it; None: the variable is not set.
    `libraries`: plugins named by a path, and whether the file exists. A plugin named without a folder and without
    NCCL's usual prefix keeps its name as key; the value is whether the loader finds it. `folders`: for each variable
    that names an output file, its folder and whether this process may write there; Absent: unknown. A missing folder is
    not writable.
    """

    topology: TopologyFile | Absent | None = None
    folders: Mapping[str, tuple[str, bool | Absent]] = field(default_factory=dict)
    libraries: Mapping[str, bool | Absent] = field(default_factory=dict)
    graph: str | Absent | None = None


_CLASSES = ("0x0302", "0x0207", "0x0200", "0x0300")
"""PCI classes of GPUs and NICs."""
_PLUGINS = ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN")
_WRITTEN = (
    *("NCCL_DEBUG_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
)
_MOST = 64  # names; NCCL reads 14 of NCCL_NET_PLUGIN
_SONAME = re.compile(r"(?!libnccl)[^/]+\.so(\.\d+)*")
"""A bare library name; those that begin with libnccl are found by :mod:`ncclprobe.facts.plugins`."""


@collector
def named_files(host: Host, settings: Settings, loader: Loader | Absent) -> NamedFiles:
    """Inspect the files that variables name. Opens only NCCL_TOPO_FILE and NCCL_GRAPH_FILE, and creates nothing."""
    wanted, graph = settings.get("NCCL_TOPO_FILE"), settings.get("NCCL_GRAPH_FILE")
    folders = {name: folder for name in _WRITTEN if (folder := log_folder(settings.get(name) or ""))}
    named = list(dict.fromkeys(one for name in _PLUGINS for one in (settings.get(name) or "").split(",")))[:_MOST]
    there = {name: _there(host, name) for name in named if name.startswith("/")}
    there |= {name: _is_loadable(host, name, loader) for name in named if _SONAME.fullmatch(name)}
    return NamedFiles(
        topology=learn(host, lambda text: topology_file(wanted, text), "read", wanted) if wanted else None,
        folders={name: (folder, learn(host, _writable, "access", folder)) for name, folder in folders.items()},
        libraries=there,
        graph=None if graph is None else learn(host, graph_trouble, "read", graph),
    )


def log_folder(pattern: str) -> str:
    """Return the folder of an output file; empty if unknown: a relative path, a device, or a ``%`` in the folder."""
    folder = str(PurePosixPath(pattern).parent)
    special = pattern.lower() in ("stdout", "stderr") or pattern.startswith("/dev/")
    return "" if special or not pattern.startswith("/") or "%" in folder else folder


def _writable(text: str) -> bool:
    return bool(json.loads(text)["write"])


def _there(host: Host, path: str) -> bool | Absent:
    found = learn(host, json.loads, "stat", path)
    if isinstance(found, Absent):
        return False if found.refused == Missing.__name__ else found
    return True


def _is_loadable(host: Host, name: str, loader: Loader | Absent) -> bool | Absent:
    """Return whether the loader finds a bare library name in its known folders or its cache."""
    if isinstance(loader, Absent):
        return loader
    places = [_there(host, f"{folder}/{name}") for folder in loader.folders()]
    places.append(learn(host, lambda text: bool(json.loads(text)), "ld_cache", name))
    return any(place is True for place in places) or next((p for p in places if isinstance(p, Absent)), False)


def topology_file(path: str, text: str) -> TopologyFile:
    """Extract what NCCL's own parser would find (src/graph/xml.cc). Virtual addresses are accepted."""
    version = next((each.get("version", "") for each in _elements(text, "system")), "")
    devices = [each.get("busid", "") for each in _elements(text, "pci") if each.get("class", "")[:6] in _CLASSES]
    whole = "<system" in text and text.rstrip().endswith("</system>")
    addresses = tuple(each.lower() for each in devices if each and not each.strip("0123456789abcdefABCDEF:."))
    return TopologyFile(path, whole, version if version.isdecimal() else "", addresses)


def graph_trouble(text: str) -> str:
    """Return why NCCL rejects a graph file, and so starts no communicator; empty if it accepts it.

    NCCL ignores a file without <graphs>. Source: src/graph/xml.cc ncclTopoXmlGraphLoadGraphs, xmlGetNode (v2.30.7).
    """
    bare = text.strip(" \n\r")
    if bare and not bare.startswith("<"):
        return f"expecting '<', got {bare[:1]!r}"
    if "<graphs" not in text:
        return ""
    single = text.partition("<graphs")[2].partition(">")[0].endswith("/")
    if "</graphs>" not in text and not single:
        return "is not whole: <graphs … </graphs> is incomplete"
    version = next((each.get("version", "") for each in _elements(text, "graphs")), "")
    return "" if version in ("1", "") else f"is of version {version}, and NCCL takes only 1"


def _elements(text: str, tag: str) -> Iterator[dict[str, str]]:
    """Yield the attributes of each element `tag`, in one pass over the text."""
    for piece in text.split("<"):
        element = piece.partition(">")[0]
        if element.startswith(tag) and element[len(tag) : len(tag) + 1].isspace():
            words = element[len(tag) :].split('"')
            yield {name.strip().rstrip("="): value for name, value in zip(words[::2], words[1::2], strict=False)}
