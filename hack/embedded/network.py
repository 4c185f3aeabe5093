"""Sets up a cluster's network: a bridge on the host, and a namespace and a veth pair for each node.

The host gets a route to every node's pods, because the API server runs on the host
and connects directly to webhooks and aggregated APIs in pods.
"""

from __future__ import annotations

import json
from pathlib import Path

from .commands import run, succeeds
from .layout import Layout, NodeLayout

_INTERFACE = "eth0"


def host_networks() -> list[str]:
    """Return the destinations of the host's IPv4 routes, except for the default route."""
    routes = json.loads(run("ip", "-json", "-4", "route", "show") or "[]")
    return [route["dst"] for route in routes if route["dst"] != "default"]


def ensure_bridge(layout: Layout) -> None:
    """Create the bridge that connects the host and the nodes, and its firewall rules."""
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
    """Create the node's network namespace, connect it to the bridge, and set up its routes."""
    if not _namespace_works(node):
        # After a reboot or a crash, the name may exist without a namespace.
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
    """Set the node's network link up or down."""
    run("ip", "link", "set", node.interface, "up" if connected else "down")


def remove(layout: Layout) -> None:
    """Remove the cluster's network. Parts that do not exist are no error."""
    for rule in firewall_rules(layout):
        while succeeds("iptables", "-w", "-t", rule[0], "-C", *rule[1:]):
            run("iptables", "-w", "-t", rule[0], "-D", *rule[1:])
    for node in layout.nodes:
        succeeds("ip", "link", "delete", node.interface)
    remove_namespaces(layout.name)
    succeeds("ip", "link", "delete", layout.bridge)


def remove_namespaces(cluster: str) -> None:
    """Remove every network namespace that was created for a cluster of this name."""
    folder = Path("/run/netns")
    if folder.is_dir():
        for path in folder.glob(f"drydock.{cluster}.node*"):
            run("ip", "netns", "delete", path.name)


def firewall_rules(layout: Layout) -> list[tuple[str, ...]]:
    """Return the table, chain and arguments of rules that accept the cluster's traffic and masquerade what leaves it."""
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
