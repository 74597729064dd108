"""The units of the settings whose numbers have one, for commands that print them.

A test compares them with the settings themselves, which are not imported for a line of output: they
need the whole engine.
"""

from __future__ import annotations

SECONDS, BYTES = "seconds", "bytes"
SETTING_UNITS = {
    "speed_min": BYTES,
    "speed_max": BYTES,
    "io.timeout_s": SECONDS,
    "cache.size": BYTES,
    "restore.after": SECONDS,
    "bpu.t_light": SECONDS,
    "bpu.t_heavy": SECONDS,
    "bpu.t_skew": SECONDS,
    "bpu.a_read": SECONDS,
    "bpu.a_write": SECONDS,
    "tuner.idle_s": SECONDS,
    "scrub_each_s": SECONDS,
    "hot.latency": SECONDS,
    "hot.interval": SECONDS,
    "balance.repaid_within": SECONDS,
}
