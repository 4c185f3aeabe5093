"""The wires: a bridge on the host, a namespace and a veth pair for each node.

The host gets a route to every node's pods, because the API server runs on it and
dials webhooks and aggregated APIs in pods directly.
"""

from __future__ import annotations

import json
from pathlib import Path

from .commands import run, succeeds
from .layout import Layout, NodeLayout

_INTERFACE = "eth0"


def host_networks() -> list[str]:
    """The destinations of the host's IPv4 routes."""
    routes = json.loads(run("ip", "-json", "-4", "route", "show") or "[]")
    return [route["dst"] for route in routes if route["dst"] != "default"]


def ensure_bridge(layout: Layout) -> None:
    """The network that joins the host and the nodes."""
    bridge = layout.bridge
    if not _link_exists(bridge):
        run("ip", "link", "add", bridge, "type", "bridge")
    prefix = layout.node_range.partition("/")[2]
    run("ip", "address", "replace", f"{layout.address}/{prefix}", "dev", bridge)
    run("ip", "link", "set", bridge, "up")
    for rule in firewall_rules(layout):
        if not succeeds("iptables", "-w", "-t", rule[0], "-C", *rule[1:]):
            run("iptables", "-w", "-t", rule[0], "-I", *rule[1:])


def ensure_node(layout: Layout, node: NodeLayout) -> None:
    """The node's network namespace, wired and routed."""
    if not _namespace_works(node):
        # A reboot or a crash can leave the name without a namespace behind it.
        succeeds("ip", "netns", "delete", node.netns)
        succeeds("ip", "link", "delete", node.interface)
        run("ip", "netns", "add", node.netns)
    inside = ("ip", "-netns", node.netns)
    if not _link_exists(node.interface) or not succeeds(*inside, "link", "show", _INTERFACE):
        succeeds("ip", "link", "delete", node.interface)
        peer = ("peer", "name", _INTERFACE, "netns", node.netns)
        run("ip", "link", "add", node.interface, "type", "veth", *peer)
    run("ip", "link", "set", node.interface, "master", layout.bridge, "up")
    prefix = layout.node_range.partition("/")[2]
    run(*inside, "link", "set", "lo", "up")
    run(*inside, "address", "replace", f"{node.address}/{prefix}", "dev", _INTERFACE)
    run(*inside, "link", "set", _INTERFACE, "up")
    run(*inside, "route", "replace", "default", "via", layout.address)
    for other in layout.nodes:
        if other.number != node.number:
            run(*inside, "route", "replace", other.pod_range, "via", other.address)
    run("ip", "route", "replace", node.pod_range, "via", node.address, "dev", layout.bridge)


def set_connected(node: NodeLayout, connected: bool) -> None:
    """Plug or pull the node's cable."""
    run("ip", "link", "set", node.interface, "up" if connected else "down")


def remove(layout: Layout) -> None:
    """Take all of it away; what is not there is not missed."""
    for rule in firewall_rules(layout):
        while succeeds("iptables", "-w", "-t", rule[0], "-C", *rule[1:]):
            run("iptables", "-w", "-t", rule[0], "-D", *rule[1:])
    for node in layout.nodes:
        succeeds("ip", "link", "delete", node.interface)
    remove_namespaces(layout.name)
    succeeds("ip", "link", "delete", layout.bridge)


def remove_namespaces(cluster: str) -> None:
    """Every network namespace that was made for a cluster of this name."""
    folder = Path("/run/netns")
    if folder.is_dir():
        for path in folder.glob(f"drydock.{cluster}.node*"):
            run("ip", "netns", "delete", path.name)


def firewall_rules(layout: Layout) -> list[tuple[str, ...]]:
    """Table, chain and rule: let the cluster's traffic through, and out under the host's name."""
    mark = ("-m", "comment", "--comment", f"drydock-embedded {layout.name}")
    rules: list[tuple[str, ...]] = [
        ("filter", "FORWARD", "-i", layout.bridge, *mark, "-j", "ACCEPT"),
        ("filter", "FORWARD", "-o", layout.bridge, *mark, "-j", "ACCEPT"),
    ]
    for source in (layout.node_range, layout.pod_range):
        outwards = ("-s", source, "!", "-o", layout.bridge)
        rules.append(("nat", "POSTROUTING", *outwards, *mark, "-j", "MASQUERADE"))
    return rules


def _link_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def _namespace_works(node: NodeLayout) -> bool:
    return node.network_namespace.exists() and succeeds("ip", "-netns", node.netns, "link", "show")
