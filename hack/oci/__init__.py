"""Builds container images without a container engine.

Interprets the Containerfiles under deploy/images in plain chroots, creates a
bootable guest disk, writes OCI archives and pushes images to a registry. Uses
only the standard library and Debian's own tools.
"""
