"""The table of rules, and the files, definitions and tests that it names."""

import re
import unittest

from verify.rule_table import HEADER, rows, wrong
from verify.runner import REPOSITORY

PAGE = f"""
| before | now |
|---|---|
| `none` | `none` |

{HEADER}
|---|---|---|---|---|
| How long? | 8 s, by `spec.hold` | `a/hold.rs`, `a/plan.rs` | `HOLD`, `plan` | `hold_is_short` |
| Who? | all | `a/hold.rs`, `a/gone.rs` | `Holder` | `hold_is_long` |
| When? | never | `a/hold.rs` | | |

| `outside` | x |
"""
FILES = {"a/hold.rs": "pub const HOLD: u8 = 8;\nlet Holder = HOLDER;\n", "a/plan.rs": "pub(crate) async fn plan<T>() {}\n"}


class Table(unittest.TestCase):
    def test_rows_are_those_below_the_header(self) -> None:
        self.assertEqual([row[0] for row in rows(PAGE)], ["How long?", "Who?", "When?"])

    def test_names_that_do_not_exist_are_found(self) -> None:
        self.assertEqual(
            list(wrong(PAGE, lambda path: FILES.get(path, ""), {"hold_is_short"})),
            [
                "Who? a/gone.rs does not exist",
                "Who? Holder is defined in none of its modules",
                "Who? there is no test hold_is_long",
                "When? no constant or function",
                "When? no test",
            ],
        )


class FieldManagers(unittest.TestCase):
    def test_each_field_manager_has_a_row(self) -> None:
        sources = [path for crate in ("agent", "controller") for path in (REPOSITORY / crate).rglob("*.rs")]
        text = "\n".join(path.read_text() for path in sources)
        managers = set(re.findall(r'const \w*MANAGER: &str = "(drydock-[a-z-]+)"', text))
        self.assertGreater(len(managers), 4)
        page = (REPOSITORY / "controller" / "README.md").read_text()
        self.assertEqual([name for name in sorted(managers) if f"| `{name}` |" not in page], [])


if __name__ == "__main__":
    unittest.main()
