"""Every test of Drydock, in the order in which failures are cheapest to find."""
