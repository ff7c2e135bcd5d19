"""The network of a cluster: a switch in its own network namespace, and a cable to every machine."""

from __future__ import annotations

import ipaddress
import json
import subprocess

from machine import OUTSIDE, BoxError, Machine


class NetworkError(BoxError):
    """An interface could not be made; the message has the error of `ip`."""


def free_subnet(network: str, switch: Machine) -> ipaddress.IPv4Network:
    """Connect the switch to this computer, in the first unused /24 of `network`. Returns that subnet."""
    ip(switch, "link add bridge type bridge", "link set bridge up")
    taken = _routed_networks()
    for subnet in ipaddress.ip_network(network).subnets(new_prefix=24):
        if any(subnet.overlaps(other) for other in taken):
            continue
        cable = f"link add {uplink(subnet)} type veth peer name login netns {switch.pid}"
        # The interface's name is a lock, in case two clusters start at once.
        if subprocess.run(["ip", *cable.split()], capture_output=True).returncode == 0:
            ip(OUTSIDE, f"address add {subnet[1]}/24 dev {uplink(subnet)}", f"link set {uplink(subnet)} up")
            ip(switch, "link set login master bridge up")
            return subnet
    raise NetworkError(f"no free /24 in {network}: stop another cluster, or give this one another network")


def connect(node: Machine, interface: str, address: str, switch: Machine) -> None:
    """Connect the switch to a node, which has no other connection and no route to elsewhere."""
    ip(OUTSIDE, f"link add {node.name} netns {switch.pid} type veth peer name {interface} netns {node.pid}")
    ip(switch, f"link set {node.name} master bridge up")
    ip(node, "link set lo up", f"address add {address}/24 dev {interface}", f"link set {interface} up")


def disconnect(node: Machine, switch: Machine) -> None:
    """Pull the cable. When a node dies, the kernel does so too, but later."""
    command = switch.enter(["ip", "link", "delete", node.name], cwd="/")
    subprocess.run(command, capture_output=True)  # it may already be gone


def remove(subnet: ipaddress.IPv4Network) -> None:
    """Remove the cluster's interface from this computer."""
    subprocess.run(["ip", "link", "delete", uplink(subnet)], capture_output=True)


def uplink(subnet: ipaddress.IPv4Network) -> str:
    """Name of this computer's (and so the login node's) interface on the cluster's network."""
    return f"box{int(subnet.network_address):08x}"


def ip(machine: Machine, *lines: str) -> None:
    command = machine.enter(["ip", "-batch", "-"], cwd="/")
    result = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True)
    if result.returncode:
        raise NetworkError(f"on {machine.name}, ip {'; '.join(lines)}: {result.stderr.strip()}")


def _routed_networks() -> list[ipaddress.IPv4Network]:
    routes = subprocess.run(["ip", "-4", "-json", "route"], capture_output=True, text=True, check=True).stdout
    destinations = [route["dst"] for route in json.loads(routes or "[]")]
    return [ipaddress.ip_network(destination) for destination in destinations if destination != "default"]
