"""Make the environment of the peers that formats.py compares with, in a folder of one's choice.

Example: python tests/benchmarks/make_peers.py /tmp/peers
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

# The versions with which RESULTS.md was measured.
PACKAGES = ("mosaicml-streaming==0.13.0", "litdata==0.2.76", "webdataset==1.0.2", "datasets==5.0.1", "torch==2.13.0")


def main():
    """Create the environment and install the peers into it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the environment is made")
    folder = parser.parse_args().folder
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", *PACKAGES], check=True)
    print(f"{sys.executable} tests/benchmarks/formats.py --peers {python}")


if __name__ == "__main__":
    main()
