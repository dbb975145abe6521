"""Peer address: what counts as one address of a peer."""

import ipaddress

_NETWORK_BITS = 64
"""Bits of the network of an IPv6 host, any address of which it can take."""


def address_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, also one that is mapped into IPv6, or the
    /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _NETWORK_BITS), strict=False))
