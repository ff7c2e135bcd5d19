"""However a script ends early, its user reads one line instead of a traceback."""

import subprocess
import sys

import pytest

SCRIPT = """
from parascale.cli import run_main
from parascale.errors import ParascaleError

def main():
    {body}

run_main(main)
"""


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("raise ParascaleError('no such run: nobody')", 1, "error: no such run: nobody\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        ("return 3", 3, ""),
        ("pass", 0, ""),
    ],
)
def test_an_end_is_a_code_and_at_most_one_line(body, code, said):
    ended = subprocess.run([sys.executable, "-c", SCRIPT.format(body=body)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, said)


def test_another_pipe_that_breaks_is_not_passed_over():
    script = [sys.executable, "-c", SCRIPT.format(body="raise BrokenPipeError('of a worker')")]
    ended = subprocess.run(script, capture_output=True, text=True)
    assert ended.returncode == 1 and "of a worker" in ended.stderr


def test_a_reader_that_has_enough_is_no_error():
    """`python scripts/advise.py … | head`"""
    script = [sys.executable, "-c", SCRIPT.format(body="print('line\\n' * 100_000)")]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.stderr.read() == ""
