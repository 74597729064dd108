"""What an array remembers of itself in its superblocks: the last scrub, errors of its members.

It is for people only, so it is bounded, and the first to give way where space is scarce
(fitting.py). Content that cannot be read counts as none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raidx_fuse.format.configuration.config import ArrayConfig

KEY = "health"
"""Its key in the `jobs` of a configuration."""
PLACES_MAX = 16
MEMBERS_MAX = 64
ROLES_MAX = 8  # of a place
UUID_CHARS = 8
NUMBERS = ("ended_s", "seconds", "mismatches", "repaired", "left", "unchecked_stripes")


def short_uuid(member_uuid: str) -> str:
    """Return the part of a UUID that names a member in the counts."""
    return member_uuid[:UUID_CHARS]


def health_of(config: ArrayConfig) -> dict[str, Any]:
    """Return *scrub*, the last one or None, and *members*: short UUID -> [errors, repairs]."""
    kept = config.jobs.get(KEY)
    kept = kept if isinstance(kept, dict) else {}
    members = kept.get("members")
    counts = members.items() if isinstance(members, dict) else ()
    return {
        "scrub": kept.get("scrub") if _is_scrub(kept.get("scrub")) else None,
        "members": {uuid: list(pair) for uuid, pair in counts if _is_row(pair, 2)},
    }


def with_health(config: ArrayConfig, scrub: Mapping[str, Any] | None, members: Any) -> ArrayConfig:
    """Return *config* with the last *scrub* and the counts of *members*; unchanged without any.

    The members with most errors and repairs are kept, the first places of a scrub.
    """
    counted = sorted(members.items(), key=lambda item: -sum(item[1]))[:MEMBERS_MAX]
    kept: dict[str, Any] = {"members": {uuid: list(pair) for uuid, pair in counted if any(pair)}}
    if scrub is not None:
        kept["scrub"] = {
            **scrub,
            "members": scrub["members"][:MEMBERS_MAX],
            "places": [
                [stripe, offset, roles[:ROLES_MAX]]
                for stripe, offset, roles in scrub["places"][:PLACES_MAX]
            ],
        }
    if not any(kept.values()) and KEY not in config.jobs:
        return config
    return config.with_job(KEY, kept)


def _is_row(row: object, length: int) -> bool:
    return (
        isinstance(row, list)
        and len(row) == length
        and all(type(number) is int and number >= 0 for number in row)
    )


def _is_scrub(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("state"), str):
        return False
    members, places = value.get("members"), value.get("places")
    return (
        type(value.get("repair")) is bool
        and _is_row([value.get(name) for name in NUMBERS], len(NUMBERS))
        and isinstance(members, list)
        and all(_is_row(row, 3) for row in members)
        and isinstance(places, list)
        and all(_is_place(place) for place in places)
    )


def _is_place(place: object) -> bool:
    match place:
        case [int(), int() | None, list(roles)]:
            return all(type(role) is int for role in roles)
    return False


def shown_scrub(health: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the last scrub as `status --json` shows it, None if there was none."""
    scrub = health["scrub"]
    if scrub is None:
        return None
    return {
        **{name: scrub[name] for name in ("state", "repair", *NUMBERS)},
        "ended_s": scrub["ended_s"] or None,
        "members": [
            dict(zip(("role", "wrong", "repaired"), row, strict=True)) for row in scrub["members"]
        ],
        "places": [
            dict(zip(("stripe", "image_offset", "roles"), row, strict=True))
            for row in scrub["places"]
        ],
    }


def shown_member(health: Mapping[str, Any], member_uuid: str) -> dict[str, int]:
    """Return the counts of a member since ever, as `status --json` shows them."""
    errors, repairs = health["members"].get(short_uuid(member_uuid), (0, 0))
    return {"errors_ever": errors, "repairs_ever": repairs}
