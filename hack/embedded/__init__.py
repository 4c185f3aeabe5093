"""Runs a real Kubernetes cluster on one machine: built from Go modules, without a container engine.

Python code imports `cluster`; users and other programs run `python3 -m embedded`.
"""
