"""What a plugin's file says of itself, asked only of those that NCCL opens."""

from collections.abc import Mapping
from typing import Any

from conftest import answers

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.loader import LIBRARIES, Loader
from ncclprobe.facts.plugins import Plugin, plugins
from ncclprobe.host import Question
from ncclprobe.model.errors import Failed
from ncclprobe.nccl.networks import NetworkLibrary
from tests.each_row import each_row

FOLDER = "/opt/amazon/ofi-nccl/lib"
LOADER = Loader(library_path=(FOLDER,))
OFI = {"ncclNetPlugin_v8": "AWS Libfabric", "ncclNetPlugin_v10": "Libfabric", "ncclTunerPlugin_v3": "nccl_ofi_tuner",
       "ncclGetVersion": "no plugin's"}  # fmt: skip


def found(files: tuple[str, ...], said: Mapping[Question, Any], **variables: str) -> tuple[Plugin, ...]:
    listed: dict[Question, Any] = {("list", FOLDER, LIBRARIES): list(files)}
    return plugins.run(answers({**listed, **said}), LOADER, Environment(dict(variables))).all


def objects(name: str) -> Question:
    return ("elf_objects", f"{FOLDER}/{name}", "nccl")


def texts(name: str, mark: str) -> Question:
    return ("elf_texts", f"{FOLDER}/{name}", mark)


def test_a_plugin_is_called_as_its_file_calls_it_the_newest_interface_first() -> None:
    said = {
        objects("libnccl-net.so"): OFI,
        texts("libnccl-net.so", "aws-ofi-nccl "): ["aws-ofi-nccl is great", "aws-ofi-nccl 1.14.0-aws"],
    }
    (net,) = found(("libnccl-net.so",), said)
    assert (net.kind, net.flavour, net.names) == ("net", "ofi", ("Libfabric", "AWS Libfabric"))
    assert (net.interfaces, net.version) == ((10, 8), "1.14.0-aws")
    asked = NetworkLibrary("libnccl-net.so", net)
    assert [asked.may_be(name) for name in ("libfabric", "AWS Libfabric", "ofi", "IB")] == [True, True, False, False]


def test_tuner_and_env_plugin_are_told_too_and_what_nccl_does_not_open_is_not_read() -> None:
    files = ("libnccl-tuner.so", "libnccl-env-site.so", "libnccl-net-other.so")
    said = {
        objects("libnccl-tuner.so"): {"ncclTunerPlugin_v4": "acme"},
        objects("libnccl-env-site.so"): {"ncclEnvPlugin_v1": "site"},
        objects("libnccl-net-other.so"): {"ncclNetPlugin_v8": "never asked"},
    }
    by_kind = {each.kind: each for each in found(files, said, NCCL_ENV_PLUGIN="site")}
    assert (by_kind["tuner"].names, by_kind["tuner"].interfaces) == (("acme",), (4,))
    assert by_kind["env"].names == ("site",)
    assert (by_kind["net"].names, by_kind["net"].interfaces) == ((), ())


@each_row("answer", [{}, [], {"ncclNetPlugin_v": "x", "ncclNet_v99999": "y"}, Failed("not a whole file")])
def test_a_file_that_does_not_tell_leaves_the_plugin_as_its_path_shows_it(answer: Any) -> None:
    (net,) = found(("libnccl-net.so",), {objects("libnccl-net.so"): answer})
    assert net == Plugin(f"{FOLDER}/libnccl-net.so", "net", "ofi", reachable=True)
