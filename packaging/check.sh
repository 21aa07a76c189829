#!/bin/sh
# Installs the Debian package in a clean Debian and follows docs/VM.md there, as a new operator
# does: a virtual machine with systemd, in which a guest gets the disk. Needs root, mmdebstrap,
# qemu-system-x86 and, for the first time, the network; takes minutes.
#
#     packaging/check.sh [PACKAGE.deb]
#
# The machine runs under QEMU's own emulation unless ACCEL=kvm. What it prints is in
# target/package/console.
set -eu
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
package=${1:-$(ls -t "$target"/deb/octavo_*.deb | head -n 1)}
folder=$target/package
base=$folder/base.tar
mkdir -p "$folder"

# A clean Debian with a kernel, QEMU and libvirt. It is kept: later runs need no network.
if [ ! -e "$base" ]; then
	mmdebstrap --variant=minbase --include=systemd-sysv,udev,dbus,apparmor,sudo,adduser,man-db \
		--include=bash-completion,zsh,linux-image-cloud-amd64,initramfs-tools,libnbd-bin,qemu-utils \
		--include=qemu-system-x86,libvirt-daemon-system,libvirt-clients bookworm "$base.part"
	mv "$base.part" "$base"
fi

work=$(mktemp -d "$folder/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/root"
tar -x -f "$base" -C "$work/root"
mkdir "$work/root/check"
cp "$package" "$work/root/check/octavo.deb"
cp packaging/check-inside.sh docs/VM.md "$work/root/check/"
echo octavo-check > "$work/root/etc/hostname"
cat > "$work/root/etc/systemd/system/check.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /check/check-inside.sh
StandardOutput=tty
StandardError=inherit
TTYPath=/dev/ttyS0
ExecStopPost=/bin/systemctl poweroff --force --force
UNIT
mkdir -p "$work/root/etc/systemd/system/multi-user.target.wants"
ln -s ../check.service "$work/root/etc/systemd/system/multi-user.target.wants/check.service"
cp "$work"/root/boot/vmlinuz-* "$work/kernel"
cp "$work"/root/boot/initrd.img-* "$work/initrd"
truncate -s 6G "$work/disk"
mke2fs -q -t ext4 -d "$work/root" "$work/disk"
rm -rf "$work/root"

timeout "${SECONDS_MAX:-1800}" qemu-system-x86_64 -accel "${ACCEL:-tcg}" -cpu max -smp 2 -m 3G \
	-nodefaults -no-reboot -display none -serial "file:$folder/console" -kernel "$work/kernel" -initrd "$work/initrd" \
	-append "root=/dev/vda rw console=ttyS0 quiet panic=-1 systemd.show_status=false" \
	-drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" || true
grep -a '^check: ' "$folder/console" || true
grep -aq '^check: passed' "$folder/console" || {
	tail -n 60 "$folder/console"
	exit 1
}
