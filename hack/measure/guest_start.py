"""Start time of a new virtual machine, compared with virsh starting the same domain in a pod with the same image.

The guest's kernel is quiet, so that its first line of output appears when it has booted. QEMU takes most of the time in
both cases; the figure is the difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from embedded.cluster import Cluster
from embedded.progress import Progress

from .api import Api
from .measurement import SAMPLES, Measurement, median
from .guests import HURRIED, PODS, Guest, file_in_pod, in_pod, instance, instances, ready_disk

# KubeVirt v1.9, on the same kind of machine: 3.1 to 3.5 s.
KUBEVIRT_RUNNING = 3.3
# Budget in seconds over the start by virsh: admission, scheduling, sandbox, container, libvirtd, disk.
OVERHEAD = 1.5

RAW_POD = "raw-guest"

# Reaps orphaned processes, as libvirt expects of process 1.
IDLE = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'

VIRSH = "virsh --quiet --connect 'qemu+unix:///session?socket=/run/drydock/libvirt/libvirt-sock'"

# Accepts the guest's console and reads its output. Creates FILES.listens once it listens, and FILES.line once the first line
# with a letter or digit is complete. The modification time of the file is the timestamp, because the image's perl has no
# high-resolution clock.
LISTENER = """
use IO::Socket::UNIX;
my ($path, $files) = @ARGV;
unlink $path;
my $server = IO::Socket::UNIX->new(Local => $path, Listen => 1) or die $!;
open(my $listens, ">", "$files.listens");
my $client = $server->accept() or die $!;
my ($all, $first) = ("");
while (sysread($client, my $piece, 65536)) {
  next if $first;
  $all .= $piece;
  open($first, ">", "$files.line") if $all =~ /[A-Za-z0-9][^\\n]*\\n/;
}
"""

# $1: libvirtd.conf, $2: qemu.conf, $3: the listener, $4: the domain, $5: overlay, $6: its format,
# $7: image, $8: the image's format. Prints the time of the guest's start and, on the next line, that of its first output.
RAW = (
    r"""
set -eu
run=/run/drydock
export HOME=$run XDG_RUNTIME_DIR=$run XDG_CONFIG_HOME=$run/config XDG_CACHE_HOME=$run/cache
export XDG_DATA_HOME=$run/data TMPDIR=$run/tmp LC_ALL=C
mkdir -p $run/config/libvirt $run/cache $run/data $run/tmp
printf %s "$1" > $run/config/libvirt/libvirtd.conf
printf %s "$2" > $run/config/libvirt/qemu.conf
printf %s "$3" > $run/tmp/listener.pl
printf %s "$4" > $run/tmp/domain.xml
rm -f $run/tmp/first.* "$5"
libvirtd --timeout 0 --config $run/config/libvirt/libvirtd.conf &
daemon=$!
perl $run/tmp/listener.pl $run/console.sock $run/tmp/first &
listener=$!
qemu-img create -q -f "$6" -F "$8" -b "$7" "$5"
until VIRSH version > /dev/null 2>&1 && [ -e $run/tmp/first.listens ]; do sleep 0.05; done
VIRSH define $run/tmp/domain.xml > /dev/null
name=$(VIRSH list --all --name)
date +%s.%N
VIRSH start $name > /dev/null
until [ -e $run/tmp/first.line ]; do sleep 0.05; done
date -r $run/tmp/first.line +%s.%N
VIRSH destroy $name > /dev/null
wait $listener
VIRSH undefine $name > /dev/null
kill $daemon
wait $daemon || true
"""
).replace("VIRSH", VIRSH)


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Measure starts by Drydock and by virsh alternately, on the first node, which already has the images."""
    node = made.nodes[0].name
    with instances(api) as watch:
        # The first guest causes the node to pull the images. Its pod, domain and libvirt settings are copied.
        first = Guest(api, watch, instance("start-first", node, HURRIED))
        first.running()
        first.line()
        pod = first.pod()
        arguments = _by_hand(made, pod["metadata"]["name"])
        first.delete()
        api.request("POST", PODS, raw_pod(pod))
        try:
            made.kubectl("wait", "pod", RAW_POD, "--for=condition=Ready", "--timeout=60s")
            to_line, to_running, raw = [], [], []
            for turn in range(SAMPLES):
                begun, printed = (float(text) for text in in_pod(made, RAW_POD, RAW, *arguments).split())
                raw.append(printed - begun)
                guest = Guest(api, watch, instance(f"start-{turn}", node, HURRIED))
                to_running.append(guest.running())
                to_line.append((guest.line() - guest.created).total_seconds())
                progress.note(
                    f"start {turn + 1} of {SAMPLES}: first line after {to_line[-1]:.2f} s, with virsh {raw[-1]:.2f} s; "
                    f"Running after {to_running[-1]:.2f} s"
                )
                guest.delete()
        finally:
            api.request("DELETE", f"{PODS}/{RAW_POD}?gracePeriodSeconds=0")
    by_hand = median(raw)
    progress.note(f"first line after {median(to_line):.2f} s, with virsh {by_hand:.2f} s")
    yield Measurement("vm.start.overhead vs domain by hand", median(to_line) - by_hand, "s", by_hand, OVERHEAD)
    yield Measurement("vm.created-to-Running vs kubevirt", median(to_running), "s", KUBEVIRT_RUNNING, KUBEVIRT_RUNNING)


def _by_hand(made: Cluster, pod: str) -> list[str]:
    """Return the arguments of `RAW`, read from a pod with a running guest."""
    disk = ready_disk(made, pod)
    settings = [file_in_pod(made, pod, f"/run/drydock/config/libvirt/{name}.conf") for name in ("libvirtd", "qemu")]
    # The inactive definition has no runtime state, so libvirt has to do the same work again.
    domain = in_pod(made, pod, f"{VIRSH} dumpxml --inactive $({VIRSH} list --name)")
    below = disk["backing"]
    return [*settings, LISTENER, domain, disk["path"], disk["format"], below["path"], below["format"]]


def raw_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a pod on the same node that equals a guest's pod except for its command and metadata."""
    spec = {
        key: pod["spec"][key]
        for key in ("securityContext", "volumes", "automountServiceAccountToken", "enableServiceLinks")
    }
    container = {
        key: pod["spec"]["containers"][0][key]
        for key in ("name", "image", "imagePullPolicy", "resources", "securityContext", "volumeMounts")
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": RAW_POD},
        "spec": {
            **json.loads(json.dumps(spec)),
            "nodeSelector": {"kubernetes.io/hostname": pod["spec"]["nodeName"]},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{**container, "command": ["sh", "-c", IDLE]}],
        },
    }
