"""A client of the API server with low latency, for timing other components."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from embedded.cluster import Cluster
from embedded.errors import Failure

PATIENCE = 90


MERGE_PATCH = "application/merge-patch+json"


def send(connection: http.client.HTTPConnection, method: str, path: str, body: Any, kind: str = "application/json") -> Any:
    """Send a request over a connection, which can be reused; return the parsed JSON response."""
    connection.request(method, path, json.dumps(body), {"Content-Type": kind, "Accept": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status >= 400:
        raise Failure(f"{method} {path}: {response.status}", text.decode(errors="replace")[:500])
    return json.loads(text)


class Api:
    """Client with the administrator's credentials; it opens a new connection for each request and each watch."""

    def __init__(self, made: Cluster) -> None:
        config = json.loads(made.kubectl("config", "view", "--raw", "-o", "json"))
        server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(server["server"]).netloc
        self._context = ssl.create_default_context(cadata=_material(server, "certificate-authority").decode())
        with tempfile.NamedTemporaryFile() as file:
            file.write(_material(user, "client-certificate") + b"\n" + _material(user, "client-key"))
            file.flush()
            self._context.load_cert_chain(file.name)

    def connect(self, timeout: float = 30) -> http.client.HTTPSConnection:
        """Return a new connection."""
        return http.client.HTTPSConnection(self._address, context=self._context, timeout=timeout)

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send one request over a new connection; return the parsed JSON response."""
        connection = self.connect()
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, body=data, headers={"Content-Type": kind, "Accept": "application/json"})
            response = connection.getresponse()
            text = response.read()
            if response.status >= 400:
                raise Failure(f"{method} {path}: {response.status}", text.decode(errors="replace")[:500])
            return json.loads(text)
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Read an object or a list."""
        return self.request("GET", path)

    def merge(self, path: str, patch: Any) -> Any:
        """Apply a JSON merge patch to an object."""
        return self.request("PATCH", path, patch, MERGE_PATCH)

    @contextlib.contextmanager
    def watching(self, path: str) -> Iterator[Watch]:
        """Watch a collection from now on, or one object of it by a field selector in `path`."""
        watch = Watch(self, path)
        try:
            yield watch
        finally:
            watch.close()


class Watch:
    """A watch that records each event with the time at which it was received."""

    def __init__(self, api: Api, path: str) -> None:
        self._changed = threading.Condition()
        self._states: list[tuple[float, str, dict[str, Any]]] = []
        self._lost: str | None = None
        self._closed = False
        self._api, self._path = api, f"{path}{'&' if '?' in path else '?'}watch=true&allowWatchBookmarks=true&resourceVersion="
        self._version: str = api.get(path)["metadata"]["resourceVersion"]
        self._connection, self._response = self._open()
        threading.Thread(target=self._read, daemon=True).start()

    def _open(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._api.connect(timeout=600)
        connection.request("GET", self._path + self._version)
        response = connection.getresponse()
        if response.status != 200:
            raise http.client.HTTPException(f"GET {self._path}: {response.status}")
        return connection, response

    def _read(self) -> None:
        """Read events until the watch is closed. API servers end watches, mainly those of slow readers; reconnect then."""
        while True:
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException, AttributeError):
                for line in self._response:
                    self._take(json.loads(line))
            if self._closed or self._lost is not None:
                return
            self._connection.close()
            try:
                self._connection, self._response = self._open()
            except (OSError, http.client.HTTPException) as error:
                self._give_up(str(error))
                return

    def _take(self, event: dict[str, Any]) -> None:
        found = event["object"]
        if event["type"] == "ERROR":
            self._give_up(str(found.get("message")))
            return
        self._version = found["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return
        with self._changed:
            self._states.append((time.monotonic(), event["type"], found))
            self._changed.notify_all()

    def _give_up(self, why: str) -> None:
        with self._changed:
            self._lost = why
            self._changed.notify_all()

    def until(
        self, holds: Callable[[str, dict[str, Any]], bool], since: int = 0, patience: float = PATIENCE
    ) -> tuple[float, dict[str, Any]]:
        """Wait for the first event, from number `since` on, for which `holds` is true; return its time and its object.

        Fail after `patience` seconds, or if the watch is lost.
        """
        end = time.monotonic() + patience
        number = since
        with self._changed:
            while True:
                while number < len(self._states):
                    at, kind, found = self._states[number]
                    number += 1
                    if holds(kind, found):
                        return at, found
                if self._lost is not None:
                    raise Failure(f"a watch ended: {self._lost}", self._path)
                left = end - time.monotonic()
                if left <= 0:
                    raise Failure(f"the expected event was not received within {patience} s")
                self._changed.wait(left)

    def mark(self) -> int:
        """Return the number of events so far."""
        with self._changed:
            return len(self._states)

    def seen(self) -> list[tuple[float, dict[str, Any]]]:
        """Return the objects of all events so far, each with its time."""
        with self._changed:
            return [(at, found) for at, _, found in self._states]

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        with contextlib.suppress(OSError):
            if self._connection.sock is not None:
                self._connection.sock.shutdown(2)
        self._connection.close()


def _material(holder: dict[str, str], name: str) -> bytes:
    """Return a certificate or key of a kubeconfig, which contains it or names its file."""
    data = holder.get(f"{name}-data")
    return base64.b64decode(data) if data else Path(holder[name]).read_bytes()
