"""Client addresses in the form that ACLs use.

Source: `java.net.InetAddress.getHostAddress`. Kafka's authorizer compares the result of this method
with the host of an ACL.
"""

from __future__ import annotations

import ipaddress


def host_address(address: str | bytes) -> str:
    """Return an IP address (text, or bytes in network byte order) as Java prints it.

    An IPv4-mapped IPv6 address becomes an IPv4 address. IPv6 addresses are not abbreviated. Text
    that is not an IP address is returned unchanged. Bytes that are not an IP address become an
    empty string.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address if isinstance(address, str) else ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    groups = [f"{int(group, 16):x}" for group in found.packed.hex(":", 2).split(":")]
    return ":".join(groups) + (f"%{found.scope_id}" if found.scope_id else "")
