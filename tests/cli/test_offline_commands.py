"""create, examine, status and check on member files; real files, no mount."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from raidx_fuse.array.open import open_array
from raidx_fuse.cli.main import main
from raidx_fuse.daemon.member_files import Disks
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.shapes import layout_of

MEMBERS = ("d0.img", "d1.img", "d2.img", "d3.img")
SIZE = 4 << 20


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(line: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == status, f"{result.stdout}{result.stderr}"
    return result


def run_json(line: str, status: int = 0) -> Any:
    document = json.loads(run(f"{line} --json", status).stdout)
    assert document.pop("output_version") == 1
    return document


def refuse(line: str, words: str, status: int = 1) -> None:
    """Expect one line that says *words*, and nothing on standard output."""
    result = run(line, status)
    (complaint,) = result.stderr.splitlines()
    assert complaint.startswith("raidx: ")
    assert words in complaint
    assert result.stdout == ""


def create(extra: str = "") -> Any:
    return run_json(f"create --layout raid5 --size 4MiB {extra} {' '.join(MEMBERS)}")


def contents() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path().iterdir())}


def test_create_makes_sparse_files_and_an_array_at_once() -> None:
    status = create("--name music --chunk 16K")
    assert [Path(name).stat().st_size for name in MEMBERS] == [SIZE] * 4
    assert all(Path(name).stat().st_blocks * 512 < SIZE // 2 for name in MEMBERS)
    assert (status["name"], status["layout"], status["chunk_size"]) == ("music", "raid5", 16384)
    assert (status["state"], status["redundancy_left"]) == ("clean", 1)
    assert 0 < status["size"] <= 3 * SIZE
    assert [os.path.basename(member["path"]) for member in status["members"]] == list(MEMBERS)


def test_create_says_how_to_go_on() -> None:
    text = run(f"create --layout raid5 --size 4MiB {' '.join(MEMBERS)}").stdout
    assert f"mount it: raidx mount {' '.join(MEMBERS)} MOUNTPOINT" in text


def test_create_takes_existing_members_and_the_smallest_rules() -> None:
    for number, name in enumerate(MEMBERS):
        with open(name, "wb") as file:
            file.truncate(SIZE << (number > 1))
    status = run_json(f"create --layout raid0 {' '.join(MEMBERS)}")
    assert status["size"] < 4 * SIZE
    assert [member["size"] for member in status["members"]] == [SIZE, SIZE, 2 * SIZE, 2 * SIZE]


def test_create_refuses_members_of_part_sectors_and_of_another_mount() -> None:
    Path("odd.img").write_bytes(bytes(SIZE + 100))
    refuse("create --layout raid0 --size 4M odd.img new.img", "not a multiple of 512", 2)
    create()
    with Disks() as mount:
        mount.attach(["d1.img"])
        line = f"create --layout raid5 --overwrite-signature {' '.join(MEMBERS)}"
        refuse(line, "d1.img: in use by process ")
        refuse(f"check {' '.join(MEMBERS)}", "in use by process ")
        status = run_json(f"status {' '.join(MEMBERS)}")
        assert status["running"]
        assert "ask their mount point" in status["warnings"][-1]
    assert not Path("new.img").exists()


def test_a_size_in_the_spec_goes_before_the_option() -> None:
    run("create --layout raid0 --size 4M a.img b.img,size=8M")
    assert [Path(name).stat().st_size for name in ("a.img", "b.img")] == [SIZE, 2 * SIZE]


def test_image_size_limits_the_image() -> None:
    assert create("--image-size 1MiB")["size"] == 1 << 20
    refuse("create --layout raid0 --size 4M --image-size 1T x.img y.img", "at most", 2)
    refuse("create --layout raid0 --size 4M --log-size 3M x.img y.img", "a log of 3145728 bytes", 2)
    assert not Path("x.img").exists()


def test_create_reserves_checksums() -> None:
    plan = run_json(f"create --layout raid5 --size 4MiB --sums on -n {' '.join(MEMBERS)}")
    without = run_json(f"create --layout raid5 --size 4MiB -n {' '.join(MEMBERS)}")
    assert (plan["sums_bytes"], without["sums_bytes"]) == (16384, 0)
    assert plan["metadata"] >= without["metadata"]
    large = f"create --layout raid5 --size 1GiB -n {' '.join(MEMBERS)}"
    assert run_json(large) == run_json(f"{large} --sums on")
    assert run_json(large)["sums_bytes"] > 0
    run("create --layout raid1 --size 64MiB large0.img large1.img")
    (document,) = run_json("examine large0.img")["members"]
    assert (document["sums_room_bytes"], "sums" in document["regions"]) == (
        2 * (57344 + 8192),
        False,
    )
    for name in ("large0.img", "large1.img"):
        Path(name).unlink()
    line = f"create --layout raid5 --size 4MiB --sums on -n {' '.join(MEMBERS)}"
    assert "metadata with 16 KiB for checksums" in run(line).stdout
    assert contents() == {}
    made = create("--sums on")
    assert made["size"] == plan["size"]
    nothing = {"misfits": 0, "healed": 0, "wrong_sums": 0, "unverified": 0}
    assert made["sums"] == {"state": "on", **nothing}
    (document,) = run_json(f"examine {MEMBERS[2]}")["members"]
    assert "sums_room_bytes" not in document, "they have it"
    assert (document["jobs"]["sums"]["copies"], document["settings"]) == (2, {"sums": "on"})
    checked = run_json(f"check {' '.join(MEMBERS)}")
    assert (checked["ok"], checked["sums"]["state"]) == (True, "on")


def test_create_rotates_the_columns_of_horizontal_codes() -> None:
    for name in ("rdp", "evenodd"):
        for option, params in (("--rotate", {"rotate": True}), ("", {})):
            members = [f"{name}{len(option)}{number}.img" for number in range(5)]
            run(f"create --layout {name} {option} --size 4MiB {' '.join(members)}")
            (document,) = run_json(f"examine {members[0]}")["members"]
            assert document["params"] == params


def test_create_chooses_the_prime_for_the_members_to_come() -> None:
    members = [*MEMBERS, "e1.img", "e2.img"]
    for name, most, rows in (("rdp", 12, 10), ("evenodd", 12, 10), ("rdp", 4, 4)):
        options = f"--layout {name} --max-members {most} --chunk 4K --size 16MiB"
        run(f"create {options} {' '.join(members)}")
        with Disks(read_only=True) as disks:
            config = trio.run(assemble, disks.attach(list(members))).config
        assert config.params == {"prime": rows + 1}
        assert layout_of(config).code.rows == rows
        for member in members:
            Path(member).unlink()
    refuse(f"create --layout raid5 --max-members 9 --size 4MiB {' '.join(MEMBERS)}", "prime", 2)


def test_dry_run_of_create_writes_nothing() -> None:
    plan = run_json(f"create --layout raid5 --size 4MiB -n {' '.join(MEMBERS)}")
    assert (plan["dry_run"], plan["bytes_moved"], plan["redundancy_left"]) == (True, 0, 1)
    assert [os.path.basename(path) for path in plan["creates"]] == list(MEMBERS)
    text = run(f"create --layout raid5 --size 4MiB -n {' '.join(MEMBERS)}").stdout
    assert "makes 4 files" in text
    assert contents() == {}
    assert plan["size"] == create()["size"]


def test_create_refuses_what_carries_something_and_names_the_option() -> None:
    create()
    before = contents()
    refuse(f"create --layout raid0 {' '.join(MEMBERS)}", "--overwrite-signature")
    refuse(f"create --layout raid0 -n {' '.join(MEMBERS)}", "--overwrite-signature")
    ext4 = bytearray(SIZE)
    ext4[1080:1082] = b"\x53\xef"
    Path("fs.img").write_bytes(ext4)
    refuse("create --layout raid0 --size 4M new.img fs.img", "file system")
    assert contents() == {**before, "fs.img": bytes(ext4)}
    run(f"create --layout raid0 --overwrite-signature {' '.join(MEMBERS)}")


def test_examine_shows_what_each_member_says_and_what_says_nothing() -> None:
    uuid = create()["uuid"]
    Path("zero.img").write_bytes(bytes(SIZE))
    document = run_json("examine d0.img d1.img")
    first, second = document["members"]
    assert uuid in json.dumps(first)
    assert uuid in json.dumps(second)
    result = run("examine d0.img zero.img nothing.img", 1)
    assert uuid in result.stdout
    assert "zero.img" in result.stderr
    assert result.stderr.count("nothing.img") == 1, "the path is named twice"
    assert re.search(r"^ +created: 20\d\d-\d\d-\d\d \d\d:", result.stdout, re.M)
    assert re.search(r"^  log +\d+ KiB +[\d.]+ [KM]iB  log of the writes$", result.stdout, re.M)
    assert not re.search(r"\b\d{9,}\b|True|\[", result.stdout), (
        "numbers and brackets are for --json"
    )


def test_status_at_rest_by_member_paths_in_any_order() -> None:
    created = create()
    status = run_json("status d3.img d1.img d0.img d2.img")
    assert {**status, "changed": True} == created
    text = run(f"status {' '.join(MEMBERS)}").stdout
    assert "state: clean, 1 more loss tolerated" in text
    assert "[4/4] [UUUU]" in run(f"status --brief {' '.join(MEMBERS)}").stdout


def test_status_at_rest_of_a_degraded_and_of_a_failed_array() -> None:
    create()
    status = run_json("status --check d0.img d1.img d3.img", 1)
    assert (status["state"], status["redundancy_left"]) == ("degraded", 0)
    assert status["members"][2]["state"] == "missing"
    assert "raidx replace-disk" in status["action"]
    before = contents()
    result = CliRunner().invoke(main, ["status", "--check", "d0.img", "d3.img"])
    assert result.exit_code in (2, 4)
    assert contents() == before
    assert run("status --check d0.img nothing.img", 4).stderr.startswith("raidx: ")


def test_check_finds_nothing_wrong_with_a_fresh_array_and_writes_nothing() -> None:
    create()
    before = contents()
    document = run_json(f"check {' '.join(MEMBERS)}")
    assert (document["ok"], document["problems"]) == (True, [])
    assert "no problem found" in run(f"check {' '.join(MEMBERS)}").stdout
    assert contents() == before


def test_members_that_were_enlarged_and_lost_their_fronts_are_searched_when_the_user_says_so() -> (
    None
):
    run("create --layout raid5 --size 64MiB a b c")
    for name in "abc":
        with open(name, "r+b") as file:
            file.write(os.urandom(128 << 10))
            file.truncate((71 << 20) + 512)
    told = run("check --repair-superblocks a b c --yes", 1).stdout
    assert told.count("it has no superblock at either end") == 3
    refuse("check --deep a b c", "have superblocks only where their ends were")
    before = Path("a").read_bytes()
    line = "check --repair-superblocks --deep a b c"
    found = run_json(f"{line} --dry-run")["members"]
    assert [each["lost"] for each in found] == [["slot 0", "slot 1"]] * 3
    assert Path("a").read_bytes() == before
    run(f"{line} --yes")
    assert run_json("check a b c")["ok"]


def test_check_names_a_missing_member() -> None:
    create()
    document = run_json("check d0.img d1.img d2.img", 1)
    assert not document["ok"]
    assert any("degraded" in problem["what"] for problem in document["problems"])


def write_image(data: bytes) -> int:
    """Write *data* to the image from its start; return where data begin on the members."""

    async def write() -> int:
        with Disks() as disks:
            async with open_array(disks.attach(MEMBERS)) as array:
                await array.write(0, data)
                return array.member_set.data_offset

    return trio.run(write)


def test_check_names_stripe_and_image_offset_of_damage() -> None:
    create("--chunk 4K")
    offset = write_image(bytes(range(256)) * 16 * 3 * 8)
    assert run_json(f"check {' '.join(MEMBERS)}")["ok"]
    with open("d1.img", "r+b") as file:
        file.seek(offset + 5 * 4096 + 7)
        file.write(b"?")
    before = contents()
    document = run_json(f"check {' '.join(MEMBERS)}", 1)
    (problem,) = document["problems"]
    assert problem["stripe"] == 5
    text = run(f"check {' '.join(MEMBERS)}", 1).stdout
    assert f"stripe 5, image offset {problem['image_offset']}, data and parity disagree" in text
    assert text.endswith("1 problem\n")
    assert contents() == before


def test_check_names_the_members_that_lie_under_two_losses() -> None:
    """One cell of one member; then two members of another stripe, each in a sector of its own."""
    run(f"create --layout pcode --chunk 4K --size 4MiB {' '.join(MEMBERS)}")
    offset = write_image(bytes(range(256)) * 16 * 40)

    def rot(member: str, at: int) -> None:
        with open(member, "r+b") as file:
            file.seek(offset + at)
            file.write(b"?")

    rot("d2.img", 1 * 8192 + 4096 + 7)  # stripe 1, row 1: data
    rot("d0.img", 3 * 8192 + 100)
    rot("d3.img", 3 * 8192 + 4096 + 700)
    problems = run_json(f"check {' '.join(MEMBERS)}", 1)["problems"]
    named = [(each["stripe"], os.path.basename(each["member"])) for each in problems]
    assert named == [(1, "d2.img"), (3, "d0.img"), (3, "d3.img")]
    assert problems[0]["image_offset"] == 1 * 4 * 4096 + 2 * 4096 + 7


def test_without_a_layout_create_says_what_the_members_can_become_and_writes_nothing() -> None:
    made = [f"{name}.img" for name in "abcd"]
    for name in made[:2]:
        Path(name).write_bytes(b"mine" * (SIZE // 4))
    before = [Path(name).read_bytes() for name in made[:2]]
    document = run_json(f"create --size {SIZE} {' '.join(made)}", 2)
    assert [member["size"] for member in document["members"]] == [SIZE] * 4
    assert document["error"]["reason"] == "missing_argument"
    found = {choice["layout"]: choice for choice in document["choices"]}
    keys = ("redundancy_left", "write_operations", "reading_members", "grows", "members_max")
    rows = {name: tuple(choice[key] for key in keys) for name, choice in found.items()}
    assert rows["raid0"] == (0, 1, 4, "in_place", None)
    assert rows["raid1"] == (3, 4, 4, "copies", None)
    assert rows["raid4"] == (1, 4, 3, "in_place", None)
    assert rows["raid5"] == (1, 4, 4, "in_place", None)
    assert rows["upc"] == (2, 5, 4, "restripe", None)
    assert rows["evenodd"][0::3] == (2, "in_place"), "its prime has room for one more"
    assert rows["raidx-copy"] == (1, 2, 4, "bundles", None)
    plan = run_json(
        f"create --layout raid5 --size {SIZE} --overwrite-signature -n {' '.join(made)}"
    )
    assert plan["layouts"] == document["choices"], "-n says the same"
    assert found["raid5"]["size"] == plan["size"]
    shown = run(f"create --size {SIZE} {' '.join(made)}", 2)
    assert "--layout raid5" in shown.stderr
    assert re.search(r"^  raid5 .* MiB +1 .* 4 +4  disk by disk$", shown.stdout, re.M)
    assert [Path(name).read_bytes() for name in made[:2]] == before
    assert not any(Path(name).exists() for name in made[2:])
