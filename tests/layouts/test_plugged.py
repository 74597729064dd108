"""Layouts of other packages: found, proved, and refused in one line that names the package."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.errors import AssemblyError, RaidxError, UsageError
from raidx_fuse.format.shapes import shapes_of
from raidx_fuse.layouts.codes.code import Cell, Code, LayoutError
from raidx_fuse.layouts.placements.pattern import Placement
from raidx_fuse.layouts.plugged import MADE_BY
from raidx_fuse.layouts.proof import CELLS_MAX, fingerprint, problem_of
from raidx_fuse.layouts.registry import LAYOUTS, find_layout, make_code, make_layout
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import Rig
from tests.support.command import checked, raidx
from tests.support.growing import ram_of
from tests.support.load import ended
from tests.support.packages import installed, write_package
from tests.support.restriping import SmallRig, restripe

BODY = '''
from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.placements.pattern import Placement

def twins(width):
    """Every two members hold the same."""
    if width % 2:
        raise LayoutError("in pairs only")
    half = width // 2
    data = tuple((0, c) for c in range(half))
    return Code("twins", 1, width, tuple(((0, half + c), (0, c)) for c in range(half)), data, 1)

def shifted(width):
    """Every two members hold the same, in another order."""
    code = twins(width)
    return Code("twins", 1, width, code.chains[::-1], code.data, 1)

def greedy(width):
    """It claims to survive two losses."""
    code = twins(width)
    return Code("twins", 1, width, code.chains, code.data, 2)

def stray(width):
    """A chain off the grid."""
    return Code("stray", 1, width, (((0, 1), (0, 9)),), ((0, 0),), 1)

def raising(width):
    """It raises."""
    raise RuntimeError(f"no\\nidea of {width}")

def silent(width):
    return None

def spread(width):
    """Pairs of copies on any two members."""
    if width < 3:
        raise LayoutError("from three members on")
    pattern = [[first, second] for first in range(width) for second in range(first)]
    return Placement(twins(2), pattern)

def turned(width):
    """The same in another order."""
    placement = spread(width)
    return Placement(placement.code, placement.pattern[::-1])

def heaped(width):
    """The first members have more."""
    return Placement(twins(2), [[0, 1], [0, 2], [1, 2], [0, 3]])

number = 7
'''
GOOD = {"twins": "twins", "spread": "spread"}
BROKEN = {
    "greedy": "greedy",
    "stray": "stray",
    "heaped": "heaped",
    "raising": "raising",
    "number": "number",
    "gone": "no_such",
    "raid5": "twins",
    "Bad Name": "twins",
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of installed packages: one good, one broken in all ways, one that raises."""
    folder = tmp_path / "site"
    write_package(folder, "good-codes", BODY, layouts=GOOD)
    write_package(folder, "bad-codes", BODY, version="0.3", layouts=BROKEN)
    write_package(folder, "no-import", "raise SystemExit('stop\\n now')", layouts={"exit": "x"})
    with installed(folder):
        yield folder


@pytest.mark.usefixtures("site")
def test_it_is_a_layout_like_any_other() -> None:
    info = find_layout("twins")
    assert (info.title, info.package) == ("Every two members hold the same.", "good-codes 1.0")
    assert make_code("twins", 4) is make_code("twins", 4)
    with pytest.raises(LayoutError, match=r"twins does not exist for 5 members .*: 4 or 6"):
        make_code("twins", 5)
    assert info.tolerance(5) == 1  # of the layout as such
    turned = make_layout("twins", 4, 12, 4096, rotate=True)
    assert turned.roles(0) != turned.roles(1)
    assert "twins" in LAYOUTS
    assert "twins" in list(LAYOUTS)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("greedy", "of package bad-codes 0.3 is wrong for 4 members: it claims to tolerate 2, but"),
        ("stray", "bad-codes 0.3 fails for 4 members: AssertionError: stray: (0, 9) of a chain is"),
        ("raising", "bad-codes 0.3 fails for 4 members: RuntimeError: no idea of 4"),
        ("heaped", "wrong for 4 members: role 0 is in 3 stripes of its pattern, others are not"),
        ("number", "layout 'number' of package bad-codes 0.3 is no function"),
        ("gone", "'gone' of package bad-codes 0.3 cannot be imported: AttributeError"),
        ("exit", "'exit' of package no-import 1.0 cannot be imported: SystemExit: stop now"),
    ],
)
def test_a_bad_plug_in_is_refused_in_one_line(name: str, said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        make_layout(name, 4, 12, 4096)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert make_code("raid5", 4).name == "raid4", "raid5 is the built-in one"


@pytest.mark.usefixtures("site")
def test_commands_go_on_beside_bad_plug_ins(tmp_path: Path) -> None:
    done = raidx(tmp_path, "layout list")
    assert done.status == 0
    assert "twins" in done.stdout
    assert "greedy" not in done.stdout
    warned = done.stderr.splitlines()
    for words in (
        "layout 'greedy' of package bad-codes 0.3 is wrong",
        "layout 'raid5' of bad-codes 0.3 is not used: raidx has that name itself",
        "layout 'Bad Name' of bad-codes 0.3 is not used",
        "layout 'exit' of package no-import 1.0 cannot be imported",
        "layout 'raising' of package bad-codes 0.3 fails",
    ):
        assert sum(words in line for line in warned) == 1, (words, warned)
    line = "create --layout greedy --size 8MiB a b c d"
    done = raidx(tmp_path, line)
    assert (done.status, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "package bad-codes 0.3" in done.stderr
    assert not (tmp_path / "a").exists()
    planned = checked(tmp_path, "create --dry-run --layout raid5 --size 8MiB a b c d")
    assert "\n  twins " in planned, "the table of all layouts"
    assert "greedy" not in planned


def test_torn_metadata_of_any_package_is_passed_over(tmp_path: Path) -> None:
    site = tmp_path / "site"
    write_package(site, "good-codes", BODY, layouts=GOOD)
    write_package(site, "nameless", BODY, layouts={"ghost": "no_such"})
    (site / "nameless-1.0.dist-info" / "METADATA").unlink()
    (site / "torn-1.0.dist-info").mkdir()
    (site / "torn-1.0.dist-info" / "entry_points.txt").write_text("[raidx.layouts]\nno line\n=\n")
    with installed(site):
        assert "twins" in LAYOUTS
        with pytest.raises(LayoutError, match=r"of package without a name \? cannot be imported"):
            find_layout("ghost")


def test_a_package_without_metadata_is_found_by_a_finder_that_raises_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of importlib_metadata does, which replaces Python's own once it is imported."""

    def missing(_: object) -> None:
        raise FileNotFoundError("No package metadata was found")

    write_package(tmp_path / "site", "nameless", BODY, layouts={"ghost": "no_such"})
    other = sys.modules.get("importlib_metadata", importlib.metadata)
    for module in (importlib.metadata, other):
        monkeypatch.setattr(module.Distribution, "metadata", property(missing))
    with (
        installed(tmp_path / "site"),
        pytest.raises(LayoutError, match=r"without a name \? cannot"),
    ):
        find_layout("ghost")


def test_a_name_of_two_packages_is_nobodys(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_package(tmp_path / "site", name, BODY, layouts=GOOD)
    with installed(tmp_path / "site"):
        with pytest.raises(LayoutError, match=r"'twins' is offered by one 1\.0 and two 1\.0"):
            find_layout("twins")
        assert "twins" not in list(LAYOUTS)
        assert len(LAYOUTS.problems()) == len(GOOD)


@pytest.mark.usefixtures("site")
async def test_an_array_survives_its_losses() -> None:
    rig = Rig("twins", 4)
    await rig.play(
        [
            ("write", 0.1, 0.4, 1),
            ("fail", 1),
            ("write", 0.4, 0.3, 2),
            ("replace",),
            ("fail", 3),
            ("remount", False),
            ("write", 0.0, 0.9, 3),
        ]
    )


@pytest.mark.parametrize(("name", "other"), [("twins", "shifted"), ("spread", "turned")])
def test_an_array_knows_its_package(tmp_path: Path, name: str, other: str) -> None:
    """Mounted without it, with another version, and with one of other chains or places."""
    places = {name: tmp_path / name for name in ("first", "newer", "changed", "none")}
    write_package(places["first"], "good-codes", BODY, layouts=GOOD)
    write_package(places["newer"], "good-codes", BODY, version="1.1", layouts=GOOD)
    write_package(places["changed"], "good-codes", BODY, version="2.0", layouts={name: other})
    places["none"].mkdir()
    rig = Rig(name, 4)

    async def make() -> None:
        array = await rig.create()
        made = array.member_set.config.params[MADE_BY]
        assert made == {
            "package": "good-codes",
            "version": "1.0",
            "code": fingerprint(make_code(name, 4), find_layout(name).pattern(4)),
        }
        await array.write(0, b"kept" * 1024)
        await rig.close()

    async def read() -> None:
        array = await rig.open()
        assert bytes(await array.read(0, 8)) == b"keptkept"
        assert array.member_set.config.params[MADE_BY]["version"] == "1.0"
        await rig.close()

    async def refused() -> str:
        before = [bytes(ram_of(member).memory) for member in rig.members]
        with pytest.raises(RaidxError) as caught:
            await rig.open()
        assert before == [bytes(ram_of(member).memory) for member in rig.members]
        return str(caught.value)

    with installed(places["first"]):
        run(make)
    with installed(places["newer"]):
        run(read)
    with installed(places["none"]):
        said = run(refused)
    assert said == (
        f"array 'rig' cannot be used: layout {name!r} is of package good-codes 1.0, "
        "which is not installed here; install it"
    )
    with installed(places["changed"]):
        said = run(refused)
    assert "package good-codes 2.0 has other chains or places than that of good-codes 1.0" in said
    with installed(places["first"]):
        run(read)


@pytest.mark.usefixtures("site")
async def test_a_restripe_keeps_the_origin_of_both_layouts() -> None:
    rig = SmallRig("raid5", 3)
    rig.member_bytes = 4 << 20
    await rig.create()
    try:
        job = await restripe(rig, "twins", 6)
        config = rig.array.member_set.config
        old, new = shapes_of(config)
        assert MADE_BY not in old.params
        assert new.params[MADE_BY]["package"] == "good-codes"
        await ended(rig, job)
        params = rig.array.member_set.config.params
        assert params[MADE_BY]["code"] == fingerprint(make_code("twins", 6))
        await rig.reopen()
        job = await restripe(rig, "raid0", 6)
        await ended(rig, job)
        assert MADE_BY not in rig.array.member_set.config.params
    finally:
        await rig.close()


PATHS = f"import sys; sys.path[:] = {sys.path!r}\n"
HOSTILE = [
    ("raid5", {"package": "p", "version": "1", "code": "x"}, "another one of that name itself"),
    ("raid5", "p", "not named as it should be"),
    ("nowhere", {"package": "p\x1b[2J", "version": "1", "code": "x"}, "not installed here"),
    ("nowhere", {"package": 5}, "not named as it should be"),
    ("twins", {"package": "p", "version": "1", "code": "x"}, "has other chains"),
]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(("name", "made_by", "said"), HOSTILE)
def test_a_hostile_origin_is_refused(name: str, made_by: object, said: str) -> None:
    async def body() -> str:
        rig = Rig("raid5", 4)
        array = await rig.create()
        await array.member_set.update(
            lambda config: dataclasses.replace(config, layout=name, params={MADE_BY: made_by})
        )
        with pytest.raises(LayoutError):
            make_layout(name, 4, 12, 4096, made_by=made_by)
        await rig.close()
        with pytest.raises(AssemblyError) as caught:
            await rig.open()
        return str(caught.value)

    text = run(body)
    assert said in text
    assert text.isprintable()


def test_the_proof_finds_what_is_wrong() -> None:
    def code(rows: int, columns: int, parity: Cell, chain: tuple[Cell, ...], losses: int) -> Code:
        data = tuple(dict.fromkeys(chain))
        return Code("c", rows, columns, ((parity, *chain),), data, losses)

    raid = code(1, 3, (0, 2), ((0, 0), (0, 1)), 1)
    assert problem_of(raid, 3) is None
    assert problem_of(raid, 4) == "it has 3 columns for 4 members"
    assert "not a Code or a Placement" in str(problem_of(None, 3))
    assert problem_of(dataclasses.replace(raid, tolerance=2), 3) == (
        "it claims to tolerate 2, but not without columns 0, 1"
    )
    assert "cannot tolerate 3" in str(problem_of(dataclasses.replace(raid, tolerance=3), 3))
    assert "row 1, column 0 is neither" in str(problem_of(dataclasses.replace(raid, rows=2), 3))
    assert "65 rows" in str(problem_of(dataclasses.replace(raid, rows=65), 3))
    odd: Any = ((0, 2), (0.0, 0), (0, True))
    floats = Code("c", 1, 3, (odd,), ((0, 0), (0, 1)), 1)
    assert problem_of(floats, 3) == "(0.0, 0) is no cell: a tuple of row and column"
    chains = (((0, 1), (0, 0)), ((0, 2), (0, 0)), ((0, 3), (0, 1), (0, 2)))
    assert problem_of(Code("c", 1, 4, chains, ((0, 0),), 1), 4) == (
        "the chain of P2 protects no data"
    )
    wide = Code("c", 64, 65, (), tuple((r, c) for r in range(64) for c in range(65)), 0)
    assert f"up to {CELLS_MAX}" in str(problem_of(wide, 65))
    copies = Code("c", 1, 16, tuple(((0, c), (0, 0)) for c in range(1, 16)), ((0, 0),), 8)
    assert "too many ways" in str(problem_of(copies, 16))


def test_short_commands_look_for_no_package() -> None:
    program = (
        "import sys\n"
        "from raidx_fuse.layouts.registry import make_layout, find_layout\n"
        "from raidx_fuse.engine.parity_policies import check_policy\n"
        "find_layout('raid5'); make_layout('rdp', 6, 24, 4096); check_policy('bpu')\n"
        "sys.exit('importlib.metadata' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-S", "-c", PATHS + program]).returncode == 0


@pytest.mark.usefixtures("site")
async def test_creation_is_refused_where_the_code_is_not_what_was_said() -> None:
    rig = Rig("twins", 4, params={MADE_BY: {"package": "p", "version": "1", "code": "0"}})
    with pytest.raises(UsageError, match="has other chains or places than that of p 1"):
        await rig.create()


def test_the_proof_finds_what_is_wrong_with_a_pattern() -> None:
    code = Code("c", 1, 2, (((0, 1), (0, 0)),), ((0, 0),), 1)
    good = [[0, 1], [1, 2], [2, 0]]
    assert problem_of(Placement(code, good), 3) is None
    assert problem_of(Placement(code, [[1, 0]]), 2) is None, "one as wide as the array"
    wrong: list[tuple[Any, str]] = [
        ([], "no list of 1 to 32768 stripes"),
        (["01"], "stripe 0 of its pattern is no list of roles"),
        ([[0, 1.0]], "stripe 0 of its pattern is no list of roles"),
        ([[0, 1], [1, 1], [2, 0]], "stripe 1 of its pattern has not 2 different roles below 3"),
        ([[0, 3], [1, 2], [2, 0]], "stripe 0 of its pattern has not 2 different roles below 3"),
        ([[0, 1, 2]], "stripe 0 of its pattern has not 2 different roles below 3"),
        (good[:2], "role 0 is in 1 stripes of its pattern, others are not"),
    ]
    for pattern, said in wrong:
        assert said in str(problem_of(Placement(code, pattern), 3)), pattern
    assert "its stripes have 2 columns for 1 members" in str(problem_of(Placement(code, good), 1))
    none: Any = None
    assert "None columns" in str(problem_of(Placement(none, good), 3))
