"""Checks whether the parts of a cluster respond to HTTP requests."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path

_TIMEOUT = 3.0


def responses(url: str, ca: Path | None = None, client: Path | None = None) -> bool:
    """Return whether a GET of the URL succeeds. Proxies from the environment are not used."""
    return get(url, ca, client) is not None


def get(url: str, ca: Path | None = None, client: Path | None = None) -> bytes | None:
    """Return the response body of a GET, or None if the request fails."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https:"):
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
        if client:
            context.load_cert_chain(client)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=_TIMEOUT) as response:
            return response.read()
    except (OSError, urllib.error.URLError, ssl.SSLError):
        return None
