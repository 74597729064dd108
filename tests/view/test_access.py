"""Who may read the page and who may break things, by headers."""

from __future__ import annotations

import pytest

from raidx_fuse.errors import UsageError
from raidx_fuse.view.access import HEADERS, Access, check_token, new_token

TOKEN = "a token of the teacher"


def access(*, is_public: bool = False, names: tuple[str, ...] = ()) -> Access:
    return Access(port=8470, is_public=is_public, names=names, token=TOKEN)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8470", "localhost", "LOCALHOST:9", "[::1]:8470", "127.9.9.9"]
)
def test_loopback_names_are_ours(host: str) -> None:
    assert access().knows_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", " ", ":8470", "evil.example", "evil.example:8470", "localhost.evil.example"),
        *(
            "127.0.0.1.evil.example",
            "192.168.1.9",
            "[::1",
            "[::1]x",
            "127.0.0.1:x",
            "\0",
            "0.0.0.0",
        ),
        *("127.0.0.1@evil.example", "127.0.0.1:8470:1", "localhost,evil.example", "2130706433"),
    ],
)
def test_other_names_are_not(host: str) -> None:
    assert not access().knows_host(host)


def test_a_public_page_is_known_by_address_and_by_given_names() -> None:
    public = access(is_public=True, names=("Classroom.local",))
    for host in ("192.168.1.9:8470", "[fe80::1]:8470", "classroom.local:8470", "classroom.local."):
        assert public.knows_host(host)
    assert not public.knows_host("evil.example:8470"), "a name could be rebound to this machine"


OWN = {"host": "127.0.0.1:8470", "origin": "http://127.0.0.1:8470"}


def test_the_token_in_a_header_is_enough_for_programs() -> None:
    assert access().permits_breaking({"host": "127.0.0.1", "x-raidx-token": TOKEN})
    for wrong in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\xff"):
        assert not access().permits_breaking({"host": "127.0.0.1", "x-raidx-token": wrong})


def test_the_cookie_needs_the_pages_own_origin() -> None:
    rules = access()
    cookie = rules.cookie().partition(";")[0]
    assert rules.permits_breaking({**OWN, "cookie": f"other=1; {cookie}"})
    for headers in (
        {"host": OWN["host"], "cookie": cookie},
        {**OWN, "origin": "null", "cookie": cookie},
        {**OWN, "origin": "http://127.0.0.1:9999", "cookie": cookie},
        {**OWN, "origin": "http://evil.example", "cookie": cookie},
        {**OWN, "cookie": cookie, "sec-fetch-site": "cross-site"},
        {**OWN, "cookie": cookie, "sec-fetch-site": "same-site"},
        {**OWN, "cookie": f"{rules.cookie_name}={TOKEN}"},
        {**OWN, "cookie": f"{rules.cookie_name}="},
        {**OWN, "cookie": ""},
    ):
        assert not rules.permits_breaking(headers), headers


def test_the_cookie_is_not_the_token_and_only_for_this_page() -> None:
    cookie = access().cookie()
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {p.strip() for p in cookie.split(";")}
    other = Access(port=8471, token=TOKEN)
    assert not other.has_cookie({"cookie": cookie.partition(";")[0]})


def test_without_a_token_nobody_may_break_anything() -> None:
    rules = Access(port=8470)
    assert not rules.may_break
    for value in ("", "None"):
        assert not rules.permits_breaking({**OWN, "x-raidx-token": value})
        assert not rules.permits_breaking({**OWN, "cookie": f"{rules.cookie_name}={value}"})


def test_tokens_are_long_and_new_each_time() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert check_token(f" {new_token()}\n")
    for bad in ("", "short", "x" * 257, "a token with a \0 byte", "a token with ümlaut"):
        with pytest.raises(UsageError, match="token"):
            check_token(bad)


def test_the_policy_allows_nothing_from_elsewhere_and_nothing_inline() -> None:
    policy = dict(HEADERS)["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    sources = {word for part in policy.split("; ") for word in part.split(" ")[1:]}
    assert sources == {"'none'", "'self'"}
