"""Every setting: whose it is, unit, default, parser with its limits, help. One row is one setting.

What puts a value into force is with its receiver, which finds it by name:

    of ARRAY          array/settings.py           kept in the superblocks of the array
    of EACH, POOL     pool/hotspots/settings.py   kept there as well; EACH may differ between arrays
    of MACHINE        daemon/commands/events.py   kept on this machine

The manual, `raidx get` and the shelf of the tests read the rows; nothing else lists settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raidx_fuse.errors import Reason, UsageError, unknown
from raidx_fuse.units import format_seconds, format_size, parse_seconds, parse_size

ARRAY, EACH, POOL, MACHINE = "array", "each", "pool", "machine"
SECONDS, BYTES = "seconds", "bytes"

POLICY, TRADITIONAL = "parity.policy", "traditional"
MODES = ("partial", "full", "none")
PLANNERS = (
    *("dswap", "dswap-paper", "exact", "random-reassign", "random-packing"),
    *("best-fit", "worst-fit", "bsr"),
)
SCRUB_EACH = "scrub_each_s"
SUMS = "sums"
SPARES_SHARED = "spares.shared"
LOG_SIZE = "log.size"
RULES = ("balance.stay", "balance.together", "balance.apart")
NONE = "none"
MAIL, PROGRAM, DIGEST = "events.mail", "events.program", "events.digest"

OBSERVATIONS_MAX = 360  # an hour of them, at the default of hot.interval
CACHE_MIN_BYTES, CACHE_MAX_BYTES = 4096, 1 << 40
_QUEUE_S_MAX = 3600.0
_SCRUB_S_MIN = 60.0
_TEXT_CHARS_MAX = 40  # of a wrong value, in its error
_ADDRESS = re.compile(r"[A-Za-z0-9._+][A-Za-z0-9._+@-]{0,253}")

Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting *of* an array, of each array of a pool, of the pool, or of this machine.

    *parse* makes a value from text, within its limits (raises UsageError). *default* None stands
    for "auto". *unit* is that of a number: seconds, bytes or "". *words* are values that a shell
    may complete.
    """

    name: str
    default: Any
    help: str
    parse: Parse
    unit: str = ""
    of: str = ARRAY
    words: tuple[str, ...] = ()


def restored(name: str, value: Any, parse: Parse) -> Any:
    """Return *value* of a superblock if *parse* can produce it. Raises UsageError if not."""
    if value is None:
        texts = ["auto", "off"]
    elif isinstance(value, str):
        texts = [value]
    else:
        texts = [repr(value)] if type(value) in (int, float) else []
    for text in texts:
        try:
            if parse(text) == value:
                return value
        except UsageError:
            continue
    raise UsageError(f"{str(value)[:_TEXT_CHARS_MAX]!r} is not a value of {name}")


# -- parsers ---------------------------------------------------------------------------------------


def _within(least: float, most: float, words: str) -> Parse:
    """Return a parser of seconds; *words* say the limits."""

    def parse(text: str) -> float:
        value = parse_seconds(text)
        if not least <= value <= most:
            raise UsageError(f"{text} is outside {words}")
        return value

    return parse


def _number(of: str, most: int, least: int = 0) -> Parse:
    """Return a parser of a number of *of* things."""

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
            shown = text[:_TEXT_CHARS_MAX]
            raise UsageError(f"{shown!r} is not a number of {of} from {least} to {most}")
        return int(text)

    return parse


def _or(word: str, parse: Parse, value: Any = None) -> Parse:
    """Return a parser that takes *word* as *value*, and other texts as *parse* does."""
    return lambda text: value if text == word else parse(text)


def _either(one: str, other: str) -> Parse:
    def parse(text: str) -> str:
        if text not in (one, other):
            raise UsageError(f"{text[:_TEXT_CHARS_MAX]!r} is neither {one} nor {other}")
        return text

    return parse


def _journal_mode(text: str) -> str:
    if text not in MODES:
        raise UsageError(f"unknown journal mode {text!r}", action=f"choose {', '.join(MODES)}")
    return text


def _planner(text: str) -> str:
    if text not in PLANNERS:
        raise UsageError(f"there is no planner {text[:40]}; there are: {', '.join(PLANNERS)}")
    return text


def _cache_size(text: str) -> int:
    value = parse_size(text)
    if value and not CACHE_MIN_BYTES <= value <= CACHE_MAX_BYTES:
        raise UsageError(
            f"a cache of {text} is outside {CACHE_MIN_BYTES >> 10} KiB to "
            f"{CACHE_MAX_BYTES >> 40} TiB",
            action="0 means none",
        )
    return value


def _log_size(text: str) -> int:
    value = parse_size(text)
    if not value:
        raise UsageError("there is no array without a log", action="journal=none writes past it")
    return value


def _queue_time(text: str) -> float:
    value = parse_seconds(text)
    if value > _QUEUE_S_MAX:
        raise UsageError(f"{text} is longer than {_QUEUE_S_MAX:g} s")
    return value


def _service_time(text: str) -> float:
    if "," in text:
        raise UsageError(
            "one service time holds for all members", action="auto measures that of each"
        )
    return _queue_time(text)


def _scrub_interval(text: str) -> float:
    value = parse_seconds(text)
    if value and value < _SCRUB_S_MIN:
        raise UsageError(f"{text} is shorter than {_SCRUB_S_MIN:g} s", action="0 means never")
    return value


def _share(text: str) -> float:
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        raise UsageError(f"{text[:_TEXT_CHARS_MAX]!r} is not a share") from None
    if not 0.01 <= value <= 1:
        raise UsageError(
            f"{text[:_TEXT_CHARS_MAX]} is outside 1 % to 100 %", action="write 0.8 or 80%"
        )
    return value


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise UsageError(f"{text[:80]!r} is not a mail address")
    return text


ON_OFF = ("on", "off")
_SWITCH = _either(*ON_OFF)
_QUEUE, _SERVICE = (_queue_time, SECONDS), (_service_time, SECONDS)
_CHUNKS = (_number("chunks", 255), "")

# -- the table -------------------------------------------------------------------------------------

SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            POLICY,
            TRADITIONAL,
            "how partial writes update parity: traditional (fewer pre-reads), bpu, rmw, rcw, ...",
            str,
            words=(TRADITIONAL, "bpu", "rmw", "rcw"),
        ),
        Setting(
            "journal",
            "partial",
            "writes that go through the log: partial (of partial stripes), full (all) or none",
            _journal_mode,
            words=MODES,
        ),
        Setting(
            LOG_SIZE,
            None,
            "bytes of the log on each member; auto: 1/8 of the smallest one, up to 64MiB",
            _or("auto", _log_size),
            BYTES,
            words=("auto",),
        ),
        Setting(
            "speed_min",
            8 << 20,
            "bytes a second that background jobs may use while the array is in use",
            parse_size,
            BYTES,
        ),
        Setting(
            "speed_max",
            0,
            "bytes a second that background jobs may use at most; 0: no limit",
            parse_size,
            BYTES,
        ),
        Setting(
            "io.timeout_s",
            30.0,
            "seconds after which a member that does not answer is excluded",
            _within(0.1, 86400, "0.1 s to 86400 s"),
            SECONDS,
        ),
        Setting(
            "errors.max",
            20,  # as md's max_read_errors
            "read errors of a member within an hour that are mended in place; more: it fails",
            _number("errors", 1_000_000),
        ),
        Setting(
            "misfits.max",
            0.05,
            "share of the pages read from a member within an hour that may misfit their checksums; "
            "more: an event, and it fails if healed ones misfit again and it can be spared",
            _share,
        ),
        Setting(
            "cache.size",
            0,
            "bytes of memory for the chunk cache, in addition to the page cache; 0: none",
            _cache_size,
            BYTES,
        ),
        Setting(
            "restore.after",
            60.0,
            "time after which a raidx array restores a lost member's chunks to free chunks; or off",
            _or("off", parse_seconds),
            SECONDS,
            words=("off",),
        ),
        Setting(
            SCRUB_EACH,
            7 * 86400.0,
            "time after which a scrub starts by itself when no request comes; 0: never",
            _scrub_interval,
            SECONDS,
        ),
        Setting(
            SUMS,
            "off",
            "on: each page that is read is compared with its checksum, and healed; or off",
            _SWITCH,
            words=ON_OFF,
        ),
        Setting(
            SPARES_SHARED,
            "off",
            "on: a spare of this array may go to another array of the mount that lacks one; or off",
            _SWITCH,
        ),
        Setting(
            "sums.cache",
            None,
            "bytes of memory for checksums, but for those not saved yet; auto: by the machine's",
            _or("auto", _cache_size),
            BYTES,
        ),
        *(
            Setting(name, None, help, _or("auto", parse), unit, words=("auto",))
            for name, help, parse, unit in (
                ("bpu.t_light", "mean queue (time) below which the load is light", *_QUEUE),
                ("bpu.t_heavy", "mean queue (time) from which the load is heavy", *_QUEUE),
                ("bpu.t_pre", "additional pre-reads that a shorter queue may cost", *_CHUNKS),
                ("bpu.t_skew", "difference of queue lengths (time) worth them", *_QUEUE),
                ("bpu.a_read", "service time of a waiting read in the queue length", *_SERVICE),
                ("bpu.a_write", "service time of a waiting write in the queue length", *_SERVICE),
            )
        ),
        Setting(
            "tuner.enabled",
            "on",
            "on: hot chunks of a raidx layout move to faster or idler members in idle time; or off",
            _SWITCH,
            words=ON_OFF,
        ),
        Setting(
            "tuner.idle_s",
            1.0,
            "seconds without a request after which the tuner begins",
            _within(0.1, 86400, "0.1 s to 86400 s"),
            SECONDS,
        ),
        Setting("hot.tau", 0.8, "utilisation above which an array is overloaded", _share, of=EACH),
        Setting(
            "hot.share",
            0.75,
            "an array is a hotspot if more than this share of a window's observations is above",
            _share,
            of=EACH,
        ),
        Setting(
            "hot.window",
            10,
            "observations of a window",
            _number("observations", OBSERVATIONS_MAX, least=1),
            of=EACH,
        ),
        Setting(
            "hot.latency",
            0.0,
            "mean latency of requests above which an observation counts as well; 0: it does not",
            parse_seconds,
            SECONDS,
            EACH,
        ),
        Setting(
            "hot.interval",
            10.0,
            "time of an observation",
            _within(0.1, 3600, "100 ms to an hour"),
            SECONDS,
            POOL,
        ),
        Setting(
            "balance.auto",
            "off",
            "on: volumes move as soon as there is a hotspot",
            _SWITCH,
            of=POOL,
            words=ON_OFF,
        ),
        Setting(
            "balance.target",
            "on",
            "off: no volume moves to this array, except on its way between two others",
            _SWITCH,
            of=EACH,
            words=ON_OFF,
        ),
        Setting(
            "balance.redundancy",
            "keep",
            "keep: volumes move only to arrays that survive as many losses; or any",
            _either("keep", "any"),
            of=POOL,
            words=("keep", "any"),
        ),
        Setting(
            "balance.planner",
            "dswap",
            "the planner: see raidx balance",
            _planner,
            of=POOL,
            words=PLANNERS,
        ),
        Setting(
            "balance.repaid_within",
            "off",
            "no move that takes the array longer than it saves it in this time; or off",
            _or("off", parse_seconds, "off"),
            SECONDS,
            POOL,
            ("off",),
        ),
        Setting(
            RULES[0], NONE, "volumes that stay where they are: A,B; or none", str.strip, of=POOL
        ),
        Setting(RULES[1], NONE, "volumes that keep together: A+B,C+D; or none", str.strip, of=POOL),
        Setting(RULES[2], NONE, "volumes that keep apart: A+B,C+D; or none", str.strip, of=POOL),
        Setting(
            MAIL,
            "off",
            "the address to which warnings and errors are mailed; or off",
            _or("off", _address, "off"),
            of=MACHINE,
            words=("off",),
        ),
        Setting(
            DIGEST,
            "off",
            "on: once a day the state of the array is an event, and mailed to events.mail; or off",
            _SWITCH,
            of=MACHINE,
        ),
        Setting(
            PROGRAM,
            "off",
            "the program that is run for each event, by its absolute path; or off",
            str,
            of=MACHINE,
            words=("off",),
        ),
    )
}

OF_ARRAY = {name: setting for name, setting in SETTINGS.items() if setting.of == ARRAY}
OF_POOL = {name: setting for name, setting in SETTINGS.items() if setting.of in (EACH, POOL)}
OF_MACHINE = {name: setting for name, setting in SETTINGS.items() if setting.of == MACHINE}

_MEASURED = "the queues measure it; hot.tau and hot.latency say what a hotspot is"
RETIRED = {
    "journal.parity": "the parity of logged data always follows at the checkpoint",
    "bpu.auto": "set bpu.t_light, bpu.t_heavy, bpu.t_pre and bpu.t_skew, each to auto or a value",
    "tuner.slice": "it is 50 ms; tuner.idle_s and tuner.enabled say when the tuner works",
    "hot.position": _MEASURED,
    "hot.transfer": _MEASURED,
}
"""Settings of older versions, and what holds now: superblocks may have them, nothing reads them.

A setting that goes leaves its name here, for good: any other name that is not known is refused.
"""

KEPT_AS = {SCRUB_EACH: "tuner.scrub"}
"""Settings that the superblocks keep under an earlier name, which `setting_named` takes as well."""

_NAMES = {kept: name for name, kept in KEPT_AS.items()}


def is_of_pool(key: str) -> bool:
    """Say whether *key* is, or looks like, the name of a pool's setting."""
    return key.startswith(("hot.", "balance."))


def setting_named(name: str) -> Setting:
    """Return the setting of an array or a pool. Raises UsageError that suggests the nearest."""
    if name in RETIRED:
        raise UsageError(
            f"there is no setting {name} any more: {RETIRED[name]}", reason=Reason.NO_SUCH_SETTING
        )
    known = OF_POOL if is_of_pool(name) else OF_ARRAY
    setting = known.get(_NAMES.get(name, name))
    if setting is None:
        raise unknown("setting", name, known, reason=Reason.NO_SUCH_SETTING)
    return setting


def text_of(name: str, value: Any, size: Callable[[int], str] = format_size) -> str:
    """Return a value of the setting *name* as `raidx set` takes it, with its unit.

    *size* makes text of bytes.
    """
    if isinstance(value, dict):  # a pool whose arrays differ
        return ", ".join(f"{array}: {text_of(name, one, size)}" for array, one in value.items())
    unit = SETTINGS[name].unit if name in SETTINGS and isinstance(value, int | float) else ""
    if unit == SECONDS:
        return format_seconds(value)
    if value is None:
        return "off"
    return size(value) if unit == BYTES else str(value)
