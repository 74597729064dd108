"""What tests of jobs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.packages import installed_example


@pytest.fixture(scope="module")
def own_placement(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package of examples/own-code is installed: it brings the placement "declustered"."""
    with installed_example(tmp_path_factory.mktemp("site")):
        yield
