"""Trace files: both formats, every compression, and one clear line for whatever is wrong."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import threading
from pathlib import Path

import pytest
from load_statistics import statistics_of

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.lab.loads import traces
from raidx_fuse.lab.loads.request import Request, requests_of
from raidx_fuse.lab.loads.traces import Trace
from raidx_fuse.lab.loads.workloads import Source
from tests.support.reasons import because

SPC = """0,303567,3584,w,0.000000
1,55590,3072,W,0.000000
0,303574,3584,r,0.026214
1,0,0,r,0.1
2,8,512,R,0.05,ignored
"""
MSR = """128166385295514663,hm,0,Write,9056014336,2048,2833
128166385295514878,hm,0,Read,11855351808,512,2617

128166385305514663,hm,0,write,512,4096,2320
"""
MIB = 1 << 20


def trace(folder: Path, text: str, name: str = "a.spc") -> Trace:
    path = folder / name
    path.write_text(text)
    return Trace(path)


def test_spc_devices_lie_one_behind_the_other(tmp_path: Path) -> None:
    opened = trace(tmp_path, SPC)
    assert opened.format == "spc"
    assert opened.devices == [0, 1, 2]
    ends = [
        -(-(sector * 512 + size) // MIB) * MIB for sector, size in ((303574, 3584), (55590, 3072))
    ]
    assert opened.span_bytes == sum(ends) + MIB
    assert list(requests_of(opened)) == [
        Request(0.0, True, 303567 * 512, 3584),
        Request(0.0, True, ends[0] + 55590 * 512, 3072),
        Request(0.026214, False, 303574 * 512, 3584),
        Request(0.05, False, sum(ends) + 8 * 512, 512),
    ]
    assert len(list(requests_of(opened))) == 4, "it can be read again"


def test_msr_times_are_exact_to_the_unit(tmp_path: Path) -> None:
    opened = trace(tmp_path, MSR, "a.csv")
    assert opened.format == "msr"
    seen = list(requests_of(opened))
    assert [request.at_s for request in seen] == pytest.approx([0.0, 215e-7, 1.0], abs=1e-12)
    assert [request[1:] for request in seen] == [
        (True, 9056014336, 2048),
        (False, 11855351808, 512),
        (True, 512, 4096),
    ]


def test_time_never_goes_back(tmp_path: Path) -> None:
    opened = trace(tmp_path, "0,0,512,r,5\n0,0,512,r,7\n0,0,512,r,6\n0,0,512,r,8\n")
    assert [request.at_s for request in requests_of(opened)] == [0, 2, 2, 3]


def test_every_compression_gives_the_same(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="the extra 'traces' is not installed")
    plain = list(requests_of(trace(tmp_path, SPC)))
    (tmp_path / "b.spc.xz").write_bytes(lzma.compress(SPC.encode()))
    (tmp_path / "b.spc.gz").write_bytes(gzip.compress(SPC.encode()))
    (tmp_path / "b.spc.bz2").write_bytes(bz2.compress(SPC.encode()))
    (tmp_path / "b.spc.zst").write_bytes(zstandard.ZstdCompressor().compress(SPC.encode()))
    for suffix in ("xz", "gz", "bz2", "zst"):
        assert list(requests_of(Trace(tmp_path / f"b.spc.{suffix}"))) == plain


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0,1,512,w", "4 fields instead of 5"),
        ("0,x,512,w,1", "line 20003: invalid literal"),
        ("0,1,512,q,1", "opcode 'q'"),
        ("0,-1,512,w,1", "out of range"),
        ("0,1,-512,w,1", "out of range"),
        (f"0,{1 << 70},512,w,1", "out of range"),
        (f"{1 << 70},1,512,w,1", "out of range"),
        ("0,1,512,w,nan", "out of range"),
        ("0,1,512,w,", "could not convert"),
        ("\0\0\0\0", "1 fields"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    good = "0,8,512,r,1.0\n" * 20_001
    opened = trace(tmp_path, good + "\n" + line + "\n" + good)
    with pytest.raises(UsageError, match=r"a\.spc, line 20003: ") as caught:
        list(opened)
    assert words in str(caught.value)


def test_bad_msr_lines_are_named(tmp_path: Path) -> None:
    for line, words in (
        ("1,hm,0,Trim,0,512,1", "type 'Trim'"),
        ("x1,hm,0,Read,0,512,1", "could not convert"),
        ("inf,hm,0,Read,0,512,1", "no time"),
        ("1,hm,0,Read,0", "5 fields instead of 6"),
    ):
        with pytest.raises(UsageError, match="line 5: ") as caught:
            list(trace(tmp_path, MSR + line + "\n", "a.csv"))
        assert words in str(caught.value)


@pytest.mark.parametrize("text", [SPC, MSR])
def test_what_people_put_around_the_requests_is_skipped(tmp_path: Path, text: str) -> None:
    plain = list(requests_of(trace(tmp_path, text)))
    names = "ASU,LBA,Size,Opcode,Time" if text is SPC else "Timestamp,Host,Disk,Type,Offset,Size"
    before = f"\ufeff# made by hand\n\n{names}\n"
    opened = trace(tmp_path, before + text + "# 3 requests\n", "around")
    assert list(requests_of(opened)) == plain
    wrong = before + text * 2 + "# none\nno request\n"
    with pytest.raises(UsageError, match=f"line {wrong.count(chr(10))}: "):
        list(trace(tmp_path, wrong, "wrong"))
    exact = text.replace("5514663,", "5514663.0,")
    assert next(iter(requests_of(trace(tmp_path, exact, "float")))) == plain[0]


def test_a_trace_comes_from_a_pipe(tmp_path: Path) -> None:
    """It is opened once, and read as often as a file: by `check`, `span_bytes` and the load."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(SPC,))
    writer.start()
    source = Source(name=str(tmp_path / "pipe"), fit="scale")
    source.check()
    writer.join()
    seen = [request for block in source.load(64 * MIB) for request in requests_of([block])]
    assert len(seen) == 4
    assert len(list(Trace(tmp_path / "pipe"))) == 1


def test_a_load_has_an_end() -> None:
    for source in (Source(name="zipf", requests=0), Source(name="zipf", seconds=0.0)):
        with pytest.raises(UsageError):
            source.check()


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="an empty trace"):
        trace(tmp_path, "\n\n")
    with pytest.raises(UsageError, match="neither an SPC nor"):
        trace(tmp_path, "version,time,op,size,lbn\n1,2,r,4,5\n")
    with pytest.raises(UsageError, match=r"nowhere\.spc: cannot be read: No such file"):
        Trace(tmp_path / "nowhere.spc")
    with pytest.raises(UsageError, match="no trace format"):
        Trace(tmp_path / "a.spc", "blktrace")
    packed = lzma.compress(SPC.encode() * 5000)
    (tmp_path / "short.spc.xz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UsageError, match=r"short\.spc\.xz: cannot be read"):
        list(Trace(tmp_path / "short.spc.xz", "spc"))
    for suffix in ("xz", "gz"):
        (tmp_path / f"no.spc.{suffix}").write_text(SPC)
        with pytest.raises(UsageError, match="cannot be read"):
            Trace(tmp_path / f"no.spc.{suffix}")


def test_garbage_behind_zst_is_a_clear_error(tmp_path: Path) -> None:
    pytest.importorskip("zstandard", reason="the extra 'traces' is not installed")
    (tmp_path / "no.spc.zst").write_text(SPC)
    with pytest.raises(UsageError, match="cannot be read"):
        Trace(tmp_path / "no.spc.zst")


def test_without_the_library_zst_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "zstandard", None)
    (tmp_path / "a.spc.zst").write_bytes(b"")
    with pytest.raises(UsageError, check=because(Reason.NOT_INSTALLED)):
        Trace(tmp_path / "a.spc.zst")


REAL = Path(os.environ.get("RAIDX_TRACES", Path(__file__).parents[3] / "shared" / "traces"))


@pytest.mark.parametrize(
    ("name", "requests", "read_share", "mean_bytes", "seconds", "devices"),
    [
        ("Financial1.first10000.spc.xz", 10_000, 0.4077, 5528, 259.60, 22),
        ("WebSearch.first24783.spc.xz", 24_783, 0.9998, 15_419, 60.06, 6),
        ("hm_0.slice7016.csv.xz", 7_016, 0.8295, 12_088, 148.4, 1),
        ("rsrch_1.week13780.csv.xz", 13_780, 0.0030, 12_466, 576_558, 1),
    ],
)
def test_real_slices_have_the_statistics_that_were_counted(
    name: str, requests: int, read_share: float, mean_bytes: float, seconds: float, devices: int
) -> None:
    path = REAL / name
    if not path.exists():
        pytest.skip(f"no real trace {name} here; RAIDX_TRACES names the folder")
    opened = Trace(path)
    seen = statistics_of(opened)
    assert seen.requests == requests
    assert seen.read_share == pytest.approx(read_share, abs=0.0001)
    assert seen.mean_bytes == pytest.approx(mean_bytes, abs=1)
    assert seen.seconds == pytest.approx(seconds, rel=1e-3)
    assert len(opened.devices) == devices
