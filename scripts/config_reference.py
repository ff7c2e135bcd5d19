"""Write the tables of config/README.md from the settings that the dataclasses declare.

python scripts/config_reference.py --write
python scripts/config_reference.py --check
"""

import argparse
from pathlib import Path

from parascale.cli import run_main
from parascale.files import write_text
from parascale.settings.reference import fill

PAGE = Path("config/README.md")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=PAGE, help=f"the page that holds the tables (default: {PAGE})")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="write the page; otherwise it is printed")
    action.add_argument("--check", action="store_true", help="exit with 1 where the page is not what would be written")
    arguments = parser.parse_args()

    old = arguments.page.read_text(encoding="utf-8")
    new = fill(old)
    if arguments.check:
        if new != old:
            print(f"{arguments.page} is out of date: python scripts/config_reference.py --write")
        return int(new != old)
    if arguments.write:
        write_text(arguments.page, new)
    else:
        print(new, end="")
    return 0


if __name__ == "__main__":
    run_main(main)
