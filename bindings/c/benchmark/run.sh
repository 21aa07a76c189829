#!/bin/sh
# Compares reads of 128 bytes that hit, from C by the shared library and by the static one, with the
# same loop in Rust. The three take turns.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-../../target}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cargo build --release --locked --package octavo-c --lib --example hit
make --no-print-directory shared install OUT="$out/out" PREFIX="$out"
flags="-O2 -Iinclude benchmark/hit.c -o"
# shellcheck disable=SC2086
cc $flags "$out/shared" -L"$out/lib" -loctavo -Wl,-rpath,"$out/lib"
# shellcheck disable=SC2086
cc $flags "$out/static" -L"$out/lib" -l:liboctavo.a -lgcc_s -lutil -lrt -lpthread -lm -ldl
for round in $(seq 41); do
    "$target/release/examples/hit" >> "$out/rust.txt"
    "$out/shared" >> "$out/shared.txt"
    "$out/static" >> "$out/static.txt"
done
median() { sort -n "$1" | sed -n 21p; }
for side in rust shared static; do
    awk -v side="$side" -v rust="$(median "$out/rust.txt")" -v own="$(median "$out/$side.txt")" \
        -v least="$(sort -n "$out/$side.txt" | head -n 1)" -v most="$(sort -n "$out/$side.txt" | tail -n 1)" \
        'BEGIN { printf "%-7s %6.2f ns a read (%.2f to %.2f), rate %.2f of Rust\n", \
            side, own, least, most, rust / own }'
done
