"""What scripts/parameters.py reads out of a library's instructions, and that the table knows the newest release."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from parameters import Digest, Image, Read, print_changes, reads

from tests.each_row import each_row

NAMES = {
    0x100: b"NCCL_IB_PKEY",
    0x200: b"NCCL_ALGO",
    0x300: b"not a variable",
    0x400: b"NCCL_P2P_DISABLE",
    0x500: b"NCCL_P2P_LEVEL",
}


class FewTexts(Image):
    """An image that holds a handful of texts."""

    def __init__(self) -> None:
        pass

    def text(self, address: int) -> bytes:
        return NAMES.get(address, b"")


def found(text: str) -> list[Read]:
    return list(reads(text.splitlines(), FewTexts()))


PARAMETER = """
00000000001dde70 <_Z15ncclParamIbPkeyv>:
  1dde90:\tlea    0x1048c551(%rip),%r8        # 1066a3e8 <cache>
  1dde9e:\t{default}
  1ddea0:\tlea    0x1e634a(%rip),%rdi        # 100 <text>
  1ddea7:\tjmp    173350 <_Z13ncclLoadParamPKcllPlPa>
"""


@each_row(
    ("instruction", "default"),
    [
        ("xor    %esi,%esi", 0),
        ("mov    $0x800000,%esi", 0x800000),
        ("mov    $0xffffffffffffffff,%rsi", -1),
        ("movabs $0x7fffffffffffffff,%rsi", 2**63 - 1),
        ("mov    0x8(%rsp),%rsi", None),
    ],
)
def test_a_parameter_is_read_with_its_default(instruction: str, default: int | None) -> None:
    assert found(PARAMETER.format(default=instruction)) == [
        Read("NCCL_IB_PKEY", "parameter", default, "ncclParamIbPkey")
    ]


def test_a_name_kept_over_a_call_is_followed() -> None:
    text = """
00000000000d70b8 <_ZL17envConfigOverrideP8ncclComm>:
   d70d9:\tlea    -0x1f7(%rip),%rbx        # 200 <text>
   d70da:\tcall   9c880 <pthread_mutex_lock@plt>
   d70db:\tmov    %rbx,%rdi
   d70e0:\tcall   173510 <_Z10ncclGetEnvPKc>
"""
    assert found(text) == [Read("NCCL_ALGO", "text", None, "envConfigOverride")]


def test_changes_name_what_came_what_went_and_which_default_moved(capsys: pytest.CaptureFixture[str]) -> None:
    def of(*many: Read, texts: tuple[str, ...] = ()) -> Digest:
        return Digest({read.name: read for read in many}, frozenset({"NCCL_GONE"}), frozenset(texts))

    old = of(Read("NCCL_A", "parameter", 1, "a"), Read("NCCL_GONE", "text", None, "b"), texts=("one text",))
    new = of(Read("NCCL_A", "parameter", 2, "a"), Read("NCCL_NEW", "getenv", None, "c"), texts=("another text",))
    print_changes(old, new)
    assert capsys.readouterr().out.splitlines() == [
        "+ NCCL_NEW  getenv  default None  in c",
        "~ NCCL_A  default 1 -> 2",
        "- NCCL_GONE  (still named)",
        "+ text 'another text'",
        "- text 'one text'",
    ]


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(b"not a library at all")
    with pytest.raises(SystemExit, match="not a 64-bit little-endian ELF file"):
        Image(path)
