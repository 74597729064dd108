"""Tests of more than 5 s of processor time, and why each takes that: `tests/run --changed` leaves
them out.
"""

COSTLY = {
    "tests/crash/test_campaign.py::test_every_state_keeps_the_promise_of_its_journal_mode": (
        "3,000 states, 60 ms each: fewer do not meet every kind of operation and fault"
    ),
    "tests/lab/test_sweep.py::test_a_sweep_over_three_workers_of_which_one_is_killed": (
        "a scheduler, three workers and a client: each imports Dask and raidx"
    ),
    "tests/lab/test_simulate_command.py::test_examples_run_and_say_how": (
        "the experiments of examples/ as they are: users run them"
    ),
    "tests/lab/test_tuner_matrix.py::test_copies_are_chosen_as_well_in_a_table_as_in_raid1": (
        "the mean of three loads on two arrays: of one the ratio is anything from 0.98 to 1.06"
    ),
}
