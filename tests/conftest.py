"""For all tests: events of arrays are kept in a folder of the run, not in that of the machine."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

if "RAIDX_STATE" not in os.environ:
    os.environ["RAIDX_STATE"] = tempfile.mkdtemp(prefix="raidx-state-")
    atexit.register(shutil.rmtree, os.environ["RAIDX_STATE"], ignore_errors=True)
