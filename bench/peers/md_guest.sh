#!/bin/sh
# The init of a User-Mode Linux guest that grows an array of Linux md; bench/figures/md_growth.py starts it.
#
# Its root is the host's, read-only; what it finds out goes into the folder $MD_OUT of the host:
# `before` and `after` (the line of /sys/block/ubd?/stat for each member), `numbers` (key=value),
# `error` (what failed). Members are ubda, ubdb, ...: the first $MD_WIDTH make the array, of the RAID
# level $MD_LEVEL, the other $MD_ADDED are added. $MD_MODULES is the folder of the guest kernel's modules on the host.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

end() {
    sync
    # Nothing is mounted for writing but the folder of the results.
    echo o >/proc/sysrq-trigger
    sleep 2
    exit # the kernel ends with its init
}

fail() {
    echo "$1" >/mnt/error
    cat /proc/mdstat >>/mnt/mdstat
    end
}

# The first $1 members from number $2 on, as words.
devices() {
    number=0
    for letter in a b c d e f g h i j k l m n o p; do
        [ "$number" -ge "$2" ] && [ "$number" -lt $(($1 + $2)) ] && printf '/dev/ubd%s ' "$letter"
        number=$((number + 1))
    done
}

# Note the counters of all members in the file $1; md's superblocks of the moment are on them.
count() {
    sync
    for device in $(devices $((MD_WIDTH + MD_ADDED)) 0); do
        name=${device#/dev/}
        echo "$name $(cat "/sys/block/$name/stat")" >>"/mnt/$1"
    done
}

now_s() { cut -d ' ' -f 1 /proc/uptime; }

sum() { dd if=/dev/md0 bs=1M iflag=direct,count_bytes count="$1" 2>>/mnt/dd | sha256sum; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /run
mount -t hostfs out /mnt -o "$MD_OUT" || end

# modprobe looks below DIR/lib/modules/VERSION.
mkdir -p /run/kernel/lib
ln -s "$MD_MODULES" /run/kernel/lib/modules
modprobe -d /run/kernel raid456 2>/mnt/modprobe || fail "modprobe raid456: $(tail -n 1 /mnt/modprobe)"

# As fast as it can: nobody else uses these disks.
echo 10000000 >/proc/sys/dev/raid/speed_limit_max
echo 10000000 >/proc/sys/dev/raid/speed_limit_min

# The members are new and the parity of zeros is zero: there is nothing to synchronise.
mdadm --create /dev/md0 --run --level="$MD_LEVEL" --chunk="$MD_CHUNK_KIB" --metadata=1.2 --assume-clean \
    --bitmap=none --raid-devices="$MD_WIDTH" $(devices "$MD_WIDTH" 0) >/mnt/create 2>&1 ||
    fail "mdadm --create: $(tail -n 1 /mnt/create)"
size_bytes=$(($(cat /sys/block/md0/size) * 512))
echo "size_before=$size_bytes" >>/mnt/numbers

dd if=/dev/urandom of=/dev/md0 bs=1M oflag=direct 2>/mnt/dd # ends where the device does
before=$(sum "$size_bytes")
mdadm --manage /dev/md0 --add $(devices "$MD_ADDED" "$MD_WIDTH") >/mnt/add 2>&1 ||
    fail "mdadm --add: $(tail -n 1 /mnt/add)"

count before
start_s=$(now_s)
mdadm --grow /dev/md0 --raid-devices=$((MD_WIDTH + MD_ADDED)) --backup-file=/run/backup \
    >/mnt/grow 2>&1 || fail "mdadm --grow: $(tail -n 1 /mnt/grow)"
while grep -q reshape /proc/mdstat || [ "$(cat /sys/block/md0/md/sync_action)" != idle ]; do
    sleep 0.05
done
echo "seconds=$start_s $(now_s)" >>/mnt/numbers
mdadm --wait /dev/md0 2>/dev/null
count after
[ "$(cat /sys/block/md0/md/raid_disks)" = $((MD_WIDTH + MD_ADDED)) ] || fail "md0 has not grown"
[ "$(sum "$size_bytes")" = "$before" ] || fail "the data is not what it was"
echo "size_after=$(($(cat /sys/block/md0/size) * 512))" >>/mnt/numbers
mdadm --stop /dev/md0 >/dev/null 2>&1
echo "done=1" >>/mnt/numbers
end
