"""The live screen, headless: what it shows at each size, and what each key does."""

from __future__ import annotations

import asyncio
import queue
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import Input

from raidx_fuse.answers import Watched
from raidx_fuse.cli.screen import app
from raidx_fuse.cli.screen.app import Dialog, FrameView, WatchApp
from raidx_fuse.cli.screen.frame import Feed, Frame
from raidx_fuse.daemon.control_client import ControlError
from tests.support.documents import chunk_map, job, stats, status

WAIT_S = 60.0
ENDED = ControlError("the daemon of /mnt is gone", action="clear the mount point")


def look(parts: int = 75, **changes: Any) -> Watched:
    return {
        "status": status(**changes),
        "stats": stats(0, 1, 2, 3),
        "chunk_map": chunk_map(0, 1, 2, 3, parts=parts),
    }


class ScriptedFeed(Feed):
    """Gives the looks that the test puts into it; *asked* are the parts that were asked for."""

    def __init__(self) -> None:
        super().__init__("/mnt", 1e9)  # however slow the machine is, it is not taken for silent
        self._next: queue.Queue[Watched | ControlError] = queue.Queue()
        self.asked: list[int] = []

    def put(self, item: Watched | ControlError) -> None:
        self._next.put(item)

    def look(self, parts: int) -> Watched:
        self.asked.append(parts)
        item = self._next.get(timeout=WAIT_S)
        if isinstance(item, ControlError):
            raise item
        return item

    def stop(self) -> None:
        self._next.put(ControlError("stopped"))


class Stage:
    """The app, its looks, and the command lines that it ran."""

    def __init__(self) -> None:
        self.looks = ScriptedFeed()
        self.ran: list[str] = []
        self.says: dict[str, tuple[int, list[str]]] = {}
        self.app = WatchApp(self.looks, Frame())
        self.pilot: Pilot[ControlError] | None = None

    def carry_out(self, words: Sequence[str]) -> tuple[int, list[str]]:
        self.ran.append(" ".join(words))
        return self.says.get(words[0], (0, [f"done: {words[0]}"]))

    def text(self) -> str:
        view = self.app.query_one(FrameView) if len(self.app.screen_stack) == 1 else None
        if view is None:
            return "\n".join(getattr(self.app.screen, "lines", ()))
        return "\n".join(view.render_line(y).text for y in range(view.size.height))

    async def until(self, condition: Callable[[], bool]) -> None:
        assert self.pilot is not None
        loop = asyncio.get_running_loop()
        end_s = loop.time() + WAIT_S
        while not condition():
            assert loop.time() < end_s, self.text()
            await self.pilot.pause(0.01)

    async def see(self, words: str) -> None:
        await self.until(lambda: words in self.text())

    async def asked(self) -> None:
        """Wait until a line is asked for."""
        await self.until(lambda: bool(self.app.screen.query(Input)))

    async def press(self, *keys: str) -> None:
        assert self.pilot is not None
        await self.pilot.press(*keys)


def play(
    scene: Callable[[Stage], Awaitable[None]], size: tuple[int, int] = (80, 24), **changes: Any
) -> Stage:
    """Play *scene* on a screen that shows its first look."""
    stage = Stage()

    async def whole() -> None:
        async with stage.app.run_test(size=size) as pilot:
            stage.pilot = pilot
            stage.looks.put(look(**changes))
            await stage.until(lambda: bool(stage.app.frame.members))
            await scene(stage)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "carry_out", stage.carry_out)
        asyncio.run(whole())
    return stage


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_screen_is_the_frame_and_follows_the_looks(size: tuple[int, int]) -> None:
    async def scene(stage: Stage) -> None:
        expected = [line.plain.ljust(size[0]) for line in stage.app.frame.screen(*size)]
        await stage.until(lambda: stage.text() == "\n".join(expected))
        stage.looks.put(look(state="degraded", redundancy_left=0))
        await stage.see("disk  degraded, no further loss tolerated")
        await stage.until(lambda: len(stage.looks.asked) == 3)
        assert stage.looks.asked[-1] == (225 if size == (80, 24) else 230)

    play(scene, size)


def test_a_small_terminal_gets_one_line_and_a_larger_one_the_screen() -> None:
    async def scene(stage: Stage) -> None:
        await stage.see("raidx watch needs 80x24, here are 60x20; q quits")
        assert sum(bool(line.strip()) for line in stage.text().splitlines()) == 1
        assert stage.pilot is not None
        await stage.pilot.resize_terminal(100, 30)
        await stage.see("disk  clean, 1 more loss tolerated")
        await stage.pilot.resize_terminal(79, 30)
        await stage.see("here are 79x30")
        await stage.press("q")

    assert play(scene, (60, 20)).app.return_code == 0


def test_only_lines_that_changed_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        drawn: list[int] = []
        view = stage.app.query_one(FrameView)
        refresh = view.refresh

        def note(*regions: Any, **options: Any) -> Any:
            drawn.extend(region.y for region in regions)
            return refresh(*regions, **options)

        await stage.see("disk  clean")
        monkeypatch.setattr(view, "refresh", note)
        lines = [Text(str(number)) for number in range(24)]
        monkeypatch.setattr(stage.app.frame, "screen", lambda *_size: lines)
        view.draw()
        assert drawn == list(range(24))
        drawn.clear()
        lines = [*lines[:7], Text("7", "bold"), *lines[8:]]
        view.draw()
        assert drawn == [7]
        view.draw()
        assert drawn == [7]

    play(scene)


@pytest.mark.parametrize(("key", "status"), [("q", 0), ("ctrl+q", 0), ("ctrl+c", 130)])
def test_keys_that_end_the_screen(key: str, status: int) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def scene(stage: Stage) -> None:
        assert signal.getsignal(signal.SIGTERM) is not before
        await stage.press(key)

    stage = play(scene)
    assert (stage.app.return_code, stage.app.return_value) == (status, None)
    assert not stage.ran
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_daemon_that_ends_ends_the_screen_with_the_reason() -> None:
    async def scene(stage: Stage) -> None:
        stage.looks.put(ENDED)
        await stage.until(lambda: stage.app.return_code == 1)

    assert play(scene).app.return_value is ENDED


def test_fail_shows_its_dry_run_and_only_y_does_it() -> None:
    async def scene(stage: Stage) -> None:
        stage.says["fail-disk"] = (0, ["would do: excludes role 1", "moves: nothing"])
        await stage.press("down", "f")
        await stage.see("raidx fail-disk /mnt 1 --dry-run\n\nwould do: excludes role 1\nmoves")
        for key in ("n", "escape", "enter", "q"):
            await stage.press(key)
            await stage.see("nothing was changed")
            await stage.press("f")
            await stage.see("y: do it")
        assert set(stage.ran) == {"fail-disk /mnt 1 --dry-run"}
        await stage.press("x", "y")
        await stage.see("would do: excludes role 1; moves: nothing")
        assert stage.ran[-1] == "fail-disk /mnt 1"

    play(scene)


def test_what_the_dry_run_refuses_cannot_be_confirmed() -> None:
    async def scene(stage: Stage) -> None:
        stage.says["fail-disk"] = (1, ["raidx: role 0 cannot be spared"])
        await stage.press("f")
        await stage.see("raidx: role 0 cannot be spared")
        assert "y:" not in stage.text()
        await stage.press("y")
        assert isinstance(stage.app.screen, Dialog)
        await stage.press("n")
        await stage.see("nothing was changed")
        assert stage.ran == ["fail-disk /mnt 0 --dry-run"]

    play(scene)


def test_replace_asks_for_the_new_member_as_in_a_shell() -> None:
    async def scene(stage: Stage) -> None:
        await stage.press("j", "j", "k", "r")
        await stage.see("raidx replace-disk /mnt 1 ...")
        await stage.asked()
        await stage.press("escape")
        await stage.see("disk  clean")
        await stage.press("r")
        await stage.asked()
        await stage.press("enter")
        await stage.see("name the new member")
        await stage.press("r")
        await stage.asked()
        stage.app.screen.query_one(Input).value = "'a"
        await stage.press("enter")
        await stage.see('"\'a": no closing quotation')
        await stage.press("r")
        await stage.asked()
        stage.app.screen.query_one(Input).value = "'a b.img' --create"
        await stage.press("enter")
        await stage.see("raidx replace-disk /mnt 1 'a b.img' --create --dry-run")
        await stage.press("y")
        await stage.see("done: replace-disk")
        assert stage.ran == [
            "replace-disk /mnt 1 a b.img --create --dry-run",
            "replace-disk /mnt 1 a b.img --create",
        ]

    play(scene)


def test_tune_shows_its_plan_first() -> None:
    async def scene(stage: Stage) -> None:
        await stage.press("t")
        await stage.see("raidx tune /mnt --now --dry-run")
        await stage.press("y")
        await stage.until(lambda: "tune /mnt --now" in stage.ran)

    play(scene)


def test_pause_pauses_and_resumes_and_asks_which_of_several_jobs() -> None:
    async def scene(stage: Stage) -> None:
        await stage.press("p")
        await stage.see("no job is running")
        for paused, verb in ((False, "pause"), (True, "resume")):
            stage.looks.put(look(jobs=[job(paused=paused)]))
            await stage.until(lambda: bool(stage.app.frame.jobs))
            await stage.see("paused" if paused else "00:00:08 to go")
            await stage.press("p")
            await stage.see("done: job")
            assert stage.ran[-1] == f"job /mnt {verb} 1"
            stage.app.frame.message = ""
        stage.looks.put(look(jobs=[job(), job(id=2, kind="scrub", paused=True)]))
        await stage.see("  2 scrub")
        await stage.press("p")
        await stage.see("1: rebuild\n2: scrub, paused")
        for typed in ("9", "-7", "x", "²", ""):
            stage.app.screen.query_one(Input).value = typed
            await stage.press("enter")
            await stage.see(f"there is no job {typed!r}: 1, 2")
            await stage.press("p")
            await stage.asked()
        await stage.press("escape")
        await stage.see("there is no job ''")
        await stage.press("p")
        await stage.asked()
        await stage.press("space", "2", "enter")
        await stage.until(lambda: stage.ran[-1] == "job /mnt resume 2")

    play(scene)


def test_a_daemon_that_is_silent_is_named() -> None:
    async def scene(stage: Stage) -> None:
        stage.looks.interval_s = 0.5
        for _ in range(4):
            stage.app._tick()
        await stage.see("no answer from the daemon for ")
        stage.looks.put(look(state="degraded"))
        await stage.see("disk  degraded")
        assert "no answer" not in stage.text()

    play(scene)
