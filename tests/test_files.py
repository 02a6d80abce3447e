"""Files that libraries write for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

from sparsenmt.files import make_readable


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for mask, wanted in ((0o022, 0o644), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            file.chmod(0o600)
            make_readable(file)
        finally:
            os.umask(before)
        assert file.stat().st_mode & 0o777 == wanted
