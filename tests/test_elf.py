"""The loader's binary formats: a library as the linker made it, a cache as ldconfig did, and both damaged."""

import re
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclprobe.host import elf
from ncclprobe.model.errors import Failed
from tests.each_row import each_row

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that needs another one, with a search path of its own."""
    folder = tmp_path_factory.mktemp("elf")
    (folder / "a.c").write_text("int a(void) { return 1; }\n")
    (folder / "b.c").write_text("int a(void); int b(void) { return a(); }\n")
    for command in (
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", "libnccl.so.2", "a.c"],
        ["cc", "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/../lib:/x", "-Wl,--disable-new-dtags", "-Wl,-soname,libb.so.1",
         "-o", "libb.so", "b.c", "libnccl.so.2"],
        ["cc", "-shared", "-fPIC", "-Wl,-rpath,/y", "-Wl,--enable-new-dtags", "-o", "libc.so", "b.c", "libnccl.so.2"],
    ):  # fmt: skip
        subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder / "libb.so"


@needs_compiler
def test_a_library_says_what_it_needs_and_where_to_look(library: Path) -> None:
    seen = elf.dynamic(str(library))
    assert (seen.soname, seen.rpath, seen.runpath) == ("libb.so.1", "$ORIGIN/../lib:/x", "")
    assert "libnccl.so.2" in seen.needed
    assert elf.dynamic(str(library.with_name("libc.so")))[2:4] == ("", "/y")


@needs_compiler
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 20_000), at=st.integers(0, 20_000), new=st.binary(max_size=16))
def test_a_damaged_library_is_read_or_refused(versioned: Path, tmp_path: Path, cut: int, at: int, new: bytes) -> None:
    data = bytearray((versioned / "libnccl.so.2").read_bytes()[: cut or None])
    data[at : at + len(new)] = new
    damaged = tmp_path / "damaged"
    damaged.write_bytes(data)
    for read in (
        elf.dynamic,
        lambda path: elf.symbols(path, "nccl"),
        lambda path: elf.texts(path, "NCCL"),
        lambda path: elf.objects(path, "nccl"),
    ):
        with suppress(Failed, OSError):
            read(str(damaged))


VERSIONS = "NCCL_2 { global: ncclAllReduce; }; NCCL_3 { global: ncclCommSplit; } NCCL_2;"
GIVER = """const char text[] = "NCCL version 2.31.2+cuda13.3"; const char other[] = "NCCL version of nothing";
int ncclAllReduce(void) { return 1; } int ncclCommSplit(void) { return 2; }\n"""
ASKER = """int ncclAllReduce(void); int ncclCommSplit(void); __attribute__((weak)) int ncclMaybe(void);
int both(void) { return ncclAllReduce() + ncclCommSplit() + (ncclMaybe ? 1 : 0); }\n"""


@pytest.fixture(scope="session")
def versioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libnccl whose symbols have versions, and a library that asks for them."""
    folder = tmp_path_factory.mktemp("versioned")
    for name, text in {"give.c": GIVER, "ask.c": ASKER, "map": VERSIONS}.items():
        (folder / name).write_text(text)
    for command in (
        [
            "cc",
            "-shared",
            "-fPIC",
            "-Wl,--version-script=map",
            "-Wl,-soname,libnccl.so.2",
            "-o",
            "libnccl.so.2",
            "give.c",
        ],
        ["cc", "-shared", "-fPIC", "-o", "libask.so", "ask.c", "libnccl.so.2"],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder


@needs_compiler
def test_versions_of_symbols_are_told_by_who_defines_and_who_asks(versioned: Path) -> None:
    assert elf.dynamic(str(versioned / "libnccl.so.2")).versions == ("libnccl.so.2", "NCCL_2", "NCCL_3")
    asked = elf.dynamic(str(versioned / "libask.so")).needs_versions["libnccl.so.2"]
    assert set(asked) == {"NCCL_2", "NCCL_3"}


@needs_compiler
def test_symbols_are_told_by_their_beginning_and_weak_ones_are_not_missed(versioned: Path) -> None:
    both = ("ncclAllReduce", "ncclCommSplit")
    assert elf.symbols(str(versioned / "libnccl.so.2"), "nccl") == (both, ())
    assert elf.symbols(str(versioned / "libask.so"), "nccl") == ((), both)


@needs_compiler
def test_texts_among_the_constants_are_found_by_their_beginning(versioned: Path) -> None:
    assert elf.texts(str(versioned / "libnccl.so.2"), "NCCL version 2.") == ("NCCL version 2.31.2+cuda13.3",)
    assert elf.texts(str(versioned / "libask.so"), "NCCL version 2.") == ()


@each_row("data", [b"", b"\x7fELF\x01" + b"\0" * 100, b"#!/bin/sh\n", b"\x7fELF\x02\x01" + b"\0" * 10])
def test_what_is_no_library_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(Failed, match="not a whole 64-bit ELF file"):
        elf.dynamic(str(tmp_path / "f"))


def cache(*entries: tuple[bytes, bytes]) -> bytes:
    """A cache of glibc's newer format."""
    start = 48 + 24 * len(entries)
    rows, texts = b"", b""
    for name, file in entries:
        key = start + len(texts)
        texts += name + b"\0" + file + b"\0"
        rows += struct.pack("=iIIIQ", 0x303, key, key + len(name) + 1, 0, 0)
    return b"glibc-ld.so.cache1.1" + struct.pack("=II", len(entries), len(texts)) + b"\0" * 20 + rows + texts


NCCL = (b"libnccl.so.2", b"/opt/nccl/lib/libnccl.so.2")
OTHER = (b"libc.so.6", b"/lib/libc.so.6")


def test_the_cache_gives_the_wanted_names_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(cache(OTHER, NCCL, (b"libnccl-net.so", b"/x/libnccl-net.so")))
    seen = elf.cached("libnccl", path=str(tmp_path / "c"))
    assert seen == [("libnccl.so.2", "/opt/nccl/lib/libnccl.so.2"), ("libnccl-net.so", "/x/libnccl-net.so")]


def test_the_old_format_in_front_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"ld.so-1.7.0\0" + b"\0" * 12 + cache(NCCL))
    assert elf.cached("lib", path=str(tmp_path / "c")) == [("libnccl.so.2", "/opt/nccl/lib/libnccl.so.2")]


@each_row("data", [b"", b"nonsense", b"ld.so-1.7.0\0", cache(NCCL)[:60], cache(NCCL)[:-4]])
def test_what_is_no_cache_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(Failed):
        elf.cached("libnccl", path=str(tmp_path / "c"))


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


PLUGIN = """typedef struct { const char* name; int (*init)(void); } plugin_t; static int init(void) { return 0; }
plugin_t ncclNetPlugin_v8 = {"AWS Libfabric", init}; const plugin_t ncclNetPlugin_v7 = {"AWS Libfabric", init};
plugin_t ncclTunerPlugin_v3 = {"nccl_ofi_tuner", init}; plugin_t ncclNetPlugin_v6 = {0, init};
int ncclNetPlugin_count = 7; plugin_t other = {"other", init};
int ncclNetPlugin_function(void) { return 1; } const char* told = "NET/OFI Initializing aws-ofi-nccl 1.14.0-aws";\n"""


@needs_compiler
@pytest.mark.parametrize("how", [[], ["-Wl,-z,pack-relative-relocs"], ["-O2", "-s"]])
def test_a_plugin_says_its_names_without_being_loaded(how: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(PLUGIN)
    command = ["cc", "-shared", "-fPIC", *how, "-o", "libnccl-net.so", "p.c"]
    if subprocess.run(command, cwd=tmp_path, timeout=60).returncode:
        pytest.skip("an older linker")
    library = str(tmp_path / "libnccl-net.so")
    net = {"ncclNetPlugin_v7": "AWS Libfabric", "ncclNetPlugin_v8": "AWS Libfabric"}
    assert elf.objects(library, "ncclNet") == net
    assert elf.objects(library, "nccl") == {**net, "ncclTunerPlugin_v3": "nccl_ofi_tuner"}
    assert elf.objects(library, "absent") == {}
    assert elf.texts(library, "aws-ofi-nccl ") == ("aws-ofi-nccl 1.14.0-aws",)
