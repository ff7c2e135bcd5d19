"""`python -m tests.golden`: write all golden files anew."""

import sys

import pytest

from . import FOLDER, file_of

asking = [path for path in sorted(FOLDER.parent.rglob("test_*.py")) if "golden(" in path.read_text(encoding="utf-8")]
for each in asking:
    file_of(each).unlink(missing_ok=True)
sys.exit(pytest.main(["-q", "--renew-golden", "-m", "not slow", *map(str, asking)]))
