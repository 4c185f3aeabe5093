"""Packs tiny container images and pushes them to a registry, with only the standard library.

The cluster itself needs one image, the sandbox of every pod, before any pod can run.
Its self-test packs another image.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urljoin

from .errors import Failure

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True)
class PackedFile:
    """A file of an image: its content, or the target of a symbolic link."""

    content: bytes = b""
    mode: int = 0o644
    link: str = ""


@dataclass(frozen=True)
class TinyImage:
    """A reproducible image with one layer."""

    files: Mapping[str, PackedFile]
    entrypoint: Sequence[str]
    user: str = ""

    def layer(self) -> bytes:
        """Return the uncompressed layer."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for folder in sorted({parent for path in self.files for parent in _parents(path)}):
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            for path, file in sorted(self.files.items()):
                entry = tarfile.TarInfo(path)
                entry.mode = file.mode
                if file.link:
                    entry.type, entry.linkname = tarfile.SYMTYPE, file.link
                    archive.addfile(entry)
                else:
                    entry.size = len(file.content)
                    archive.addfile(entry, io.BytesIO(file.content))
        return buffer.getvalue()

    def push(self, registry: str, repository: str, tag: str) -> None:
        """Upload the blobs and the manifest that the registry lacks, then set the tag."""
        plain = self.layer()
        packed = gzip.compress(plain, mtime=0)
        config = json.dumps(
            {
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": {"Entrypoint": list(self.entrypoint), "User": self.user},
                "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
            },
            sort_keys=True,
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, config),
                "layers": [_descriptor(_LAYER, packed)],
            },
            sort_keys=True,
        ).encode()
        base = f"http://{registry}/v2/{repository}"
        for blob in (packed, config):
            _upload(base, blob)
        if _request("HEAD", f"{base}/manifests/{_digest(manifest)}", accept=_MANIFEST) is None:
            _must("PUT", f"{base}/manifests/{_digest(manifest)}", manifest, _MANIFEST)
        _must("PUT", f"{base}/manifests/{tag}", manifest, _MANIFEST)


def _upload(base: str, blob: bytes) -> None:
    digest = _digest(blob)
    if _request("HEAD", f"{base}/blobs/{digest}") is not None:
        return
    begun = _must("POST", f"{base}/blobs/uploads/", b"")
    location = urljoin(f"{base}/", begun["Location"])
    mark = "&" if "?" in location else "?"
    _must("PUT", f"{location}{mark}digest={digest}", blob, "application/octet-stream")


def _must(method: str, url: str, body: bytes, kind: str = "") -> Mapping[str, str]:
    headers = _request(method, url, body, kind)
    if headers is None:
        raise Failure(f"{method} {url}: 404 Not Found")
    return headers


def _request(
    method: str, url: str, body: bytes | None = None, kind: str = "", accept: str = ""
) -> Mapping[str, str] | None:
    """Send a request and return the response's headers, or None on status 404."""
    request = urllib.request.Request(url, data=body, method=method)
    if kind:
        request.add_header("Content-Type", kind)
    if accept:
        request.add_header("Accept", accept)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as response:
            return response.headers
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        printed = error.read().decode(errors="replace")
        raise Failure(f"{method} {url}: {error.code} {error.reason}", printed) from error
    except OSError as error:
        raise Failure(f"{method} {url}: {error}") from error


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}
