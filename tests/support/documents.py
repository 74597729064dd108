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
