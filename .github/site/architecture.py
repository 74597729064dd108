"""Draw the picture of the architecture, of which ARCHITECTURE.md has the words.

    python .github/site/architecture.py > raidx_fuse/architecture.svg

A request goes down the middle; what works in the background stands on the right.
"""

from __future__ import annotations

WIDTH, HEIGHT = 760, 506
FILL = {"": "#dff3ff", "pure": "#fff5c2", "job": "#e6f4e1"}
BOXES = (  # x, y, width, kind, title, what it does
    (20, 16, 220, "", "kernel, FUSE", "fuse/: inodes, errno"),
    (260, 16, 220, "", "clients, NBD", "nbd/: exports, TLS"),
    (520, 16, 220, "", "commands", "cli/, view/, client/"),
    (20, 96, 460, "", "volumes", "pool/: extents of arrays, moves, hotspots"),
    (520, 96, 220, "", "daemon/", "control socket, events, hooks"),
    (20, 176, 460, "", "array", "array/: opening, members, settings, status"),
    (520, 176, 220, "job", "jobs/", "rebuild, scrub, growth, tuner"),
    (20, 256, 460, "", "engine", "engine/: reads, writes, parity policies, explain"),
    (520, 256, 220, "pure", "layouts/", "codes, placements, plans"),
    (20, 336, 220, "", "journal", "redo log, checkpoint, recovery"),
    (260, 336, 220, "", "store", "queues, maps, locks, sums"),
    (520, 336, 220, "", "format/", "superblocks, pages, records"),
    (
        20,
        416,
        720,
        "",
        "members",
        "files, block devices, NBD exports, memory, modelled disks in virtual time",
    ),
)
ARROWS = (  # from x, y to x, y
    (130, 66, 130, 96), (370, 66, 370, 96), (630, 66, 630, 96), (520, 121, 480, 121),
    (250, 146, 250, 176), (250, 226, 250, 256), (520, 201, 480, 201), (560, 226, 460, 256),
    (520, 281, 480, 281), (130, 306, 130, 336), (370, 306, 370, 336), (240, 361, 260, 361),
    (520, 361, 480, 361), (370, 386, 370, 416),
)  # fmt: skip


def drawing() -> str:
    """Return the picture."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" text-anchor="middle">',
        "<title>The packages of raidx, and the way of a request through them</title>",
        '<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#445"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for x, y, width, kind, title, words in BOXES:
        middle = x + width // 2
        lines += [
            f'<rect x="{x}" y="{y}" width="{width}" height="50" rx="6" fill="{FILL[kind]}" '
            'stroke="#445"/>',
            f'<text x="{middle}" y="{y + 21}" font-size="15" font-weight="bold">{title}</text>',
            f'<text x="{middle}" y="{y + 39}" font-size="12">{words}</text>',
        ]
    for x, y, to_x, to_y in ARROWS:
        ends = f'x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}"'
        lines.append(f'<line {ends} stroke="#445" stroke-width="1.5" marker-end="url(#a)"/>')
    note = "yellow: pure arithmetic, no I/O; green: in the background"
    lines.append(f'<text x="380" y="492" font-size="12">{note}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    print(drawing(), end="")
