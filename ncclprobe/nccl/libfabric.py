"""Which ports NCCL reaches through AWS's plugin and libfabric: those of EFA, of which its own transport knows nothing.

Source: aws-ofi-nccl, README.md and src/nccl_ofi_net.cpp (its name as a network, the provider it asks for). The kernel
shows EFA's link layer as ``Unknown`` (drivers/infiniband/core/sysfs.c, link_layer_show), ibv_devinfo as Unspecified.
"""

from ncclprobe.facts.infiniband import Fabric, Port
from ncclprobe.facts.libfabric import FOLDERS, Libfabric
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.plugins import Plugins
from ncclprobe.model.nccl_selection import Part
from ncclprobe.model.rails import RailPort
from ncclprobe.nccl.hcas import LAYERS

_NETWORK = "libfabric"
"""In the plugin's name for NCCL_NET, "AWS Libfabric" (and "Libfabric" in newer ones)."""


def efa_ports(fabric: Fabric) -> tuple[Port, ...]:
    """Return the ports of a link layer that NCCL's own transport leaves to a plugin, down ones as well."""
    return tuple(port for port in fabric.ports if isinstance(port.link_layer, str) and port.link_layer not in LAYERS)


def ofi_plugin_named(settings: Settings) -> bool:
    """Return whether the network plugin is named by its path, so that the loader's folders do not count."""
    return any(path.startswith("/") for path in (settings.get("NCCL_NET_PLUGIN") or "").split(","))


def other_provider(settings: Settings) -> bool:
    """Return whether libfabric is told to use other providers than EFA's."""
    provider = settings.get("FI_PROVIDER")
    return bool(provider) and "efa" not in (provider or "").split(",")


def efa_rails(fabric: Fabric, settings: Settings, plugins: Plugins, libfabric: Libfabric) -> Part[RailPort]:
    """Return EFA's active ports, where NCCL would use them through the plugin and fi_pingpong is there to try them."""
    active = [port for port in efa_ports(fabric) if port.state == "ACTIVE"]
    if why := _unused(settings, plugins) or ("" if active else "none is active"):
        return Part((), f"no active port of InfiniBand or Ethernet, and its EFA devices NCCL does not use: {why}")
    if not libfabric.ping_pong:
        names, folders = ", ".join(port.device for port in active), ", ".join(FOLDERS)
        return Part((), f"EFA ({names}) is not tested: libfabric's fi_pingpong, which it takes, is not in {folders}")
    rails = (
        RailPort(device=port.device, port=port.number, transport="efa", program=libfabric.ping_pong) for port in active
    )
    return Part(tuple(rails), f"EFA, through NCCL's OFI plugin, tried by {libfabric.ping_pong}")


def _unused(settings: Settings, plugins: Plugins) -> str:
    """Return why NCCL does not use EFA; empty: it does."""
    network = settings.get("NCCL_NET")
    against = {
        "NCCL_NET_PLUGIN": settings.get("NCCL_NET_PLUGIN") == "none",
        "NCCL_NET": bool(network) and _NETWORK not in (network or "").lower(),
        "FI_PROVIDER": other_provider(settings),
    }
    for name, is_against in against.items():
        if is_against:
            return f"{name}={settings.get(name)}"
    found = any(plugin.kind == "net" and plugin.flavour == "ofi" and plugin.reachable for plugin in plugins.all)
    return "" if found or ofi_plugin_named(settings) else "the loader finds no OFI plugin"
