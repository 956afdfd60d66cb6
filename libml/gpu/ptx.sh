#!/bin/sh
# Makes gather.ptx from gather.cu in the folder of this script, or FOLDER/NAME.ptx from
# FOLDER/NAME.cu. COMPILER is nvcc or clang; by default the first that is found:
#
#   ptx.sh [COMPILER [FOLDER/NAME.cu]]
#
# The target is compute_75, Turing, which the driver compiles for the present GPU: a
# target of sm_90 is no faster. The version is at most 8.3, for drivers from CUDA 12.3
# on (green contexts need 12.4). The compiler's comments are left out. The first line
# names the source.
#
# gather.ptx and null.ptx are from nvcc 13.0.48, fashion.ptx is from clang 14. Another compiler
# changes the code of all kernels, so measure them again.
set -eu
source=${2:-$(dirname "$0")/gather.cu}
name=$(basename "$source" .cu)
cd "$(dirname "$source")"
compiler=${1:-$(command -v nvcc || command -v clang++ || command -v clang || true)}
made=$(mktemp)
trap 'rm -f "$made"' EXIT
case $(basename "${compiler:-none}") in
none) echo "ptx.sh: no nvcc and no clang on the path" >&2; exit 1 ;;
*nvcc*) "$compiler" -ptx -arch=compute_75 -O3 -std=c++17 -o "$made" "$name.cu" ;;
*) "$compiler" -x cuda --cuda-device-only -S -nocudainc -nocudalib -O3 -std=c++17 \
	--cuda-gpu-arch=sm_75 -Xclang -target-feature -Xclang +ptx83 -o "$made" "$name.cu" ;;
esac
{
	echo "// made by ptx.sh from $name.cu, sha256 $(sha256sum "$name.cu" | cut -d' ' -f1)"
	awk '/^[ \t]*\/\// { next } /^[ \t]*$/ { next }
	     $1 == ".version" && $2 > 8.3 { print ".version 8.3"; next } { sub(/[ \t]*\/\/.*/, ""); print }' "$made"
} >"$name.ptx"
