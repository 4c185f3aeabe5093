"""The small guest of demos and tests: its disk, and a way to run it under QEMU."""
