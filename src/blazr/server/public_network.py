"""HTTP to public addresses alone, for what clients name by URL.

What a client names must not let it reach what only this machine can reach. So a name is resolved
here, addresses of private networks are left out, and the connection is made to one that is left: no
second look-up leads elsewhere. Proxies that the environment names are not used, because they would
resolve names themselves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv6Address, ip_address, ip_network

import httpcore2
import httpx2
from typing_extensions import override

_UNICAST = ip_network("2000::/3")
# What Python's older versions, or all, take for public.
_SPECIAL = [
    ip_network(each)
    for each in (
        "192.0.0.0/24",  # for protocols; some clouds tell their machines about themselves there
        "192.88.99.0/24",  # 6to4's relays
        "168.63.129.16",  # as Azure does here
        "2001::/23",  # these two hold IPv4 addresses: Teredo, 6to4
        "2002::/16",
    )
]

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet's, of a single host."""
    try:
        found = ip_address(address)
    except ValueError:  # with the name of a network card, for one
        return False
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found not in _UNICAST:
            return False
    is_special = any(found in each for each in _SPECIAL)
    return found.is_global and not found.is_multicast and not is_special


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system finds them, on a thread of its own."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class PublicNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to public addresses alone.

    Args:
        resolve: From a host and a port to IP addresses.
        network: What connects to an address.
    """

    def __init__(self, resolve: Resolve, network: httpcore2.AsyncNetworkBackend) -> None:
        self._resolve = resolve
        self._network = network

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError("its host is not known") from None
        addresses = [each for each in dict.fromkeys(found) if is_public(each)]
        failure: Exception = httpcore2.ConnectError("its host is not at a public address")
        for address in addresses:
            try:
                stream = await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                failure = httpcore2.ConnectError("its host does not answer")
                continue
            if not _leads_away(stream):
                await stream.aclose()
                raise httpcore2.ConnectError("its host is not at a public address")
            return stream
        raise failure


def _leads_away(stream: httpcore2.AsyncNetworkStream) -> bool:
    """Whether a connection's other end is public, and is not this machine by its public address."""
    own, other = (stream.get_extra_info(name) for name in ("client_addr", "server_addr"))
    return is_public(other[0]) and own[0] != other[0]


class PublicTransport(httpx2.AsyncHTTPTransport):
    """Sends the requests of an `httpx2.AsyncClient` to public addresses alone.

    Args:
        resolve: From a host and a port to IP addresses.
        network: What connects to an address.
        most: Most connections at once.
        most_idle: Of these, those that are kept when nothing is sent.
    """

    def __init__(
        self,
        resolve: Resolve = resolve,
        network: httpcore2.AsyncNetworkBackend | None = None,
        *,
        most: int = 10,
        most_idle: int = 1,
    ) -> None:
        context = httpx2.create_ssl_context(trust_env=False)
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=most,
            max_keepalive_connections=most_idle,
            network_backend=PublicNetwork(resolve, network or httpcore2.AnyIOBackend()),
        )
