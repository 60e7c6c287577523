"""Which NCCL a job would get, and its version numbers in all the spellings that reach us."""

from typing import Any

import pytest
from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.facts import loader as loader_module
from ncclprobe.facts.loader import CACHED, DEFAULT_FOLDERS, LIBRARIES, Elf, Loader, choose, elf
from ncclprobe.facts.software import Mapped, Software, parse_version, reaches, software, torch_cuda
from ncclprobe.host import Question
from ncclprobe.model.errors import Missing, ParseError, TimedOut
from ncclprobe.model.registry import Collector
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

SITE = "/venv/lib/python3.12/site-packages"
RPATH = "$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"
WHEEL = f"{SITE}/nvidia/nccl/lib"
NOTHING = Missing("not there")
TORCH: dict[Question, Any] = {
    ("packages",): {"torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7"},
    ("module", "torch"): f"{SITE}/torch/__init__.py",
    ("read", f"{SITE}/torch/version.py"): "cuda: Optional[str] = '13.0'\n",
    ("elf", f"{SITE}/torch/lib/libtorch_cuda.so"): {
        "soname": "libtorch_cuda.so",
        "needed": ["libcudart.so.13", "libnccl.so.2"],
        "rpath": RPATH,
        "runpath": "",
    },
    ("list", f"{SITE}/nvidia/cudnn/lib", LIBRARIES): [],
    ("list", WHEEL, LIBRARIES): ["libnccl.so.2", "libnccl_device.bc"],
    **{("list", folder, LIBRARIES): NOTHING for folder in DEFAULT_FOLDERS},
}


NO_VARIABLES = Loader()


def learned(said: dict[Question, Any], loader: Loader | Absent = NO_VARIABLES) -> Software:
    given = Collector(run=lambda host: loader, produces=Loader)
    fact = collect(answers(said), [software, given])[Software]
    assert isinstance(fact, Software)
    return fact


def test_torchs_own_rpath_beats_ld_library_path() -> None:
    seen = learned(TORCH | {("list", "/site/lib", LIBRARIES): ["libnccl.so.2"]}, Loader(library_path=("/site/lib",)))
    assert seen.mapped == Mapped(f"{WHEEL}/libnccl.so.2", "DT_RPATH")
    assert seen.nccl_version == (2, 30, 7)
    assert [(n.version, n.source) for n in seen.nccl] == [
        ((2, 30, 7), "nvidia-nccl-cu13"),
        (None, "/site/lib/libnccl.so.2"),
    ]


def test_a_file_put_over_the_wheels_tells_its_own_version() -> None:
    said = TORCH | {("elf_texts", f"{WHEEL}/libnccl.so.2", "NCCL version 2."): ["NCCL version 2.28.9+cuda13.0"]}
    assert learned(said).nccl_version == (2, 28, 9)
    assert learned(TORCH).nccl_version == (2, 30, 7), "a capture of an older tool never asked the file"


def test_a_runpath_comes_after_ld_library_path_and_voids_the_rpath() -> None:
    says = {"soname": "", "needed": ["libnccl.so.2"], "rpath": "/old", "runpath": "/new"}
    said = TORCH | {
        ("elf", f"{SITE}/torch/lib/libtorch_cuda.so"): says,
        ("list", "/site/lib", LIBRARIES): ["libnccl.so.2", "libnccl.so.2.28.9"],
        ("list", "/new", LIBRARIES): ["libnccl.so.2"],
    }
    seen = learned(said, Loader(library_path=("/site/lib",)))
    assert seen.mapped == Mapped("/site/lib/libnccl.so.2", "LD_LIBRARY_PATH")
    assert seen.nccl_version == (2, 28, 9)
    assert learned(said).mapped == Mapped("/new/libnccl.so.2", "DT_RUNPATH")


def test_a_preloaded_library_beats_all() -> None:
    seen = learned(TORCH, Loader(preload=("/x/libfoo.so", "/x/libnccl.so.2.27.3")))
    assert seen.mapped == Mapped("/x/libnccl.so.2.27.3", "LD_PRELOAD")
    assert seen.nccl_version is None, "its version is not known, and the wheel's is not it"


def test_nccl_inside_torch_is_told_apart_from_none() -> None:
    says = {"soname": "", "needed": ["libcudart.so.13"], "rpath": "", "runpath": ""}
    seen = learned(TORCH | {("elf", f"{SITE}/torch/lib/libtorch_cuda.so"): says})
    assert seen.mapped == Mapped(f"{SITE}/torch/lib/libtorch_cuda.so", "static")
    assert seen.nccl_version is None


def test_without_torch_the_loaders_cache_decides() -> None:
    said = TORCH | {("packages",): {}, ("module", "torch"): NOTHING}
    known = Loader(cached=(("libnccl.so.2", "/lib/x86_64-linux-gnu/libnccl.so.2"),))
    said[("list", "/usr/lib/x86_64-linux-gnu", LIBRARIES)] = ["libnccl.so", "libnccl.so.2", "libnccl.so.2.26.2"]
    seen = learned(said, known)
    assert seen.torch is None
    assert seen.mapped == Mapped("/lib/x86_64-linux-gnu/libnccl.so.2", "/etc/ld.so.cache")
    assert [(n.version, n.source) for n in seen.nccl] == [((2, 26, 2), "/usr/lib/x86_64-linux-gnu/libnccl.so.2.26.2")]


def test_a_machine_without_nccl_is_known_to_have_none() -> None:
    seen = learned(TORCH | {("packages",): {}, ("module", "torch"): NOTHING})
    assert (seen.mapped, seen.nccl, seen.nccl_version) == (None, (), None)


def test_a_folder_that_does_not_answer_leaves_open_what_would_be_mapped() -> None:
    seen = learned(TORCH | {("list", WHEEL, LIBRARIES): TimedOut("no answer within 2 s")})
    assert isinstance(seen.mapped, Absent)
    assert seen.nccl_version == (2, 30, 7)


def test_an_older_capture_still_tells_its_wheels() -> None:
    seen = learned({("packages",): {"torch": "2.8.0", "nvidia-nccl-cu12": "2.27.3"}}, Absent("never asked"))
    assert seen.nccl_version == (2, 27, 3)
    assert isinstance(seen.mapped, Absent)
    assert isinstance(seen.torch, Absent)


def test_two_wheels_that_share_one_file_are_both_named() -> None:
    said = TORCH | {("packages",): {"nvidia-nccl-cu12": "2.27.3", "nvidia-nccl-cu13": "2.30.7"}}
    seen = learned(said)
    assert [n.source for n in seen.nccl] == [f"{WHEEL}/libnccl.so.2", "nvidia-nccl-cu12", "nvidia-nccl-cu13"]
    assert seen.nccl_version is None, "the wheel that was installed last wrote the file"


@each_row(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = '13.0'\n", "13.0"),
        ("__version__ = '2.1.0'\ncuda = '12.1'\nhip = None\n", "12.1"),
        ("cuda: Optional[str] = None\n", None),
    ],
)
def test_the_cuda_that_torch_was_built_for_is_read(text: str, cuda: str | None) -> None:
    assert torch_cuda(text) == cuda


@each_row("cuda", ["9" * 5000, "x", "", "1234.5", "12.4" + "0" * 100])
def test_a_cuda_that_is_no_version_is_refused(cuda: str) -> None:
    with pytest.raises(ParseError, match="no cuda"):
        torch_cuda(f"cuda: Optional[str] = '{cuda}'\n")


def test_origin_is_the_folder_of_the_library_itself() -> None:
    text = '{"needed": [], "rpath": "$ORIGIN/../../nvidia/nccl/lib:${ORIGIN}:/abs//x", "runpath": ""}'
    assert elf(text, "/v/torch/lib/a.so").rpath == ("/v/nvidia/nccl/lib", "/v/torch/lib", "/abs//x")


def test_the_loaders_variables_are_lists_without_their_empty_entries() -> None:
    environment = Collector(
        run=lambda host: loader_module.Environment({"LD_LIBRARY_PATH": "/a::/b;/c", "LD_PRELOAD": "/x.so:/y.so /z.so"}),
        produces=loader_module.Environment,
    )
    found = [["libnccl.so.2", "/opt/lib/libnccl.so.2"], ["libcudnn.so.9", "/cudnn/libcudnn.so.9"]]
    said: dict[Question, Any] = {("ld_cache", *CACHED): found}
    seen = collect(answers(said), [loader_module.loader, environment])[Loader]
    assert seen.library_path == ("/a", "/b", "/c")
    assert seen.preload == ("/x.so", "/y.so", "/z.so")
    assert seen.folders() == ("/a", "/b", "/c", "/opt/lib", *DEFAULT_FOLDERS)


def test_the_default_folders_are_looked_at_last() -> None:
    said: dict[Question, Any] = {("list", folder, LIBRARIES): NOTHING for folder in DEFAULT_FOLDERS}
    said[("list", DEFAULT_FOLDERS[0], LIBRARIES)] = ["libnccl.so.2"]
    found = choose(answers(said), "libnccl.so.2", Loader(), Elf((), (), ()))
    assert found == (f"{DEFAULT_FOLDERS[0]}/libnccl.so.2", "the loader's default folders")


@each_row(
    ("text", "version"),
    [
        ("2.29.7", (2, 29, 7)),
        ("2.29.7+cuda13.0", (2, 29, 7)),
        ("v2.30.7-1", (2, 30, 7)),
        (" 2.30\n", (2, 30, 0)),
        (22907, (2, 29, 7)),
        ("22907", (2, 29, 7)),
        (20906, (2, 9, 6)),
        (2804, (2, 8, 4)),
        (2708, (2, 7, 8)),
    ],
)
def test_every_spelling_of_a_version_is_read(text: str | int, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@each_row("text", ["", "2", "two", "2.x", "0", 7, "123456789", "2.29.7.1"])
def test_what_is_no_version_is_refused(text: str | int) -> None:
    with pytest.raises(ParseError, match="NCCL version"):
        parse_version(text)


@each_row(
    ("version", "first", "reached"),
    [
        ((2, 28, 3), (2, 28, 3), True),
        ((2, 28, 3), (2, 28), True),
        ((2, 28, 3), (2, 28, 7), False),
        ((2, 9, 6), (2, 28), False),
        (None, (99, 0), True),
    ],
)
def test_a_version_has_what_came_before_it(
    version: tuple[int, int, int] | None, first: tuple[int, ...], reached: bool
) -> None:
    assert reaches(version, first) is reached
