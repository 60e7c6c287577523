#!/usr/bin/env python3
"""Make ncclprobe/nccl/parameters.csv from a survey of NCCL's variables.

    scripts/parameters.py nccl_env.csv > ncclprobe/nccl/parameters.csv

The survey has one row per variable and says in prose which values it takes and what became of it (columns
name, owner, type, allowed, default, since_version, deprecated_or_renamed, scope, hazard, source). The hazards are in
our own words and are kept from the table as it stands. Prose that
the rules below would misread is settled by name in `BOUNDS`, `WORDS` and `GONE`, each with its reason. Read
the difference before committing.
"""

import csv
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

COLUMNS = ("name", "owner", "type", "low", "high", "words", "any_case", "default", "since", "gone", "instead",
           "scope", "hazard", "source")  # fmt: skip

TABLE = Path(__file__).resolve().parent.parent / "ncclprobe" / "nccl" / "parameters.csv"

Row = Mapping[str, str]
Bounds = tuple[int | None, int | None]

OPEN: Bounds = (None, None)

BOUNDS: dict[str, Bounds] = {
    "NCCL_IB_TIMEOUT": (0, 31),  # a 5-bit field; the prose also says what NCCL makes of larger numbers
    "NCCL_IB_DATA_DIRECT": (0, 2),  # 2 stands in the remark: expose both
    "NCCL_IB_DISABLE": OPEN,  # any non-zero number disables
    "NCCL_P2P_LEVEL": (0, None),  # old numbers: 4 and above are SYS
    "NCCL_NET_GDR_LEVEL": (0, None),
    "NCCL_GDAKI_USE_RELIABLE_DB": OPEN,  # 2 has a meaning of its own: gin_host_gdaki.cc:603 (v2.30.7)
    "NCCL_MNNVL_CLIQUE_ID": OPEN,  # any bits, which as a signed number may be negative
    "NCCL_MNNVL_UUID": OPEN,
    "OFI_NCCL_USE_IPV6_TCP": (0, 1),
}

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
TORCH_BOOL = ("y", "yes", "1", "t", "true", "n", "no", "0", "f", "false")  # c10d/Utils.hpp:151 (torch 2.13)
PARAM_BOOL = ("0", "1", "T", "F", "TRUE", "FALSE")  # include/param/parser_default.h:42 (v2.30.7)

WORDS: dict[str, tuple[str, ...]] = {
    "NCCL_P2P_LEVEL": LEVELS,  # the prose says since when; values.read_level knows
    "NCCL_NET_GDR_LEVEL": LEVELS,
    "NCCL_PARAM_DUMP_ALL": PARAM_BOOL,  # the three switches of the new parameter class
    "NCCL_SET_THREAD_NAME": PARAM_BOOL,
    "NCCL_WARN_ENABLE_DEBUG_INFO": PARAM_BOOL,
    "OFI_NCCL_USE_IPV6_TCP": ("0", "1", "true", "false"),
    "OFI_NCCL_PLATFORM": ("AWS", "Default"),  # the third choice is the empty text
}

ANY_CASE = {
    "NCCL_LAUNCH_MODE",  # strcasecmp, src/init.cc:1651 (v2.30.7)
    "NCCL_CHECK_MODE",  # strcasecmp, src/init.cc:2235 (v2.30.7)
}

GONE = {
    "NCCL_NCCL_ALLOC_P2P_NET_LL_BUFFERS": "2.16.5",  # the spelling error lived until 2.16.2
    "OFI_NCCL_ENDPOINT_PER_COMM": "1.19",  # OFI_NCCL_PARAM_DEPRECATED since that version of the plugin
    "OFI_NCCL_RDMA_MAX_POSTED_BOUNCE_BUFFERS": "1.15",  # split in two then
    "OFI_NCCL_RDMA_MIN_POSTED_BOUNCE_BUFFERS": "1.15",
}

NAME = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
REMARK = re.compile(r"\([^()]*\)")
NUMBER = r"(-?\d+)(?![\w.-])"


def choices(allowed: str) -> list[str]:
    """The alternatives in the prose, remarks removed: "-2 auto (8), 0..15" gives "-2 auto" and "0..15"."""
    return [piece.strip() for piece in re.split(r"[,;]|\bor\b", REMARK.sub("", allowed)) if piece.strip()]


def span(piece: str) -> tuple[int | None, int | None, bool] | None:
    """Low, high and whether it ends there, of one alternative; None where it names no number."""
    if match := re.match(r"(-?\d+)\.\.(-?\d+)", piece):
        return int(match[1]), int(match[2]), True
    if match := re.match(r"(-?\d+)\.\.", piece):
        return int(match[1]), None, False
    if match := re.search(r"(?:^|\s)>(=?)(-?\d+)", piece):
        return int(match[2]) + (not match[1]), None, False
    if match := re.match(NUMBER + r"(.*)", piece):
        return int(match[1]), int(match[1]), ".." not in match[2]
    return None


def bounds(row: Row) -> Bounds:
    """The integers that mean something, open where the prose does not say; the default is among them."""
    if row["type"] not in ("bool", "int", "size", "enum") or words(row) == TORCH_BOOL:
        return OPEN
    if row["name"] in BOUNDS:
        return BOUNDS[row["name"]]
    if row["type"] == "bool" and re.search(r'"?\b1"? (?:on|disables)', row["allowed"]):
        return 0, 1
    if re.fullmatch(r"\d*", row["allowed"]):  # nothing, or a single example
        return OPEN
    spans = [span(piece) for piece in choices(row["allowed"]) if piece not in ("auto", *PARAM_BOOL[2:])]
    lows = [each[0] for each in spans if each and each[0] is not None]
    if not lows:
        return OPEN
    closed = len(spans) > 1 or ".." in row["allowed"]  # a lone number is an example or a code, not a range
    highs = [each[1] if each and each[2] else None for each in spans]
    high = None if None in highs or not closed else max(each for each in highs if each is not None)
    return widened(min(lows), high, row["default"])


def widened(low: int, high: int | None, default: str) -> Bounds:
    """The same, with the default in it: writing -2 for "auto" out is no error."""
    match = re.match(NUMBER, default)
    if not match:
        return low, high
    value = int(match[1])
    return min(low, value), None if high is None else max(high, value)


def words(row: Row) -> tuple[str, ...]:
    """The texts an enum takes, or a bool that is not read as an integer."""
    if row["name"] in WORDS:
        return WORDS[row["name"]]
    if row["type"] == "bool" and (row["allowed"] == "bool words" or row["allowed"].startswith("y,yes")):
        return TORCH_BOOL
    pieces = REMARK.sub("", row["allowed"]).strip().split(",")
    if row["type"] in ("bool", "enum") and all(re.fullmatch(r"[A-Za-z]\w*", piece) for piece in pieces):
        return tuple(pieces)
    return ("auto",) if row["type"] == "int" and "auto" in choices(row["allowed"]) else ()


def any_case(row: Row) -> bool:
    """Whether case is known not to matter, or, outside NCCL, not known to."""
    if not words(row):
        return False
    known = "case-insens" in row["allowed"] or row["name"] in ANY_CASE or words(row) == PARAM_BOOL
    return known or row["owner"] != "nccl"


def since(row: Row) -> str:
    """The first version, where the survey counts in versions of NCCL or torch ("<=v2.3.5": the start)."""
    plain = r"v(\d+\.\d+(?:\.\d+)?)" if row["owner"].startswith(("nccl", "doca")) else r"torch (\d+\.\d+)"
    if row["name"].startswith("OFI_NCCL_"):
        plain = r"v(\d+\.\d+(?:\.\d+)?)"
    match = re.match(plain, row["since_version"]) if row["owner"] != "nccl-tests" else None
    return match[1] if match else ""


def gone(row: Row) -> str:
    """The first version that ignores it; empty while somebody reads it."""
    fate = row["deprecated_or_renamed"]
    if row["name"] in GONE or row["owner"] not in ("nccl", "torch"):
        return GONE.get(row["name"], "")
    if row["owner"] == "torch":
        match = re.search(r"(?:gone by|removed in|gone from) (\d+\.\d+)", fate)
        return match[1] if match else ""
    if match := re.search(r"^(?:removed|renamed \w+|replaced by \w+) in (\d[\d.]*)", fate):
        return match[1]
    if match := re.search(r"Ignored (?:in|since) (\d[\d.]*\d)", row["hazard"]):
        return match[1]
    if match := re.search(r"^removed after 2\.(\d+)", fate):
        return f"2.{int(match[1]) + 1}"
    match = re.match(r"deprecated (\d[\d.]*\d)", fate)
    return match[1] if match and row["hazard"] == "Ignored" else ""


def instead(row: Row, known: Collection[str]) -> str:
    """The known name to use now. Prose that tells the reverse (which older name is accepted) has none."""
    fate = row["deprecated_or_renamed"]
    if row["owner"] == "none":
        return next((name for name in NAME.findall(fate) if name in known), "")
    backwards = r"^(?:was|renamed from|read as|newer name|alias of SLURM|older name|SLURM_|GROUP)|accepted"
    match = None if re.search(backwards, fate) else NAME.search(fate)
    return match[0] if match and match[0] in known else ""


def hazards() -> dict[str, str]:
    """What can go wrong with each variable, from the table as it stands."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {row["name"]: row.get("hazard", "") for row in csv.DictReader(file)}


def parameter(row: Row, known: Collection[str], hazard: str) -> dict[str, object]:
    """One row of the shipped table."""
    low, high = bounds(row)
    return {
        "name": row["name"],
        "owner": row["owner"],
        "type": row["type"],
        "low": "" if low is None else low,
        "high": "" if high is None else high,
        "words": "|".join(words(row)),
        "any_case": "yes" if any_case(row) else "",
        "default": row["default"],
        "since": since(row),
        "gone": gone(row),
        "instead": instead(row, known),
        "scope": {"yes": "job", "no": "rank"}.get(row["scope"], ""),
        "hazard": hazard,
        "source": row["source"].replace("not in snapshot; ", ""),
    }


def main(path: str) -> None:
    """Write the table for the survey at `path` to standard output."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["name"])
    known, told = {row["name"] for row in rows}, hazards()
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(parameter(row, known, told.get(row["name"], "")) for row in rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
