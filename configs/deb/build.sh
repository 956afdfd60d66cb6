#!/usr/bin/env bash
# build.sh OUT: makes the Debian package of bin/ in the folder OUT, and prints its path. `make deb`
# builds bin/ first.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
GO=${GO:-go}
NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0

for program in strip objdump gzip; do
	command -v "$program" >/dev/null || { echo "build.sh: $program is missing: apt-get install binutils gzip" >&2; exit 1; }
done

# A Debian version begins with a digit. A commit without a tag follows the last released version.
released=$(sed -n 's/^## \[\([0-9][0-9.]*\)\].*/\1/p' CHANGELOG.md | head -1)
version=${VERSION:-unknown}
version=${version#v}
case $version in
[0-9]*.[0-9]*) ;;
*) version=$released-$version ;;
esac
DEB_VERSION=$(echo "$version" | sed 's/-/+/; s/-/./g')
DEB_ARCH=$($GO env GOARCH)
DEB_MAINTAINER=${DEB_MAINTAINER:-Penstock developers <penstock@debian.invalid>}
# Files have the date of the last change, so that the same sources give the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export DEB_VERSION DEB_ARCH DEB_MAINTAINER SOURCE_DATE_EPOCH

STAGE=$(mktemp -d)
export STAGE
trap 'rm -rf "$STAGE"' EXIT
mkdir -p "$STAGE/lib" "$STAGE/man" "$STAGE/completion" "$out"

strip --strip-unneeded -o "$STAGE/penstock" bin/penstock
for library in bin/lib/*.so; do
	strip --strip-unneeded -o "$STAGE/lib/$(basename "$library")" "$library"
done
# The newest version of glibc's symbols that the files use.
DEB_LIBC=$(objdump -T "$STAGE/penstock" "$STAGE"/lib/*.so | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -1)
export DEB_LIBC

bin/penstock man "$STAGE/man"
gzip -9n "$STAGE"/man/*
bin/penstock completion bash >"$STAGE/completion/penstock.bash"
bin/penstock completion zsh >"$STAGE/completion/_penstock"
bin/penstock completion fish >"$STAGE/completion/penstock.fish"

{
	echo "penstock ($DEB_VERSION) unstable; urgency=medium"
	echo
	echo "  * Built from the sources; CHANGELOG.md there says what changed."
	echo
	echo " -- $DEB_MAINTAINER  $(date -Ru -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$STAGE/changelog.gz"
{
	echo "Penstock is licensed under the Apache License, Version 2.0. On Debian its text is in"
	echo "/usr/share/common-licenses/Apache-2.0."
	echo
	cat NOTICE
} >"$STAGE/copyright"
find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

package=$out/penstock_${DEB_VERSION}_$DEB_ARCH.deb
GOFLAGS= GOWORK=off "$GO" run "$NFPM" package --config configs/deb/nfpm.yaml --packager deb --target "$package" >&2
echo "$package"
