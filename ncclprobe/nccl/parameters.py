"""The table of variables: NCCL's own, its plugins', torch's, the launchers', and names that no program reads.

The data is ``parameters.csv`` in this folder, one row per variable with its source. It is maintained by hand;
``scripts/parameters.py`` lists the variables that a release reads and the table lacks.

``meanings.csv`` has a sentence of ours on each variable and a correct value. Only people read it; the doctor does not
need it. Sources: the user guide of NCCL (env.rst) or of the variable's owner if `documented`, otherwise the code that
reads it.
"""

import csv
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

from ncclprobe.facts.software import Version, parse_version
from ncclprobe.model.values import Struct


class Meaning(Struct, frozen=True):
    """What a variable does. `example` is a value from healthy jobs; `documented`: its maker describes it."""

    does: str
    example: str
    documented: bool


@cache
def meanings() -> Mapping[str, Meaning]:
    """Return the described variables, by name."""
    data = pkgutil.get_data("ncclprobe.nccl", "meanings.csv")
    _header, *rows = csv.reader((data or b"").decode().splitlines())
    return MappingProxyType({name: Meaning(does, example, bool(said)) for name, said, example, does in rows})


NEWEST: Version = (2, 32, 3)
"""The newest NCCL release that the table covers."""


class Parameter(Struct, frozen=True):
    """The known facts of one variable.

    * ``owner``: who reads it (nccl, torch, gloo, launch, slurm, mpi, cuda, ucx, ofi, …); *none*: none ever
    * ``type``: bool, int, size, enum, list, path or string
    * ``low``, ``high``: the meaningful integers, None if open. The default is among them,
      even if it is a code such as -2 for "auto"
    * ``words``: the accepted texts of an enum, or of a bool that is read as a word
    * ``any_case``: case is known not to matter, or (outside NCCL) not known to matter
    * ``default``: in prose, with the versions that changed it in brackets
    * ``since``: the first version that has it; None: all do, or unknown. ``gone``: the first one
      that ignores it. Versions of NCCL; of torch for torch, gloo and launch; of the plugin for OFI_NCCL_*
    * ``instead``: the name to use now. If ``gone`` is None the old one is still read
    * ``scope``: *job* (must agree on all ranks), *rank*, or empty if unknown
    * ``hazard``: what goes wrong if it is set badly, or differently between ranks
    * ``source``: the origin of the row
    """

    name: str
    owner: str
    type: str
    low: int | None
    high: int | None
    words: tuple[str, ...]
    any_case: bool
    default: str
    since: Version | None
    gone: Version | None
    instead: str
    scope: str
    hazard: str
    source: str

    @property
    def is_read(self) -> bool:
        """Return whether the newest known version reads it."""
        return self.owner != "none" and self.gone is None

    @property
    def is_integer(self) -> bool:
        """Return whether NCCL reads it with strtoll, so that a word is 0."""
        numbered = self.type in ("bool", "int", "size") or (self.type == "enum" and self.low is not None)
        return self.owner == "nccl" and numbered and not self.words


@cache
def table() -> Mapping[str, Parameter]:
    """Return every known variable by name, sorted. Loaded from the package at the first call."""
    # importlib.resources would do, and costs 10 ms to import.
    data = pkgutil.get_data("ncclprobe.nccl", "parameters.csv")
    names, *rows = csv.reader((data or b"").decode().splitlines())
    return MappingProxyType({row[0]: _parameter(dict(zip(names, row, strict=True))) for row in rows})


def _parameter(row: Mapping[str, str]) -> Parameter:
    return Parameter(
        name=row["name"],
        owner=row["owner"],
        type=row["type"],
        low=int(row["low"]) if row["low"] else None,
        high=int(row["high"]) if row["high"] else None,
        words=tuple(row["words"].split("|")) if row["words"] else (),
        any_case=row["any_case"] == "yes",
        default=row["default"],
        since=_version(row["since"]),
        gone=_version(row["gone"]),
        instead=row["instead"],
        scope=row["scope"],
        hazard=row["hazard"],
        source=row["source"],
    )


@cache
def _version(text: str) -> Version | None:
    return parse_version(text) if text else None


_FAMILIES = (
    *("TORCH_NCCL_", "TORCHELASTIC_", "TORCHCOMM_", "TORCH_", "PYTORCH_", "GLOO_"),
    *("NCCL_", "OFI_NCCL_", "SHARP_", "NVSHMEM_", "UCX_", "FI_", "RDMAV_", "CUDA_VISIBLE_"),
    *(
        "MASTER_",
        "LOCAL_RANK",
        "LOCAL_WORLD",
        "WORLD_",
        "SLURM_",
        "SRUN_",
        "OMPI_MCA_",
        "OMPI_",
        "PMIX_",
        "PMI_",
        "MV2_",
    ),
)
"""Prefixes of the names that we handle; the first match counts, so longer ones come first."""


def _family(name: str) -> str | None:
    return next((prefix for prefix in _FAMILIES if name.startswith(prefix)), None)


def looks_like_ours(name: str) -> bool:
    """Return whether a variable is NCCL's, torch's, a transport's or a launcher's, or may be a misspelling of one.

    The *name* of such a variable may be recorded, its *value* only if `table` contains the exact name.
    """
    return _family(name) is not None or name in table() or _intended_name(name) is not None


_SHORT = 8  # letters behind the prefix, below which two errors make another word of it


def nearest(name: str) -> str | None:
    """Return the known name that `name` most likely misspells; None if none is similar, or `name` is known."""
    prefix = _family(name)
    if prefix is None or name in table() or prefix in _OF_LAUNCHERS or name == "OMPI_MCA_plm":  # pml is another
        return _intended_name(name)
    limit = 1 if len(name) - len(prefix) < _SHORT or prefix in _HELD_IN_PART else 2
    ranked = ((distance(name, known, limit), known) for known in _offered(prefix))
    steps, best = min(ranked, default=(limit + 1, ""))
    return best if steps <= limit else None


_OF_LAUNCHERS = frozenset({"SLURM_", "SRUN_", "OMPI_", "PMIX_", "PMI_"})
"""Families whose names launchers set themselves, such as SLURM_JOBID beside SLURM_JOB_ID: nobody misspells them."""
_HELD_IN_PART = frozenset({"OFI_NCCL_", "NVSHMEM_", "UCX_", "FI_", "CUDA_VISIBLE_", "OMPI_MCA_"})
"""Families of other libraries that have more names than the table, some similar to others."""


def _intended_name(name: str) -> str | None:
    """Return NCCL's name that a misspelt prefix intends: ``NCLL_DEBUG``, ``nccl_debug``; None if there is none."""
    word, _, rest = name.upper().partition("_")
    meant = f"NCCL_{rest}"
    return meant if name != meant and meant in table() and distance(word, "NCCL", 1) <= 1 else None


def _offered(prefix: str) -> Iterator[str]:
    return (name for name, parameter in table().items() if parameter.is_read and _family(name) == prefix)


def distance(one: str, other: str, limit: int) -> int:
    """Return the optimal string alignment distance: edits and swaps of neighbours; `limit` + 1 means more."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        current = [row]
        for column, opposite in enumerate(other, start=1):
            cost = min(last[column] + 1, current[-1] + 1, last[column - 1] + (letter != opposite))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == opposite:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        if min(current) > limit and min(last) > limit:  # a swap reaches two rows back
            return limit + 1
        before, last = last, current
    return min(last[-1], limit + 1)


_READERS = {
    "nccl": "NCCL",
    "torch": "torch",
    "gloo": "gloo",
    "launch": "torch and its launchers",
    "ofi": "libfabric and the AWS plugin",
    "gcp": "Google's plugins",
    "ucx": "UCX and NVIDIA's plugins",
    "sharp": "SHARP and NVIDIA's plugin for it",
    "cuda": "CUDA",
    "slurm": "Slurm",
    "mpi": "MPI",
    "omp": "OpenMP",
    "os": "the system's libraries",
    "container": "the container's runtime",
    "nvshmem": "NVSHMEM",
    "doca": "DOCA",
    "nccl-tests": "nccl-tests",
    "nccl-inspector": "the Inspector plugin",
    "nccl-profiler-example": "NCCL's example of a profiler plugin",
    "nccl-contrib": "code in NCCL's contrib folder",
}
_TYPES = {"bool": "0 or 1", "int": "a whole number", "size": "a number of bytes, without a suffix", "list": "a list",
          "path": "a path", "string": "text", "enum": "one of a few words"}  # fmt: skip
_SCOPES = {"job": "must be equal on all ranks", "rank": "may differ between ranks"}


def variable_explanation(parameter: Parameter) -> list[tuple[str, str]]:
    """Return what is known about a variable, as (heading, text); a text may be empty."""
    known = meanings().get(parameter.name)
    unsaid = parameter.is_integer and "count as 0" not in parameter.hazard
    return [
        ("does", purpose(parameter)),
        ("read by", readers(parameter)),
        ("values", _values(parameter)),
        ("default", parameter.default if parameter.is_read else ""),
        ("releases", _releases(parameter)),
        ("instead", parameter.instead),
        ("ranks", _SCOPES.get(parameter.scope, "")),
        ("wrong", f"{parameter.hazard}.{' A word is read as 0.' * unsaid}"),
        ("example", f"{parameter.name}={known.example}" if known and parameter.is_read else ""),
        ("source", parameter.source),
    ]


def purpose(parameter: Parameter) -> str:
    """Describe in a sentence what a variable does, or that it is undocumented."""
    meaning = meanings().get(parameter.name)
    if meaning:
        return meaning.does
    if parameter.owner == "none":
        return "Nothing: no known release reads it."
    how = "Not documented by NVIDIA" if parameter.owner == "nccl" else "Not described here"
    return f"{how}; read by {_READERS.get(parameter.owner, parameter.owner)}."


def readers(parameter: Parameter) -> str:
    """Describe who reads a variable, and whether its maker documents it."""
    if parameter.owner == "none":
        return "nothing"
    meaning = meanings().get(parameter.name)
    reader = _READERS.get(parameter.owner, parameter.owner)
    maker = "NVIDIA's" if parameter.owner in ("nccl", "cuda") else "its maker's"
    return reader if meaning and meaning.documented else f"{reader}; not in {maker} documentation"


def _values(parameter: Parameter) -> str:
    numbered = parameter.type == "enum" and parameter.low is not None
    kind = _TYPES["int" if numbered else parameter.type]
    if parameter.words:
        case = ", in any case" if parameter.any_case else ""
        return f"{', '.join(parameter.words)}{case}"
    if parameter.type == "bool" or (parameter.low is None and parameter.high is None):
        return kind
    if parameter.high is None:
        return f"{kind}, {parameter.low} or more"
    return f"{kind}, {parameter.low} to {parameter.high}"


def _releases(parameter: Parameter) -> str:
    """Describe the releases that read a variable, in the numbering of its reader.

    The table covers all releases of NCCL from 2.3.5 on.
    """
    if parameter.owner == "none":
        return "none"
    unsaid = "since 2.3.5 or before" if parameter.owner == "nccl" else "since an unknown release"
    since = f"since {_written(parameter.since)}" if parameter.since else unsaid
    return f"{since}, until {_written(parameter.gone)}, which ignores it" if parameter.gone else since


def _written(version: Version | None) -> str:
    return ".".join(map(str, version or ()))
