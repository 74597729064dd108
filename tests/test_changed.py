"""`tests/run --changed` takes the nearest tests first."""

from __future__ import annotations

from tests.changed import ROOT, nearest
from tests.costly import COSTLY

SOURCES = {
    "raidx_fuse/jobs/rebuild.py": "import os",
    "raidx_fuse/array/array.py": "def load():\n    from raidx_fuse.jobs import rebuild",
    "layouts/grid.py": "",
    "tests/support/arrays.py": "from raidx_fuse.array.array import Array",
    "tests/conftest.py": "",
    "tests/engine/conftest.py": "",
    "tests/engine/test_all.py": "import tests.support.arrays",
    "tests/engine/test_grid.py": "from raidx_fuse.layouts.grid import Grid",
    "tests/crash/test_rebuild_cuts.py": "from tests.support.arrays import rig",
    "tests/jobs/test_far.py": "",
    "tests/jobs/test_near.py": "from tests.support import arrays",
    "tests/jobs/test_of_it.py": "from raidx_fuse.jobs import rebuild",
    "tests/jobs/test_rebuild.py": "from raidx_fuse.jobs.rebuild import Rebuild",
    "tests/docs/test_pages.py": "PAGE = 'FORMAT.md'",
}


def test_tests_of_a_module_come_before_those_of_its_package_and_all_that_reach_it() -> None:
    assert nearest(["raidx_fuse/jobs/rebuild.py"], SOURCES) == [
        "tests/jobs/test_rebuild.py",
        "tests/jobs/test_of_it.py",
        "tests/crash/test_rebuild_cuts.py",
        "tests/jobs/test_near.py",
        "tests/jobs/test_far.py",
        "tests/engine/test_all.py",
    ]


def test_a_folder_that_is_a_link_is_imported_by_its_name_in_the_package() -> None:
    assert nearest(["layouts/grid.py"], SOURCES) == ["tests/engine/test_grid.py"]


def test_a_test_that_changed_runs_before_those_of_a_rig_that_did() -> None:
    assert nearest(["tests/support/arrays.py", "tests/jobs/test_near.py"], SOURCES) == [
        "tests/jobs/test_near.py",
        "tests/crash/test_rebuild_cuts.py",
        "tests/engine/test_all.py",
    ]


def test_fixtures_concern_their_folder_and_a_page_those_who_name_it() -> None:
    assert nearest(["tests/engine/conftest.py", "raidx_fuse/FORMAT.md"], SOURCES) == [
        "tests/engine/test_all.py",
        "tests/engine/test_grid.py",
        "tests/docs/test_pages.py",
    ]
    assert not nearest(["README.md"], SOURCES)


def test_every_test_that_is_left_out_exists() -> None:
    for name in COSTLY:
        path, _, function = name.partition("::")
        assert f"def {function.partition('[')[0]}(" in (ROOT / path).read_text()
