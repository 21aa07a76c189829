# Runs as root in the container of check.sh: installs the package, runs the commands of
# /check/VM.md as they are printed, and removes the package.
set -euo pipefail
export USER=root HOME=/root LC_ALL=C.UTF-8

say() { echo "check: $*"; }
trap 'say "failed at line $LINENO"; journalctl -u octavo --no-pager | tail -n 30' ERR

# Prints the code block of VM.md that has this language and contains this text.
block() {
	awk -v begin="$1" -v text="$2" '
		$1 == "```" && inside { if (index(body, text)) printf "%s", body; inside = 0; next }
		$1 == "```" begin { inside = 1; body = ""; indent = index($0, "`") - 1; next }
		inside { body = body substr($0, indent + 1) "\n" }
	' /check/VM.md
}

# Looks for a text. Reads all input: if grep left early, the broken pipe would fail the check.
has() { grep -e "$1" >/dev/null; }

# Waits until a command succeeds.
until_so() {
	for _ in $(seq 600); do
		if "$@" >/dev/null 2>&1; then return 0; fi
		sleep 0.5
	done
	say "never: $*"
	return 1
}

# Expects that a command fails.
refused() { ! "$@" 2>/dev/null || { say "succeeded: $*"; false; }; }

has_read() { octavo ctl stat --json | has '"read_bytes":[1-9]'; }
is_attached() { octavo ctl stat --json | has '"connections":1,"direct"'; }

state() { find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /root -o -path /check \
	-o -path /dev -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt \
	-o -path /var/lib/systemd \) -prune -o -print 2>/dev/null | sort || true; }

say "install"
state > /check/before
apt-get install --yes /check/octavo.deb > /check/apt.log 2>&1 || { cat /check/apt.log; false; }
[ "$(systemctl is-enabled octavo || true) $(systemctl is-active octavo || true)" = "disabled inactive" ]
id octavo
dpkg --verify octavo

say "manual"
mandb --quiet
man octavo | has 'page cache in user space'
man 5 octavo.toml | has socket_mode
apropos octavo-serve | has 'serve disk images'

say "units"
systemd-analyze verify octavo.service octavo-mount@srv-cached.service
systemd-analyze security octavo.service | tail -n 1

say "the installed configuration starts nothing"
refused systemctl start octavo
journalctl -u octavo --no-pager | has 'partition: missing'
systemctl reset-failed octavo

say "docs/VM.md: image, configuration, service, groups"
block sh 'install -o octavo' > /check/image.sh
bash -ex /check/image.sh
block toml '[cache]' > /etc/octavo/octavo.toml
block sh 'enable --now' > /check/start.sh
bash -ex /check/start.sh | tail -n 20
systemctl show octavo -p Type -p StatusText -p MainPID
[ "$(systemctl show octavo -p StatusText --value)" = "serving 1 export" ]
stat -c '%U:%G %a %n' /run/octavo /run/octavo/*
useradd --create-home alice
block sh adduser | sed 's/\$USER/alice/' > /check/groups.sh
bash -ex /check/groups.sh

say "completion"
complete_with() { # words: the last one is being typed
	bash --norc -c '. /usr/share/bash-completion/bash_completion; _completion_loader octavo || true
		complete -p octavo; function=$(complete -p octavo | sed "s/.*-F \([^ ]*\) .*/\1/")
		COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9; COMPREPLY=()
		$function octavo "${COMP_WORDS[COMP_CWORD]}" ""; echo "offered: ${COMPREPLY[*]}"' bash "$@"
}
complete_with octavo ctl rel | tee -a /dev/stderr | has 'offered: reload'
complete_with octavo ctl stat '' | tee -a /dev/stderr | has 'vm1'

say "docs/VM.md: QEMU, as another user"
block sh vhost-user-blk-pci > /check/qemu.sh
echo "exec $(sed 's/-accel kvm //' /check/qemu.sh) -display none" > /check/run-qemu.sh
cat /check/run-qemu.sh
systemd-run --quiet --unit=guest --uid=alice bash /check/run-qemu.sh
until_so has_read
is_attached

say "reload while the guest runs"
sed -i 's/^name = "vm1"$/&\nweight = 200/;t' /etc/octavo/octavo.toml
awk '/weight/ && seen++ { next } { print }' /etc/octavo/octavo.toml > /check/new && cat /check/new > /etc/octavo/octavo.toml
octavo ctl reload | tee -a /dev/stderr | has weight
systemctl reload octavo
is_attached
[ "$(systemctl is-active octavo)" = active ]

say "an upgrade leaves the server and its guest alone"
server=$(systemctl show octavo -p MainPID --value)
apt-get install --yes --reinstall /check/octavo.deb > /check/apt.log 2>&1 || { cat /check/apt.log; false; }
[ "$(systemctl show octavo -p MainPID --value)" = "$server" ] && is_attached
[ "$(systemctl is-enabled octavo)" = enabled ]

say "a killed server comes back, and the guest attaches again"
systemctl kill --signal=KILL octavo
until_so is_attached
systemctl is-active guest

say "NBD clients and the control socket"
sudo -u alice nbdinfo --size 'nbd+unix:///vm1?socket=/run/octavo/nbd.sock'
refused sudo -u alice octavo ctl stat
systemctl stop guest

say "a restart keeps pages and clients where systemd keeps descriptors (254 or later)"
systemd=$(systemctl --version | awk 'NR == 1 { print $2 }')
load() {
	cd /root
	fio --name=load --ioengine=nbd --uri='nbd+unix:///vm1?socket=/run/octavo/nbd.sock' --rw=randrw --bs=4k \
		--iodepth=8 --size=32m --verify=crc32c --verify_fatal=1 --time_based --runtime=15 --output=/check/fio
}
since=$(date '+%Y-%m-%d %H:%M:%S')
load &
until_so has_read
for _ in 1 2 3; do
	sleep 2
	systemctl restart octavo
done
journalctl -u octavo --no-pager --since "$since" > /check/restarts
if [ "$systemd" -ge 254 ]; then
	wait $!
	[ "$(grep -c 'of pages came in' /check/restarts)" = 3 ]
	[ "$(grep -c '1 clients are taken over' /check/restarts)" = 3 ]
	say "systemd $systemd: three restarts under fio; its connection and its data stayed"
else
	wait $! || true
	say "systemd $systemd: restarts are cold"
fi

say "docs/VM.md: libvirt"
cd /check
block xml '<domain' | sed "s/<domain type='kvm'>/<domain type='qemu'>/" > vm1.xml
# The container may not make control groups for a domain, and has no KVM.
echo 'cgroup_controllers = []' >> /etc/libvirt/qemu.conf
systemctl restart libvirtd
block sh 'virsh define' > virsh.sh
sudo -u libvirt-qemu id
if bash -ex virsh.sh; then
	until_so is_attached
	say "libvirt: attached"
	virsh destroy vm1
else
	say "libvirt: failed"
	tail -n 20 /var/log/libvirt/qemu/vm1.log
	false
fi
virsh undefine vm1

say "remove and purge"
octavo ctl stat
systemctl stop octavo
systemctl show octavo -p Result
systemctl start octavo
apt-get remove --yes octavo > /check/apt.log 2>&1 || { cat /check/apt.log; false; }
[ "$(systemctl is-active octavo || true)" = inactive ]
[ -e /etc/octavo/octavo.toml ] && [ -e /var/lib/octavo/vm1.raw ]
apt-get purge --yes octavo > /check/apt.log 2>&1 || { cat /check/apt.log; false; }
userdel --remove alice 2>/dev/null
state > /check/after
diff /check/before /check/after | grep '^[<>]' | tee /check/left || true
# The image, and nothing else, stays; the user octavo stays with it.
[ "$(grep -v -e /var/lib/octavo -e /var/lib/libvirt -e /var/mail -e '/etc/.*-$' -e /etc/libvirt -e /etc/apparmor.d /check/left | wc -l)" = 0 ]
ls /var/lib/octavo
say "passed"
