#!/usr/bin/env bash
# build.sh OUT: makes a release of bin/ in the folder OUT: the Debian packages penstock and penstock-dpdk, an archive for other
# systems, and SHA256SUMS. `make release` builds bin/ first. Two builds of a commit give the same bytes.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
umask 022
export LC_ALL=C TZ=UTC

for program in strip dpkg-deb dpkg-shlibdeps; do
	command -v $program >/dev/null || { echo "build.sh: $program is missing: apt-get install binutils dpkg-dev" >&2; exit 1; }
done

GO=${GO:-go}
arch=$("$GO" env GOARCH)
maintainer=${DEB_MAINTAINER:-Penstock developers <penstock@debian.invalid>}
# Files have the date of the commit.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# A version of Debian begins with a digit, and later ones sort after earlier ones: v0.1.0-7-gabc123 is 0.1.0+7.gabc123. Without
# a tag, it is 0 and the number of commits.
version=${VERSION#v}
case $version in
[0-9]*.[0-9]*) ;;
*) version=0-$(git rev-list --count HEAD)-g$version ;;
esac
version=$(sed 's/-/+/; s/-/./g' <<<"$version")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive=penstock-$version-linux-$arch
common=$work/$archive

# 1. The archive has all programs, what they load, and what an administrator copies (docs/operations.md).
mkdir -p "$common/lib" "$common/licences" "$work/debian"
for program in penstock penstock-dpdk; do
	strip --strip-unneeded -o "$common/$program" bin/$program
done
for library in bin/lib/*.so; do
	# The hashes in these notes depend on the folder of the build.
	strip --strip-unneeded -R .note.gnu.build-id -R .note.go.buildid -o "$common/lib/$(basename "$library")" "$library"
	chmod 644 "$common/lib/$(basename "$library")"
done
mkdir "$common/lib/python"
(cd libml/python && cp --parents $(git ls-files penstock_model) "$common/lib/python") # no __pycache__
cp --parents configs/systemd/penstock.{service,sysusers,yaml} configs/reference.yaml configs/penstock.schema.json configs/grafana/{dashboard.json,alerts.yaml} "$common"
cp LICENSE NOTICE "$common"
cp "$("$GO" env GOROOT)/LICENSE" "$common/licences/go"
cp gateway/page/vendor/uplot/LICENSE "$common/licences/uplot"
"$GO" list -deps -tags dpdk -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}' ./cmd/penstock ./libml/libpenstock | sort -u |
	while read -r module dir; do
		find "$dir" -maxdepth 1 -iregex '.*/\(licen[cs]e\|notice\|patents\)\(\.[a-z]*\)?' | sort | xargs cat >"$common/licences/${module//\//_}"
	done

# 2. Both packages have these files. The folder of a program is also the place of its libraries.
root=$work/root
bin/penstock man "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*
shells=(bash-completion/completions/penstock zsh/vendor-completions/_penstock fish/vendor_completions.d/penstock.fish)
for file in "${shells[@]}"; do
	mkdir -p "$(dirname "$root/usr/share/$file")"
	shell=${file%%/*}
	bin/penstock completion "${shell%-completion}" >"$root/usr/share/$file"
done
mkdir -p "$root"/usr/{bin,lib/{penstock,sysusers.d,systemd/system},share/doc/penstock/examples} "$root/etc/penstock"
ln -s ../lib/penstock/penstock "$root/usr/bin/penstock"
cp -r "$common/lib" "$root/usr/lib/penstock"
cp configs/systemd/penstock.yaml "$root/etc/penstock"
cp configs/systemd/penstock.service "$root/usr/lib/systemd/system"
cp configs/systemd/penstock.sysusers "$root/usr/lib/sysusers.d/penstock.conf"
cp configs/reference.yaml configs/penstock.schema.json configs/grafana/{dashboard.json,alerts.yaml} "$root/usr/share/doc/penstock/examples"
cp -r "$common/licences" NOTICE "$root/usr/share/doc/penstock"

# package NAME OTHER DEPENDS: both packages have the same files, so one replaces the other.
package() {
	local tree=$work/$1 doc=$work/$1/usr/share/doc/$1 depends
	cp -a "$root" "$tree"
	cp "$common/$1" "$tree/usr/lib/penstock/penstock"
	mkdir -p "$tree/DEBIAN" "$doc"
	install -m 755 configs/release/{postinst,prerm,postrm} "$tree/DEBIAN"
	echo /etc/penstock/penstock.yaml >"$tree/DEBIAN/conffiles"
	{
		echo "Penstock is licensed under the Apache License, Version 2.0. On Debian its text is in /usr/share/common-licenses/Apache-2.0."
		echo "/usr/share/doc/penstock/licences has the licences of the modules that the program contains."
		echo
		cat NOTICE
	} >"$doc/copyright"
	printf '%s (%s) unstable; urgency=medium\n\n  * Built from the sources; CHANGELOG.md there says what changed.\n\n -- %s  %s\n' \
		"$1" "$version" "$maintainer" "$(date -Rud "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.gz"
	depends=$(cd "$work" && touch debian/control && dpkg-shlibdeps --warnings=0 -O "$tree/usr/lib/penstock/penstock" "$tree"/usr/lib/penstock/lib/*.so)
	cat >"$tree/DEBIAN/control" <<-END
		Package: $1
		Version: $version
		Architecture: $arch
		Maintainer: $maintainer
		Installed-Size: $(du -sk --apparent-size "$tree" | cut -f1)
		Depends: ${depends#shlibs:Depends=}, $3
		Recommends: ffmpeg
		Conflicts: $2
		Replaces: $2
		Section: net
		Priority: optional
		Description: inference over UDP within latency objectives
		 Penstock receives pictures as UDP packets, gathers them without copying, and
		 runs them on models that share one CPU or GPU. Each model has its own latency
		 objective, and batches are as large as the objective allows.
	END
	(cd "$tree" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
	find "$tree" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
	dpkg-deb --root-owner-group -Zgzip -z6 --build "$tree" "$out/${1}_${version}_$arch.deb" >/dev/null
}

rm -rf "$out"
mkdir -p "$out"
# A package that needs no running systemd makes the user in a container.
package penstock penstock-dpdk "systemd-standalone-sysusers | systemd"
# DPDK loads the drivers of cards and of its memory at run time.
package penstock-dpdk penstock "systemd-standalone-sysusers | systemd, librte-meta-bus, librte-meta-mempool, librte-meta-net"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$archive" | gzip -6n >"$out/$archive.tar.gz"
(cd "$out" && sha256sum -- *.deb *.tar.gz | tee SHA256SUMS)
