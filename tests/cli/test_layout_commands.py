"""`raidx layout ...`: pure commands, against the layouts and against each other."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from raidx_fuse.cli.commands.layout.svg import colour
from raidx_fuse.cli.main import main
from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.registry import LAYOUTS, allowed_widths, make_code
from tests.support.command import fail, run, run_json


def test_list_names_every_layout_with_tolerance_and_efficiency() -> None:
    listed = {entry["name"]: entry for entry in run_json("layout", "list")["layouts"]}
    assert listed.keys() == LAYOUTS.keys()
    assert listed["raid5"]["losses"]["4"] == 1
    assert listed["raid5"]["efficiency"]["4"] == 0.75
    assert listed["pcode"]["widths"] == list(allowed_widths("pcode"))
    text = run("layout", "list")
    assert all(name in text for name in LAYOUTS)


def test_show_draws_left_symmetric_raid5() -> None:
    document = run_json("layout", "show", "raid5", "--disks", "4")
    logical = [[c.get("logical") for c in row] for s in document["stripes"] for row in s["cells"]]
    assert logical == [[0, 1, 2, None], [4, 5, None, 3], [8, None, 6, 7], [None, 9, 10, 11]]
    lines = run("layout", "show", "raid5", "--disks", "4").splitlines()
    drawn = [line.split("│")[2:6] for line in lines if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in drawn] == [
        ["D0 #0", "D1 #1", "D2 #2", "P0"],
        ["D1 #4", "D2 #5", "P0", "D0 #3"],
        ["D2 #8", "P0", "D0 #6", "D1 #7"],
        ["P0", "D0 #9", "D1 #10", "D2 #11"],
    ]


@pytest.mark.parametrize("name", [n for n, info in LAYOUTS.items() if info.build or n == "mcpod"])
def test_show_chains_and_recover_agree_on_the_cells(name: str) -> None:
    width = allowed_widths(name)[-1] if name == "raid0" else 6 if name != "xcode" else 7
    disks = ("--disks", str(min(width, 7)))
    shown = run_json("layout", "show", name, *disks, "--stripes", "1")
    chains = run_json("layout", "chains", name, *disks)
    assert (shown["rows"], shown["cols"]) == (chains["rows"], chains["cols"])
    parity = {tuple(chain[0]) for chain in chains["chains"]}
    (stripe,) = shown["stripes"]
    for row, cells in enumerate(stripe["cells"]):
        for cell in cells:
            assert (
                cell is None
                or ("logical" in cell) == ((row, cells.index(cell)) not in parity)
                or shown["rows"] == 1
            )  # one row: columns lie rotated
    run("layout", "show", name, *disks, "--chains")
    assert run("layout", "chains", name, *disks).count("=") == len(chains["chains"])


def test_recover_answers_for_every_lost_disk() -> None:
    words = ("layout", "recover", "rdp", "--disks", "6", "--lost")
    both = run_json(*words, "0,1")
    assert both["lost_disks"] == [0, 1]
    assert (both["count"], len(both["reads"])) == (16, 16)  # all that is left of 4 rows
    assert not {column for _, column in both["reads"]} & {0, 1}
    assert run_json(*words, "1", "--lost", "0") == both
    steps = run(*words, "0,1").splitlines()[1:]
    known = {name for name, (_, column) in both["cells"].items() if column > 1}
    assert len(known) == 16
    for step in steps:  # each from what is left or was recovered before it
        cell, _, sources = step.partition(" = ")
        assert set(sources.split(" ^ ")) <= known
        known.add(cell)
    assert len(known) == 24
    assert run_json(*words, "1")["lost"] == 1


def test_map_and_show_of_a_grown_raid5_and_rdp() -> None:
    growth = ("--disks", "4", "--disks-after", "5", "--disks-after", "7")
    document = run_json("layout", "map", "raid5", *growth, "--chunks", "60")
    places = {(row["member"], row["chunk"]) for row in document["map"]}
    assert len(places) == 60
    assert {member for member, _ in places} == set(range(7))
    shown = run_json("layout", "show", "rdp", "--disks", "4", "--disks-after", "6")
    assert (shown["rows"], shown["cols"]) == (4, 6)
    for stripe in shown["stripes"]:
        for row in stripe["cells"]:
            assert all(row)
            assert sum("logical" in cell for cell in row) == 4


def test_map_counts_roles_for_the_others() -> None:
    rows = run_json("layout", "map", "raid5", "--disks", "4", "--chunks", "6")["map"]
    assert [(row["member"], row["chunk"]) for row in rows] == [
        (0, 0), (1, 0), (2, 0), (3, 1), (0, 1), (1, 1),
    ]  # fmt: skip
    text = run("layout", "map", "raid5", "--disks", "4", "--chunks", "6").split()
    assert text[:10] == ["logical", "member", "chunk", "stripe", "cell", *"0000", "D0"]


def test_bundles_are_the_papers_first_two_figures() -> None:
    document = run_json("layout", "bundles", "--length", "3", "--disk-chunks", "7,4,5,4")
    assert document["bundles"][0] == [0, 2, 1]
    assert len(document["bundles"]) == document["maximum"] == 6
    two = run_json("layout", "bundles", "--length", "2", "--disk-chunks", "7,4,5,4")
    assert len(two["bundles"]) == 10
    assert "6 bundles" in run("layout", "bundles", "--length", "3", "--disk-chunks", "7,4,5,4")


def test_load_counts_the_parity_columns_of_rdp() -> None:
    document = run_json("layout", "load", "rdp", "--disks", "6", "--writes", "all")
    assert document["total"] == [8, 8, 8, 8, 32, 50]
    rotated = run_json("layout", "load", "raid5", "--disks", "4", "--writes", "0-11")
    assert rotated["total"] == [12, 12, 12, 12]
    assert rotated["imbalance"] == 1.0
    assert "busiest over mean: 2.63" in run(
        "layout", "load", "rdp", "--disks", "6", "--writes", "all"
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("show", "raid6", "--disks", "4"), "did you mean rdp or evenodd or upc?"),
        (("show", "RAID10", "--disks", "4"), "did you mean raidx-copy?"),
        (
            ("recover", "raid6", "--disks", "4", "--lost", "0"),
            "did you mean rdp or evenodd or upc?",
        ),
        (("show", "xcode", "--disks", "6"), "nearest: 5 or 7"),
        (("show", "raid5"), "'--disks'"),
        (("show", "raid5", "--disks", "x"), "not a valid integer"),
        (("show", "raid5", "--disks", "0"), "0"),
        (("show", "upc", "--disks", "6", "--rotate"), "no parameter 'rotate'"),
        (("show", "raidx-copy", "--disks", "6"), "raidx layout bundles"),
        (("show", "raid5", "--disks", "255", "--stripes", "99999"), "limit"),
        (("map", "upc", "--disks", "4", "--disks-after", "6", "--chunks", "3"), "mcpod"),
        (("map", "raid5", "--disks", "6", "--disks-after", "4", "--chunks", "3"), "only be added"),
        (("map", "mcpod", "--disks", "6", "--disks-after", "4", "--chunks", "3"), "only be added"),
        (("map", "raid5", "--disks", "4", "--chunks", "9", "--blocks-per-disk", "2"), "only 6"),
        (("map", "raid5", "--disks", "4"), "say how many chunks: --chunks"),
        (("map", "mcpod", "--disks", "4", "--step"), "give --disks-after, too"),
        (("recover", "raid5", "--disks", "4", "--lost", "4"), "0 to 3"),
        (("recover", "raid0", "--disks", "4", "--lost", "1"), "no loss"),
        (("recover", "raid5", "--disks", "4", "--lost", "0,1"), "tolerates 1 loss: disk 0, 1"),
        (("recover", "raid5", "--disks", "4", "--lost", "0,x"), "no disk x"),
        (("bundles", "--length", "5", "--disk-chunks", "7,4"), "5 members"),
        (("bundles", "--length", "2", "--disk-chunks", "7,four"), "7,4,5,4"),
        (("load", "raid5", "--disks", "4", "--writes", "many"), "no pattern"),
        (("load", "raid5", "--disks", "4", "--writes", "99"), "beyond the end"),
        (("shwo", "raid5"), "did you mean show"),
    ],
)
def test_mistakes_get_one_line_and_status_2(args: tuple[str, ...], words: str) -> None:
    assert words in fail("layout", *args)


def test_recover_step_by_step_reads_what_recover_reads() -> None:
    plain = run_json("layout", "recover", "rdp", "--disks", "6", "--lost", "0,1")
    stepped = run_json("layout", "recover", "rdp", "--disks", "6", "--lost", "0,1", "--step")
    steps = stepped.pop("steps")
    assert stepped == plain
    assert [step["step"] for step in steps] == list(range(1, 9))
    assert sorted(cell for step in steps for cell in step["reads"]) == plain["reads"]
    assert [step["cell"] for step in steps][:2] == [[0, 0], [0, 1]]
    page = run("layout", "recover", "rdp", "--disks", "6", "--lost", "0,1", "--step")
    assert "D1 = D0 [step 1] ^ D2 ^ D3 ^ P0" in page
    assert page.splitlines()[-1].split() == ["row", "3", "7", "8", "r", "r", "r", "r"]


# -- pictures, and growths step by step ------------------------------------------------------------


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
