"""Demonstration of Drydock's main features, step by step, for new users."""
