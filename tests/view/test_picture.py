"""Pictures and words of the page, by values: no browser, no server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from raidx_fuse.lab.demo import Demo, demo_array
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.view import words
from raidx_fuse.view.picture import CELLS_MAX, Picture, moved, picture_of, short_name, svg
from tests.support import documents

SVG = "{http://www.w3.org/2000/svg}"


def place(name: str, role: int, offset: int, **changes: Any) -> dict[str, Any]:
    image_offset = {"image_offset": 4096 * int(name[1:])} if name.startswith("D") else {}
    return {
        "cell": name,
        "role": role,
        "path": f"/disks/d{role}.img",
        "member_offset": offset,
        "length": 4096,
        "written": True,
        "lost": False,
        **image_offset,
        **changes,
    }


def raid5(stripe: int = 0, **changes: Any) -> dict[str, Any]:
    """Return an answer to `explain --stripe` of four members, D0 D1 D2 P0 from the left."""
    cells = [place(name, role, 4096 * stripe) for role, name in enumerate(("D0", "D1", "D2", "P0"))]
    return {"stripe": stripe, "cells": cells, **changes}


def groups(text: str) -> dict[str, ElementTree.Element]:
    """Return the cells of a drawing by their keys."""
    root = ElementTree.fromstring(text)
    return {g.attrib["data-key"]: g for g in root.iter(f"{SVG}g") if "data-key" in g.attrib}


def places(text: str) -> dict[str, tuple[int, int]]:
    rects = {key: group.find(f"{SVG}rect") for key, group in groups(text).items()}
    return {
        key: (int(rect.attrib["x"]), int(rect.attrib["y"]))
        for key, rect in rects.items()
        if rect is not None
    }


def test_members_are_columns_and_stripes_are_rows() -> None:
    picture = picture_of(documents.status(), [raid5(0), raid5(1)])
    at = places(svg(picture))
    assert [at[f"0:{name}"][0] for name in ("D0", "D1", "D2", "P0")] == sorted(
        {x for x, _ in at.values()}
    )
    assert len({y for _, y in at.values()}) == 2
    assert at["1:D0"] == (at["0:D0"][0], max(y for _, y in at.values()))


def test_kinds_of_cells_are_classes_and_words() -> None:
    document = raid5()
    document["cells"][0] |= {"written": False}
    document["cells"][1] |= {"lost": True}
    found = groups(svg(picture_of(documents.status(), [document])))
    classes = {key: group.attrib["class"] for key, group in found.items()}
    assert classes == {
        "0:D0": "cell unwritten",
        "0:D1": "cell lost",
        "0:D2": "cell data",
        "0:P0": "cell parity",
    }
    assert found["0:D1"].attrib["aria-label"] == "stripe 0 cell D1, lost, on member 1"
    assert [group.attrib["tabindex"] for group in found.values()] == ["0", "-1", "-1", "-1"]


def test_several_cells_of_a_stripe_on_a_member_stand_below_each_other() -> None:
    cells = [place("D0", 0, 8192), place("D1", 0, 4096), place("P0", 1, 4096)]
    stripe: Any = {"stripe": 0, "cells": cells}
    at = places(svg(picture_of(documents.status(), [stripe])))
    assert at["0:D0"][0] == at["0:D1"][0]
    assert at["0:D0"][1] > at["0:D1"][1] == at["0:P0"][1]


def test_moved_cells_are_those_whose_content_lay_elsewhere() -> None:
    before = picture_of(documents.status(), [raid5(0)])
    assert moved(before, before) == frozenset()
    document = raid5(0)
    document["cells"][1]["role"], document["cells"][2]["role"] = 2, 1
    document["cells"].append(place("D3", 3, 99 * 4096))
    after = picture_of(documents.status(), [document])
    assert moved(before, after) == {"0:D1", "0:D2", "0:D3"}
    marked = [key for key, g in groups(svg(after, marked=moved(before, after))).items()
              if "moved" in g.attrib["class"]]  # fmt: skip
    assert sorted(marked) == ["0:D1", "0:D2", "0:D3"]


def test_hostile_names_are_text_and_nothing_else() -> None:
    name = '/d/"><script>alert(1)</script>&\0\x1b[31m\ud800'
    status = documents.status()
    status["members"][0]["path"] = name
    status["members"][1]["state"] = "<b onclick='x'>"
    document = raid5()
    document["cells"][0]["cell"] = 'D0" onload="x'
    text = svg(picture_of(status, [document]), title=name)
    root = ElementTree.fromstring(text)
    assert {element.tag for element in root.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "g", "rect", "text")
    }
    assert not [key for element in root.iter() for key in element.attrib if key.startswith("on")]
    text.encode()


def test_a_picture_has_a_limit_and_ends_with_a_whole_stripe() -> None:
    wide = [place(f"D{n}", n % 4, 4096 * n) for n in range(1000)]
    stripes = [{"stripe": n, "cells": wide} for n in range(4)]
    picture = picture_of(documents.status(), stripes)
    assert picture.stripes == (0, 1)
    assert len(picture.cells) == 2000 <= CELLS_MAX


def test_names_of_members_are_short() -> None:
    assert short_name("/a/disk.img") == "disk.img"
    assert short_name(None) == "missing"
    assert short_name("/") == "/"
    assert len(short_name("/dev/" + "x" * 5000)) == 11


def test_a_picture_shows_exactly_what_explain_says_of_every_layout() -> None:
    for layout, disks in (("raid5", 4), ("rdp", 6), ("upc", 6), ("raidx-parity", 5), ("raid1", 2)):

        async def look(layout: str = layout, disks: int = disks) -> None:
            async with demo_array(Demo(layout=layout, disks=disks)) as demo:
                questions = [("explain", {"stripe": number}) for number in range(3)]
                status, *stripes = await demo.ask([("status", {}), *questions])
                picture = picture_of(status, stripes)
                wanted = {
                    f"{s['stripe']}:{c['cell']}": (c["role"], c["member_offset"])
                    for s in stripes
                    for c in s["cells"]
                }
                assert {c.key: (c.role, c.member_offset) for c in picture.cells} == wanted
                assert len(set(places(svg(picture)).values())) == len(wanted)
                check_plan(
                    await demo.ask([("explain", {"offset": 0, "length": 512, "write": True})])
                )

        run(look)


def check_plan(answers: list[dict[str, Any]]) -> None:
    """Compare the words of a plan with the plan."""
    (answer,) = answers
    told = words.plan(answer)
    bands = [(s["stripe"], band) for s in answer["stripes"] for band in s["bands"]]
    for what in ("read", "write"):
        wanted = {f"{n}:{p['cell']}" for n, band in bands for p in band[f"{what}s"]}
        assert {key for key, kind in told["cells"] if kind == what} == wanted
    for _, band in bands:
        for formula in band["xor"]:
            assert f"XOR: {formula}" in told["lines"]


def test_the_page_is_not_told_what_it_needs_not_know() -> None:
    status = documents.status(pid=4711, socket="/run/raidx/x.sock", log="/run/raidx/x.log")
    stats: Any = {"members": []}
    told = words.state(status, stats)
    assert not {"pid", "socket", "log", "protections", "uuid"} & set(told)
    assert told["can_be_broken"] is False
    assert words.state(documents.status(lab=[]), stats)["can_be_broken"] is True


def test_equal_values_give_equal_pictures() -> None:
    picture = picture_of(documents.status(), [raid5(0)])
    assert svg(picture) == svg(replace(picture))
    assert isinstance(picture, Picture)
    assert picture.as_dict()["cells"][0]["key"] == "0:D0"
