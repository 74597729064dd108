"""`raidx layout ...`: pure commands, against the layouts and against each other."""

from __future__ import annotations

import pytest

from raidx_fuse.layouts.registry import LAYOUTS, allowed_widths
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
