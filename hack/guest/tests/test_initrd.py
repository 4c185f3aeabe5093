"""Tests the modules in the guest's initrd."""

import unittest

from guest.initrd import SIGNED, without_signature


class Modules(unittest.TestCase):
    def test_a_signature_is_cut_off_and_nothing_else(self) -> None:
        module, signature = b"\x7fELF and so on", b"s" * 300
        head = bytes(8) + len(signature).to_bytes(4, "big")
        self.assertEqual(without_signature(module + signature + head + SIGNED), module)
        self.assertEqual(without_signature(module), module)
