"""BPU's rules, sentence by sentence, as a function of numbers; sections are those of the paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raidx_fuse.engine import bpu
from raidx_fuse.engine.bpu import Candidate, Thresholds, decide, derive, state_of
from raidx_fuse.engine.parity_policies import traditional
from raidx_fuse.layouts.numbers import CellIndex, Role
from raidx_fuse.layouts.planning.stripe_plan import BandPlan

US = 1e-6
# The paper's own: T_light 100 us, T_heavy 1 ms (write-heavy traces), T_pre 3, T_skew 50 us.
PAPER = Thresholds(100 * US, 1000 * US, 3, 50 * US)
LIGHT, NORMAL, HEAVY = 40 * US, 400 * US, 4000 * US  # mean queues

# mean queue | (pre-reads, longest queue in us) of rmw, of rcw | chosen | sentence
RULES = [
    # "When the workload is Overloaded, we should reduce the coming I/O loads rather than relieve
    # skewness with more I/O loads." (IV.D rule 1)
    (HEAVY, (2, 9000), (6, 10), "rmw", "heavy"),
    (HEAVY, (5, 10), (3, 9000), "rcw", "heavy"),
    (HEAVY, (4, 9000), (4, 10), "rmw", "heavy"),  # equal counts: as traditional
    # "When the workload is Lightloaded, we could focus on relieving I/O skewness even though with
    # more I/O loads." (IV.D rule 3)
    (LIGHT, (2, 300), (6, 100), "rcw", "light"),
    (LIGHT, (5, 100), (3, 300), "rmw", "light"),
    # "BPU always selects RCW or RMW with lighter I/O skewness regardless the number of pre-reads"
    # (VI.B, T_light): neither T_pre nor T_skew counts.
    (LIGHT, (2, 101), (200, 100), "rcw", "light"),
    # "When Delta_l >= T_skew, which means that the difference of skewness with RMW and RCW is
    # large, we should pay more attention to the skewness" (IV.D rule 2, first bullet)
    (NORMAL, (3, 500), (5, 100), "rcw", "skewed"),
    (NORMAL, (5, 100), (3, 500), "rmw", "skewed"),
    (NORMAL, (3, 150), (5, 100), "rcw", "skewed"),  # the threshold itself is large
    # "otherwise, we could ignore the skewness to focus on I/O overhead, i.e., select one from RMW
    # and RCW with fewer pre-reads" (IV.D rule 2, first bullet)
    (NORMAL, (3, 149), (5, 100), "rmw", "even"),
    (NORMAL, (5, 100), (3, 149), "rcw", "even"),
    # "When Delta_pre > T_pre, which means that the one from RMW and RCW with more pre-reads will
    # add considerable more load to a RAID. So we should reduce pre-reads" (rule 2, second bullet)
    (NORMAL, (2, 9000), (6, 10), "rmw", "costly"),
    (NORMAL, (7, 10), (1, 9000), "rcw", "costly"),
    (NORMAL, (2, 9000), (5, 10), "rcw", "skewed"),  # T_pre itself is not too many
    # "The extra I/O load [...] is reading 0 or Delta_pre data/parity chunks" (IV.F): who is
    # shorter and reads less needs no leave.
    (NORMAL, (2, 10), (6, 9000), "rmw", "skewed"),
    # "Even though RCW needs one more pre-reads than RMW, it accesses the disks with lighter I/Os,
    # so the update of P can be finished earlier." (III.B, the example of Fig. 1)
    (NORMAL, (2, 800), (3, 100), "rcw", "skewed"),
    # The paper is silent: equally long queues leave it to the pre-reads.
    (LIGHT, (2, 0), (6, 0), "rmw", "light"),
    (LIGHT, (6, 70), (2, 70), "rcw", "light"),
]


@pytest.mark.parametrize(("mean_s", "rmw", "rcw", "chosen", "rule"), RULES)
def test_the_rules_are_the_papers(
    mean_s: float, rmw: tuple[int, float], rcw: tuple[int, float], chosen: str, rule: str
) -> None:
    decision = decide(Candidate(rmw[0], rmw[1] * US), Candidate(rcw[0], rcw[1] * US), mean_s, PAPER)
    assert (decision.chosen, decision.rule) == (chosen, rule)
    assert decision.chosen in bpu.words(decision)
    for number in (rmw[0], rcw[0], PAPER.t_pre):
        assert str(number) in bpu.words(decision)


def test_rules_that_no_row_shows_do_not_exist() -> None:
    assert {rule for *_, rule in RULES} == {"heavy", "light", "even", "costly", "skewed"}


@pytest.mark.parametrize(
    ("mean_s", "state"),
    [  # equation (5): T_heavy > L_avg >= T_light is Normal
        (0.0, "light"),
        (99 * US, "light"),
        (100 * US, "normal"),
        (999 * US, "normal"),
        (1000 * US, "heavy"),
        (1.0, "heavy"),
    ],
)
def test_states(mean_s: float, state: str) -> None:
    assert state_of(mean_s, PAPER) == state


def plan(kind: str, *reads: int) -> BandPlan:
    """Return a plan that reads the cells *reads*."""
    return BandPlan(kind, reads, (), (), sum(1 << cell for cell in reads))


def test_a_plan_is_judged_by_the_members_it_reads_first_and_not_by_what_is_cached() -> None:
    """Fig. 1: D0 and D4 are busy; RMW reads A and P there, RCW reads B, C, D elsewhere."""
    lengths_s = [900 * US, 20 * US, 30 * US, 10 * US, 800 * US]
    rmw, rcw = plan("rmw", 0, 4), plan("rcw", 1, 2, 3)

    def role(cell: CellIndex) -> Role:
        return Role(cell)

    assert bpu.candidate(rmw, role, lengths_s) == (2, 900 * US)
    assert bpu.candidate(rcw, role, lengths_s) == (3, 30 * US)
    # "which data chunks are already in memory and which need be read" (section I)
    assert bpu.candidate(rcw, role, lengths_s, cached=0b00110) == (1, 10 * US)
    assert bpu.candidate(rmw, role, lengths_s, cached=0b10001) == (0, 0.0)
    assert bpu.candidate(rmw, lambda cell: Role(3), lengths_s) == (2, 10 * US)


queue_s = st.floats(0, 0.02)
counts = st.integers(0, 40)
candidates = st.builds(Candidate, counts, queue_s)
limits = st.builds(Thresholds, queue_s, queue_s, st.integers(0, 12), queue_s)


@given(candidates, candidates, queue_s, limits)
def test_every_decision_keeps_its_promises(
    rmw: Candidate, rcw: Candidate, mean_s: float, limits: Thresholds
) -> None:
    decision = decide(rmw, rcw, mean_s, limits)
    assert decision.chosen in ("rmw", "rcw")
    chosen, other = (rmw, rcw) if decision.chosen == "rmw" else (rcw, rmw)
    assert decision.extra_pre_reads in (0, decision.delta_pre)
    assert decision.extra_pre_reads == max(0, chosen.pre_reads - other.pre_reads)
    if decision.state == "normal":
        assert decision.extra_pre_reads <= limits.t_pre
    if decision.state == "heavy":
        expected = traditional(
            plan("rmw", *range(rmw.pre_reads)), plan("rcw", *range(rcw.pre_reads))
        )
        assert decision.chosen == expected.kind
        assert decision.extra_pre_reads == 0
    if decision.state == "light":
        assert chosen.longest_s <= other.longest_s
    if decision.extra_pre_reads:  # more is read only for a shorter queue
        assert chosen.longest_s < other.longest_s
    assert bpu.numbers(decision)["extra_pre_reads"] == decision.extra_pre_reads


def test_derived_thresholds_follow_the_papers_summary() -> None:
    """VI.C: T_light small, T_heavy large, T_pre half the disks, T_skew a little above the mean."""
    services = [100 * US] * 8
    limits = derive(services, services, width=8, mean_skew_s=200 * US)
    assert limits.t_pre == 4
    assert 200 * US < limits.t_skew_s < 300 * US
    # On SSDs that take 0.1 ms: "BPU almost performs best by setting T_light = 0.1ms", and T_heavy
    # of 4 ms for the sweeps of T_light (VI.B).
    assert limits.t_light_s == pytest.approx(100 * US)
    assert limits.t_heavy_s == pytest.approx(4000 * US)
    slow = derive([0.01, 0.0], [0.01, 0.0], width=2, mean_skew_s=0.0)  # one not measured yet
    assert slow.t_light_s == pytest.approx(0.01)
    unknown = derive([], [], width=5, mean_skew_s=0.0)
    assert 0 < unknown.t_light_s < unknown.t_heavy_s
    assert unknown.t_pre == 2
