"""Tests of watches that the API server ends."""

from __future__ import annotations

import http.client
import json
import threading
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from embedded.errors import Failure

from measure.api import Watch


class Loopback:
    """The part of `Api` that a watch requires, for a server on the loopback."""

    def __init__(self, port: int) -> None:
        self._port = port

    def connect(self, timeout: float = 30) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)

    def get(self, path: str) -> Any:
        return {"metadata": {"resourceVersion": "1"}}


@contextmanager
def server(responses: dict[str, list[dict[str, Any]]]) -> Iterator[Loopback]:
    """Run a server that responds to a watch from a resource version with these events, then ends it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            events = responses.get(parse_qs(urlsplit(self.path).query)["resourceVersion"][0])
            self.send_response(200 if events is not None else 410)
            self.end_headers()
            for event in events or []:
                self.wfile.write(json.dumps(event).encode() + b"\n")

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    serving = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    try:
        yield Loopback(serving.server_port)
    finally:
        serving.shutdown()
        thread.join()
        serving.server_close()


def event(kind: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"resourceVersion": str(version)}}}


class EndedWatch(unittest.TestCase):
    def test_watch_continues_after_the_last_event(self) -> None:
        responses = {"1": [event("ADDED", 2), event("BOOKMARK", 5)], "5": [event("MODIFIED", 6)]}
        with server(responses) as api:
            watch = Watch(api, "/things")
            watch.until(lambda kind, found: kind == "MODIFIED", patience=30)
            self.assertEqual([found["metadata"]["resourceVersion"] for _, found in watch.seen()], ["2", "6"])
            watch.close()

    def test_waiter_fails_when_the_watch_ends(self) -> None:
        with server({"1": [event("ADDED", 2)]}) as api:
            watch = Watch(api, "/things")
            with self.assertRaisesRegex(Failure, "a watch ended: .*410"):
                watch.until(lambda kind, found: False, patience=30)
            watch.close()

    def test_an_error_among_the_events_is_the_end(self) -> None:
        error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
        with server({"1": [error]}) as api:
            watch = Watch(api, "/things")
            with self.assertRaisesRegex(Failure, "too old resource version"):
                watch.until(lambda kind, found: False, patience=30)
            watch.close()
