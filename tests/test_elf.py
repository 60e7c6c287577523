"""The loader's binary formats: a library as the linker made it, a cache as ldconfig did, and both damaged."""

import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.host import elf
from ncclprobe.model import bounds
from ncclprobe.model.errors import Failed
from tests.each_row import each_row

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (package gcc)")
VERSIONS = "NCCL_2 { global: ncclAllReduce; }; NCCL_3 { global: ncclCommSplit; } NCCL_2;"
GIVER = """const char text[] = "NCCL version 2.31.2+cuda13.3"; const char other[] = "NCCL version of nothing";
const char long_text[] = "long: 0123456789012345678901234567890123456789012345678901234567890123456789";
int ncclAllReduce(void) { return 1; } int ncclCommSplit(void) { return 2; }
__attribute__((weak)) int ncclWeak(void) { return 3; }\n"""
ASKER = """int ncclAllReduce(void); int ncclCommSplit(void); __attribute__((weak)) int ncclMaybe(void);
int both(void) { return ncclAllReduce() + ncclCommSplit() + (ncclMaybe ? 1 : 0); }\n"""
PLUGIN = """typedef struct { const char* name; int (*init)(void); } plugin_t; static int init(void) { return 0; }
plugin_t ncclNetPlugin_v8 = {"AWS Libfabric", init}; const plugin_t ncclNetPlugin_v7 = {"AWS Libfabric", init};
plugin_t ncclTunerPlugin_v3 = {"nccl_ofi_tuner", init}; plugin_t ncclNetPlugin_v6 = {0, init};
plugin_t ncclNetPlugin_v5; plugin_t ncclNetPlugin_v4 = {"odd\\001", init};
int ncclNetPlugin_count = 7; plugin_t other = {"other", init};
int ncclNetPlugin_function(void) { return 1; } const char* told = "NET/OFI Initializing aws-ofi-nccl 1.14.0-aws";\n"""
SHARED = ("cc", "-shared", "-fPIC")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libnccl whose symbols have versions, and libraries that ask for it, with search paths of their own."""
    folder = tmp_path_factory.mktemp("elf")
    for name, text in {"give.c": GIVER, "ask.c": ASKER, "map": VERSIONS}.items():
        (folder / name).write_text(text)
    old, new = "-Wl,--disable-new-dtags,-Ttext-segment=0x400000", "-Wl,--enable-new-dtags"
    for command in (
        ["-Wl,--version-script=map", "-Wl,-soname,libnccl.so.2", "-o", "libnccl.so.2", "give.c"],
        [old, "-Wl,-rpath,$ORIGIN/../lib:/x", "-Wl,-soname,libb.so.1", "-o", "libb.so", "ask.c", "libnccl.so.2"],
        [new, "-Wl,-rpath,/y", "-o", "libask.so", "ask.c", "libnccl.so.2"],
    ):
        subprocess.run([*SHARED, *command], cwd=folder, check=True, timeout=60)
    return folder


@needs_compiler
def test_a_library_says_what_it_needs_where_to_look_and_which_versions_and_symbols(libraries: Path) -> None:
    nccl, old, asks = (str(libraries / name) for name in ("libnccl.so.2", "libb.so", "libask.so"))
    seen = elf.dynamic(old)
    assert (seen.soname, seen.rpath, seen.runpath) == ("libb.so.1", "$ORIGIN/../lib:/x", "")
    assert "libnccl.so.2" in seen.needed
    assert elf.dynamic(asks)[2:4] == ("", "/y")
    assert elf.dynamic(nccl).versions == ("libnccl.so.2", "NCCL_2", "NCCL_3")
    assert set(elf.dynamic(asks).needs_versions["libnccl.so.2"]) == {"NCCL_2", "NCCL_3"}
    both = ("ncclAllReduce", "ncclCommSplit")  # and a weak symbol is not missed
    assert (elf.symbols(nccl, "nccl"), elf.symbols(asks, "nccl")) == (((*both, "ncclWeak"), ()), ((), both))
    assert elf.texts(nccl, "NCCL version 2.") == ("NCCL version 2.31.2+cuda13.3",)
    assert elf.texts(nccl, "NCCL version") == ("NCCL version 2.31.2+cuda13.3", "NCCL version of nothing")
    assert [len(each) for each in elf.texts(nccl, "long: ")] == [bounds.ELF_TEXT]


@needs_compiler
@each_row(
    ("name", "most", "read", "found"),
    [
        ("ELF_TEXTS", 1, lambda path: elf.texts(path, "NCCL version"), ("NCCL version 2.31.2+cuda13.3",)),
        ("ELF_TEXT", 4, lambda path: elf.texts(path, "NCCL version"), ("NCCL",)),
        ("ELF_CONTENT_BYTES", 10, lambda path: (elf.texts(path, "NCCL"), elf.symbols(path, "n")),
         (("NCCL versi",), ((), ()))),
        ("ELF_VERSIONS", 1, lambda path: elf.dynamic(path).versions, ("libnccl.so.2",)),
        ("ELF_VERSIONS", 1, lambda path: [*map(len, elf.dynamic(f"{path[:-9]}ask.so").needs_versions.values())], [1]),
        ("ELF_TABLE", 32, elf.dynamic, None), ("ELF_STRING", 5, elf.dynamic, None),
    ],
)  # fmt: skip
def test_no_more_of_a_library_is_read_than_is_allowed(
    name: str, most: int, read: Callable[[str], object], found: object, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, name, most)
    try:
        assert read(str(libraries / "libnccl.so.2")) == found
    except Failed:
        assert found is None


READERS = (elf.dynamic, lambda path: elf.symbols(path, "nccl"), lambda path: elf.texts(path, "NCCL"),
           lambda path: elf.objects(path, "nccl"))  # fmt: skip


@needs_compiler
@given(cut=st.integers(0, 20_000), at=st.integers(0, 20_000), new=st.binary(max_size=16))
def test_a_damaged_library_is_read_or_refused(libraries: Path, cut: int, at: int, new: bytes) -> None:
    data = bytearray((libraries / "libnccl.so.2").read_bytes()[: cut or None])
    data[at : at + len(new)] = new
    damaged = libraries / "damaged"
    damaged.write_bytes(data)
    for read in READERS:
        with suppress(Failed, OSError):
            read(str(damaged))


FAR = b"\x7fELF\x02\x01" + b"\0" * 26 + b"\xff" * 32  # tables behind any file's end


@each_row(
    "data",
    [
        b"", b"\x7fELF\x01" + b"\0" * 100, b"#!/bin/sh\n", b"\x7fELF\x02\x01" + b"\0" * 10,
        b"\x7fELF\x02\x02" + b"\0" * 99, FAR,
    ],
)  # fmt: skip
def test_what_is_no_library_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    for read in READERS:
        with pytest.raises(Failed, match="not a whole 64-bit ELF file"):
            read(str(tmp_path / "f"))


@needs_compiler
def test_a_plugin_says_its_names_without_being_loaded(tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(PLUGIN)
    net = {"ncclNetPlugin_v7": "AWS Libfabric", "ncclNetPlugin_v8": "AWS Libfabric"}
    for how in ([], ["-O2", "-s"], ["-Wl,-z,pack-relative-relocs"]):
        done = subprocess.run([*SHARED, *how, "-o", "libnccl-net.so", "p.c"], cwd=tmp_path, timeout=60)
        if done.returncode and "-Wl,-z,pack-relative-relocs" in how:
            pytest.skip("this linker cannot pack relocations: use one of binutils 2.38 or newer")
        library = str(tmp_path / "libnccl-net.so")
        assert elf.objects(library, "ncclNet") == net
        assert elf.objects(library, "nccl") == {**net, "ncclTunerPlugin_v3": "nccl_ofi_tuner"}
        assert elf.texts(library, "aws-ofi-nccl ") == ("aws-ofi-nccl 1.14.0-aws",)


BASE, SYMBOL = 0x10000, struct.Struct("<IBBHQQ")


def made(path: Path, tags: Sequence[tuple[int, int]], *sections: tuple[bytes, int, int, bytes]) -> str:
    """Write a library of these sections, each with name, kind, address, data and the first one as its link.

    The file is loaded at BASE as a whole, the first section at BASE + 64. The dynamic tags end in half a tag.
    """
    names = b"\0".join(name for name, *_ in sections) + b"\0"
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags) + b"\5\0\0"
    data, rows = bytearray(), b""
    for name, kind, address, own in (*sections, (b"", 3, 0, names)):
        rows += struct.pack("<IIQQQQI20x", names.index(name + b"\0"), kind, 0, address, 64 + len(data), len(own), 0)
        data += own
    at, count = 64 + len(data), len(sections) + 1
    data += dynamic + rows
    for kind, offset, address, size in ((6, 0, BASE, 9999), (2, at, 0, len(dynamic)), (1, 0, BASE, at)):
        data += struct.pack("<IIQQQQ16x", kind, 0, offset, address, 0, size)
    begins = at + len(dynamic)
    head = struct.pack("<QQI6H", begins + 64 * count, begins, 0, 64, 56, 3, 64, count, count - 1)
    path.write_bytes(b"\x7fELF\2\1".ljust(32, b"\0") + head + data)
    return str(path)


def test_the_first_name_counts_a_weak_version_does_not_and_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    strings = b"\0one\0two\0lib\xff.so\0V1\0V2\0V3\0"  # 1, 5, 9, 17, 20, 23
    first = BASE + 64 + len(strings)
    needs = struct.pack("<HHIII", 1, 3, 9, 16, 0) + b"".join(
        struct.pack("<IHHII", 0, flags, 0, name, 16) for flags, name in ((0, 17), (2, 20), (5, 23))
    )
    tags = [(5, BASE + 64), (5, 1), (14, 1), (14, 5), (15, 5), (15, 1), (29, 1), (29, 5), (1, 9), (1, 5)]
    whole = [*tags, (0x6FFFFFFE, first), (0x6FFFFFFF, 1)]
    twice = [*whole, (0x6FFFFFFE, BASE + 64), (0x6FFFFFFF, 2)]
    for more, wanted in ((twice, {"lib\ufffd.so": ("V1", "V3")}), (whole[:-1], {}), ([*tags, whole[-1]], {})):
        seen = elf.dynamic(made(tmp_path / "x", [*more, (0, 0), (1, 1)], (b"a", 3, 0, strings + needs)))
        assert seen == ("one", ("lib\ufffd.so", "two"), "two", "one", wanted, ())
    assert elf.dynamic(made(tmp_path / "x", [(1, 1)], (b"a", 3, 0, strings))) == ("", (), "", "", {}, ())
    for wrong in (BASE - 1, BASE + 9998):  # where another kind of segment would be
        with pytest.raises(Failed):
            elf.dynamic(made(tmp_path / "x", [(5, wrong), (14, 1)], (b"a", 3, 0, strings)))


def test_symbols_and_their_texts_are_those_of_the_tables_and_of_relocations_that_only_add_the_base(
    tmp_path: Path,
) -> None:
    texts = b"first\0second\0\xffthird\0no\1\0"  # at 500, 506, 513, 520
    values = b"".join(struct.pack("<Q", each) for each in (506, 506, 513, 520, 499, 523))  # at 600, 608 …
    symbols = [(17, 1, 600 + 8 * at) for at in range(4)] + [(18, 1, 632), (17, 0, 640), (16, 0, 0), (32, 0, 0)]
    symbols += [(17, 1, 640), (17, 1, 648)]
    symbols[2] = 33, 1, 616  # a weak one
    names = b"\0" + b"".join(b"n%d\0" % number for number in range(10))
    packed = [SYMBOL.pack(1 + 3 * at, info, 0, section, value, 8) for at, (info, section, value) in enumerate(symbols)]
    rows = b"".join(reversed(packed)) + b"z"
    moves = b"".join(struct.pack("<QQq", *each) for each in ((600, 8, 500), (608, 1 << 32 | 1027, 500), (616, 6, 500)))
    path = made(
        tmp_path / "x", [], (b"names", 3, 0, names), (b"low", 1, 0, b"x" * 999), (b"none", 8, 400, b"y" * 300),
        (b".rodata", 1, 500, texts), (b".data", 1, 600, values), (b"rel", 4, 0, moves + b"z"), (b"sym", 11, 0, rows),
        (b".rodata", 1, 0, b"first again\0second one\0"),
    )  # fmt: skip
    assert elf.symbols(path, "n") == (("n0", "n1", "n2", "n3", "n4", "n8", "n9"), ("n5", "n6"))
    assert (elf.symbols(path, "n8"), elf.objects(path, "n8")) == ((("n8",), ()), {})
    assert elf.objects(path, "n") == {"n0": "first", "n1": "first", "n2": "\ufffdthird"}
    assert (elf.texts(path, "first"), elf.texts(path, "second"), elf.texts(path, "sec")) == (
        ("first",),
        *[("second",)] * 2,
    )
    assert (elf.texts(path, "third"), elf.texts(path, "fourth")) == (("third",), ())


def cache(*entries: tuple[bytes, bytes]) -> bytes:
    """A cache of glibc's newer format."""
    start = 48 + 24 * len(entries)
    rows, texts = b"", b""
    for name, file in entries:
        key = start + len(texts)
        texts += name + b"\0" + file + b"\0"
        rows += struct.pack("=iIIIQ", 0x303, key, key + len(name) + 1, 0, 0)
    return b"glibc-ld.so.cache1.1" + struct.pack("=II", len(entries), len(texts)) + b"\0" * 20 + rows + texts


NCCL, OTHER = (b"libnccl.so.2", b"/opt/nccl/lib/libnccl.so.2"), (b"libc.so.6", b"/lib/libc.so.6")
NET = (b"libnccl-net.so", b"/x/libnccl-net.so")
OLD_FORMAT = b"ld.so-1.7.0\0" + b"\0" * 12


@each_row(
    ("data", "prefixes", "found"),
    [
        (cache(OTHER, NCCL, NET), ["libnccl"], [NCCL, NET]), (cache(OTHER, NET), ["libc.", "libnccl-"], [OTHER, NET]),
        (OLD_FORMAT + cache(NCCL), ["lib"], [NCCL]), (cache(NCCL), ["libx"], []), (cache(), ["lib"], []),
        *((data, ["libnccl"], None) for data in (b"", b"no", OLD_FORMAT, *(cache(NCCL)[:at] for at in (22, 60, -4)))),
    ],
)  # fmt: skip
def test_the_cache_gives_the_wanted_names_in_its_order(
    tmp_path: Path, data: bytes, prefixes: list[str], found: list[tuple[bytes, bytes]] | None
) -> None:
    (tmp_path / "c").write_bytes(data)
    if found is None:
        with pytest.raises(Failed):
            elf.cached(*prefixes, path=str(tmp_path / "c"))
    else:
        read = elf.cached(*prefixes, path=str(tmp_path / "c"))
        assert read == [(name.decode(), file.decode()) for name, file in found]


@given(at=st.integers(0, 150), new=st.binary(max_size=8))
def test_a_damaged_cache_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, at: int, new: bytes) -> None:
    data = bytearray(cache(OTHER, NCCL))
    data[at : at + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "damaged.cache"
    path.write_bytes(data)
    with suppress(Failed):
        elf.cached("lib", path=str(path))


@pytest.mark.skipif(not Path("/sbin/ldconfig").exists() or not Path(elf.CACHE).exists(), reason="no glibc's cache here")
def test_this_machines_cache_reads_as_ldconfig_prints_it() -> None:
    done = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=30, check=True)
    assert elf.cached("lib") == re.findall(r"^\t(lib\S*) \(.*\) => (.*)$", done.stdout, re.MULTILINE)
