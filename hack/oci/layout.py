"""Assembles images from layers and settings, and writes them as archives in the OCI image layout."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oci.layer import Layer, epoch

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


def encode(document: object) -> bytes:
    """Encode a document as the JSON bytes from which its digest is computed."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    """Return the descriptor by which a manifest or an index references a document."""
    return {
        "mediaType": media_type,
        "digest": "sha256:" + hashlib.sha256(data).hexdigest(),
        "size": len(data),
    }


@dataclass
class Image:
    """The layers, settings and history of one image."""

    layers: list[Layer]
    settings: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    def config(self) -> bytes:
        """Return the configuration document."""
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch()))
        return encode(
            {
                "architecture": "amd64",
                "os": "linux",
                "created": created,
                "config": self.settings,
                "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in self.layers]},
                "history": [{"created": created, **entry} for entry in self.history],
            }
        )

    def manifest(self) -> bytes:
        """Return the manifest document."""
        return encode(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": descriptor(CONFIG, self.config()),
                "layers": [
                    {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size}
                    for layer in self.layers
                ],
            }
        )

    @property
    def digest(self) -> str:
        """Return the digest that identifies the image."""
        return str(descriptor(MANIFEST, self.manifest())["digest"])

    @property
    def size(self) -> int:
        """Return the total size of the layers' blobs in bytes."""
        return sum(layer.size for layer in self.layers)


def write_archive(image: Image, references: Sequence[str], path: Path) -> None:
    """Write an OCI layout archive that `ctr images import` and other tools can read."""
    manifest, config = image.manifest(), image.config()
    index = encode(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [
                {
                    **descriptor(MANIFEST, manifest),
                    "platform": {"architecture": "amd64", "os": "linux"},
                    "annotations": {
                        "io.containerd.image.name": reference,
                        "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
                    },
                }
                for reference in references
            ],
        }
    )
    partial = path.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", index)
        for document in (manifest, config):
            _add(archive, "blobs/sha256/" + hashlib.sha256(document).hexdigest(), document)
        for layer in {layer.digest: layer for layer in image.layers}.values():
            info = _entry("blobs/sha256/" + layer.digest.partition(":")[2], layer.size)
            with layer.blob.open("rb") as blob:
                archive.addfile(info, blob)
    partial.rename(path)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, epoch(), 0o644
    return info


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    archive.addfile(_entry(name, len(data)), io.BytesIO(data))
