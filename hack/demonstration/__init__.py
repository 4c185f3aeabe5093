"""Drydock's main job, step by step, for a first-time reader."""
