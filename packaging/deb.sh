#!/bin/sh
# Builds the Debian package of what `make build` has made, without root: $OCTAVO is the program,
# $MAN the folder of its man pages, $1 the folder of the package (target/deb).
#
# The package holds what `make install` installs, so that there is one list of files. dpkg-deb packs
# it; cargo-deb would need a second list, and a program that is not in Debian.
set -eu
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
OCTAVO=${OCTAVO:-$target/release/octavo}
MAN=${MAN:-$target/man}
out=${1:-$target/deb}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
architecture=$(dpkg --print-architecture)
# The same commit gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
# The publisher of the package sets DEBFULLNAME and DEBEMAIL, as for all of Debian's tools.
maintainer="${DEBFULLNAME:-The Octavo developers} <${DEBEMAIL:-octavo@localhost}>"
umask 022

mkdir -p "$out"
work=$(mktemp -d "$out/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/octavo
chmod 755 "$work"

strip --strip-unneeded --remove-section=.comment --remove-section=.note -o "$work/program" "$OCTAVO"
make --no-print-directory --silent install \
	DESTDIR="$root" PREFIX=/usr OCTAVO="$work/program" MAN="$MAN"

# What Debian's policy asks for.
doc=$root/usr/share/doc/octavo
cp packaging/debian/copyright "$doc/copyright"
rm "$doc/CHANGELOG.md"
{
	echo "octavo ($version) unstable; urgency=medium"
	echo
	echo "  * The changes are in CHANGELOG.md of the sources."
	echo
	echo " -- $maintainer  $(date -R -u -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n > "$doc/changelog.gz"
gzip -9n "$root"/usr/share/man/man*/*
mkdir -p "$root/usr/share/lintian/overrides"
cp packaging/debian/lintian-overrides "$root/usr/share/lintian/overrides/octavo"

# Control files. dpkg-shlibdeps finds out which libraries of which versions the program needs.
mkdir -p "$root/DEBIAN" "$work/debian"
printf 'Source: octavo\n\nPackage: octavo\nArchitecture: any\n' > "$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O octavo/usr/bin/octavo 2>/dev/null)
installed=$(du -k -s --apparent-size --exclude=DEBIAN "$root" | cut -f1)
sed -e "s/@version@/$version/" -e "s/@architecture@/$architecture/" -e "s/@installed@/$installed/" \
	-e "s/@maintainer@/$maintainer/" \
	-e "s/@libraries@/${libraries#shlibs:Depends=}/" packaging/debian/control.in > "$root/DEBIAN/control"
echo /etc/octavo/octavo.toml > "$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
	install -m 755 packaging/debian/$script "$root/DEBIAN/$script"
done
(cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) \
	> "$root/DEBIAN/md5sums"

find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
package=$out/octavo_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package"
