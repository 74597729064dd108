"""One notation for cells, growths step by step, and the pictures (`--svg`) of `raidx layout`."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from raidx_fuse.cli.commands.layout.svg import colour
from raidx_fuse.cli.main import main
from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.registry import make_code
from tests.support.command import fail, run, run_json

SPACE = "{http://www.w3.org/2000/svg}"
FIG_1 = ("layout", "map", "mcpod", "--disks", "4", "--disks-after", "6", "--step")
DRAWN = (
    ("show", "rdp", "--disks", "6"),
    ("show", "raid5", "--disks", "4", "--disks-after", "5"),
    ("show", "raid0", "--disks", "3"),
    ("chains", "upc", "--disks", "6"),
    ("chains", "raid0", "--disks", "3"),
    ("recover", "rdp", "--disks", "8", "--lost", "0"),
    ("recover", "xcode", "--disks", "5", "--lost", "1,2"),
    ("map", "mcpod", "--disks", "4", "--disks-after", "6"),
    ("map", "evenodd", "--disks", "4", "--disks-after", "6", "--disks-after", "7", "--chunks", "9"),
    ("map", "raid5", "--disks", "4", "--chunks", "9"),
    ("bundles", "--length", "3", "--disk-chunks", "7,4,5,4"),
)


def texts(path: Path) -> list[str]:
    """Return the words of a picture, which must be one that needs nothing else."""
    document = path.read_text()
    assert not re.search(r"<script|<image|href|url\(|https?://(?!www\.w3\.org/2000/svg)", document)
    tree = ElementTree.fromstring(document)
    assert tree.tag == f"{SPACE}svg"
    width, height = float(tree.attrib["width"]), float(tree.attrib["height"])
    for shape in tree.iter():
        if shape.tag in (f"{SPACE}rect", f"{SPACE}text") and shape.get("x"):
            assert 0 <= float(shape.attrib["x"]) <= width
            assert 0 <= float(shape.attrib["y"]) <= height
    return [each.text or "" for each in tree.iter(f"{SPACE}text")]


@pytest.mark.parametrize("args", DRAWN, ids=" ".join)
def test_a_picture_is_drawn_beside_the_text(args: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    plain = run("layout", *args)
    assert run("layout", *args, "--svg", str(path)) == plain
    assert run("layout", *args, "--svg", str(path)) == plain  # again: a picture may be replaced
    assert len(texts(path)) > (1 if args[:2] == ("chains", "raid0") else 5)


def test_a_picture_shows_chains_reads_and_growth(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    run("layout", "show", "rdp", "--disks", "6", "--svg", str(path))
    code = make_code("rdp", 6)
    bands = sum(mask.bit_count() for mask in code.chain_masks)
    fills = re.findall(r'fill="(#\w{6})"', path.read_text())
    assert len(fills) == bands  # each cell has the colour of each of its chains
    assert set(fills) == {colour(chain) for chain in range(8)}
    assert "#7 P1" in texts(path)  # D7 is on no diagonal
    run("layout", "recover", "rdp", "--disks", "6", "--lost", "0", "--svg", str(path))
    words = texts(path)
    assert words.count("read") == 12
    assert [word for word in words if word.startswith("step")] == [f"step {n}" for n in range(1, 5)]
    run(*FIG_1, "--svg", str(path))
    words = texts(path)
    moved = [word for word in words if word.endswith(" moved")]
    assert sorted(moved) == sorted(f"#{n} moved" for n in (0, 3, 4, 7, 8, 11))
    assert len([word for word in words if word.endswith(" new")]) == 10


def test_a_picture_has_a_limit(tmp_path: Path) -> None:
    words = ("layout", "show", "raid5", "--disks", "255", "--svg", str(tmp_path / "a.svg"))
    assert "a picture of 65025 boxes is too large" in fail(*words)
    assert not list(tmp_path.iterdir())


def test_no_other_file_is_overwritten_by_a_picture(tmp_path: Path) -> None:
    words = ("layout", "show", "raid5", "--disks", "3", "--svg")
    member = tmp_path / "disk0.img"
    member.write_bytes(b"RAIDX")
    assert "exists and is no SVG file" in fail(*words, str(member))
    assert member.read_bytes() == b"RAIDX"
    assert "exists and is no SVG file" in fail(*words, str(tmp_path))
    (tmp_path / "link").symlink_to(member)
    assert "exists and is no SVG file" in fail(*words, str(tmp_path / "link"))
    absent = CliRunner().invoke(main, [*words, str(tmp_path / "none" / "a.svg")])
    assert absent.exit_code == 1
    assert absent.stderr.endswith("cannot be written: No such file or directory\n")


def equations(printed: str) -> dict[str, set[str]]:
    """Return the cells of each line "NAME = NAME ^ NAME ...", by the name at its begin."""
    found = re.findall(r"^\s*([DP]\d+) = (.*)$", printed, re.MULTILINE)
    return {name: set(re.findall(r"[DP]\d+", cells)) for name, cells in found}


def named(code: Code, mask: int) -> set[str]:
    return {code.name_of(cell) for cell in range(len(code.cells)) if mask >> cell & 1}


@pytest.mark.parametrize(("name", "disks"), [("raid5", 4), ("rdp", 6), ("upc", 6), ("xcode", 5)])
def test_a_cell_has_one_name_in_all_commands(name: str, disks: int) -> None:
    code = make_code(name, disks)
    every = named(code, code.all_mask)
    words = (name, "--disks", str(disks))
    shown = run_json("layout", "show", *words, "--stripes", "1")["stripes"][0]["cells"]
    at = {c["name"]: (row, shown[row].index(c)) for row in range(len(shown)) for c in shown[row]}
    chains = run_json("layout", "chains", *words)
    assert {cell: tuple(place) for cell, place in chains["cells"].items()} == at
    assert set(re.findall(r"[DP]\d+", run("layout", "show", *words, "--stripes", "1"))) == every
    for chain, (parity, others) in enumerate(equations(run("layout", "chains", *words)).items()):
        assert {parity, *others} == named(code, code.chain_masks[chain])
    for more in ((), ("--step",)):
        lines = equations(run("layout", "recover", *words, "--lost", "0", *more))
        assert set(lines) == {cell for cell, (_, column) in at.items() if column == 0}
        assert set().union(*lines.values()) <= every
    rows = run_json("layout", "map", *words, "--chunks", str(code.data_count))["map"]
    assert [row["cell"] for row in rows] == [f"D{n}" for n in range(code.data_count)]
    asked = run("quiz", "--layout", name, "--disks", str(disks), "--level", "hard", "--answers")
    assert set(re.findall(r"\b[DP]\d+\b", asked)) <= every


def test_the_growth_of_mcpod_step_by_step_is_the_papers_first_figure() -> None:
    (growth,) = run_json(*FIG_1)["growths"]
    assert (growth["from"], growth["to"], growth["moved"]) == (4, 6, 6)
    assert (growth["reads"], growth["writes"]) == (3, 2)  # Figs. 2 and 3
    page = run(*FIG_1)
    copies = re.findall(r"copy D\d #(\d+): disk (\d) to disk (\d) \(chunk (\d) of both\)", page)
    assert [tuple(map(int, found)) for found in copies] == [
        (0, 0, 3, 0), (3, 0, 3, 1), (4, 1, 4, 1), (7, 1, 3, 2), (8, 2, 4, 2), (11, 2, 4, 3),
    ]  # fmt: skip
    after = page[page.index("after") :].splitlines()
    assert after[2].split("  ")[-1].strip() == "D3 #15+"
    assert "stripe 4\n    nothing moves\n    new: D3 #23 on disk 3, D4 #24 on disk 4\n" in page
    assert "6 of 15 cells moved, 40.0%; over all stripes it is 2 of 5" in page
    assert "3 reads, 2 writes; round robin over all disks would move 12 data cells" in page


def test_every_growth_in_place_can_be_stepped_through() -> None:
    for name, disks, after in (
        ("raid0", 2, 3),
        ("raid4", 3, 4),
        ("raid5", 4, 5),
        ("evenodd", 4, 6),
    ):
        widths = ("--disks", str(disks), "--disks-after", str(after))
        growth = run_json("layout", "map", name, *widths, "--chunks", "40", "--step")["growths"][0]
        new = [cell for stripe in growth["stripes"] for cell in stripe["new"]]
        places = [tuple(cell["at"]) for stripe in growth["stripes"] for cell in stripe["stays"]]
        places += [tuple(c["to"]) for stripe in growth["stripes"] for c in stripe["moved"]]
        places += [tuple(cell["at"]) for cell in new]
        assert len(set(places)) == len(places)
        for stripe in growth["stripes"]:
            for cell in stripe["moved"]:
                assert cell["from"][1] == cell["to"][1]  # no row changes
                assert cell["to"][0] >= disks  # moves go to new members
