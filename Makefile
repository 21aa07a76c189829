# Short commands for people. The gate itself is `cargo xtask ci`.

# The Debian packages whose programs the tests run.
PACKAGES = fio libnbd-bin qemu-utils nbdkit e2fsprogs fuse3 strace valgrind qemu-system-x86 busybox-static \
	libvirt-clients libxml2-utils fdisk grub-common grub-pc-bin openssl sqlite3 xfsprogs pandoc man-db \
	systemd abigail-tools pkg-config librocksdb-dev rocksdb-tools python3

# Where `make install` puts things; DESTDIR goes before all of them.
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
BINDIR = $(PREFIX)/bin
# mount(8) looks for mount.octavo in /sbin only.
SBINDIR = $(PREFIX)/sbin
UNITDIR = $(PREFIX)/lib/systemd/system
DOCDIR = $(PREFIX)/share/doc/octavo
COMPLETIONS = $(PREFIX)/share/bash-completion/completions/octavo \
	$(PREFIX)/share/zsh/vendor-completions/_octavo $(PREFIX)/share/fish/vendor_completions.d/octavo.fish

TARGET = $${CARGO_TARGET_DIR:-target}
# The program to install.
OCTAVO ?= $(TARGET)/release/octavo
# Where man pages are made.
MAN ?= $(TARGET)/man
PAGES = $(basename $(notdir $(wildcard docs/*.[0-9].md)))
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

.DEFAULT_GOAL := help
.PHONY: help run test bench packages promtool build man install uninstall deb c install-c

help:
	@echo "make run    build and serve a demo disk; says how to attach to it"
	@echo "make test   install what the tests need, then run the whole gate"
	@echo "make bench  measure the hit and the miss path"
	@echo "make build  build the program and its man pages; needs pandoc"
	@echo "make install, make uninstall"
	@echo "            honour DESTDIR, PREFIX ($(PREFIX)) and SYSCONFDIR ($(SYSCONFDIR))"
	@echo "make c, make install-c"
	@echo "            liboctavo and octavo.h for C programs"
	@echo "make deb    build a Debian package in target/deb"

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

# Gets promtool, which checks the alert rules, without its package, which would also start a
# Prometheus. Tests that need promtool are skipped without it, and print a message.
TOOL = $(abspath $(or $(CARGO_TARGET_DIR),target))/promtool
promtool:
	@if command -v promtool >/dev/null || [ -x $(TOOL)/usr/bin/promtool ]; then exit 0; fi; \
	command -v apt-get >/dev/null && mkdir -p $(TOOL) && cd $(TOOL) && apt-get download prometheus \
		&& dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && rm prometheus_*.deb \
		|| echo "no promtool: the tests of the alerts will be skipped"

build: man
	cargo build --release --locked --package octavo-cli

# pandoc, because it alone of Debian's converters knows definition lists, tables and filters.
man:
	mkdir -p "$(MAN)"
	for page in $(PAGES); do \
		pandoc --standalone --from markdown-smart-tex_math_dollars --to man --shift-heading-level-by=-1 \
			--lua-filter packaging/man.lua --metadata hyphenate=false --variable adjusting=l \
			--variable footer="octavo $(VERSION)" --variable header=Octavo \
			docs/$$page.md --output "$(MAN)/$$page" || exit 1; \
	done

# Installs the files that `make build` has made, so that root need not run cargo. Keeps an existing
# octavo.toml.
install:
	@test -x "$(OCTAVO)" && test -e "$(MAN)/octavo.1" || { echo "first: make build"; exit 1; }
	install -D -m 755 "$(OCTAVO)" "$(DESTDIR)$(BINDIR)/octavo"
	mkdir -p "$(DESTDIR)$(SBINDIR)"
	ln -sf ../bin/octavo "$(DESTDIR)$(SBINDIR)/mount.octavo"
	for page in $(PAGES); do \
		install -D -m 644 "$(MAN)/$$page" "$(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$$page" || exit 1; \
	done
	for document in README.md CHANGELOG.md $(filter-out $(PAGES:%=docs/%.md) docs/DEVELOPMENT.md,$(wildcard docs/*.md)); do \
		install -D -m 644 $$document "$(DESTDIR)$(DOCDIR)/$${document##*/}" || exit 1; \
	done
	install -D -m 644 packaging/octavo.toml "$(DESTDIR)$(DOCDIR)/examples/octavo.toml"
	for file in grafana/octavo.json prometheus/octavo.rules.yml; do \
		install -D -m 644 tools/cli/share/$$file "$(DESTDIR)$(PREFIX)/share/octavo/$$file" || exit 1; \
	done
	test -e "$(DESTDIR)$(SYSCONFDIR)/octavo/octavo.toml" \
		|| install -D -m 644 packaging/octavo.toml "$(DESTDIR)$(SYSCONFDIR)/octavo/octavo.toml"
	mkdir -p $(foreach file,$(COMPLETIONS),"$(DESTDIR)$(dir $(file))")
	set -- bash zsh fish; for file in $(COMPLETIONS); do \
		OCTAVO_COMPLETE=$$1 "$(OCTAVO)" > "$(DESTDIR)$$file" || exit 1; chmod 644 "$(DESTDIR)$$file"; shift; \
	done
	@# zsh runs the file instead of its function at the first Tab.
	echo '[ "$$funcstack[1]" != _octavo ] || _clap_dynamic_completer_octavo' \
		>> "$(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_octavo"
	mkdir -p "$(DESTDIR)$(UNITDIR)"
	for unit in octavo.service octavo-mount@.service; do \
		sed -e 's|@bindir@|$(BINDIR)|' -e 's|@sysconfdir@|$(SYSCONFDIR)|' packaging/$$unit.in \
			> "$(DESTDIR)$(UNITDIR)/$$unit" && chmod 644 "$(DESTDIR)$(UNITDIR)/$$unit" || exit 1; \
	done
	install -D -m 644 packaging/octavo.sysusers "$(DESTDIR)$(PREFIX)/lib/sysusers.d/octavo.conf"
	install -D -m 644 packaging/octavo.tmpfiles "$(DESTDIR)$(PREFIX)/lib/tmpfiles.d/octavo.conf"

# Keeps the configuration.
uninstall:
	rm -f "$(DESTDIR)$(BINDIR)/octavo" $(foreach file,$(COMPLETIONS),"$(DESTDIR)$(file)") \
		"$(DESTDIR)$(SBINDIR)/mount.octavo" \
		"$(DESTDIR)$(UNITDIR)/octavo.service" "$(DESTDIR)$(UNITDIR)/octavo-mount@.service" \
		"$(DESTDIR)$(PREFIX)/lib/sysusers.d/octavo.conf" "$(DESTDIR)$(PREFIX)/lib/tmpfiles.d/octavo.conf"
	for page in $(PAGES); do rm -f "$(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$$page"; done
	rm -rf "$(DESTDIR)$(DOCDIR)" "$(DESTDIR)$(PREFIX)/share/octavo"

deb: build
	OCTAVO="$(OCTAVO)" MAN="$(MAN)" packaging/deb.sh

c:
	$(MAKE) -C bindings/c

install-c:
	$(MAKE) -C bindings/c install
