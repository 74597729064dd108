"""The types of the answers that are for people and courses: pictures, quiz, simulations.

As in documents.py: `raidx schema` makes the JSON Schemas from them.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from raidx_fuse.documents import (
    BpuThresholds,
    Bytes,
    Count,
    Counters,
    InUnit,
    Mean,
    MemberCounters,
    Milliseconds,
    Number,
    Ratio,
    ResponseLatencies,
    Seconds,
    Status,
)

# -- layouts, on paper ---------------------------------------------------------------------------


class Bundles(TypedDict):
    bundles: list[list[Count]]
    maximum: Count


Place = list[Number]
"""Row and column."""


class Chains(TypedDict):
    """The cells of each chain, its parity first; *cells* has the place of each name."""

    rows: Number
    cols: Number
    cells: NotRequired[dict[str, Place]]
    chains: list[list[Place]]


class LayoutInfo(TypedDict):
    """A layout; *losses* and *efficiency* by the number of members."""

    name: str
    title: str
    widths: list[Count]
    widths_text: str
    losses: dict[str, Count]
    efficiency: dict[str, Ratio]
    params: dict[str, str]
    paper: str | None
    package: NotRequired[str | None]


class Layouts(TypedDict):
    layouts: list[LayoutInfo]


class LoadOfDisks(TypedDict):
    layout: str
    reads: list[Count]
    writes: list[Count]
    total: list[InUnit]
    imbalance: Ratio


class MappedChunk(TypedDict):
    logical: Number
    member: Number
    chunk: Number
    stripe: NotRequired[Number]
    cell: NotRequired[str]


class ChunkPlaces(TypedDict):
    layout: str
    blocks_per_disk: Count
    map: list[MappedChunk]


class RecoveryStep(TypedDict):
    """One cell, of which chains it is computed, and what was read for it."""

    step: Number
    cell: Place
    chains: list[Number]
    reads: list[list[Count]]
    kept: list[Place]
    computed: list[Place]


class Recovery(TypedDict):
    """What must be read to compute the cells of lost disks; *conventional*: by rows only."""

    layout: str
    reads: list[list[Count]]
    count: Number
    cells: NotRequired[dict[str, Place]]
    lost_disks: list[Number]
    lost: NotRequired[Number]
    conventional: NotRequired[Count]
    steps: NotRequired[list[RecoveryStep]]


class DrawnCell(TypedDict):
    cell: Number
    name: NotRequired[str]
    logical: NotRequired[Number]


class DrawnStripe(TypedDict):
    stripe: Number
    cells: list[list[DrawnCell]]


class Drawing(TypedDict):
    layout: str
    rows: Number
    cols: Number
    tolerance: Count
    stripes: list[DrawnStripe]


# -- a running array, for teaching ---------------------------------------------------------------


class CellPlace(TypedDict):
    """Where a cell lies, on a member and in the image."""

    cell: str
    role: Number
    path: str | None
    member_offset: Bytes
    length: Bytes
    image_offset: NotRequired[Bytes]


class CellRead(CellPlace):
    cached: bool


class CellState(CellPlace):
    """A cell of a stripe that is explained."""

    written: bool
    lost: bool


class WeighedPlan(TypedDict):
    pre_reads: Count
    longest_s: Seconds


class QueueDecision(TypedDict):
    """What BPU chose, by which rule, and the numbers of the queues that the rule compares."""

    chosen: str
    state: str
    rule: str
    mean_queue_s: Seconds
    rmw: WeighedPlan
    rcw: WeighedPlan
    delta_l_s: Seconds
    delta_pre: Count
    extra_pre_reads: Count
    thresholds: BpuThresholds


Band = TypedDict(
    "Band",
    {
        "from": Bytes,
        "to": Bytes,
        "kind": str,
        "why": str,
        "reads": list[CellRead],
        "xor": list[str],
        "writes": list[CellPlace],
        "candidates": dict[str, Count | None] | None,
        "decision": QueueDecision | None,
        "compared": NotRequired[bool],
        "heals": NotRequired[list[str]],
    },
)
"""What is done with a range of the chunks of a stripe.

Of a read in an array with checksums also whether what is read is *compared*, and the cells that it
*heals*: their pages are known not to fit, or cannot be read.
"""


class LogWrite(TypedDict):
    roles: list[Number]
    bytes: Bytes
    parity: str


class CheckpointWork(TypedDict):
    settles_first: bool
    reads: Count
    log_bytes: Bytes
    writes: Count


class ReadStripe(TypedDict):
    stripe: Number
    lost: list[str]
    never_written: list[str]
    bands: list[Band]


class Admission(TypedDict):
    """The way of a write; *log* and *checkpoint* are None past the log."""

    state: list[str]
    route: str
    dirty_mark: bool
    log: LogWrite | None
    checkpoint: CheckpointWork | None


class WrittenStripe(ReadStripe, Admission):
    """What a write does in one stripe."""


class ExplainedStripe(ReadStripe, total=False):
    """A `ReadStripe`, or with these keys a `WrittenStripe`."""

    state: list[str]
    route: str
    dirty_mark: bool
    log: LogWrite | None
    checkpoint: CheckpointWork | None


Span = TypedDict("Span", {"from": NotRequired[Bytes], "to": NotRequired[Bytes]})


class Step(Span):
    """A step of a request, and what a loss of power after it leaves, None for reads.

    *bytes*: what each of some cells begins with, in hexadecimal.
    """

    does: str
    what: str
    power: str | None
    cells: list[str]
    bytes: NotRequired[dict[str, str]]


class ExplainedStep(Step):
    step: Number
    stripe: Number


class Explanation(TypedDict):
    """What `raidx explain` prints of a request; *steps* with --step."""

    offset: Bytes
    length: Bytes
    operation: str
    layout: str
    policy: str
    stripes: list[ExplainedStripe]
    reads: Count
    writes: Count
    steps: NotRequired[list[ExplainedStep]]


class StripeState(TypedDict):
    stripe: Number
    layout: str
    state: list[str]
    journal: str
    parity_may_follow: bool
    cells: list[CellState]


class MemberPlace(TypedDict):
    """What lies at a byte of a member: metadata, a cell of a stripe, or nothing."""

    role: Number
    path: str | None
    member_offset: Bytes
    region: str
    stripe: Number | None
    cell: str | None
    written: bool | None
    image_offset: Bytes | None


class VolumePlace(MemberPlace):
    """What `raidx explain --member` prints: in which volume that is, too."""

    volume: str | None
    volume_offset: Bytes | None


class PeekedCell(TypedDict):
    """A cell with what its *home* on the member and the newest *content* begin with.

    In an array with checksums: *sum*, whether the page of what is shown fits its own ("fits",
    "misfits", "none"; None if it cannot be read), and *misfit_at_bytes*, the bytes of the chunk at
    which pages begin that misfit, but for those of which the log has newer bytes.
    """

    cell: str
    row: Number
    column: Number
    role: Number
    path: str | None
    member_offset: Bytes
    image_offset: Bytes | None
    written: bool
    lost: bool
    newest: str
    logged_bytes: Bytes
    home: str | None
    content: str | None
    sum: NotRequired[str | None]
    misfit_at_bytes: NotRequired[list[Bytes]]


class PeekedChain(TypedDict):
    """Whether a chain's parity fits, in the newest content and on the members."""

    parity: str
    cells: list[str]
    newest: str
    newest_differs_at: Bytes | None
    home: str
    home_differs_at: Bytes | None


class Peeked(TypedDict):
    stripe: Number
    layout: str
    state: list[str]
    begin: Bytes
    length: Bytes
    chunk_size: Bytes
    cells: list[PeekedCell]
    chains: list[PeekedChain]


class Injected(TypedDict):
    member: str
    role: Number
    fault: str
    at: Bytes | None
    length: Bytes | None
    count: Count | None
    delay_s: Seconds | None
    seed: Number
    shift: NotRequired[Bytes | None]


class CutMember(TypedDict):
    """What became of the writes of a member that no flush covered."""

    member: str
    role: Number | None
    kept: Count
    lost: Count
    torn: Count


class Cut(TypedDict):
    keep: str
    seed: Number
    cut: list[CutMember]
    lost_members: list[str]


class Crashed(Status):
    """What `raidx crash` prints: the status after the next mount."""

    crash: Cut


class LabReset(TypedDict):
    folder: str
    mountpoint: str
    left_alone: list[str]
    array: Annotated[Any, "Not covered by the promise: see raidx status."]


class LabEnd(TypedDict):
    folder: str
    removed: bool
    left_alone: list[str]


class PassedRequest(TypedDict):
    """A request to a volume; *image_offset* is None if it is not one range of the image."""

    number: Number
    volume: str
    operation: str
    offset: Bytes
    image_offset: Bytes | None
    length: Bytes


class Trace(TypedDict):
    """What has passed, on the control socket: daemon/commands/trace.py."""

    next: Number
    missed: Count
    requests: list[PassedRequest]
    cells: list[tuple[int, str, bool, int]]
    log: list[Number]
    other: Count
    stripes: Count
    chunk_size: Bytes
    data_offset: Bytes


class ComparedCells(TypedDict):
    data: Count
    parity: Count
    accesses_per_s: float | None


class ComparedMember(TypedDict):
    role: Number
    path: str | None
    before: ComparedCells
    after: ComparedCells


class ShownMember(TypedDict):
    role: Number
    path: str | None
    state: str


class StripesAfter(TypedDict):
    stripes: list[StripeState]


class StripesBefore(StripesAfter):
    layout: str
    members: list[ShownMember]


class ChangeHead(TypedDict):
    """The last change that moved chunks, on the control socket: daemon/commands/compare.py."""

    kind: str | None
    number: Count
    state: NotRequired[str]


class Change(ChangeHead, total=False):
    """All of it, unless its kind is None."""

    cells: Count
    moved: Count
    is_cut: bool
    sampled_ratio: Ratio
    members: list[ComparedMember]
    before: StripesBefore
    after: StripesAfter


class MappedMember(TypedDict):
    """The parts of a member's places, three values for each."""

    role: Number
    chunks: Count
    written_percent: list[float]
    lost_percent: list[float]
    accesses_per_s: list[float]


class ChunkMap(TypedDict):
    """Which chunks are written, lost and used, on the control socket: engine/chunk_map.py."""

    sampled_ratio: Ratio
    members: list[MappedMember]


class Watched(TypedDict):
    status: Annotated[Any, "Not covered by the promise: see raidx status."]
    stats: Annotated[Any, "Not covered by the promise: see raidx stats."]
    chunk_map: Annotated[Any, "Not covered by the promise."]


class Viewed(TypedDict):
    urls: list[str]
    public: bool
    may_break: bool
    token: NotRequired[str]


# -- loads ---------------------------------------------------------------------------------------


class Measured(TypedDict):
    requests: Count
    reads: Count
    writes: Count
    read_bytes: Bytes
    write_bytes: Bytes
    seconds: Seconds
    rate: Annotated[float, "requests per second"]
    response_ms: ResponseLatencies
    read_ms: ResponseLatencies | None
    write_ms: ResponseLatencies | None


class ReplaySection(Measured):
    from_s: Seconds


class ReplayCounters(TypedDict):
    pre_reads: Count
    rmw: Count
    rcw: Count
    full_stripe: Count
    degraded_reads: Count


class Replayed(Measured):
    trace: str
    image: str
    image_size: Bytes
    failed: Count
    errors: list[Any]
    held_back: Count
    array: ReplayCounters
    sections: list[ReplaySection]


class Distribution(TypedDict):
    edges_ms: list[Milliseconds]
    reads: list[Count]
    writes: list[Count]


class SimulatedEvent(TypedDict):
    """An event of an experiment, and the requests until its job ended."""

    at_s: Seconds
    do: str
    disk: Number
    job: NotRequired[str]
    job_state: NotRequired[str]
    job_ended_s: NotRequired[Seconds]
    during: NotRequired[Measured]


class SimulatedSection(ReplaySection):
    """A part of an experiment; *utilisation* by arrays."""

    member_operations: list[Count]
    member_queues: list[Mean]
    utilisation: NotRequired[dict[str, Ratio]]


class ObservedLoad(TypedDict):
    at_s: Seconds
    estimated: Ratio
    measured: Ratio


class SimulatedArray(TypedDict):
    name: str
    layout: str
    image_bytes: Bytes
    state: str
    array: Counters
    members: list[MemberCounters]
    utilisation: list[ObservedLoad]


class SimulatedVolume(Measured):
    name: str
    size: Bytes
    array: str
    failed: Count


class HotSpan(TypedDict):
    array: str
    begin_s: Seconds
    end_s: Seconds


MoveSpan = TypedDict(
    "MoveSpan", {"volume": str | None, "from": str, "to": str, "begin_s": Seconds, "end_s": Seconds}
)


class Balancing(TypedDict):
    hotspots: list[HotSpan]
    moves: list[MoveSpan]


class ControllerCache(TypedDict):
    hits: Count


class Experiment(Measured):
    name: str
    version: NotRequired[str]
    spec: NotRequired[str | None]
    spec_sha256: NotRequired[str | None]
    seed: NotRequired[Number]
    sweep: NotRequired[dict[str, Any]]
    layout: NotRequired[str]
    image_bytes: NotRequired[Bytes]
    distribution: NotRequired[Distribution]
    failed: Count
    errors: list[Any]
    held_back: Count
    state: str
    array: NotRequired[Counters]
    members: NotRequired[list[MemberCounters]]
    events: list[SimulatedEvent]
    controller: NotRequired[ControllerCache]
    sections: list[SimulatedSection]
    arrays: NotRequired[list[SimulatedArray]]
    volumes: NotRequired[list[SimulatedVolume]]
    balance: NotRequired[Balancing]


class UnfinishedExperiment(Measured):
    name: str


class Estimated(TypedDict):
    """A mean over repetitions; None for a single run: *se*, its standard error, and *half*, half of
    its 95 % interval."""

    mean: Number
    se: Number | None
    half: Number | None


class SweptPoint(TypedDict):
    name: str
    sweep: dict[str, Any]
    runs: Count
    measures: dict[str, Estimated]


class PairedMeasure(TypedDict):
    """The paired *difference* with its 95 % interval; *percent*: the same as mean, low, high."""

    baseline: Number
    ours: Number
    difference: Number
    low: Number | None
    high: Number | None
    percent: list[Number] | None


class PairedPoint(TypedDict):
    """*baseline*: the values that differ."""

    name: str
    sweep: dict[str, Any]
    baseline: dict[str, Any]
    runs: Count
    measures: dict[str, PairedMeasure]


class Experiments(TypedDict):
    """*interrupted*: after ^C; then *experiments* are those that had ended. *points* of a sweep or
    of repetitions; *differences* from a baseline."""

    experiments: list[Experiment]
    points: NotRequired[list[SweptPoint]]
    differences: NotRequired[list[PairedPoint]]
    interrupted: NotRequired[bool]
    unfinished: NotRequired[UnfinishedExperiment]


# -- others --------------------------------------------------------------------------------------


class Question(TypedDict):
    """A question; *answer* and *why* with --answers."""

    number: Number
    kind: str
    layout: str
    disks: Count
    text: str
    give: str
    facts: dict[str, Any]
    answer: NotRequired[list[str]]
    why: NotRequired[str]


class Mark(TypedDict):
    number: Number
    given: list[str]
    right: bool


class Quiz(TypedDict):
    """What `raidx quiz` prints; *marks* with --check."""

    seed: Number
    level: str
    questions: list[Question]
    marks: NotRequired[list[Mark]]
    right: NotRequired[Number]


class Completions(TypedDict, total=False):
    installed: list[str]
    shell: str
    script: str


class Schemas(TypedDict, total=False):
    """What `raidx schema` prints: the names, or the schema of one command."""

    commands: list[str]
    command: str
    schema: dict[str, Any]
