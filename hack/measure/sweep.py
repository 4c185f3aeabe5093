"""Time for which a change of a node, which triggers the reconciliation of all unfinished instances, blocks the controller.

The controller has a single thread. Its own code runs in a test program, with caches of 500 nodes and 100,000 running guests and
an API server that refuses each write. The figure is the longest processor time between two points at which other tasks of the
thread can run. The longest delay of a task that is due each millisecond is reported, too; it includes pauses by a busy machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from embedded.errors import Failure
from embedded.progress import Progress
from verify.runner import run

from .measurement import Measurement

TEST = "instance_task::sweep_tests::change_of_a_node_with_100_000_instances"
# Optimized like the released program, except for options that take minutes and have little effect.
PROFILE = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
MOST_SECONDS = 3600
# Budget in seconds for blocking the thread, which also renews Leases and responds to webhooks.
BLOCKED = 0.05


def measure(progress: Progress) -> Iterator[Measurement]:
    """Report the longest time for which the thread was blocked, the whole sweep, and the time to read all instances once."""
    package = ["cargo", "test", "--locked", "--release", "-p", "drydock-controller", "--bin", "drydock-controller"]
    with progress.step("cargo test --release of the controller", announce=True):
        output, code = run([*package, "--no-run"], PROFILE, quiet=True, most_seconds=MOST_SECONDS)
    if code == 0:
        with progress.step("reconciling 100,000 instances", announce=True):
            argv = [*package, "--", "--ignored", "--exact", "--nocapture", TEST]
            output, code = run(argv, PROFILE, quiet=True, most_seconds=MOST_SECONDS)
    found = re.search(r"^figures: (.*)$", output, re.MULTILINE)
    if code != 0 or not found:
        raise Failure(f"{TEST} reports no figures", output)
    figures = json.loads(found[1])
    yield Measurement("sweep.instances", figures["instances"], "instances", None, None)
    yield Measurement("sweep.requests", figures["requests"], "requests", None, None)
    yield Measurement("sweep.whole", figures["sweep"], "s", None, None)
    yield Measurement("sweep.longest-delay", figures["delay"], "s", None, None)
    yield Measurement("sweep.blocked", figures["blocked"], "s", figures["visit"], BLOCKED)
