"""`python -m parascale` is the command `parascale`."""

import sys


def main() -> None:
    """The command. `check gpu` does without the libraries of the others."""
    if sys.argv[1:3] == ["check", "gpu"]:
        from parascale.check import main as check_gpus

        sys.exit(check_gpus(sys.argv[3:]))
    from parascale.cli import main as command

    command()


if __name__ == "__main__":
    # `python -m` looks into the current folder first, where a file of the user's may be called as a module of Python's.
    if not sys.flags.safe_path:
        del sys.path[0]
    main()
