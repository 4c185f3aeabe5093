"""Container images without a container engine.

Interprets the Containerfiles under deploy/images in plain chroots, makes a
bootable guest disk, writes OCI archives and pushes them to a registry, with
nothing but the standard library and Debian's own tools.
"""
