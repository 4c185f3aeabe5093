"""Pushes images to a registry through the OCI distribution API."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from urllib.parse import quote, urljoin, urlsplit

from oci.layout import MANIFEST, Image
from oci.progress import Failure

SECONDS = 120


class Registry:
    """A client of a registry that serves plain HTTP, as an embedded cluster's registry does."""

    def __init__(self, address: str) -> None:
        self.base = address.rstrip("/") if "://" in address else f"http://{address.rstrip('/')}"
        parts = urlsplit(self.base)
        if parts.scheme != "http" or not parts.hostname:
            raise Failure(f"registry {address}: the address must be HOST:PORT or http://HOST:PORT")
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=SECONDS)
        self.sent = 0
        self._holder: dict[str, str] = {}

    def push(self, image: Image, reference: str) -> bool:
        """Push the image under this name; return False if the registry already serves it under this name."""
        repository, tag = split(reference)
        manifest, config = image.manifest(), image.config()
        if self._serves(repository, tag, image.digest):
            for layer in image.layers:
                self._holder.setdefault(layer.digest, repository)
            return False
        for layer in {layer.digest: layer for layer in image.layers}.values():
            self._blob(repository, layer.digest, layer.size, layer.blob)
        self._blob(repository, "sha256:" + hashlib.sha256(config).hexdigest(), len(config), config)
        status, _, reply = self._request(
            "PUT", f"/v2/{repository}/manifests/{quote(tag)}", manifest, {"Content-Type": MANIFEST}
        )
        if status != 201:
            raise self._refused(f"the manifest of {reference}", status, reply)
        return True

    def _serves(self, repository: str, tag: str, digest: str) -> bool:
        status, headers, _ = self._request(
            "HEAD", f"/v2/{repository}/manifests/{quote(tag)}", None, {"Accept": MANIFEST}
        )
        return status == 200 and headers.get("docker-content-digest") == digest

    def _blob(self, repository: str, digest: str, size: int, content: bytes | Path) -> None:
        """Upload a blob if the repository lacks it, or mount it from another repository that is known to have it."""
        status, _, _ = self._request("HEAD", f"/v2/{repository}/blobs/{digest}")
        if status != 200:
            holder = self._holder.get(digest)
            mount = f"?mount={digest}&from={quote(holder, safe='')}" if holder else ""
            status, headers, reply = self._request("POST", f"/v2/{repository}/blobs/uploads/{mount}", b"")
            if status == 202:
                self._upload(headers["location"], digest, size, content)
            elif status != 201:
                raise self._refused(f"an upload to {repository}", status, reply)
        self._holder.setdefault(digest, repository)

    def _upload(self, location: str, digest: str, size: int, content: bytes | Path) -> None:
        parts = urlsplit(urljoin(self.base, location))
        target = f"{parts.path}?{parts.query + '&' if parts.query else ''}digest={quote(digest)}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        if isinstance(content, bytes):
            status, _, reply = self._request("PUT", target, content, headers)
        else:
            with content.open("rb") as file:
                status, _, reply = self._request("PUT", target, file, headers)
        if status != 201:
            raise self._refused(f"blob {digest}", status, reply)
        self.sent += size

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        try:
            self.connection.request(method, path, body, dict(headers or {}))
            response = self.connection.getresponse()
            reply = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            raise Failure(
                f"registry {self.base}: {method} {path}: {error or type(error).__name__}"
            ) from error
        return response.status, {name.lower(): value for name, value in response.getheaders()}, reply

    def _refused(self, what: str, status: int, reply: bytes) -> Failure:
        text = reply.decode(errors="replace").strip()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = "; ".join(
                f"{entry['code']}: {entry.get('message', '')}" for entry in json.loads(text)["errors"]
            )
        return Failure(f"registry {self.base} rejected {what}: status {status} {text[:500]}")


def split(reference: str) -> tuple[str, str]:
    """Split an image name into the repository path and the tag under which a mirror of its registry serves it."""
    name, colon, tag = reference.rpartition(":")
    if not colon or "/" in tag:
        name, tag = reference, "latest"
    host, slash, rest = name.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return rest, tag
    return (name if slash else f"library/{name}"), tag
