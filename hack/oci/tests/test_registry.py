"""Tests pushes to an in-memory registry that follows the distribution API."""

from __future__ import annotations

import hashlib
import http.server
import re
import tempfile
import threading
import unittest
import urllib.parse
from pathlib import Path

from oci import layer
from oci.layout import Image
from oci.progress import Failure
from oci.registry import Registry, split


class Responding(http.server.BaseHTTPRequestHandler):
    """The request handler of an in-memory registry that rejects wrong digests."""

    protocol_version = "HTTP/1.1"
    server: Memory

    def response(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_HEAD(self) -> None:
        kind, repository, name = re.match(r"/v2/(.+)/(blobs|manifests)/(.+)", self.path).group(2, 1, 3)  # type: ignore[union-attr]
        held = self.server.held[kind].get((repository, name))
        digest = "sha256:" + hashlib.sha256(held or b"").hexdigest()
        self.response(404 if held is None else 200, Docker_Content_Digest=digest)

    def do_POST(self) -> None:
        self.body()
        parts = urllib.parse.urlsplit(self.path)
        repository = parts.path.removeprefix("/v2/").removesuffix("/blobs/uploads/")
        query = dict(urllib.parse.parse_qsl(parts.query))
        if "mount" in query:
            self.server.mounted += 1
            self.server.held["blobs"][repository, query["mount"]] = self.server.held["blobs"][
                query["from"], query["mount"]
            ]
            return self.response(201)
        return self.response(202, Location=f"/v2/{repository}/upload?state=a%3D")

    def do_PUT(self) -> None:
        data = self.body()
        if self.server.refusing:
            return self.response(400, b'{"errors":[{"code":"DENIED","message":"not today"}]}')
        parts = urllib.parse.urlsplit(self.path)
        if "/manifests/" in parts.path:
            repository, _, tag = parts.path.removeprefix("/v2/").partition("/manifests/")
            self.server.held["manifests"][repository, tag] = data
            return self.response(201)
        query = dict(urllib.parse.parse_qsl(parts.query))
        if query["digest"] != "sha256:" + hashlib.sha256(data).hexdigest() or query["state"] != "a=":
            return self.response(400)
        self.server.uploaded += 1
        self.server.held["blobs"][
            parts.path.removeprefix("/v2/").removesuffix("/upload"), query["digest"]
        ] = data
        return self.response(201)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Memory(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Responding)
        self.held: dict[str, dict[tuple[str, str], bytes]] = {"blobs": {}, "manifests": {}}
        self.uploaded = self.mounted = 0
        self.refusing = False


class Pushing(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Memory()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.registry = Registry(f"127.0.0.1:{self.server.server_port}")
        self.addCleanup(self.registry.connection.close)
        scratch = tempfile.TemporaryDirectory(prefix="drydock-push-")
        self.addCleanup(scratch.cleanup)
        folder = Path(scratch.name)
        (folder / "root").mkdir()
        (folder / "root" / "file").write_text("content")
        self.image = Image([layer.pack(folder / "root", folder / "blob", "x")])

    def test_pushed_once_and_mounted_under_other_names(self) -> None:
        self.assertTrue(self.registry.push(self.image, "localhost/drydock/a:dev"))
        self.assertEqual(self.server.held["manifests"]["drydock/a", "dev"], self.image.manifest())
        self.assertEqual((self.server.uploaded, self.server.mounted), (2, 0))
        self.assertFalse(self.registry.push(self.image, "localhost/drydock/a:dev"), "the registry already has the image")
        self.assertTrue(self.registry.push(self.image, "kubevirt/b"))
        self.assertEqual((self.server.uploaded, self.server.mounted), (2, 2))
        again = Registry(f"http://127.0.0.1:{self.server.server_port}")
        self.addCleanup(again.connection.close)
        self.assertFalse(again.push(self.image, "kubevirt/b"))
        self.assertEqual(again.sent, 0)

    def test_refusal_has_the_cause(self) -> None:
        self.server.refusing = True
        with self.assertRaisesRegex(Failure, "rejected blob .*: status 400 DENIED: not today"):
            self.registry.push(self.image, "a:b")

    def test_unreachable_registry(self) -> None:
        with self.assertRaisesRegex(Failure, "registry http://127.0.0.1:1: HEAD .*refused"):
            Registry("127.0.0.1:1").push(self.image, "a:b")


class Names(unittest.TestCase):
    def test_name_is_split_as_for_a_mirror(self) -> None:
        cases = {
            "busybox": ("library/busybox", "latest"),
            "busybox:1": ("library/busybox", "1"),
            "kubevirt/x:latest": ("kubevirt/x", "latest"),
            "docker.io/kubevirt/x": ("kubevirt/x", "latest"),
            "quay.io/kubevirt/x:v1": ("kubevirt/x", "v1"),
            "localhost/drydock/agent:dev": ("drydock/agent", "dev"),
            "localhost:5000/a/b": ("a/b", "latest"),
        }
        for reference, expected in cases.items():
            self.assertEqual(split(reference), expected, reference)


if __name__ == "__main__":
    unittest.main()
