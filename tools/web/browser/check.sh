#!/bin/sh
# Runs the page in a browser against a real server under load. Needs chromium, node and npm, fio
# with its engine nbd, and, the first time, the network. OCTAVO_PROGRAM may name a built octavo,
# OCTAVO_BROWSER a browser. Screenshots are in target/web.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
work=${CARGO_TARGET_DIR:-$root/target}/web
browser=${OCTAVO_BROWSER:-/usr/bin/chromium}

missing=
test -x "$browser" || missing="$missing chromium"
for program in node npm fio; do
	command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -n "$missing" ]; then
	echo "missing:$missing; install them: apt-get install chromium nodejs npm fio" >&2
	exit 1
fi

if [ -z "${OCTAVO_PROGRAM:-}" ]; then
	(cd "$root" && cargo build --locked --package octavo-cli)
	OCTAVO_PROGRAM=${CARGO_TARGET_DIR:-$root/target}/debug/octavo
fi

mkdir -p "$work"
cp "$here/package.json" "$here/package-lock.json" "$work"
npm ci --prefix "$work" --no-audit --no-fund --loglevel=error

export OCTAVO_PROGRAM OCTAVO_BROWSER="$browser" OCTAVO_WORK="$work"
exec node --test --test-concurrency=1 "$here/suite.mjs"
