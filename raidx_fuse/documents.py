"""The types of the documents that programs rely on: status, stats, jobs, events, plans, errors.

`raidx schema` makes its JSON Schemas from them, so each key stands here alone, with its unit: that
of a number is the second argument of its `Annotated`, and of other values it is a description.
"number" is one that only names something, "count" one without a unit.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

Number = Annotated[int, "number"]
Count = Annotated[int, "count"]
Bytes = Annotated[int, "bytes"]
BytesPerSecond = Annotated[float, "bytes per second"]
Seconds = Annotated[float, "seconds"]
Milliseconds = Annotated[float, "milliseconds"]
Ratio = Annotated[float, "ratio"]
Mean = Annotated[float, "count"]
InUnit = Annotated[int, "as the key unit says"]
Internal = Annotated[dict[str, Any], "Not covered by the promise."]


class Member(TypedDict):
    """A member of an array; *role* is negative for a spare."""

    role: Number
    path: str | None
    uuid: str
    state: str
    size: Bytes
    errors: Count | None
    errors_ever: Count
    repairs_ever: Count
    kind: NotRequired[str | None]


class Volume(TypedDict):
    """An image file, or an export of `raidx serve`, which has no *path*."""

    name: str
    size: Bytes
    path: str | None


class JobProgress(TypedDict):
    id: Number
    kind: str
    state: str
    done: InUnit
    total: InUnit
    unit: str
    rate: Annotated[float, "units per second"]
    eta_seconds: Seconds | None
    paused: bool
    speed_min: BytesPerSecond
    speed_max: BytesPerSecond
    error: str | None


VolumeRoute = TypedDict("VolumeRoute", {"from": NotRequired[str], "to": NotRequired[str]})
"""The arrays that a job moves a volume between."""


class ScrubbedMember(TypedDict):
    """How many chunks of a member were wrong and were repaired, where that is known."""

    role: Number
    wrong: Count
    repaired: Count


class ScrubbedPages(ScrubbedMember):
    """And with checksums, how many pages of it did not fit theirs, and what has become of them.

    *healed* of the *misfits* fit again; nothing gives the *damaged* ones back. *without_sums* had
    no checksum; where all others confirm them, they have one now.
    """

    misfits: NotRequired[Count]
    healed: NotRequired[Count]
    without_sums: NotRequired[Count]
    damaged: NotRequired[Count]


class SuspectMember(TypedDict):
    role: Number
    path: str | None


class Mismatch(TypedDict):
    """Chains of a stripe that do not hold; *located*: the members are those that are wrong."""

    stripe: Number
    located: bool
    members: list[SuspectMember]
    image_offsets: list[Bytes]
    byte_in_chunk: Bytes
    bytes: Count
    repaired: bool
    assumed_data_right: bool


class JobDetail(VolumeRoute):
    volume: NotRequired[str | None]
    going_back: NotRequired[bool]
    legs_left: NotRequired[Count]
    repair: NotRequired[bool]
    mismatches: NotRequired[Count]
    repaired: NotRequired[Count]
    assumed: NotRequired[Count]
    uncorrected: NotRequired[Count]
    unchecked_stripes: NotRequired[Count]
    members: NotRequired[list[ScrubbedPages]]
    findings: NotRequired[list[Mismatch]]
    layout_before: NotRequired[str]
    layout_after: NotRequired[str]
    members_before: NotRequired[Count]
    members_after: NotRequired[Count]
    waits_for_role: NotRequired[Number | None]
    waits_for_resync: NotRequired[bool]
    checkpoints: NotRequired[Count]
    roles: NotRequired[list[Number]]
    chunks_moved: NotRequired[Count]
    catches_up: NotRequired[bool]
    size_after: NotRequired[Bytes]
    parity: NotRequired[str]
    removes_members: NotRequired[bool]
    successor: NotRequired[str | None]
    role: NotRequired[Number]
    places_changed: NotRequired[Count]
    stuck: NotRequired[Count]
    watermark: NotRequired[Bytes]


class Job(JobProgress, JobDetail):
    """A background job. *done* and *total* are in *unit*, *rate* in units per second.

    What is not required is of some kinds of jobs only.
    """


class Jobs(Job):
    """What `raidx job` prints: all *jobs*, and the keys of the one that was named."""

    jobs: list[Job]


class Scrub(Job):
    """What `raidx scrub` prints: the *job* that it started, with --wait its keys and *result*."""

    job: Number
    result: NotRequired[Job]


class MismatchPlace(TypedDict):
    """A mismatch that a scrub has left; *image_offset* is the first of its chunks with data."""

    stripe: Number
    image_offset: Bytes | None
    roles: list[Number]


class LastScrub(TypedDict):
    state: str
    repair: bool
    ended_s: Seconds | None
    seconds: Seconds
    mismatches: Count
    repaired: Count
    left: Count
    unchecked_stripes: Count
    members: list[ScrubbedMember]
    places: list[MismatchPlace]


class Host(TypedDict):
    """A file system with members: *promised_bytes* are those that it has yet to provide."""

    members: list[str]
    free_bytes: Bytes
    promised_bytes: Bytes
    full: bool


class Drive(TypedDict):
    """What a drive with *members* says of itself (SMART); None: it does not say that.

    *passed*: it does not expect to fail. *worn_ratio*: of its endurance.
    """

    path: str
    members: list[str]
    passed: bool | None
    temperature_celsius: Number | None
    powered_on_hours: Count | None
    reallocated_sectors: Count | None
    pending_sectors: Count | None
    media_errors: Count | None
    worn_ratio: Ratio | None


class UnreadablePlace(TypedDict):
    """A range of a member that could not be read; *image_offset* None: it is no content."""

    role: Number
    path: str | None
    member_offset: Bytes
    length: Bytes
    image_offset: Bytes | None


class Unreadable(TypedDict):
    """Ranges that could not be read and are not mended yet; *places* has some of them."""

    count: Count
    places: list[UnreadablePlace]


class TunerState(TypedDict):
    """What the tuner of a raidx layout does, and *why*; what `raidx tune` prints."""

    state: str
    why: str
    chunks_moved: Count
    rounds: Count
    seconds_since_scrub: Seconds
    members: list[TunedMember]


class Load(TypedDict):
    """The load of an array of a pool in its last observation; *above*: share of a window's."""

    array: str
    utilisation: Ratio
    busy: Ratio
    latency_ms: Milliseconds
    tau: Ratio
    above: Ratio
    hotspot: bool
    observations: Count


class Balance(TypedDict):
    """The plan of a pool under way, or how the last one ended."""

    auto: str
    state: str
    steps: list[str]
    steps_done: Count
    error: str | None
    note: str | None


class PoolStatus(TypedDict):
    arrays: list[Load]
    balance: Balance


class NbdServer(TypedDict, total=False):
    """The listener for NBD clients of a mount or server."""

    address: str
    place: str
    clients: Count
    refused: Count
    exports: dict[str, str]


class LabMember(TypedDict):
    """The faults in force on a member of `raidx mount --lab`, and how often each was met."""

    member: str
    faults: list[str]
    hits: dict[str, Count]


class ArrayBasics(TypedDict):
    uuid: str
    name: str
    layout: str
    chunk_size: Bytes
    size: Bytes
    state: str
    redundancy_left: Count
    running: NotRequired[bool]
    clean: NotRequired[bool]
    members: list[Member]
    jobs: list[Job]
    last_scrub: LastScrub | None
    volumes: list[Volume]
    warnings: list[str]
    action: str | None


class Implementation(TypedDict):
    """Counters and states of the implementation, in what commands print."""

    internal: Internal


class Restore(TypedDict):
    """When the chunks of lost members (raidx layouts) will be restored to the other members."""

    roles: list[Number]
    begins_in_seconds: Seconds | None
    chunks_without_place: Count


class SumsReport(TypedDict):
    """Checksums of the members' data; absent where the array never had any.

    * *state*: "on", or "off" while they are neither kept nor compared; *room_bytes*, while off:
      what each member has free for them (0: it would be taken from the end of the image).
    * Since the mount: *misfits*, pages that did not fit their checksums; *healed*, those of them
      that were written anew; *wrong_sums*, checksums that were wrong about right bytes, and were
      replaced; *unverified*, pages that were taken as they were after a crash.
    """

    state: str
    room_bytes: NotRequired[Bytes]
    misfits: Count
    healed: Count
    wrong_sums: Count
    unverified: Count


class RunningDetails(TypedDict):
    written: NotRequired[Bytes]
    read_only: NotRequired[bool]
    lost_chunks: NotRequired[Count]
    host_full: NotRequired[bool]
    hosts: NotRequired[list[Host]]
    drives: NotRequired[list[Drive]]
    unreadable: NotRequired[Unreadable]
    tuner: NotRequired[TunerState | None]
    restore: NotRequired[Restore | None]
    sums: NotRequired[SumsReport]


class ArrayDetails(ArrayBasics, RunningDetails):
    """What `ArrayStatus` and `ArrayReport` have in common."""


class ArrayStatus(ArrayBasics, Implementation, RunningDetails):
    """The status of one array."""


class ProtectionState(TypedDict):
    """Is a protection of the daemon *active*, and if not, for what *reason*?"""

    active: bool
    reason: str | None


class MountStatus(TypedDict):
    """What the status of a mounted or served array has besides."""

    mountpoint: str | None
    pid: Number
    socket: str
    log_path: str
    protections: NotRequired[dict[str, dict[str, str | bool | None]]]
    nbd: NotRequired[NbdServer]
    lab: NotRequired[list[LabMember] | None]
    pool: NotRequired[PoolStatus]


class DaemonReport(TypedDict, total=False):
    """What a daemon says of itself, and of the implementation, in answer to `status`."""

    mountpoint: str | None
    pid: Number
    socket: str
    log_path: str
    log: str
    protections: dict[str, ProtectionState]
    nbd: NbdServer
    bugs: Count
    poll_first: bool
    tuning: ProtectionState
    awake: ProtectionState


class ArrayReport(ArrayBasics, RunningDetails, DaemonReport):
    """The answer to `status`, of which client/status_document.py makes what commands print."""

    layout_parameters: NotRequired[dict[str, Any]]
    events: NotRequired[Count]
    lab: NotRequired[list[LabMember] | None]
    pool: NotRequired[PoolStatus]
    arrays: NotRequired[list[ArrayReport]]


class MountProblem(TypedDict):
    mountpoint: str
    problem: str | None


class Status(ArrayStatus, MountStatus):
    """The status of a mount: *arrays* has each of its arrays, the top one of them."""

    arrays: list[ArrayStatus]
    problems: list[MountProblem]
    changed: NotRequired[bool]


class Latencies(TypedDict):
    """Milliseconds between request and answer."""

    mean: Milliseconds
    p50: Milliseconds
    p95: Milliseconds
    p99: Milliseconds


class ResponseLatencies(TypedDict):
    """Milliseconds between request and answer, in a simulation or a replay."""

    mean: Milliseconds
    p50: Milliseconds
    p90: Milliseconds
    p95: Milliseconds
    p99: Milliseconds
    p999: Milliseconds
    max: Milliseconds


class Cache(TypedDict):
    """The chunk cache; *pre_reads_spared* are reads before a write that it answered."""

    size: Bytes
    used: Bytes
    hits: Count
    misses: Count
    pre_reads_spared: Count


class HotChunk(TypedDict):
    """A chunk that is used much: the mean *interval_seconds* between two accesses."""

    image_offset: Bytes
    interval_seconds: Seconds
    role: Number


class BpuThresholds(TypedDict):
    t_light_s: Seconds
    t_heavy_s: Seconds
    t_pre: Count
    t_skew_s: Seconds


class BpuCounts(TypedDict):
    """Of BPU: *decisions* and *seconds* by state, and the counts of engine/parity_policies.py."""

    state: str
    mean_queue_s: Seconds
    mean_skew_s: Seconds
    thresholds: BpuThresholds
    seconds: dict[str, Seconds]
    decisions: dict[str, Count]
    rmw: Count
    rcw: Count
    queued: Count
    touched_longest: Count
    against_pre_reads: Count
    pre_reads_least: Count
    extra_pre_reads: Count


class BpuRatios(TypedDict):
    """Ratios of `BpuCounts`.

    * *of_time*: the fraction of time in each state.
    * *touched_longest_ratio*: of the decisions that found an operation waiting, those that read
      from the longest queue (the paper's Fig. 2).
    * *extra_pre_reads_ratio*: extra pre-reads to the pre-reads of `traditional` (Fig. 5).
    * *against_ratio*: of all decisions, those against the count of pre-reads.
    """

    of_time: dict[str, Ratio]
    touched_longest_ratio: Ratio
    extra_pre_reads_ratio: Ratio
    against_ratio: Ratio


class Bpu(BpuCounts, BpuRatios):
    """What BPU has decided in an interval."""


class Counters(TypedDict):
    """What an array has done for its users in an interval."""

    reads: Count
    writes: Count
    read_bytes: Bytes
    write_bytes: Bytes
    flushes: Count
    latency_ms: Latencies
    pre_reads: Count
    rmw: Count
    rcw: Count
    full_stripe: Count
    degraded_reads: Count
    chunks_moved: Count
    cache: Cache
    hottest: list[HotChunk]
    parity_policy: str
    bpu: Bpu | None
    lost_image_offsets: list[Bytes]


class MemberCounters(TypedDict):
    """What a member has done in an interval; *utilisation* is a ratio."""

    role: Number
    path: str | None
    reads: Count
    writes: Count
    flushes: Count
    read_bytes: Bytes
    write_bytes: Bytes
    queue_mean: Mean
    queue_now: Count
    utilisation: Ratio
    read_ms_mean: Milliseconds
    read_ms_p99: Milliseconds
    write_ms_mean: Milliseconds
    write_ms_p99: Milliseconds
    errors: Count


class VolumeLoad(TypedDict):
    """What a volume was asked for in the newest observation of its array."""

    volume: str
    array: str
    reads_per_second: Annotated[float, "per second"]
    writes_per_second: Annotated[float, "per second"]
    mean_read: Annotated[float, "bytes"]
    mean_write: Annotated[float, "bytes"]
    utilisation: Ratio


class PoolLoads(TypedDict):
    """The loads of a pool's arrays and volumes in an interval."""

    interval_seconds: Seconds
    arrays: list[Load]
    volumes: list[VolumeLoad]


class PoolStats(PoolLoads):
    balance: Balance


class ArrayCounters(TypedDict):
    interval_seconds: Seconds
    members: list[MemberCounters]
    array: Counters


class VolumeCounters(TypedDict):
    """What a volume was asked for in an interval."""

    name: str
    reads: Count
    writes: Count
    read_bytes: Bytes
    write_bytes: Bytes


class CommandStats(ArrayCounters):
    volumes: list[VolumeCounters]


class Stats(CommandStats):
    pool: PoolStats


class Reports(Stats):
    """What `raidx stats` prints: the last of its *reports* at the top."""

    reports: list[Stats]


class HotPlace(TypedDict):
    """A region of the image that is used much, and the *roles* that hold it."""

    image_offset: Bytes
    length: Bytes
    accesses_per_second: Annotated[float, "per second"]
    share_ratio: Ratio
    write_ratio: Ratio
    in_order_ratio: Ratio
    roles: list[Number]


class Heat(TypedDict):
    """What `raidx stats --hot` prints; *half_ratio* of the regions get half of the accesses."""

    region_bytes: Bytes
    accesses_per_second: Annotated[float, "per second"]
    write_ratio: Ratio
    used_ratio: Ratio
    half_ratio: Ratio
    hot: list[HotPlace]


class Started(TypedDict):
    """A command that began: *job* is the job that carries it out, None if it is done already."""

    job: NotRequired[int | None]


class Redundancy(TypedDict):
    """Losses that are survived now, at the worst moment of the change, at its end."""

    now: Count
    worst: Count
    end: Count


class RedundancyPlan(TypedDict):
    """*redundancy_reduced_seconds* None: until the member is replaced."""

    redundancy_left: Count
    redundancy_reduced: bool
    redundancy_reduced_seconds: Seconds | None
    redundancy: Redundancy


class Costs(TypedDict):
    """What a change reads and writes of members, and how long that takes."""

    bytes_read: Bytes
    bytes_written: Bytes
    bytes_moved: Bytes
    seconds: Seconds


class JobTime(TypedDict):
    """How long a job takes: *seconds* on an idle array, *seconds_busy* at `speed_min`."""

    rate: BytesPerSecond
    rate_source: str
    seconds: Seconds
    seconds_busy: Seconds


class JobCosts(Costs):
    """Those of a job (`JobTime`)."""

    rate: BytesPerSecond
    rate_source: str
    seconds_busy: Seconds


class LoggedCosts(JobCosts):
    """Those of a job, *bytes_logged* of which go through the log."""

    bytes_logged: Bytes


class Plan(TypedDict):
    dry_run: bool
    does: str
    bytes_moved: Bytes
    seconds: Seconds


class ChangePlan(Plan, RedundancyPlan):
    """What a change of an array or a volume would cost."""

    bytes_read: Bytes
    bytes_written: Bytes


class LosingPlan(ChangePlan):
    """A change of a volume that *loses* bytes that were written."""

    loses: Bytes


class MemberPlan(ChangePlan):
    chunks_at_stake: Count


class JobPlan(ChangePlan):
    """A change by a job; *seconds_busy* is what it takes while the array is in use."""

    rate: BytesPerSecond
    rate_source: str
    seconds_busy: Seconds


class ReplacePlan(JobPlan):
    chunks_at_stake: Count


class LoggedPlan(JobPlan):
    """A job of which a part goes through the log."""

    bytes_logged: Bytes


class Sizes(TypedDict):
    size_before: Bytes
    size_after: Bytes


class ReshapePlan(LoggedPlan, Sizes):
    """The layout changes."""


class CopyPlan(JobPlan, Sizes):
    """An array gets more copies of its content."""


class BundlePlan(CopyPlan):
    """Members join or leave a raidx array."""

    chunks_to_move: Count
    places_to_change: Count


class GrowthPlan(ReshapePlan):
    """The array grows; *parity* is its parity mode."""

    parity: str


class MovePlan(JobPlan):
    volume_bytes: Bytes
    redundancy_lowest: Count
    redundancy_after: Count


class Spare(TypedDict):
    member_uuid: str
    path: str | None


class Grown(TypedDict):
    """What `raidx add-disk` prints: spares that were *added*, or the *job* of a growth."""

    changed: NotRequired[bool]
    members: NotRequired[list[str]]
    added: NotRequired[list[Spare]]
    job: NotRequired[Number]
    members_before: NotRequired[Count]
    members_after: NotRequired[Count]
    size_before: NotRequired[Bytes]
    size_after: NotRequired[Bytes]
    roles: NotRequired[list[Number]]
    chunks_to_move: NotRequired[Count]
    result: NotRequired[Job]


class Failing(TypedDict):
    changed: NotRequired[bool]
    role: Number
    state: str


class Removal(TypedDict, total=False):
    """What `raidx remove-disk` prints: the spare that left, or the *job* that empties a member."""

    changed: bool
    path: str | None
    member_uuid: str
    role: Number
    job: Number | None
    members_before: Count
    members_after: Count
    size_before: Bytes
    size_after: Bytes
    chunks_to_move: Count
    places_to_change: Count
    result: Job


class Replacing(TypedDict):
    """The answer to `replace-disk`; *does*, in a word, is not printed."""

    role: Number
    job: Number
    catches_up: bool
    does: str


class Replacement(TypedDict):
    """What `raidx replace-disk` prints; *catches_up*: the member was absent and has returned."""

    changed: NotRequired[bool]
    role: Number
    job: Number
    catches_up: bool
    result: NotRequired[Job]


class Reshaping(TypedDict):
    changed: NotRequired[bool]
    job: Number
    layout_before: str
    layout_after: str
    members_before: Count
    members_after: Count
    size_before: Bytes
    size_after: Bytes
    result: NotRequired[Job]


class VolumeMove(TypedDict):
    """How far a volume is that moves: *watermark* bytes are at the array *to*."""

    to: str
    job: Number | None
    watermark: Bytes
    going_back: bool


class VolumeDetails(Volume):
    """A volume with its *array*, the bytes that were *written*, and where it lies."""

    changed: NotRequired[bool]
    uuid: str
    written: Bytes
    extents: list[list[Bytes]]
    open: Count
    array: str
    moving: NotRequired[VolumeMove]


class Moving(TypedDict):
    """What `raidx volume move` and `volume swap` print; the *job* is one of *in_array*."""

    job: Number
    does: str
    in_array: str
    result: NotRequired[Job]


class Trimmed(TypedDict):
    volume: str | None
    discarded: Bytes
    loses: Bytes
    given_back: Bytes


class Deleted(TypedDict):
    changed: NotRequired[bool]
    deleted: str
    free: NotRequired[Bytes]
    loses: NotRequired[Bytes]


class ExpectedLoad(TypedDict):
    """The utilisation of an array of a pool now, and after a plan."""

    array: str
    now: Ratio
    expected: Ratio
    tau: Ratio


PoolMove = TypedDict(
    "PoolMove", {"volume": str | None, "from": str, "to": str, "size": Bytes, "step": str}
)
"""A move of a plan."""


class Proposed(TypedDict):
    """What a planner proposes: *moves* in order, *steps* in words."""

    planner: str
    solved: bool
    hotspots: list[str]
    moves: list[PoolMove]
    steps: list[str]
    bytes_moved: Bytes
    bytes_copied: Bytes
    bytes_read: Bytes
    bytes_written: Bytes
    seconds: Seconds
    utilisation: list[ExpectedLoad]
    redundancy_left: Count
    redundancy_reduced: bool
    redundancy: NotRequired[Redundancy]
    explanation: list[str]


class PoolPlan(Proposed):
    dry_run: bool


class PoolChange(PoolPlan):
    """A plan for the volumes of a pool, and how far it, or the last one, is."""

    balance: Balance


class UnshownVolume(TypedDict):
    """A volume that has no image file, and *why*."""

    name: str
    uuid: str
    size: Bytes | None
    array: str
    why: str


class Volumes(TypedDict):
    """What `raidx volume list` prints; *unshown* ones are on their way to an absent array."""

    volumes: list[VolumeDetails]
    unshown: list[UnshownVolume]


class Event(TypedDict):
    """Something that happened to an array, *at_s* seconds after the beginning of 1970."""

    at_s: Seconds
    event: str
    severity: str
    array: str
    uuid: str
    mountpoint: str | None
    subject: str
    message: str
    action: str | None


class HookResult(TypedDict):
    ok: bool
    problem: str | None


class Events(TypedDict, total=False):
    """With --follow, each line is one event, with output_version."""

    events: list[Event]
    event: Event
    hooks: dict[str, HookResult]


class Error(TypedDict):
    kind: str
    reason: Annotated[str | None, "One of those in the manual, for programs to act on."]
    message: str
    action: str | None
    exit_status: Number


class Failed(TypedDict):
    error: Error | None


class Examined(TypedDict):
    """Beyond these keys: a dump of the format, as FORMAT.md has it; it goes with its version."""

    path: str | None
    problem: str | None
    kind: NotRequired[str | None]
    size: NotRequired[Bytes | None]
    carries: NotRequired[str | None]
    array_uuid: NotRequired[str | None]
    member_uuid: NotRequired[str | None]
    name: NotRequired[str | None]
    layout: NotRequired[str | None]
    role: NotRequired[Number | None]
    width: NotRequired[Count | None]
    chunk_bytes: NotRequired[Bytes | None]
    size_bytes: NotRequired[Bytes | None]
    created_s: NotRequired[Seconds | None]
    sums_room_bytes: NotRequired[Bytes]


class ExaminedMembers(TypedDict):
    members: list[Examined]


class CheckProblem(TypedDict):
    """*what* is wrong, and where that is known."""

    member: str | None
    stripe: Number | None
    image_offset: Bytes | None
    what: str


class Checked(TypedDict):
    ok: bool
    uuid: str
    name: str
    state: str
    members: list[Examined]
    problems: list[CheckProblem]
    mismatches: Count
    unchecked_stripes: Count
    scrubbed: list[ScrubbedPages]
    sums: NotRequired[SumsReport]


class DamagedRange(TypedDict):
    """A range of the image that answers EIO, and where it lies in which volume, if in one.

    *why*: "lost", for good, which the superblocks know; "misfits" its checksum, or "cannot be
    read", and nothing gives the content back.
    """

    image_offset: Bytes
    length: Bytes
    volume: str | None
    volume_offset: Bytes | None
    why: str


class Damage(TypedDict):
    """What `raidx damage` prints: at most 1,000 *ranges*, ascending; *more* are left out.

    *lost_bytes* counts all.
    """

    array: str
    state: str
    lost_bytes: Bytes
    ranges: list[DamagedRange]
    more: Count


class RepairedMember(TypedDict):
    """*lost*: the superblock slots that are written again; *carries*: what goes with that."""

    path: str | None
    array: str | None
    array_uuid: str | None
    carries: str | None
    lost: list[str]
    repaired: bool
    problem: str | None


class Repaired(TypedDict):
    """What `raidx check --repair-superblocks` prints."""

    members: list[RepairedMember]
    dry_run: bool


class StaysOnline(TypedDict):
    """What `raidx online` says of a member that is in use already."""

    member: str
    changed: bool


class ClearedMember(TypedDict):
    """A member, and the counts of it that were forgotten."""

    role: Number
    path: str | None
    errors: Count
    repairs: Count


class ClearedSums(TypedDict):
    """Counts of checksums that were forgotten; they are those of `SumsReport`."""

    misfits: Count
    healed: Count
    wrong_sums: Count
    unverified: Count


class Cleared(TypedDict):
    """*sums*: only if the counts of all members were forgotten, and there are checksums."""

    members: list[ClearedMember]
    sums: NotRequired[ClearedSums]


class PoolArray(TypedDict):
    """*mountpoint*: only of the arrays of this machine, null for one that is not mounted."""

    name: str
    uuid: str
    layout: str
    state: str
    redundancy_left: Count
    size: Bytes
    free: Bytes
    unused_bytes: NotRequired[Bytes]
    wiping: Bytes
    volumes: list[str]
    mountpoint: NotRequired[str | None]


class AbsentArray(TypedDict):
    """An array that was mounted with these; *total* is how many volumes it had."""

    uuid: str
    name: str
    volumes: list[str]
    total: Count


class PoolArrays(TypedDict):
    arrays: list[PoolArray]
    absent: list[AbsentArray]


class Forgotten(TypedDict):
    forgotten: str
    uuid: NotRequired[str]


class FormerMember(TypedDict):
    """A disk that was a member once: what it says of itself; *replaced_by*: who has its role."""

    path: str
    role: Number | None
    replaced_by: str | None


class FoundArray(TypedDict):
    """An array whose *members* were found; *wanted* is how many it has; *former* are none any more.

    *awaited* counts those that its newest superblock says are in use, spares too, and were not
    found: one that failed before is not awaited.
    """

    uuid: str
    name: str
    layout: str
    members: list[str]
    former: list[FormerMember]
    wanted: Count
    awaited: Count
    state: str
    problem: str | None
    mountpoint: str | None


class ScanProblem(TypedDict):
    path: str
    problem: str


class Found(TypedDict):
    arrays: list[FoundArray]
    problems: list[ScanProblem]


class MemberPath(TypedDict):
    path: str | None


class SpaceUse(TypedDict):
    """What is *used* of a member by chunks, or *wasted*."""

    size: Bytes
    used: Bytes
    wasted: Bytes


class MemberUse(MemberPath, SpaceUse):
    """What an array would use of a member."""


class MemberSize(MemberPath):
    size: Bytes


class LayoutChoice(TypedDict):
    """What the members would make with a layout; *wasted* of each.

    *write_operations*: reads and writes of members for a write within one chunk, in the mean;
    *reading_members*: how many serve a long read at once. *grows*: "in_place", moving the share of
    the new members only, up to *members_max* if that is a number; "copies", one more for each;
    "bundles", with members of any size; or by a "restripe".
    """

    layout: str
    length: Number | None
    size: Bytes
    redundancy_left: Count
    wasted: list[Bytes]
    write_operations: Mean
    reading_members: Count
    grows: str
    members_max: Count | None


class CreationPlan(Plan):
    """*metadata* of each member, and what of it is for checksums (*sums_bytes*), now or later."""

    layout: str
    chunk_size: Bytes
    size: Bytes
    member_size: Bytes
    members: list[MemberUse]
    layouts: list[LayoutChoice]
    metadata: Bytes
    sums_bytes: Bytes
    redundancy_left: Count
    redundancy_reduced: bool
    creates: list[str]


class Choices(TypedDict):
    """What members can become; *error* says that a layout is to be named, nothing was written."""

    dry_run: bool
    members: list[MemberSize]
    chunk_size: Bytes
    choices: list[LayoutChoice]
    error: Error


class DestroyedMember(TypedDict):
    """A member of an array that is destroyed; *problem* is why it was left as it is."""

    path: str
    role: Number | None
    problem: str | None


class Destroyed(TypedDict):
    array: str | None
    uuid: str | None
    mountpoint: str | None
    members: list[DestroyedMember]
    left: list[DestroyedMember]
    dry_run: bool
    changed: bool


class WipedMember(TypedDict):
    path: str | None
    wiped: bool
    array: str | None
    array_uuid: str | None
    role: Number | None


class Wiped(TypedDict):
    members: list[WipedMember]


class Renamed(TypedDict):
    """What `raidx rename` prints; *old_uuid* with --new-uuid."""

    uuid: str
    old_uuid: NotRequired[str]
    old: str
    name: str


class SavedMember(TypedDict):
    """A member in a file of metadata; what its superblock counts is None if it was absent.

    *samples* maps byte offsets on the member to the CRC-32C of the 4 KiB that lay there.
    """

    uuid: str
    role: Number
    state: str
    size: Bytes
    path: str
    sequence: Count | None
    base_events: Count | None
    samples: dict[str, str]


class SavedMetadata(TypedDict):
    """The file of `raidx save-metadata`, and what that prints; FORMAT.md says what it is good for.

    *pages* has, for each kind of pages behind the superblocks, runs [first, end] of those that
    there are. *checksum*: of all other keys, as FORMAT.md has it.
    """

    format: str
    version: Number
    saved_s: Seconds
    configuration: Internal
    log_epoch: Count
    log_generation: Count
    pages: dict[str, list[list[Number]]]
    members: list[SavedMember]
    checksum: str


class MetadataSaved(TypedDict):
    path: str
    array: str
    array_uuid: str
    events: Count
    saved: SavedMetadata


class RestoredMember(TypedDict):
    """What `raidx restore-metadata` does with a member, and how it knows which one it is."""

    path: str
    uuid: str
    role: Number
    action: Annotated[str, "write, or keep: its superblock is valid"]
    recognised: str


class MetadataRestored(TypedDict):
    """What `raidx restore-metadata` prints; *source*: whose configuration the superblocks get."""

    array: str
    array_uuid: str
    events: Count
    saved_s: Seconds
    source: Annotated[str, "file, or members: those with a valid superblock have a newer one"]
    members: list[RestoredMember]
    absent: list[str]
    state: str
    stripes_checked: Count
    stripes_wrong: Count
    warnings: list[str]
    dry_run: bool
    changed: bool


class Settings(TypedDict):
    """What `raidx get` and `raidx set` print: each value in the unit that its name has."""

    settings: dict[str, str | Annotated[float, "count"]]


class Unmounted(TypedDict):
    changed: NotRequired[bool]
    unmounted: str


class TunedMember(TypedDict):
    """What the tuner measured of a member, and a chunk's *cost_ms* there."""

    role: Number
    read_ms: Milliseconds | None
    write_ms: Milliseconds | None
    mb_s: NotRequired[Annotated[float, "MB per second"] | None]
    write_mb_s: NotRequired[Annotated[float, "MB per second"] | None]
    queue_on_arrival: Mean | None
    cost_ms: Milliseconds | None


class Tuning(TypedDict):
    job: Number
    result: NotRequired[Job]


TunerMove = TypedDict(
    "TunerMove",
    {
        "bundle": Number,
        "image_offset": Bytes | None,
        "from": Number,
        "to": Number,
        "swap": bool,
    },
)
"""A chunk that would move between two roles, or change places with one there (*swap*)."""


class TuningPlan(Plan):
    """Which chunks would move; *groups* are the roles that are about as fast as each other."""

    members: list[TunedMember]
    mean_ms: Milliseconds
    expected_ms: Milliseconds
    speedup: Ratio
    groups: list[list[Number]]
    moves: list[TunerMove]
    redundancy_reduced: bool


class AdvisedMember(TypedDict):
    role: Number
    read_ms: Milliseconds
    write_ms: Milliseconds | None
    mb_s: Annotated[float, "MB per second"] | None
    write_mb_s: Annotated[float, "MB per second"] | None
    queue_on_arrival: Mean


class AdvisedLayout(TypedDict):
    """The mean response of a raidx layout, as it would be made and after tuning."""

    layout: str
    length: Count
    image_bytes: Bytes
    made_ms: Milliseconds
    tuned_ms: Milliseconds
    chunks_moved: Count
    speedup: Ratio


class AdvisedLoad(TypedDict):
    layout: str
    accesses: Count
    region_bytes: Bytes
    write_ratio: Ratio
    present_ms: Milliseconds | None
    in_turn_ms: Milliseconds | None
    members: list[AdvisedMember]


class Verdict(TypedDict, total=False):
    options: list[AdvisedLayout]
    speedup: Ratio
    does: str
    next: list[str]


class Advice(AdvisedLoad, Verdict):
    """What `raidx advise` prints."""
