"""Defines the Kubernetes objects that the self-test creates."""

from __future__ import annotations

NAMESPACE = "drydock-selftest"
IMAGE = "drydock/selftest"

_NODE_VARIABLE = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}

Object = dict[str, object]


def pod(name: str, node: str, script: str, container: Object | None = None, **spec: object) -> Object:
    """Return a pod that runs a script once on a certain node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-{node}", "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Always",
                    "args": [script],
                    "env": [_NODE_VARIABLE],
                    **(container or {}),
                }
            ],
            **spec,
        },
    }


def web(node: str) -> Object:
    """Return a pod with a web server that responds with its node's name."""
    script = 'mkdir /w && echo "$NODE" > /w/index.html && echo "serving on $NODE" && '
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    container: Object = {"readinessProbe": probe, "ports": [{"containerPort": 8080}]}
    return pod("web", node, script + "exec httpd -f -p 8080 -h /w", container)


def restarting(node: str) -> Object:
    """Return a pod that runs forever and is restarted after its node has stopped."""
    return pod("restarting", node, "exec sleep 100000", restartPolicy="Always")


def service() -> Object:
    """Return a service with one address for all web servers."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }


def image_volume(node: str) -> Object:
    """Return a pod that mounts an image under another registry's name and reads a file from it."""
    volume = {"name": "image", "image": {"reference": "localhost/drydock/selftest:latest"}}
    mount = {"name": "image", "mountPath": "/image"}
    script = "cat /image/www/index.html"
    return pod("image-volume", node, script, {"volumeMounts": [mount]}, volumes=[volume])


def seccomp(node: str) -> Object:
    """Return a pod that attempts what its seccomp profile forbids."""
    profile = {"type": "Localhost", "localhostProfile": "selftest.json"}
    container: Object = {"securityContext": {"seccompProfile": profile}}
    return pod("seccomp", node, "mkdir /forbidden 2>&1; true", container)


def host_path(node: str) -> Object:
    """Return a pod that creates a file with its node's name in a folder of the node and in the folder of all nodes."""
    volumes = [
        {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        for name, path in (
            ("own", "/var/lib/drydock/selftest"),
            ("shared", "/var/lib/drydock-shared/selftest"),
        )
    ]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("own", "shared")]
    script = 'echo > "/own/$NODE" && echo > "/shared/$NODE"'
    return pod("host-path", node, script, {"volumeMounts": mounts}, volumes=volumes)


def privileged_read_of_dev(node: str) -> Object:
    """Return a pod that lists the devices of a privileged container."""
    container: Object = {"securityContext": {"privileged": True}}
    return pod("devices", node, "ls /dev", container)
