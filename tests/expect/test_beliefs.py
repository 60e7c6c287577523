"""Common beliefs, answered: each with numbers and sources, and in agreement with the machines' own numbers."""

from ncclprobe.expect.tables import faq, machines


def test_every_belief_has_its_answer_numbers_and_sources() -> None:
    rows = faq.table()
    assert len({belief.id for belief in rows}) == len(rows) >= 8
    for belief in rows:
        assert belief.claim.endswith(".")
        assert belief.truth.endswith(".")
        assert belief.numbers
        assert all(belief.sources)
        assert all(number.value > 0 for number in belief.numbers)


def test_beliefs_and_machines_say_the_same() -> None:
    said = {number.of: number.value for belief in faq.table() for number in belief.numbers}
    mega = machines.find("a3-megagpu-8g")
    best = {row.op: row.busbw_GBps for row in mega.published if row.nodes == 2}
    assert best == {"all_gather": said["all_gather, 2 VMs, 8 GiB"], "all_reduce": said["all_reduce, 2 VMs, 8 GiB"]}
    assert mega.links.network_total_gbps == 1800
    assert machines.find("a3-highgpu-8g").links.network_total_gbps == said["with the host's NIC"] - 800
