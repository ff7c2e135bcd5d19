"""Make the environment of the peers that formats.py or decoding.py compares with, in a folder of one's choice.

Example: python tests/benchmarks/make_peers.py /tmp/peers
"""

import subprocess
import sys
import venv
from pathlib import Path

from comparison import parser_of

# The versions with which RESULTS.md was measured.
PACKAGES = {
    "formats": (
        "mosaicml-streaming==0.13.0",
        "litdata==0.2.76",
        "webdataset==1.0.2",
        "datasets==5.0.1",
        "torch==2.13.0",
    ),
    "decoding": ("torch==2.14.1", "torchvision==0.29.1", "nvidia-dali-cuda120==2.4.0", "psutil"),
}


def main():
    """Create the environment and install the peers into it."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="where the environment is made")
    parser.add_argument("--of", choices=PACKAGES, default="formats", help="benchmark (default: %(default)s)")
    arguments = parser.parse_args()
    folder = arguments.folder
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", *PACKAGES[arguments.of]], check=True)
    print(f"{sys.executable} tests/benchmarks/{arguments.of}.py --peers {python}")


if __name__ == "__main__":
    main()
