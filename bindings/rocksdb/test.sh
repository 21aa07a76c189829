#!/bin/sh
# Tests the plug-in with Debian's db_bench and ldb, which are unchanged.
#
#   test.sh PLUGIN DIRECTORY
#
# Takes about ten seconds. Exits with 77 and a sentence if a program is missing.
set -eu

plugin=$(realpath "$1")
mkdir -p "$2"
directory=$(realpath "$2")
db=$directory/db

for program in db_bench ldb; do
	command -v $program >/dev/null || {
		echo "SKIP: $program is not installed (package rocksdb-tools)"
		exit 77
	}
done

fail() {
	echo "FAIL: $*" >&2
	exit 1
}

# Runs a program with the plug-in. Its output goes to a file.
cached() {
	OCTAVO_MEMORY_MAX=8MiB OCTAVO_STATS=1 LD_PRELOAD=$plugin "$@" --fs_uri=octavo:// \
		>"$directory/output" 2>&1 || {
		tail -20 "$directory/output" >&2
		fail "$* has failed"
	}
}

# The number that the plug-in has printed for a counter.
counter() {
	sed -n "s/^octavo: .* $1=\([0-9]*\).*/\1/p" "$directory/output" | tail -1
}

above_zero() {
	for name in "$@"; do
		[ "$(counter "$name")" -gt 0 ] || {
			tail -5 "$directory/output" >&2
			fail "$name is not above zero"
		}
	done
}

bench() {
	benchmarks=$1
	shift
	cached db_bench --benchmarks="$benchmarks" --db="$db" --num=20000 --value_size=400 \
		--compression_type=none --bloom_bits=10 --cache_size=65536 --write_buffer_size=1048576 \
		--target_file_size_base=1048576 --max_bytes_for_level_base=4194304 --verify_checksum=true \
		--threads=2 "$@"
}

# All keys and values that ldb finds, as one number.
contents() {
	"$@" scan --db="$db" --hex >"$directory/scan" || fail "ldb scan has failed"
	[ -s "$directory/scan" ] || fail "ldb scan has found nothing"
	sha256sum <"$directory/scan"
}

rm -rf "$db"
echo "fill and compact"
bench fillrandom,compact
above_zero tables_opened tables_forgotten once_file_bytes

echo "read with checksums: the same as without the plug-in"
bench readrandom,verifychecksum,seekrandom --use_existing_db=1 --reads=5000
above_zero hits misses
[ "$(counter tables_uncached)" -eq 0 ] || fail "some tables were not cached"
[ "$(counter read_errors)" -eq 0 ] || fail "reads have failed"
[ "$(counter resident_bytes)" -le 8388608 ] || fail "the cache is larger than memory_max"
plain=$(contents ldb)
through=$(contents env "LD_PRELOAD=$plugin" ldb --fs_uri=octavo://)
[ "$plain" = "$through" ] || fail "ldb scan finds other records through the plug-in"

echo "batches"
bench multireadrandom --use_existing_db=1 --reads=5000 --multiread_batched --batch_size=32
above_zero hits misses

echo "read while compactions delete tables"
bench readwhilewriting,compact --use_existing_db=1 --reads=5000
above_zero hits tables_forgotten once_file_bytes
cached ldb --db="$db" checkconsistency
grep -q '^OK' "$directory/output" || fail "ldb checkconsistency does not say OK"

echo "kill -9 while writing"
OCTAVO_MEMORY_MAX=16MiB LD_PRELOAD=$plugin db_bench --benchmarks=overwrite --db="$db" \
	--fs_uri=octavo:// --num=20000 --value_size=400 --compression_type=none \
	--use_existing_db=1 --write_buffer_size=1048576 --duration=60 >/dev/null 2>&1 &
writer=$!
sleep 0.7
kill -9 $writer 2>/dev/null || fail "the writer has ended by itself"
wait $writer 2>/dev/null || true
bench verifychecksum,readrandom --use_existing_db=1 --reads=5000
cached ldb --db="$db" checkconsistency
grep -q '^OK' "$directory/output" || fail "ldb checkconsistency does not say OK"

echo "settings that are wrong"
if LD_PRELOAD=$plugin ldb --db="$db" --fs_uri='octavo://?memory_max=x' checkconsistency \
	>"$directory/output" 2>&1; then
	grep -q '^OK' "$directory/output" && fail "ldb accepts a wrong memory_max"
fi
grep -q 'a number is needed' "$directory/output" || fail "no error says what is wrong"
rm -rf "$db" "$directory/output" "$directory/scan"
echo "passed"
