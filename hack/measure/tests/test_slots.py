"""Tests of reading slots from an audit log, and of the bounds and statistics."""

from __future__ import annotations

import json
import unittest

from measure.slots import Held, Limits, held, lower_bound, most_at_once, percentile, until_next, without_delay


def line(name: str, status: dict, second: int, code: int = 200) -> str:
    return json.dumps(
        {
            "stage": "ResponseComplete",
            "responseStatus": {"code": code},
            "requestReceivedTimestamp": f"1970-01-01T00:00:{second:02}.000000Z",
            "stageTimestamp": f"1970-01-01T00:00:{second:02}.250000Z",
            "objectRef": {"resource": "virtualmachineinstancemigrations", "subresource": "status", "name": name},
            "requestObject": {"status": status},
        }
    )


SIDES = {"source": {"node": "a"}, "target": {"node": "b"}}


class Slots(unittest.TestCase):
    def test_slot_is_held_from_first_to_last_write_with_sides(self) -> None:
        found = held(
            [
                line("m", {"phase": "Pending"}, 1),
                line("m", {"phase": "PreparingTarget", **SIDES}, 2, code=409),
                line("m", {"phase": "PreparingTarget", **SIDES}, 3),
                line("m", {"phase": "TargetReady", **SIDES}, 4),
                line("m", {"phase": "Succeeded", **SIDES}, 9),
                line("never-began", {"phase": "Failed"}, 9),
                line("still-moves", {"phase": "PreparingTarget", **SIDES}, 9),
            ]
        )
        self.assertEqual(found, [Held("m", "a", "b", 3.0, 9.25)])

    def test_the_most_at_once(self) -> None:
        slots = [Held("1", "a", "x", 0, 2), Held("2", "a", "y", 1, 3), Held("3", "b", "x", 2, 4), Held("4", "b", "x", 5, 6)]
        self.assertEqual(most_at_once(slots, lambda slot: "cluster"), 3, "one is taken when another is freed")
        self.assertEqual(most_at_once(slots, lambda slot: slot.source), 2)
        self.assertEqual(most_at_once(slots, lambda slot: slot.target), 2)

    def test_the_lower_bound_is_the_tightest(self) -> None:
        moves = [("a", "x", 10.0), ("a", "y", 10.0), ("b", "y", 4.0)]
        for limits, bound in (
            (Limits(1, 9, 9), 24.0),
            (Limits(9, 1, 9), 20.0),
            (Limits(9, 9, 1), 14.0),
            (Limits(9, 9, 9), 10.0),
        ):
            self.assertEqual(lower_bound(moves, limits), bound, limits)

    def test_without_delay_slots_are_taken_in_order_by_those_that_may(self) -> None:
        moves = [("a", "x", 4.0), ("a", "y", 4.0), ("a", "z", 10.0), ("b", "x", 1.0)]
        for limits, seconds in (
            (Limits(9, 9, 9), 10.0),
            # The longest move starts last, although it could have been the first.
            (Limits(2, 9, 9), 14.0),
            (Limits(9, 1, 9), 18.0),
            (Limits(9, 9, 1), 10.0),
            (Limits(1, 9, 9), 19.0),
        ):
            self.assertEqual(without_delay(moves, limits), seconds, limits)
            self.assertGreaterEqual(seconds, lower_bound(moves, limits), limits)
        self.assertEqual(without_delay([], Limits(1, 1, 1)), 0.0)

    def test_the_next_begins_after_as_many_as_there_are_slots(self) -> None:
        slots = [Held(str(n), "a", "x", n, n + 10) for n in range(4)]
        began = {"0": 1.0, "1": 2.0, "2": 10.1, "3": 11.3}
        waits = until_next(slots, began, Limits(9, 2, 9))
        self.assertEqual([round(wait, 3) for wait in waits], [0.1, 0.3])

    def test_percentiles_are_samples(self) -> None:
        samples = [float(n) for n in range(1, 201)]
        self.assertEqual([percentile(samples, part) for part in (0.5, 0.99, 1.0)], [100.0, 198.0, 200.0])
        self.assertEqual(percentile([7.0], 0.99), 7.0)
