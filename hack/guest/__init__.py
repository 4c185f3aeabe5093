"""Builds the disk of the small guest for demos and tests, and runs the guest under QEMU."""
