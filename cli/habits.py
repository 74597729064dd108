"""What administrators of mdadm, zpool and btrfs type, and the line of raidx that does it.

The manual shows the table. A test runs the lines of raidx from top to bottom, in a folder with an
empty folder mnt and the names used here, so each is one that works.
"""

from __future__ import annotations

HABITS = (  # (what for, theirs, ours)
    (
        "make an array; files are made as well",
        "`mdadm --create`, `zpool create`, `mkfs.btrfs -d raid1`",
        "raidx create --layout raid5 --size 64MiB --name vault d0 d1 d2 d3",
    ),
    (
        "say first what would be done",
        "`zpool create -n`, `zpool add -n`",
        "raidx create --layout rdp --size 64MiB -n e0 e1 e2 e3",
    ),
    (
        "refuse disks that carry something",
        "`mdadm --create` asks, `zpool create` wants -f",
        "raidx create --layout raid1 --overwrite-signature -n d0 d1",
    ),
    ("what does this disk say?", "`mdadm --examine`, `zdb -l`", "raidx examine d0"),
    ("which arrays are there?", "`mdadm --examine --scan`, `zpool import`", "raidx scan ."),
    (
        "start it, members in any order",
        "`mdadm --assemble`, `zpool import NAME`",
        "raidx mount d0 d1 d2 d3 mnt",
    ),
    ("start it, unless it runs", "`systemctl start`", "raidx mount --if-missing d0 d1 d2 d3 mnt"),
    ("the one page", "`mdadm --detail`, `zpool status`, `btrfs fi show`", "raidx status mnt"),
    ("the words of mdadm", "`mdadm --detail`", "raidx detail mnt"),
    ("the compact lines", "`cat /proc/mdstat`", "raidx status mnt --brief"),
    ("well or not, for a script", "`mdadm --detail --test`", "raidx status mnt --check"),
    ("JSON, numbers bare", "`zpool status -j --json-int`", "raidx status mnt --json"),
    ("what is stable in it", "`lsblk -o`, `output_version`", "raidx schema status"),
    ("exact numbers", "`zpool list -p`, `btrfs fi usage -b`", "raidx status mnt --bytes"),
    ("what it does now", "`zpool iostat -v -l 1`, `iostat -x 1`", "raidx stats mnt 0.2 2"),
    ("errors per disk", "`zpool status`, `btrfs device stats`", "raidx status mnt"),
    ("which arrays, how full", "`zpool list`, `vgs`", "raidx array list mnt"),
    ("forget old errors", "`zpool clear`, `btrfs device stats -z`", "raidx clear mnt"),
    ("properties", "`zpool get all`, /sys/block/md0/md", "raidx get mnt"),
    (
        "limit background work",
        "sync_speed_max, `btrfs scrub limit`",
        "raidx set mnt speed_max=1GiB",
    ),
    (
        "a program for each event",
        "`mdadm --monitor --program`",
        "raidx set mnt events.program=/bin/true",
    ),
    ("try that program", "`mdadm --monitor --test`", "raidx events mnt --test"),
    ("what has happened", "`zpool events`, `zpool history`", "raidx events mnt --since 1h"),
    (
        "look for damage",
        "`echo check > sync_action`, `btrfs scrub start -r`",
        "raidx scrub mnt --check",
    ),
    ("wait for that", "`mdadm --wait`, `zpool wait`", "raidx job mnt wait"),
    (
        "find and mend damage",
        "`zpool scrub -w`, `btrfs scrub start -B`",
        "raidx scrub mnt --repair --wait",
    ),
    ("how far, how long?", "/proc/mdstat, `btrfs scrub status`", "raidx job mnt list"),
    ("a disk has failed", "`mdadm --fail`, `zpool offline -f`", "raidx fail-disk mnt 1"),
    (
        "a new one for it",
        "`mdadm --replace --with`, `zpool replace`",
        "raidx replace-disk mnt 1 n1 --create --wait",
    ),
    ("until all is well", "`zpool wait -t resilver`", "raidx wait mnt --state clean --timeout 60"),
    (
        "a hot spare",
        "`mdadm --add-spare`, `zpool add spare`",
        "raidx add-disk mnt s0 --create --as spare",
    ),
    ("and its removal", "`mdadm --remove`, `zpool remove`", "raidx remove-disk mnt s0"),
    ("what would growing cost?", "`zpool add -n`", "raidx add-disk mnt n2 --create -n"),
    (
        "grow by a disk",
        "`mdadm --grow -n`, `zpool attach`, `btrfs device add`",
        "raidx add-disk mnt n2 --create --wait",
    ),
    (
        "another level",
        "`mdadm --grow --level`, `btrfs balance -dconvert`",
        "raidx reshape mnt --layout raid4 --wait",
    ),
    ("give space back", "`zpool trim`, `fstrim`", "raidx trim mnt 0 1MiB --lose-data"),
    ("as large as can be", "`mdadm --grow --size=max`", "raidx resize mnt max"),
    ("stop it", "`mdadm --stop`, `zpool export`", "raidx umount mnt"),
    ("stop it, unless it is", "`zpool export`", "raidx umount mnt --if-exists"),
    ("check it at rest", "`btrfs check --readonly`, `raid6check`", "raidx check d0 n1 d2 d3 n2"),
    (
        "make a disk forget",
        "`mdadm --zero-superblock`, `zpool labelclear -f`",
        "raidx wipe d0 --lose-data",
    ),
    (
        "the end of it",
        "`zpool destroy`, `mdadm --stop` and `--zero-superblock`",
        "raidx destroy n1 d2 d3 n2 --lose-data",
    ),
    ("completion", "`bcachefs completions bash`", "raidx completions bash"),
    ("pages for man", "one page a verb", "raidx completions --install --prefix share"),
)
