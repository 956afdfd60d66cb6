#!/usr/bin/env bash
# Packs everything that runs on a GPU server without Go into .kit/gpu, for
# `make gpu-kit ORT_CUDA=DIR`. run.sh unpacks it there.
#
#   lib*.so.xz      ONNX Runtime with its CUDA provider, from ORT_CUDA
#   programs.tar.xz penstock (without the zoo, which the source tree has), penstock-lab,
#                   the GPU tests, libpenstock.so and the examples in C. They are in one
#                   archive because they share half their code. If DPDK is installed on
#                   this machine, penstock is built with it, and the archive contains its
#                   libraries and its drivers of virtual ports
#   kit.txt         what was packed, from which commit
#
# The kit may have at most MOST bytes, the limit of the server. SM is the GPU's
# architecture, 90 (Hopper) by default. Attention kernels for other architectures are
# omitted.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-go} version=${VERSION:-unknown} sm=${SM:-90} kit=.kit/gpu
readonly MOST=$((64 << 20))

: "${ORT_CUDA:?say where ONNX Runtime with CUDA is: make gpu-kit ORT_CUDA=DIR, a folder with libonnxruntime.so.1, libonnxruntime_providers_cuda.so and libonnxruntime_providers_shared.so, each as it is or as .xz}"
libraries=(libonnxruntime.so.1 libonnxruntime_providers_cuda.so libonnxruntime_providers_shared.so)
missing=()
for lib in "${libraries[@]}"; do
	[ -f "$ORT_CUDA/$lib" ] || [ -f "$ORT_CUDA/$lib.xz" ] || missing+=("$lib[.xz]")
done
if [ ${#missing[@]} -gt 0 ]; then
	echo "gpu-kit: $ORT_CUDA has no ${missing[*]}" >&2
	exit 1
fi
for tool in xz tar python3; do
	command -v $tool >/dev/null || { echo "gpu-kit: $tool is not installed" >&2; exit 1; }
done

mkdir -p $kit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The x86 filter makes calls comparable, which saves a tenth of a library. It takes
# minutes, so it runs again only if the library has changed.
for lib in "${libraries[@]}"; do
	from=$ORT_CUDA/$lib
	[ -f "$from" ] || from=$from.xz
	if [ "$kit/$lib.xz" -nt "$from" ]; then
		continue
	fi
	echo "pack $lib"
	case $from in
	*.xz) xz -dc "$from" ;;
	*) cat "$from" ;;
	esac >"$work/whole.so"
	python3 test/gpu/slim.py "$work/whole.so" "$work/lib.so" "$sm"
	xz --x86 --lzma2=preset=9e,dict=64MiB -c "$work/lib.so" >"$work/lib.xz"
	mv "$work/lib.xz" "$kit/$lib.xz"
done

echo "build penstock, penstock-lab, gpu.test"
export CGO_ENABLED=1
flags=(-trimpath -ldflags "-s -w -X main.version=$version")
# The server's C library must be Debian's or newer; the archive contains DPDK's
# libraries.
tags=slim,null
if pkg-config --exists libdpdk 2>/dev/null; then
	tags=slim,null,dpdk
else
	echo "gpu-kit: without DPDK: apt-get install libdpdk-dev pkg-config" >&2
fi
"$go" build "${flags[@]}" -tags $tags -o "$work/penstock" ./cmd/penstock
"$go" build -C research "${flags[@]}" -tags $tags -o "$work/penstock-lab" ./cmd/penstock-lab
mkdir "$work/lib"
if [ $tags != slim,null ]; then
	drivers=$(pkg-config --variable=libdir libdpdk)/dpdk/pmds-23.0
	for name in mempool_ring net_memif net_tap net_af_packet net_null; do
		cp -L "$drivers/librte_$name.so.23" "$work/lib/"
	done
	ldd "$work/penstock" "$work"/lib/* | awk '$1 ~ /^lib(rte_|numa|fdt|bsd|md)/ && $2 == "=>" { print $3 }' | sort -u |
		while read -r lib; do cp -L "$lib" "$work/lib/"; done
fi
"$go" test -c "${flags[@]}" -tags slim,gpu -o "$work/gpu.test" ./test/gpu
make --no-print-directory GO="$go" LIBRARY="$work/lib/libpenstock.so" library >/dev/null
make --no-print-directory GUEST_LIBRARIES="$work/lib" guest-libraries >/dev/null
examples/c/build.sh "$work/lib" "$work/c"
cp test/gpu/run.sh "$work/"
tar -C "$work" --owner=0 --group=0 -c penstock penstock-lab gpu.test run.sh lib c | xz --x86 --lzma2=preset=9e,dict=64MiB -c >$kit/programs.tar.xz
{
	echo "version $version"
	echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown)"
	echo "go $("$go" env GOVERSION)"
	(cd $kit && sha256sum -- *.xz)
} >$kit/kit.txt

kitbytes=$(cat $kit/* | wc -c)
treebytes=$(git ls-files -z -co --exclude-standard | xargs -0 cat 2>/dev/null | wc -c)
mib() { awk -v b="$1" 'BEGIN { printf "%.2f MiB", b / 1048576 }'; }
(cd $kit && for f in *; do printf '  %-42s %s\n' "$kit/$f" "$(mib "$(wc -c <"$f")")"; done)
printf '  %-42s %s of %s\n' "the kit" "$(mib $kitbytes)" "$(mib $MOST)"
printf '  %-42s %s\n' "the source tree, which it is used from" "$(mib "$treebytes")"
if [ $kitbytes -gt $MOST ]; then
	echo "gpu-kit: $((kitbytes - MOST)) bytes too many" >&2
	exit 1
fi
