"""The application behind the page: an ASGI callable. Every path, and who may ask for it.

    GET  /, and three files of it   the page
    GET  /stream                   server-sent events: see feed.py
    GET  /picture?first=&count=    the picture of some stripes: SVG, and its values
    GET  /plan?offset=&length=&operation=read|write
    GET  /compare                  before and after the last growth or tuning
    GET  /me                       whether this reader may break things, and how
    POST /enter, /leave            the token, from a form, for a cookie; and back
    POST /do                       {"action": ..., ...}: breaks something

Nothing here trusts a request: paths and parameters are compared with what there is, numbers are
bounded, and answers name no file of the machine except the members' paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from urllib.parse import parse_qsl

import trio

from raidx_fuse.daemon.commands.lab import FAULTS
from raidx_fuse.errors import BusyError, RaidxError, UsageError, ungrouped, unknown
from raidx_fuse.view.access import HEADERS, Access
from raidx_fuse.view.feed import Feed
from raidx_fuse.view.picture import svg
from raidx_fuse.view.server import Message, Receive, Send
from raidx_fuse.view.source import Source

BEAT_S = 10.0  # an idle stream shows with this that it is alive
QUERY_BYTES_MAX = 256
NUMBER_CHARS_MAX = 19
HTML, JSON = "text/html; charset=utf-8", "application/json"
FILES = {
    "/": ("index.html", HTML),
    "/view.js": ("view.js", "text/javascript; charset=utf-8"),
    "/view.css": ("view.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
READS = (*FILES, "/stream", "/picture", "/plan", "/compare", "/me")
CHANGES = ("/enter", "/leave", "/do")

MEMBER_CHARS_MAX = 4096
FIELDS = {  # action -> the fields that it needs, all of them texts
    "fail-disk": ("member",),
    "replace-disk": ("member",),
    "inject": ("member", "fault"),
    "add-disk": (),
    "tune": (),
    "scrub": (),
}


class Application:
    """The page of *source*, to readers that *access* admits. *feed* runs beside it."""

    def __init__(self, source: Source, feed: Feed, access: Access) -> None:
        self._source = source
        self._feed = feed
        self._access = access
        folder = resources.files("raidx_fuse.view") / "static"
        self._files = {
            path: ((folder / name).read_bytes(), kind) for path, (name, kind) in FILES.items()
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        path, method = str(scope["path"]), str(scope["method"])
        problem = self._problem(path, method, headers)
        if problem is not None:
            await _answer(send, problem[0], {"error": problem[1]}, problem[2])
            return
        if path == "/stream" and method == "GET":
            await self._stream(receive, send)
            return
        try:
            if path in FILES:
                body, kind = self._files[path]
                await _send(send, 200, body, kind)
            elif path in READS:
                await _answer(send, 200, await self._read(path, _query(scope), headers))
            else:
                await self._change(path, headers, await receive(), send)
        except RaidxError as error:
            await _answer(send, _status(error), {"error": str(error)[:1000]})

    def _problem(
        self, path: str, method: str, headers: Mapping[str, str]
    ) -> tuple[int, str, tuple[tuple[str, str], ...]] | None:
        """Return status, words and headers of a refusal, None if the request is in order."""
        if not self._access.knows_host(headers.get("host", "")):
            return 421, "this page has another name: see what raidx view printed", ()
        if path not in READS and path not in CHANGES:
            return 404, "there is no such page", ()
        allowed = ("GET", "HEAD") if path in READS else ("POST",)
        if method not in allowed:
            return 405, f"only {' and '.join(allowed)} here", (("Allow", ", ".join(allowed)),)
        if self._access.is_foreign(headers) and path != "/":
            return 403, "another site made this request", ()
        return None

    # -- reading -----------------------------------------------------------------------------------

    async def _read(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> dict[str, object]:
        if path == "/picture":
            picture = await self._feed.picture(
                _number(query, "first", 0), _number(query, "count", 8)
            )
            return {"svg": svg(picture), "picture": picture.as_dict()}
        if path == "/plan":
            operation = query.get("operation", "read")
            if operation not in ("read", "write"):
                raise UsageError("operation is read or write")
            offset, length = _number(query, "offset", 0), _number(query, "length", 4096)
            return await self._feed.plan(offset, length, operation == "write")
        if path == "/compare":
            return await self._feed.comparison()
        return {
            "entered": self._access.has_cookie(headers),
            "may_break": self._access.may_break,
            "actions": list(self._source.actions) if self._access.may_break else [],
        }

    async def _stream(self, receive: Receive, send: Send) -> None:
        try:
            with ungrouped():
                async with self._feed.reader() as messages, trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
                    await _start(send, 200, "text/event-stream")
                    await send(_part(b"retry: 1000\n\n"))
                    while True:
                        message = b": beat\n\n"
                        with trio.move_on_after(BEAT_S):
                            message = await messages.receive()
                        await send(_part(message))
        except trio.EndOfChannel:  # too slow: the browser comes back for the newest state
            await send({"type": "http.response.body", "body": b""})
        except BusyError as busy:
            await _answer(send, 503, {"error": str(busy)})

    # -- changing ----------------------------------------------------------------------------------

    async def _change(
        self, path: str, headers: Mapping[str, str], request: Message, send: Send
    ) -> None:
        access = self._access
        if not access.may_break:
            await _answer(send, 403, {"error": "read-only: raidx view was not given --break"})
            return
        body = bytes(request["body"])
        if path == "/leave":
            await _answer(send, 200, {}, (("Set-Cookie", access.no_cookie()),))
        elif path == "/enter":
            if not access.is_own_origin(headers) or not access.is_token(_form(body)):
                await _answer(send, 403, {"error": "that is not the token"})
                return
            back = (("Location", "/"), ("Set-Cookie", access.cookie()))
            await _send(send, 303, b"", HTML, back)
        elif not access.permits_breaking(headers):
            await _answer(send, 403, {"error": "enter the token first"})
        elif headers.get("content-type", "").partition(";")[0] != JSON:
            await _answer(send, 415, {"error": f"send {JSON}"})
        else:
            command, arguments = command_of(_object(body), self._source)
            result = await self._source.act(command, arguments)
            await _answer(send, 200, {"done": command, "result": result})


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    await receive()  # the request itself
    await receive()
    scope.cancel()


def _headers(scope: Message) -> dict[str, str]:
    """Return the headers by name in small letters; of those given twice, nothing usable."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        found[key] = "\0" if key in found else value.decode("latin-1")
    return found


def _query(scope: Message) -> dict[str, str]:
    raw = scope["query_string"]
    if len(raw) > QUERY_BYTES_MAX:
        raise UsageError("the query is too long")
    try:
        return dict(parse_qsl(raw.decode("ascii"), max_num_fields=8))
    except ValueError:
        raise UsageError("the query is not valid") from None


def _number(query: Mapping[str, str], name: str, otherwise: int) -> int:
    text = query.get(name)
    if text is None:
        return otherwise
    if len(text) > NUMBER_CHARS_MAX or not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{name} is not a number")
    return int(text)


def _form(body: bytes) -> str:
    try:
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=4)).get("token", "")
    except ValueError:
        return ""


def _object(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError("send one JSON object")
    return found


def _status(error: RaidxError) -> int:
    """Return the HTTP status of an error of the daemon, or of the request."""
    if isinstance(error, UsageError) or error.exit_status == 2:
        return 400
    return 409 if isinstance(error, BusyError) else 502


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _start(
    send: Send, status: int, kind: str, more: tuple[tuple[str, str], ...] = ()
) -> None:
    pairs = (("Content-Type", kind), *HEADERS, *more)
    headers = [(name.lower().encode(), value.encode()) for name, value in pairs]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send(
    send: Send, status: int, body: bytes, kind: str, more: tuple[tuple[str, str], ...] = ()
) -> None:
    await _start(send, status, kind, (("Content-Length", str(len(body))), *more))
    await send({"type": "http.response.body", "body": body})


async def _answer(
    send: Send, status: int, document: Mapping[str, object], more: tuple[tuple[str, str], ...] = ()
) -> None:
    await _send(send, status, json.dumps(document).encode(), JSON, more)


def command_of(request: Mapping[str, object], source: Source) -> tuple[str, dict[str, object]]:
    """Return (command, arguments) for the daemon of what a button asks for; nothing else can be.

    Raises UsageError.
    """
    action = request.get("action")
    if not isinstance(action, str) or action not in FIELDS or action not in source.actions:
        raise unknown("action", str(action)[:40], source.actions)
    if set(request) - {"action", *FIELDS[action]}:
        raise UsageError(f"{action} takes {', '.join(FIELDS[action]) or 'nothing else'}")
    values: dict[str, object] = {}
    for name in FIELDS[action]:
        value = request.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= MEMBER_CHARS_MAX:
            raise UsageError(f"{action} needs {name}, a text")
        values[name] = value
    if action == "inject" and values["fault"] not in FAULTS:
        raise unknown("fault", str(values["fault"]), FAULTS)
    if action == "replace-disk":
        member = str(values["member"])
        return action, {"old": member, "new": source.replacement(member)}
    if action == "add-disk":
        return action, {"members": [source.replacement("")]}
    return action, values
