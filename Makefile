# What people type. The gate itself is `cargo xtask ci`.

# The Debian packages whose programs the tests run.
PACKAGES = fio libnbd-bin qemu-utils nbdkit e2fsprogs fuse3 strace valgrind qemu-system-x86 busybox-static \
	libvirt-clients libxml2-utils fdisk grub-common grub-pc-bin sqlite3 xfsprogs

.DEFAULT_GOAL := help
.PHONY: help run test bench packages promtool

help:
	@echo "make run    build and serve a demo disk; says how to attach to it"
	@echo "make test   install what the tests need, then run the whole gate"
	@echo "make bench  measure the hit and the miss path"

# exec: the shell goes away, and Ctrl-C and signals reach octavo itself.
run:
	cargo build --release --locked --package octavo-cli
	exec "$${CARGO_TARGET_DIR:-target}/release/octavo" serve

test: packages promtool
	OCTAVO_REQUIRE_CLIENTS=1 cargo xtask ci

bench:
	cargo build --release --locked --package octavo-cli
	"$${CARGO_TARGET_DIR:-target}/release/octavo" bench hits
	"$${CARGO_TARGET_DIR:-target}/release/octavo" bench misses

# Asks dpkg and not the shell: qemu-img alone does not tell whether qemu-io is there.
packages:
	@missing=""; \
	for package in $(PACKAGES); do \
		dpkg-query --show --showformat='$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed \
			|| missing="$$missing $$package"; \
	done; \
	command -v cc >/dev/null || missing="$$missing build-essential"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $$missing; \
	else \
		echo "the tests need these packages:$$missing"; \
		echo "install them with: sudo apt-get install$$missing"; \
		exit 1; \
	fi

# The program that checks the alert rules, alone: its package would also start a Prometheus. Without
# it, the tests that need it are skipped, and say so.
TOOL = $(abspath $(or $(CARGO_TARGET_DIR),target))/promtool
promtool:
	@if command -v promtool >/dev/null || [ -x $(TOOL)/usr/bin/promtool ]; then exit 0; fi; \
	command -v apt-get >/dev/null && mkdir -p $(TOOL) && cd $(TOOL) && apt-get download prometheus \
		&& dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && rm prometheus_*.deb \
		|| echo "no promtool: the tests of the alerts will be skipped"
