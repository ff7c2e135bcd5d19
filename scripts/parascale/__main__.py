"""Entry point of `parascale` and `python -m parascale`."""

import sys


def main() -> None:
    """Run the command. `check gpu` works without the libraries that the other subcommands need."""
    if sys.argv[1:3] == ["check", "gpu"]:
        from parascale.check import main as check_gpus

        sys.exit(check_gpus(sys.argv[3:]))
    from parascale.cli import main as command

    command()


if __name__ == "__main__":
    # `python -m` puts the current folder first, where a user's file may hide a module of the standard library.
    if not sys.flags.safe_path:
        del sys.path[0]
    main()
