"""Identifiers by their form: what is one is replaced in its own form, what only looks like one stays."""

import re

from ncclprobe.redact.redactor import Redactor
from tests.each_row import each_row
from tests.fake_site import GUID, KEY, MAC, UUID


@each_row(
    "text",
    [
        "10.20.0.7",
        "tcp://10.20.0.7:29500",
        "via=10.20.0.7.",
        "[fd12:3456::7]:29500",
        "fd12:3456::7: refused",
        "fd12:3456::7/64",
        "FD12:3456::7%eth0",
        "::ffff:10.20.0.7",
        "::FFFF:0a14:0007",
        MAC,
        MAC.upper(),
        GUID,
        "Node GUID: 0x506b4b0300c4aaaa",
        "50:6b:4b:03:00:c4:aa:aa",
        "80:00:02:08:fe:80:00:00:00:00:00:00:50:6b:4b:03:00:c4:aa:aa",
        f"GPU-{UUID}",
        "GPU-8932f937",
        f"{UUID}_0 {UUID}-0",
        "kubepods-burstable-pod8932f937_d72c_4106_c12f_20bd9faed9f6.slice",
        "docker-" + "0123456789abcdef" * 4,
        "Serial Number : 1650924001234",
        "/home/bob/x",
        "/Users/bob/x",
        f"id_{'0123456789abcdef' * 2}_x",
        f"id_{UUID}",
        "id_10.20.0.7",
        "id_GPU-8932f937",
        "ip-10-20-0-7.ec2.internal",
    ],
)
def test_what_identifies_by_its_form_is_replaced_by_what_has_the_same_form(text: str) -> None:
    redacted = Redactor(KEY).text(text)
    assert redacted != text
    assert (
        re.sub(r"[^\W_]+", "", redacted).replace("-", "") == re.sub(r"[^\W_]+", "", text).replace("-", "")
        or ":" in text
    )
    assert redacted != Redactor("another").text(text)


@each_row(
    "text",
    [
        "0000:43:00.0 00000000:07:00.0 mlx5_0:1 eth0 bond0.100 NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen",
        "127.0.0.1 ::1 0.0.0.0 :: 169.254.169.254 224.0.0.1 ff02::1 255.255.255.0 ffff:ffff:: fe80::/64",
        "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 0000:0000:0000:0000",
        "00000000-0000-0000-0000-000000000000",
        "570.86.15 2.27.3+cuda12.9 6.8.0-45-generic libcudnn.so.9.1.0.70 999.1.2.3",
        "0x000000c000000000 0x000000dfffffffff 0x000000000014220c",
        "12:34:56 2026-11-21T02:17:08+00:00 torch::cuda /opt/a::/b Serial: N/A",
        "localhost ubuntu nvidia-smi /home/ubuntu/x gpu[0-7] ipc:[4026531839]",
    ],
)
def test_what_does_not_identify_stays(text: str) -> None:
    assert Redactor(KEY).text(text) == text
