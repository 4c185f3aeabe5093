"""Measurements, each beside the raw tool that it is compared with."""
