#!/usr/bin/env bash
# Start a Ceph RADOS gateway for `make faults PARTS=servers`, from Debian's packages, without installing them or systemd:
# one monitor and one OSD in a sparse file, everything on loopback. Tried with 16.2.15 of Debian 12, on Debian 12.
#
#   tests/campaign/ceph.sh FOLDER [PORT]       prints the endpoint; FOLDER keeps the packages for the next time
#   MODELREG_TEST_RGW=http://127.0.0.1:28100 make faults PARTS=servers
#   xargs kill <FOLDER/work/pids               ends it
set -euo pipefail
folder=$(realpath -m "${1:?name a folder}")
port=${2:-28100}
root=$folder/root work=$folder/work
packages=(ceph-mon ceph-osd radosgw ceph-common ceph-mgr libfuse2)

if [[ ! -x $root/usr/bin/radosgw ]]; then
    mkdir -p "$folder/debs/partial" "$root"
    # What this machine has already is not fetched; only downloading needs apt's lock, and nothing is installed.
    apt-get --quiet --quiet --yes --no-install-recommends --download-only \
        -o Dir::Cache::archives="$folder/debs" install "${packages[@]}" >&2
    for package in "$folder"/debs/*.deb; do
        dpkg -x "$package" "$root"
    done
fi

libraries=$root/usr/lib/$(uname -m)-linux-gnu
export LD_LIBRARY_PATH=$libraries:$libraries/ceph:$root/lib/$(uname -m)-linux-gnu
export PYTHONPATH=$root/usr/lib/python3/dist-packages
export PATH=$root/usr/bin:$root/usr/sbin:$PATH
export CEPH_CONF=$work/ceph.conf
rm -rf "$work"
mkdir -p "$work"/{mon,osd,rgw,run,log}
cluster=$(cat /proc/sys/kernel/random/uuid)
osd=$(cat /proc/sys/kernel/random/uuid)
cat >"$CEPH_CONF" <<CONF
[global]
fsid = $cluster
mon host = v1:127.0.0.1:$((port + 1))
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr2 = false
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = true
mon allow pool size one = true
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
osd crush chooseleaf type = 0
osd objectstore = bluestore
bluestore block size = 6442450944
bluestore block wal create = false
osd memory target = 939524096
osd class dir = $libraries/rados-classes
erasure code dir = $libraries/ceph/erasure-code
plugin dir = $libraries/ceph
run dir = $work/run
pid file = $work/run/\$name.pid
admin socket = $work/run/\$name.asok
log file = $work/log/\$name.log
crash dir = $work/log
mon data = $work/mon
osd data = $work/osd
rgw data = $work/rgw
CONF

start() {
    local name=$1
    shift
    "$@" >"$work/log/$name.out" 2>&1 &
    echo $! >>"$work/pids"
}

until_true() {
    for _ in $(seq 120); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.5
    done
    echo "Ceph does not start: see $work/log" >&2
    exit 1
}

ceph() { timeout 30 /usr/bin/python3 "$root/usr/bin/ceph" "$@"; }
is_up() { ceph osd stat | grep -q '1 up'; }

monmaptool --create --addv a "[v1:127.0.0.1:$((port + 1))]" --fsid "$cluster" "$work/monmap" >/dev/null
ceph-mon --mkfs -i a --monmap "$work/monmap"
start mon ceph-mon -i a -f
until_true ceph -s
ceph osd new "$osd" >/dev/null
ceph-osd -i 0 --mkfs --osd-uuid "$osd" >"$work/log/osd-mkfs.out" 2>&1
start osd ceph-osd -i 0 -f
until_true is_up
start rgw radosgw -n client.rgw.a -f --rgw-frontends "beast endpoint=127.0.0.1:$port"
radosgw-admin user create --uid=test --display-name=test --access-key=modelreg-test \
    --secret-key=modelreg-test-secret >"$work/log/user.out" 2>&1
until_true curl --silent --output /dev/null "http://127.0.0.1:$port"
echo "http://127.0.0.1:$port"
