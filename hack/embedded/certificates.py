"""Creates certificate authorities, and certificates that they sign, with the openssl command.

A certificate and its key share one PEM file, so that a crash never leaves one
without the other.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import files
from .commands import run
from .layout import Layout, NodeLayout, KUBERNETES_SERVICE

DAYS = "3650"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """A certificate authority in a folder. `ensure` creates it if it is missing."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    @property
    def pem(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @property
    def certificate(self) -> Path:
        """The certificate without the key, for programs that must trust the authority."""
        return self.folder / f"{self.name}.crt"

    def ensure(self) -> None:
        if not self.pem.exists():
            with tempfile.TemporaryDirectory(dir=_private(self.folder)) as work:
                key, certificate = f"{work}/key", f"{work}/certificate"
                run(
                    *("openssl", "req", "-x509", *_KEY, "-keyout", key, "-out", certificate),
                    *("-days", DAYS, "-subj", f"/CN=drydock-{self.name}"),
                    *("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
                )
                _join(self.pem, key, certificate)
        files.write(self.certificate, _certificate_part(self.pem.read_text()))

    def sign(
        self,
        name: str,
        common_name: str,
        organization: str = "",
        addresses: Sequence[str] = (),
        hosts: Sequence[str] = (),
        server: bool = False,
    ) -> Path:
        """Issue a client or server certificate unless it already exists, and return its path."""
        target = self.folder / f"{name}.pem"
        if target.exists():
            return target
        names = [f"IP:{address}" for address in addresses] + [f"DNS:{host}" for host in hosts]
        usage = "serverAuth" if server else "clientAuth"
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            f"extendedKeyUsage={usage}",
        ]
        if names:
            extensions.append(f"subjectAltName={','.join(names)}")
        subject = f"/O={organization}/CN={common_name}" if organization else f"/CN={common_name}"
        with tempfile.TemporaryDirectory(dir=_private(self.folder)) as work:
            key, request, certificate = f"{work}/key", f"{work}/request", f"{work}/certificate"
            Path(f"{work}/extensions").write_text("\n".join(extensions) + "\n")
            run("openssl", "req", "-new", *_KEY, "-keyout", key, "-out", request, "-subj", subject)
            run(
                *("openssl", "x509", "-req", "-in", request, "-out", certificate, "-days", DAYS),
                *("-CA", str(self.pem), "-CAkey", str(self.pem)),
                *("-set_serial", f"0x{os.urandom(16).hex()}"),
                *("-extfile", f"{work}/extensions"),
            )
            _join(target, key, certificate)
        return target


class Certificates:
    """All certificates of one cluster."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.ca = Authority(layout.certificates, "ca")
        self.front_proxy_ca = Authority(layout.certificates, "front-proxy-ca")

    def path(self, name: str) -> Path:
        return self._layout.certificates / f"{name}.pem"

    def ensure(self) -> None:
        """Create the certificates and keys that are missing."""
        layout, ca = self._layout, self.ca
        ca.ensure()
        self.front_proxy_ca.ensure()
        ca.sign(
            "kube-apiserver",
            "kube-apiserver",
            addresses=[layout.address, KUBERNETES_SERVICE, "127.0.0.1"],
            hosts=[
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
            ],
            server=True,
        )
        ca.sign("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        self.front_proxy_ca.sign("front-proxy", "front-proxy")
        ca.sign("admin", "drydock-admin", "system:masters")
        ca.sign("kube-controller-manager", "system:kube-controller-manager")
        ca.sign("kube-scheduler", "system:kube-scheduler")
        ca.sign("kube-proxy", "system:kube-proxy")
        for node in layout.nodes:
            self._ensure_node(node)
        self._ensure_service_account_key()

    def _ensure_node(self, node: NodeLayout) -> None:
        user = f"system:node:{node.name}"
        self.ca.sign(f"kubelet.{node.name}", user, "system:nodes")
        self.ca.sign(
            f"kubelet-serving.{node.name}",
            user,
            "system:nodes",
            addresses=[node.address],
            hosts=[node.name],
            server=True,
        )

    def _ensure_service_account_key(self) -> None:
        path = self.path("service-accounts")
        if not path.exists():
            curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
            private = run("openssl", "genpkey", *curve)
            public = run("openssl", "pkey", "-pubout", input=private)
            files.write(path, private + public, mode=0o600)

    def kubeconfig(self, user: str) -> str:
        """Return a kubeconfig with embedded certificates, so that it can be moved."""
        pem = _base64(self.path(user).read_text())
        cluster = {
            "server": self._layout.server,
            "certificate-authority-data": _base64(self.ca.certificate.read_text()),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self._layout.name,
            "clusters": [{"name": self._layout.name, "cluster": cluster}],
            "users": [
                {
                    "name": user,
                    "user": {"client-certificate-data": pem, "client-key-data": pem},
                }
            ],
            "contexts": [
                {
                    "name": self._layout.name,
                    "context": {"cluster": self._layout.name, "user": user},
                }
            ],
        }
        return json.dumps(document, indent=2) + "\n"


def _private(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _join(target: Path, key: str, certificate: str) -> None:
    files.write(target, Path(certificate).read_text() + Path(key).read_text(), mode=0o600)


def _certificate_part(pem: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----\n"
    return pem[pem.index(begin) : pem.index(end) + len(end)]


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
