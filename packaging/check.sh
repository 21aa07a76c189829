#!/bin/sh
# Installs the Debian package in a clean Debian and follows docs/VM.md there, as a new operator
# does: a container with systemd, in which a guest gets the disk. Restarts the service under load:
# Debian 13 has a systemd that keeps descriptors, Debian 12 has not. Needs root, mmdebstrap,
# systemd-container and, for the first time, the network; takes minutes.
#
#     packaging/check.sh [--release bookworm|trixie] [PACKAGE.deb]
set -eu
cd "$(dirname "$0")/.."

release=bookworm
if [ "${1:-}" = --release ]; then
	release=$2
	shift 2
fi
target=${CARGO_TARGET_DIR:-target}
package=${1:-$(ls -t "$target"/deb/octavo_*.deb | head -n 1)}
folder=$target/package
base=$folder/$release.tar
mkdir -p "$folder"
for program in mmdebstrap systemd-nspawn; do
	command -v $program > /dev/null || { echo "$program is missing; see the head of $0"; exit 1; }
done

# A clean Debian with QEMU and libvirt. It is kept: later runs need no network.
if [ ! -e "$base" ]; then
	mmdebstrap --format=tar --variant=minbase --include=systemd-sysv,udev,dbus,sudo,adduser,man-db \
		--include=bash-completion,zsh,libnbd-bin,fio,qemu-utils \
		--include=qemu-system-x86,libvirt-daemon-system,libvirt-clients "$release" "$base.part"
	mv "$base.part" "$base"
fi

root=$(mktemp -d "$folder/root.XXXXXX")
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
tar -x -f "$base" -C "$root" --exclude=./dev
mkdir -p "$root/dev" "$root/check"
cp "$package" "$root/check/octavo.deb"
cp packaging/check-inside.sh docs/VM.md "$root/check/"
cat > "$root/etc/systemd/system/check.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/bash /check/check-inside.sh
StandardOutput=append:/check/log
StandardError=inherit
ExecStopPost=/bin/systemctl --no-block poweroff
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../check.service "$root/etc/systemd/system/multi-user.target.wants/check.service"

timeout "${SECONDS_MAX:-1800}" systemd-nspawn --quiet --directory="$root" --register=no --keep-unit \
	--boot < /dev/null > "$folder/console" 2>&1 || true
cp "$root/check/log" "$folder/log"
cat "$folder/log"
grep -q '^check: passed' "$folder/log"
