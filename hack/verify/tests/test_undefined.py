"""Undefined names."""

import unittest

from verify import undefined
from verify.runner import REPOSITORY


class Undefined(unittest.TestCase):
    def test_names_that_nothing_defines_are_found(self) -> None:
        for text, expected in (
            ("import os\nprint(os.sep, __file__)\n", []),
            ("def free():\n    return shutil.disk_usage(REPOSITORY)\n", ["REPOSITORY", "shutil"]),
            ("from a import b as c\n\nclass D:\n    e = c\n\n    def f(self):\n        return D, self.e, b\n", ["b"]),
            ("def f(values):\n    return [value for value in values if value and other]\n", ["other"]),
            ("global_ = 1\n\ndef f():\n    global later\n    later = global_\n", []),
            ("try:\n    pass\nexcept ValueError as error:\n    print(error)\n", []),
        ):
            self.assertEqual(undefined.names(text), expected, text)

    def test_scripts_use_only_names_that_are_defined(self) -> None:
        files = [path for path in (REPOSITORY / "hack").rglob("*.py") if "target" not in path.parts]
        self.assertGreater(len(files), 100)
        found = {str(path.relative_to(REPOSITORY)): undefined.names(path.read_text()) for path in files}
        self.assertEqual({path: names for path, names in found.items() if names}, {})
