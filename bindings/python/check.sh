#!/bin/sh
# Builds the wheel, installs it in clean virtual environments, and runs there the package's own
# tests, its stubs' check, and suites of other projects. Needs a network and python3 of at least
# 3.11 with venv; PYTHON names another. OCTAVO_PROGRAM may name a built octavo. Arguments go to
# pytest.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
work=$target/python-check
python=${PYTHON:-python3}
rm -rf "$work/wheels" "$work/bare"
mkdir -p "$work"

echo "== environment of the suites"
test -x "$work/suites/bin/python" || "$python" -m venv "$work/suites"
"$work/suites/bin/pip" --quiet install --requirement "$here/suites/requirements.txt"

if [ -z "${OCTAVO_PROGRAM:-}" ]; then
	echo "== server"
	(cd "$root" && cargo build --quiet --locked --release --package octavo-cli)
	OCTAVO_PROGRAM=$target/release/octavo
fi

echo "== wheel"
(cd "$here" && "$work/suites/bin/maturin" build --quiet --release --locked --out "$work/wheels")
ls -l "$work/wheels"
"$work/suites/bin/pip" --quiet install --force-reinstall --no-deps "$work"/wheels/octavo-*.whl

# A folder without the package's sources, so that nothing but the wheel is imported.
cd "$here"
export PYTHONDONTWRITEBYTECODE=1 OCTAVO_PROGRAM

echo "== own tests, with nothing but the wheel"
"$python" -m venv "$work/bare"
"$work/bare/bin/pip" --quiet install "$work"/wheels/octavo-*.whl
"$work/bare/bin/python" -m unittest discover -t . -s tests

echo "== own tests, with numpy and fsspec"
"$work/suites/bin/python" -m unittest discover -t . -s tests

echo "== stubs"
# Buffers have __buffer__ from Python 3.12 on.
echo "octavo._octavo.Pin.__buffer__" > "$work/allowed"
"$work/suites/bin/python" -m mypy.stubtest octavo._octavo --allowlist "$work/allowed" \
	--ignore-unused-allowlist
"$work/suites/bin/python" -m mypy --cache-dir "$work/mypy" --no-error-summary \
	--disable-error-code import-untyped -p octavo

echo "== suites of others"
"$work/suites/bin/python" -m pytest -q -p no:cacheprovider --rootdir suites suites "$@"
