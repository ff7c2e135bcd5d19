"""What every script shares: a `main()` whose errors are one clear line instead of a traceback."""

import os
import sys

from parascale.errors import ParascaleError


def run_main(main):
    """Call `main()` and exit with its return value; a ParascaleError becomes `error: ...` and exit code 1."""
    try:
        sys.exit(main())
    except ParascaleError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except BrokenPipeError:  # `script | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered has nowhere to go
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        sys.exit(130)
