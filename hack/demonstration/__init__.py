"""Drydock's main job, step by step, for somebody who has never seen it."""
