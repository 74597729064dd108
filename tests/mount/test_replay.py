"""`raidx replay` on real mounts: what is read is what was written, and times are the simulation's.

RAIDX_TRACES names a folder with slices of real traces; without it they are looked for beside the
repository.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray
from tests.support.command import RAIDX

pytestmark = [pytest.mark.mount]

REAL = Path(os.environ.get("RAIDX_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
SLICES = ("Financial1.first10000.spc.xz", "hm_0.slice7016.csv.xz", "WebSearch.first24783.spc.xz")
MODEL = "hdd,rotation=mean,seek_ms=40,rpm=1500"  # slow: what the processors do must not matter
DISK_BYTES = 64 << 20
LOAD = {"requests": 60, "rate": 6}
AGREE = 0.15
TRIES = 3


def test_a_load_verifies_itself_while_a_disk_fails(array: RealArray) -> None:
    array.create("raid5", 4, "64MiB").mount()
    words = [RAIDX, "replay", "financial1", str(array.mnt), "--verify", "--json"]
    replaying = subprocess.Popen(
        [*words, "--rate=400", "--requests=1200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    array.await_written(1 << 20)
    array.fail(1)
    printed, complaints = replaying.communicate(timeout=60)
    assert replaying.returncode == 0, complaints
    result = json.loads(printed)
    assert (result["requests"], result["failed"], result["wrong"]) == (1200, 0, [])
    assert result["verified_bytes"] > 1 << 20
    assert result["array"]["degraded_reads"] > 0
    assert sum(section["requests"] for section in result["sections"]) == 1200


def test_a_mount_on_models_is_as_fast_as_its_simulation(array: RealArray, tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(
        f"""
        [array]
        layout = "raid5"
        disks = 4
        model = "{MODEL}"
        disk_size = "{DISK_BYTES}"
        settings = {{ journal = "none" }}
        [load]
        source = "uniform"
        requests = {LOAD["requests"]}
        rate = {LOAD["rate"]}
        numbers = {{ read_share = 0.8 }}
        """
    )
    array.create("raid5", 4, str(DISK_BYTES)).mount()
    with array.image.open("r+b") as image:  # as the simulation's array is: written all over
        for _ in range(array.image.stat().st_size >> 20):
            image.write(bytes(1 << 20))
    array.unmount()
    array.members = [Path(f"{member},model={MODEL}") for member in array.members]
    array.mount()
    array.raidx("set", "ARRAY", "journal=none")
    (simulated,) = array.ask("simulate", spec)["experiments"]
    expected_ms = simulated["response_ms"]["mean"]
    assert expected_ms > 50, "the disks, not the way to them, take the time"
    options = [f"--{name}={value}" for name, value in LOAD.items()]
    ratios: list[float] = []
    for _ in range(TRIES):  # other work on this machine makes a mount slower, never faster
        words = ("replay", "uniform", "ARRAY", "--number=read_share=0.8", "--lose-data")
        real = array.ask(*words, *options)
        assert real["requests"] == simulated["requests"] == LOAD["requests"]
        ratios.append(real["response_ms"]["mean"] / expected_ms)
        if abs(ratios[-1] - 1) < AGREE:
            break
    assert min(abs(ratio - 1) for ratio in ratios) < AGREE, (ratios, simulated["response_ms"])


@pytest.mark.parametrize("name", SLICES)
def test_real_slices_verify_themselves(array: RealArray, name: str) -> None:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"no real trace {name} here; RAIDX_TRACES names the folder")
    array.create("raid5", 4, "64MiB").mount()
    result = array.ask(
        "replay", path, "ARRAY", "--as-fast-as-possible", "--verify", "--requests=4000"
    )
    assert (result["requests"], result["failed"], result["wrong"]) == (4000, 0, [])
    if result["writes"] > 100:
        assert result["verified_bytes"] > 1 << 20


def test_what_is_on_the_image_is_protected(array: RealArray) -> None:
    array.create("raid5", 4, "64MiB").mount()
    with array.image.open("r+b") as image:
        image.seek(0x438)
        image.write(b"\x53\xef")  # the magic number of ext
    words = ["replay", "uniform", "ARRAY", "--requests=10", "--as-fast-as-possible"]
    assert "--overwrite-signature" in array.refused(*words)
    assert "--overwrite-signature" in array.refused(*words, "--lose-data")
    assert array.ask(*words, "--overwrite-signature")["requests"] == 10
    with array.image.open("r+b") as image:
        image.seek(0x438)
        image.write(bytes(2))
    assert "--lose-data accepts it" in array.refused(*words, status=2)
    assert array.ask(*words, "--lose-data")["requests"] == 10
    assert "neither a file nor" in array.refused("replay", "nothing", "ARRAY", status=2)
