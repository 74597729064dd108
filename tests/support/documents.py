"""Documents as a running array answers them, for commands that show them."""

from __future__ import annotations

from typing import Any


def member(role: int, state: str = "active") -> dict[str, Any]:
    """Return a member of a status document."""
    path = f"/disks/d{role % 10}.img"
    return {"role": role, "path": path, "uuid": f"u{role}", "state": state, "size": 1 << 30}


def job(**changes: Any) -> dict[str, Any]:
    """Return a job of a status document."""
    return {
        "id": 1,
        "kind": "rebuild",
        "state": "running",
        "done": 300 << 20,
        "total": 1 << 30,
        "unit": "bytes",
        "rate": 100 << 20,
        "eta_seconds": 7.2,
        "paused": False,
        "error": None,
        **changes,
    }


def status(**changes: Any) -> dict[str, Any]:
    """Return a healthy status document with *changes*."""
    return {
        "uuid": "11111111-2222-3333-4444-555555555555",
        "name": "disk",
        "layout": "raid5",
        "chunk_size": 65536,
        "size": 3 << 30,
        "state": "clean",
        "redundancy_left": 1,
        "written": 1 << 30,
        "lost_chunks": 0,
        "members": [member(role) for role in range(4)],
        "jobs": [],
        "volumes": [{"name": "disk", "size": 3 << 30, "path": "/mnt/disk"}],
        "mountpoint": "/mnt",
        "protections": {
            "io_flusher": {"active": True, "reason": None},
            "memory_locked": {"active": False, "reason": "needs CAP_IPC_LOCK"},
        },
        "warnings": [],
        "action": None,
        **changes,
    }


def stats(*roles: int, **changes: Any) -> dict[str, Any]:
    """Return what a stats document has for *roles*, over half a second, with *changes* of totals.

    The figures of role r are r + 1 times those of role 0.
    """
    return {
        "interval_seconds": 0.5,
        "members": [
            {
                "role": role,
                "path": f"/disks/d{role % 10}.img",
                "utilisation": min(1.0, 0.125 * (role + 1)),
                "queue_mean": 0.5 * (role + 1),
                "reads": 50 * (role + 1),
                "writes": 6200 * (role + 1),
                "read_bytes": 4096 * 50 * (role + 1),
                "write_bytes": 4096 * 6200 * (role + 1),
                "read_ms_mean": 0.02 * (role + 1),
                "read_ms_p99": 0.9 * (role + 1),
                "write_ms_mean": 5.0 * (role + 1),
                "write_ms_p99": 4000.0 * (role + 1),
            }
            for role in roles
        ],
        "array": {
            "reads": 100,
            "writes": 2000,
            "read_bytes": 1 << 20,
            "write_bytes": 5 << 20,
            "latency_ms": {"mean": 0.1, "p50": 0.08, "p95": 2, "p99": 4.4},
            **changes,
        },
        "volumes": [],
    }


def chunk_map(*roles: int, parts: int = 64) -> dict[str, Any]:
    """Return the chunk map of *roles*: the first half of each is full, one part of that is hot."""
    half = parts // 2
    return {
        "sampled_ratio": 1.0,
        "members": [
            {
                "role": role,
                "chunks": 4096,
                "written_percent": [100] * half + [0] * (parts - half),
                "lost_percent": [0] * parts,
                "accesses_per_s": [55.0 if part == role else 0.0 for part in range(parts)],
            }
            for role in roles
        ],
    }
