"""A real Kubernetes on one machine: built from Go modules, run without an engine.

`cluster` is the door for other Python code, `python3 -m embedded` the one for
people and for other programs.
"""
