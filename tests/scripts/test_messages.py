"""What scripts/messages.py takes out of a small source tree, and how it shows a release's difference."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from messages import differences, extracted, table

from ncclprobe.logs.messages import MessageRow

C = r"""
#define CHECK(x) do { if (x) { WARN("Frobnication of %s failed", #x); return ncclSystemError; } } while (0)
/* WARN("never said by anybody"); */
int f() {
  // WARN("nor is this one");
  if (a) {
    WARN("NET/IB : connect to peer %d (rank %d) at %s failed : %s (0x%" PRIx64 ") 100%%", comm->peer, comm->rank,
         ncclSocketToString(&addr, line, f(1, 2)), strerror(errno), id);
    return ncclRemoteError;
  }
  if (b) WARN("Value %*d of \"%s\" is "
              "ignored\n second line", width, value, name);
  INFO(NCCL_NET, "NET/IB : Using frobnicated device %s", devName);
  INFO(NCCL_NET, "nobody reads this sentence");
  WARN(format, a);
  WARN("%s : %d", a, b);
}
"""
PYTHON = """
def f(rank, x):
    logger.warning("Worker of rank %s is slow", rank)
    if x:
        raise DistStoreError(f"waited for rank {rank} for {x} s" + " in vain")
    raise ValueError
    logger.info("started all the workers")
"""


def found(tmp_path: Path) -> dict[tuple[str, str], tuple[str, str]]:
    (tmp_path / "src" / "net").mkdir(parents=True)
    (tmp_path / "src" / "net" / "x.cc").write_text(C)
    (tmp_path / "distributed" / "tests").mkdir(parents=True)
    (tmp_path / "distributed" / "run.py").write_text(PYTHON)
    (tmp_path / "distributed" / "tests" / "run.py").write_text(PYTHON.replace("Worker", "Tester"))
    signs = ["Using frobnicated"]
    return {**extracted("nccl", tmp_path, signs), **extracted("torch", tmp_path, signs)}


def test_texts_have_typed_holes_and_say_what_follows(tmp_path: Path) -> None:
    assert found(tmp_path) == {
        ("WARN", "Frobnication of {text} failed"): ("ncclSystemError", "net/x.cc"),
        ("WARN", "NET/IB : connect to peer {peer} (rank {rank}) at {address} failed : {error} (0x{number}) 100%"): (
            "ncclRemoteError",
            "net/x.cc",
        ),
        ("WARN", 'Value {number} of "{text}" is ignored'): ("goes on", "net/x.cc"),
        ("INFO", "NET/IB : Using frobnicated device {device}"): ("goes on", "net/x.cc"),
        ("WARN", "Worker of rank {rank} is slow"): ("goes on", "distributed/run.py"),
        ("RAISED", "waited for rank {rank} for {text} s in vain"): ("DistStoreError", "distributed/run.py"),
    }


CPP = r"""
void f() {
  GLOO_ENFORCE_NE(rv, -1, "bind to ", attr.name, ": ", strerror(errno));
  GLOO_ENFORCE(ex_ == nullptr);
  signalException(GLOO_ERROR_MSG("Frobnication stopped by ", peer_.str(), ". Look there."));
  TORCH_CHECK(key != "none", "Expected as many ", things, " as rank ", getRank(), " has \"things\"");
  TORCH_CHECK_WITH(DistStoreError, false, fmt::format("waited {}ms for {}", timeout, key));
  LOG(ERROR) << logPrefix() << "Frobnicated; too late";
  const std::string msg = c10::str("Module was built ", n, " times");
  C10D_INFO("nobody reads this sentence");
}
"""


def test_texts_that_cpp_puts_together_have_their_values_as_holes(tmp_path: Path) -> None:
    (tmp_path / "gloo").mkdir()
    (tmp_path / "gloo" / "x.cc").write_text(CPP)
    assert {(level, text, then) for (level, text), (then, _) in extracted("gloo", tmp_path, []).items()} == {
        ("RAISED", "[enforce fail at {text}. bind to {text}: {error}", "RuntimeError"),
        ("RAISED", "Frobnication stopped by {address}. Look there.", "RuntimeError"),
        ("RAISED", 'Expected as many {text} as rank {rank} has "things"', "RuntimeError"),
        ("RAISED", "waited {text}ms for {text}", "DistStoreError"),
        ("ERROR", "{text}Frobnicated; too late", "goes on"),
        ("RAISED", "Module was built {text} times", "RuntimeError"),
    }


def test_a_text_that_means_what_its_family_means_has_no_row() -> None:
    family = MessageRow("OFI", "ofi", "", "FAMILY", "", "ofi", "symptom", "NET/OFI {text}")
    known = [family, MessageRow("Frob", "ofi", "1.1", "WARN", "goes on", "a.cc", "harmless", "NET/OFI Frobnicated")]
    made = table({"ofi": {"1.2.3": {**of("NET/OFI Frobnicated"), **of("NET/OFI Other words")}}}, known)
    assert [(row.releases, row.meaning, row.text) for row in made] == [("1.2", "harmless", "NET/OFI Frobnicated")]


def of(text: str, place: str = "a.cc") -> dict[tuple[str, str], tuple[str, str]]:
    return {("WARN", text): ("goes on", place)}


def test_releases_are_spans_and_a_judged_text_keeps_its_meaning() -> None:
    known = [MessageRow("Frobnicated", "nccl", "2.1", "WARN", "goes on", "a.cc", "harmless", "Frobnicated the device")]
    releases = {
        "2.1.3": of("Frobnicated the device"),
        "2.2.1": of("Frobnicated the device"),
        "2.3.0": of("Other words"),
    }
    frobnicated, other = table({"nccl": releases}, known)
    assert (frobnicated.releases, frobnicated.meaning, frobnicated.word) == ("2.1-2.2", "harmless", "Frobnicated")
    assert (other.releases, other.meaning) == ("2.3", "?")
    assert list(differences(known, [frobnicated, other])) == [
        "~ nccl 2.1 -> 2.1-2.2 WARN goes on -> goes on Frobnicated the device",
        "+ nccl 2.3 WARN a.cc [?] Other words",
    ]
    assert list(differences([other], [])) == ["- nccl 2.3 WARN [?] Other words"]
