"""`python -m parascale` is the command `parascale`."""

import sys

if __name__ == "__main__":
    # `python -m` looks into the current folder first, where a file of the user's may be called as a module of Python's.
    if not sys.flags.safe_path:
        del sys.path[0]
    from parascale.cli import main

    main()
