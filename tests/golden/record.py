"""Write record.json again and print which rows changed, for the commit message: python tests/golden/record.py"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute the golden record and print which rows differ, by name.")
    parser.add_argument("--check", action="store_true", help="print the differences and write nothing")
    check = parser.parse_args().check
    sys.path[:0] = [str(TESTS), str(TESTS / "models")]
    from compute import GROUPS, RECORD, compute, differences, read_record, write_record

    import conftest  # noqa: F401 - the settings that tests run with decide the last bits: they come before torch

    rows = {}
    for group in GROUPS:
        print(f"computing {group}", file=sys.stderr)
        rows |= compute(group)
    lines = differences(read_record() if RECORD.exists() else {}, rows)
    print("\n".join(lines) or f"all {len(rows)} rows are as recorded")
    if not check:
        write_record(rows)


if __name__ == "__main__":
    main()
