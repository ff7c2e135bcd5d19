"""What every script shares: a `main()` whose errors are one clear line instead of a traceback."""

import os
import select
import sys

from parascale.errors import ParascaleError


def run_main(main):
    """Call `main()` and exit with its return value; a ParascaleError becomes `error: ...` and exit code 1."""
    try:
        sys.exit(main())
    except ParascaleError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except BrokenPipeError:
        if _is_read():  # another pipe broke
            raise
        # `script | head`: the reader has what it wanted, and what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        sys.exit(130)


def _is_read():
    """Whether standard output still has a reader."""
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)
    return not any(event & select.POLLERR for _, event in watched.poll(0))
