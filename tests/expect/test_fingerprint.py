"""Fingerprints: what changed is said in words, and what only one side knows is no change."""

from ncclprobe.expect.baselines import digest_of, same_machine, unknown_parts
from ncclprobe.model.measurement import Fingerprint, changes

OLD = Fingerprint({"gpu": "8 x NVIDIA H100", "cpu": "96 x Xeon"}, "abc", {"torch": "2.7", "nccl": "2.26.2"})


def test_each_part_that_changed_is_named_with_both_values() -> None:
    new = Fingerprint({"gpu": "7 x NVIDIA H100", "cpu": "96 x Xeon"}, "def", {"torch": "2.8", "nccl": "2.26.2"})
    assert changes(OLD, new) == ("gpu: 8 x NVIDIA H100 -> 7 x NVIDIA H100", "topology: abc -> def", "torch: 2.7 -> 2.8")
    assert not same_machine(OLD, new)


def test_other_software_is_the_same_machine() -> None:
    assert same_machine(OLD, Fingerprint(OLD.machine, "abc", {"torch": "2.9"}))


def test_what_one_side_does_not_know_is_no_change() -> None:
    new = Fingerprint({"gpu": "8 x NVIDIA H100"})
    assert changes(OLD, new) == changes(OLD, None) == ()
    assert unknown_parts(OLD, new) == ("cpu", "topology", "torch", "nccl")
    assert same_machine(OLD, new)


def test_two_that_know_nothing_of_each_other_are_not_the_same() -> None:
    assert not same_machine(Fingerprint(), Fingerprint())
    assert not same_machine(OLD, None)
    assert not same_machine(OLD, Fingerprint({"product": "DGX H100"}))


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 1, "b": 3})
