"""Parsing of the output of test runners."""

import unittest

from verify.outcome import of_libtest, of_unittest


FAILING = """
test one ... FAILED
test two ... FAILED

failures:

---- one stdout ----
before it failed

thread 'one' (1) panicked at a.rs:1:2:
left: 1
right: 2
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- two stdout ----
Error: timed out waiting for x

Caused by:
    y


failures:
    one
    two
"""


class Libtest(unittest.TestCase):
    def test_each_result_is_counted(self) -> None:
        output = (
            "running 4 tests\n"
            "test labels::good ... ok\n"
            "test labels::bad ... FAILED\n"
            "test needs_a_cluster ... ignored, needs a cluster\n"
            "test panics - should panic ... ok\n"
            "SKIPPED real_libvirt: virsh is not installed\n"
            "test result: FAILED. 2 passed; 1 failed; 1 ignored\n"
        )
        outcome = of_libtest(output, 101)
        self.assertEqual((outcome.passed, outcome.failed), (2, ["labels::bad"]))
        self.assertEqual(outcome.skipped, ["real_libvirt: virsh is not installed"])

    def test_interrupted_run_fails_with_the_last_lines(self) -> None:
        outcome = of_libtest(FAILING, 101)
        self.assertEqual(
            outcome.failures(),
            [
                "one: thread 'one' (1) panicked at a.rs:1:2: left: 1 right: 2",
                "two: Error: timed out waiting for x Caused by: y",
            ],
        )
        long = FAILING.replace("Error: timed out", "Error: " + "waited " * 200 + "timed out")
        reason = of_libtest(long, 101).failures()[1]
        self.assertTrue(reason.startswith("two: Error: waited") and reason.endswith("Caused by: y"), reason)
        self.assertLess(len(reason), 700)
        outcome = of_libtest("test a ... ok\nerror: could not compile `x`\n", 101)
        self.assertEqual(outcome.passed, 1)
        self.assertIn("could not compile", outcome.failed[0])


class Unittest(unittest.TestCase):
    def test_each_result_is_counted(self) -> None:
        output = (
            "test_good (oci.tests.test_layers.Layers.test_good) ... ok\n"
            "test_said (oci.tests.test_layers.Layers.test_said)\n"
            "What it says. ... ok\n"
            "test_bad (oci.tests.test_layers.Layers.test_bad) ... FAIL\n"
            "test_off (oci.tests.test_layers.Layers.test_off) ... skipped 'no network'\n"
            "Ran 4 tests in 0.1s\n"
        )
        outcome = of_unittest(output, 1)
        self.assertEqual(outcome.passed, 2)
        self.assertEqual(outcome.failed, ["oci.tests.test_layers.Layers.test_bad"])
        self.assertEqual(outcome.skipped, ["oci.tests.test_layers.Layers.test_off: 'no network'"])


if __name__ == "__main__":
    unittest.main()
