"""``ethtool`` output of an interface: its speed, its link, and packets dropped for want of buffers."""

import json
import re
from collections.abc import Sequence

from ncclprobe.host import DROPPED, Question
from ncclprobe.model.errors import HostError

_NET = "/sys/class/net"
_HEAD = re.compile(r"Settings for ([\w.@-]{1,32}):")
_SPEED = re.compile(r"Speed: (\d{1,7})Mb/s")
_ASKED = re.compile(r"ethtool (?:-S|--statistics) ([\w.@-]{1,32})")
_COUNTER = re.compile(r"\s{0,16}([a-z]\w{3,60}): (\d{1,19})")
_LOST = re.compile(r"rx_(?:prio\d_)?discards(?:_phy)?|rx_prio\d_buf_discard|rx_buffer_(?:passed_thres|full)_phy")
"""mlx5's counters of packets that arrived and had no room."""


def ethtool(lines: Sequence[str]) -> dict[Question, str | HostError]:
    """Read ``ethtool`` and ``ethtool -S``.

    >>> json.loads(ethtool(["$ ethtool -S eth0", "     rx_prio3_discards: 7", "     rx_packets: 9"])[DROPPED])
    {'eth0': {'rx_prio3_discards': 7}}
    """
    found: dict[Question, str | HostError] = {}
    name = asked = ""
    lost: dict[str, dict[str, int]] = {}
    for line in map(str.strip, lines):
        if head := _HEAD.match(line):
            name = head[1]
        elif name and (speed := _SPEED.match(line)):
            found["read", f"{_NET}/{name}/speed"] = speed[1]
        elif given := _ASKED.search(line):
            asked = given[1]
        elif (counter := _COUNTER.fullmatch(line)) and counter[1].startswith(("rx_", "tx_")):
            own = lost.setdefault(asked or "an interface", {})
            own |= {counter[1]: int(counter[2])} if _LOST.fullmatch(counter[1]) else {}
    return found | ({DROPPED: json.dumps(lost)} if lost else {})
