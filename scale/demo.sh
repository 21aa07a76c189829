#!/bin/sh
# Makes the data, builds the program, runs the demonstration and writes RESULTS.md.
#
#   ./demo.sh [--sf 1] [--profile release] [any option of `scale demo`, such as --queries 1,6,14
#             --workers 1,2,4 --parts single,routing,room,leave,ballista]
set -eu
cd "$(dirname "$0")"

sf=1
profile=release
while :; do
    case "${1:-}" in
        --sf) sf=$2 ;;
        --profile) profile=$2 ;;
        *) break ;;
    esac
    shift 2
done

# The generator is a program on PyPI. It gets an environment of its own.
generate() {
    if [ ! -x .env/bin/tpchgen-cli ]; then
        python3 -m venv .env
        .env/bin/pip install --quiet tpchgen-cli==4.0.0
    fi
    .env/bin/tpchgen-cli parquet --quiet --scale-factor "$sf" --tables "$1" --parts "$2" \
        --output-dir "data/sf$sf.part"
}

# Many files a table, of about 2 MB at scale factor 1.
if [ ! -d "data/sf$sf" ]; then
    rm -rf "data/sf$sf.part"
    mkdir -p "data/sf$sf.part"
    for table in lineitem=128 orders=32 partsupp=24 customer=8 part=4 supplier=1 nation=1 region=1; do
        generate "${table%=*}" "${table#*=}"
    done
    mv "data/sf$sf.part" "data/sf$sf"
fi

# Only the part that needs Ballista pays for building it.
case " $* " in
    *ballista*) features=ballista ;;
    *) features= ;;
esac
cargo build --profile "$profile" --features "$features" --locked
exec "target/$profile/scale" demo --data "data/sf$sf" --out RESULTS.md --json target/results.json "$@"
