"""Tests of more than 5 s of processor time, and why each takes that: `tests/run --changed` leaves
them out.
"""

COSTLY = {
    "tests/crash/test_campaign.py::test_every_state_keeps_the_promise_of_its_journal_mode": (
        "5,000 states, 40 ms each: fewer do not meet every kind of operation and fault"
    ),
}
