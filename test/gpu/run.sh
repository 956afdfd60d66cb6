#!/usr/bin/env bash
# Runs the kit on a GPU server without Go, from the root of the source tree. `make
# test-gpu` and `make -C research bench WHAT=...` call it there.
#
#   run.sh unpack        unpacks the kit and prints the environment to use it with
#   run.sh export [--variants N] [NAME]   makes the models of the evaluation (random weights) in MODELS,
#                        N of each with different weights
#   run.sh test [ARGS]   runs the GPU tests; ARGS go to the test binary
#   run.sh bench WHAT    gather, overhead, swap, limit, fault, weights, dpdk or all: JSON into OUT
#   run.sh bench WHAT    equal, residency, loading, worker, lanes, guest, hostile, turns or many: the same
#                        for many models on one GPU
#   run.sh evaluate FIGURE...   figures of the paper's evaluation (penstock-lab evaluate), table1
#                        (penstock-lab weights), or all: JSON into OUT/evaluation. Reports in
#                        .kit/evaluation or in OUT/evaluation are continued
#   run.sh exec CMD...   runs CMD with the kit's environment
#
#   KIT     the kit, .kit/gpu
#   WORK    the folder of the unpacked kit, penstock-gpu in the temporary folder
#   MODELS  the exported models, WORK/models
#   OUT     results, out
#   LIMIT   evaluate: max seconds per call, 480
#   GPUS    evaluate: how many GPUs work at the same time, each with its part of the CPUs, 1
#   RUNS    evaluate: number of measurements of each variant, 5
#   WEIGHTS evaluate: shared or private, for all variants; the node's default if unset
#   ROUNDS  bench equal, residency, loading, worker, guest, hostile: number of rounds, 1
#   PYTHON  bench guest, hostile, turns: a Python with PyTorch, python3
#   QUICK   evaluate: 1 for two cases per figure and short times, to check that it works
set -euo pipefail
KIT=${KIT:-.kit/gpu} WORK=${WORK:-${TMPDIR:-/tmp}/penstock-gpu} OUT=${OUT:-out}
MODELS=${MODELS:-$WORK/models}
here=$PWD
# The figures to evaluate, so that they are known without the kit. A test of
# research/evaluate compares them.
FIGURES="fig10a fig10b fig8 fig9 fig16 fig15 fig12c-14 fig1 fig12ab table5 fig5-7 fig2-3 fig11 fig10-slo fig10-large guarantees mixes new-mixes equal-objectives short-objectives overload blocking changes table1"

die() {
	echo "gpu: $*" >&2
	exit 1
}

# unpack unpacks the kit, once.
unpack() {
	[ -f "$KIT/kit.txt" ] || die "no kit in $KIT: \`make gpu-kit ORT_CUDA=DIR\` makes it where Go is; bring it along"
	mkdir -p "$WORK/lib"
	if ! cmp -s "$KIT/kit.txt" "$WORK/kit.txt"; then
		(cd "$KIT" && sed -n 's/^\([0-9a-f]\{64\}  \)/\1/p' kit.txt | sha256sum --quiet -c -) || die "the kit in $KIT is damaged"
		xz -dc "$KIT/programs.tar.xz" | tar -C "$WORK" -x
		for f in "$KIT"/lib*.xz; do
			name=$(basename "$f" .xz)
			xz -dc "$f" >"$WORK/lib/$name"
		done
		ln -sf libonnxruntime.so.1 "$WORK/lib/libonnxruntime.so"
		cp "$KIT/kit.txt" "$WORK/kit.txt"
	fi
}

# libraries prints the folders of CUDA's libraries, separated by colons.
libraries() {
	local found=() lib dir place
	for lib in libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcurand.so.10 libcudnn.so.9; do
		place=
		for dir in $(echo "${LD_LIBRARY_PATH:-}" | tr ':' ' ') /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib \
			/usr/lib/x86_64-linux-gnu $(wheels); do
			if [ -e "$dir/$lib" ]; then
				place=$dir
				break
			fi
		done
		[ -n "$place" ] || die "$lib is nowhere: not in LD_LIBRARY_PATH, /usr/local/cuda or python3's nvidia packages"
		case ":${found[*]-}:" in *"$place"*) ;; *) found+=("$place") ;; esac
	done
	(IFS=: && echo "${found[*]}")
}

# wheels prints the library folders of PyTorch's CUDA packages.
wheels() {
	python3 - 2>/dev/null <<'PY' || true
import glob, site, sysconfig
roots = {sysconfig.get_paths()["purelib"], *site.getsitepackages()}
print(*sorted(d for root in roots for d in glob.glob(root + "/nvidia/*/lib")))
PY
}

prepare() {
	unpack
	local cuda
	cuda=$(libraries)
	export LD_LIBRARY_PATH="$WORK/lib:$cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
	export PENSTOCK_ONNXRUNTIME="$WORK/lib/libonnxruntime.so.1"
	export PENSTOCK_BINARY="$WORK/penstock" PENSTOCK_MODELS="$MODELS"
	export PENSTOCK_ZOO=${PENSTOCK_ZOO:-$here/models/zoo}
	export PENSTOCK_PYTHONPATH=${PENSTOCK_PYTHONPATH:-$here/libml/python}
	# By name: DPDK refuses a folder below one that every user may write to.
	PENSTOCK_DPDK_DRIVERS=$(cd "$WORK/lib" && { ls librte_mempool_ring.so.* librte_net_{memif,tap,af_packet,null}.so.* 2>/dev/null || true; } | paste -sd,)
	export PENSTOCK_DPDK_DRIVERS
	export PATH="$WORK:$PATH"
}

# huge_pages makes the kernel reserve that many pages of 2 MiB, as far as it can.
huge_pages() {
	echo "$1" 2>/dev/null >/proc/sys/vm/nr_hugepages || echo "gpu: no huge pages: packet memory will be of ordinary ones" >&2
}

export_models() {
	python3 research/convert/export_torchvision.py "$MODELS" "$@" # what is there stays
}

# bench FILE ARGS... runs penstock-lab ARGS and writes its report to OUT/FILE.json.
bench() {
	local file=$1
	shift
	mkdir -p "$OUT"
	echo "penstock-lab $*" >&2
	if ! "$WORK/penstock-lab" -o json "$@" >"$OUT/$file.json.new"; then
		rm -f "$OUT/$file.json.new"
		echo "gpu: penstock-lab $* failed" >&2
		failed=1
		return
	fi
	mv "$OUT/$file.json.new" "$OUT/$file.json"
}

# evaluate FIGURE... makes each GPU take the next figure that none has taken, until all
# are done or the time is over.
evaluate() {
	local limit=${LIMIT:-480} gpus=${GPUS:-1} gpu figures workers=() claims
	local cpus each
	case $limit$gpus in *[!0-9]*) die "LIMIT=$limit GPUS=$gpus: want seconds and a number of GPUs" ;; esac
	[ "$gpus" -gt 0 ] || die "GPUS=$gpus: want 1 or more"
	figures=$*
	if [ "$figures" = all ]; then
		figures="$("$WORK/penstock-lab" evaluate --names) table1"
	fi
	mkdir -p "$OUT/evaluation"
	for f in .kit/evaluation/*.json; do
		if [ -f "$f" ] && [ ! -f "$OUT/evaluation/$(basename "$f")" ]; then
			cp "$f" "$OUT/evaluation/"
		fi
	done
	claims=$(mktemp -d)
	# Background shells ignore Ctrl-C; it ends only their penstock. They take no other
	# figure after the folder is removed.
	trap 'rm -rf "$claims"; failed=1' INT
	# The CPUs that this shell may use, in equal parts.
	cpus=($(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))'))
	each=$((${#cpus[@]} / gpus))
	[ $each -gt 0 ] || die "GPUS=$gpus: there are ${#cpus[@]} CPUs for them"
	for ((gpu = 0; gpu < gpus; gpu++)); do
		evaluate_on "$gpu" "$(IFS=, && echo "${cpus[*]:gpu*each:each}")" "$((SECONDS + limit))" "$claims" $figures &
		workers+=($!)
	done
	for worker in "${workers[@]}"; do
		until wait "$worker"; do # Ctrl-C ends it early
			failed=1
			kill -0 "$worker" 2>/dev/null || break
		done
	done
	rm -rf "$claims"
	trap - INT
}

# evaluate_on GPU CPUS END CLAIMS FIGURE... is one GPU's part.
evaluate_on() {
	local gpu=$1 cpus=$2 end=$3 claims=$4 figure bad=0
	shift 4
	for figure in "$@"; do
		mkdir "$claims/$figure" 2>/dev/null || continue
		[ $((end - SECONDS)) -gt 20 ] || break
		if [ "$figure" = table1 ]; then # a benchmark of its own, gone on with a model at a time
			if ! "$WORK/penstock-lab" weights --models "$MODELS" --device "cuda:$gpu" --runs "${RUNS:-3}" \
				--report "$OUT/evaluation/weights.json" --limit "$((end - SECONDS))s" -o json >/dev/null; then
				echo "gpu: figure $figure failed" >&2
				bad=1
			fi
			continue
		fi
		if ! "$WORK/penstock-lab" evaluate --figure "$figure" --models "$MODELS" --out "$OUT/evaluation" --limit "$((end - SECONDS))s" \
			--runs "${RUNS:-5}" --device "cuda:$gpu" --cpus "$cpus" ${QUICK:+--quick} ${WEIGHTS:+--weights "$WEIGHTS"} -o json >/dev/null; then
			echo "gpu: figure $figure failed" >&2
			bad=1
		fi
	done
	return $bad
}

# bench_many runs the benchmarks of many models on one GPU (docs/lanes.md, docs/guests.md).
bench_many() {
	local rounds=${ROUNDS:-1} python=${PYTHON:-python3}
	# 42 functions with 5.7 GB of different weights: two of the eight models six times, the others five times.
	local functions=(--device cuda --models "$MODELS" --functions 42 --variants --check=false --slo 25ms --rounds "$rounds"
		--model alexnet,gnmt,mobilenetv2,resnet50,resnet152,resnext50,vgg16,vgg19)
	if wants equal || wants residency; then
		export_models --variants 5
		export_models --variants 6 alexnet gnmt
	elif wants loading || wants guest || wants hostile; then
		export_models
	fi
	# One request per second to each function.
	wants equal && bench residency-equal residency "${functions[@]}" --ways unlimited,own,alone --equal --rate 42 --duration 40s
	# The mean batch takes 0.6 ms, so 800 requests per second keep the lane half busy.
	wants residency && bench residency residency "${functions[@]}" --ways limited,own --weights 0.35 --rate 800 --duration 20s
	wants loading && bench loading loading --device cuda --models "$MODELS" --model vgg19,resnet152 --neighbour resnet50 --memory 900 --rate 500 --duration 3s --rounds "$rounds"
	# All functions of a worker on the GPU, and on two CPUs, which the subshell has.
	wants worker && bench worker-gpu worker --device cuda --models "$MODELS" --only-worker --functions 42 --model face,fashion,detect --rounds "$rounds"
	if wants worker; then
		(taskset -pc 0,1 $BASHPID >&2 && bench worker worker --rounds "$rounds" && exit $failed) || failed=1
	fi
	wants lanes && bench lanes lanes
	local guest=(guest --device cuda --models "$MODELS" --model resnet50 --rate 500 --rounds "$rounds")
	wants guest && bench guest "${guest[@]}" --duration 10s --python "$python"
	# A guest that forks without end, next to 300 busy processes; and one whose processes are killed while they use the GPU.
	wants hostile && bench hostile-forks "${guest[@]}" --duration 10s \
		-- bash -c 'for i in $(seq 300); do while :; do :; done & done; n=0; while :; do (:); n=$((n+1)); echo steps $n; done'
	wants hostile && bench hostile-killed "${guest[@]}" --duration 20s \
		-- bash -c 'n=0; while :; do
			timeout -s KILL 5 "$0" -c "import torch; x = torch.randn(8192, 8192, device=\"cuda\")
while True: x = x @ x" || n=$((n+10)); echo steps $n; done' "$python"
	wants turns && bench turns turns --limit 8GiB --cpu-percent 50,10 --python "$python"
	return 0
}

failed=0
command=${1:-}
[ $# -gt 0 ] && shift
case $command in
unpack)
	prepare
	printf 'export LD_LIBRARY_PATH=%q PENSTOCK_ONNXRUNTIME=%q PENSTOCK_ZOO=%q PENSTOCK_DPDK_DRIVERS=%q PATH=%q\n' "$LD_LIBRARY_PATH" "$PENSTOCK_ONNXRUNTIME" "$PENSTOCK_ZOO" "$PENSTOCK_DPDK_DRIVERS" "$PATH"
	;;
export)
	export_models "$@"
	;;
test)
	prepare
	export_models
	mkdir -p "$OUT"
	"$WORK/gpu.test" -test.v -test.timeout 30m "$@" 2>&1 | tee "$OUT/test-gpu.log"
	;;
bench)
	what=${1:-all}
	all="gather overhead swap limit fault weights dpdk" many="equal residency loading worker lanes guest hostile turns"
	case $what in
	all) what=$all ;;
	many) what=$many ;;
	*) case " $all $many " in *" $what "*) ;; *) die "WHAT=$what: want all or many, or one of $all $many" ;; esac ;;
	esac
	prepare
	wants() { case " $what " in *" $1 "*) ;; *) return 1 ;; esac; }
	wants gather && bench gather gather
	if wants overhead || wants swap || wants limit || wants fault || wants weights || wants dpdk; then
		export_models
	fi
	wants overhead && bench overhead overhead --models "$MODELS"
	# Several functions at once: a shadow takes a second or two to load and to warm up. Its
	# percentages are of those at which cuBLAS is right in f16 (docs/adr/0007).
	wants swap && bench swap-partition swap --device cuda --change partition -n "${PARTITION_SWAPS:-1000}" --functions 3 --from 32 --to 20 --restarts 0 --models "$MODELS"
	wants swap && bench swap-shadow swap --device cuda --change shadow -n "${SHADOW_SWAPS:-300}" --functions 4 --from 24 --to 12 --restarts 8 --models "$MODELS"
	wants limit && bench limit limit --models "$MODELS"
	wants fault && bench fault fault --models "$MODELS" --model resnet50 --model mobilenetv2 --model face
	wants weights && bench weights weights --models "$MODELS"
	if wants dpdk; then
		had=$(cat /proc/sys/vm/nr_hugepages)
		huge_pages 1024
		bench dpdk dpdk --device cuda --models "$MODELS" --model null --model resnet50 --busy-poll 0s,100ms
		huge_pages "$had"
	fi
	bench_many
	exit $failed
	;;
evaluate)
	[ $# -gt 0 ] || die "evaluate: want figures or all"
	[ "$*" = all ] || for figure in "$@"; do
		case " $FIGURES " in *" $figure "*) ;; *) die "FIGURE=$figure: want all, or some of $FIGURES" ;; esac
	done
	prepare
	export_models >&2
	evaluate "$@"
	exit $failed
	;;
exec)
	prepare
	exec "$@"
	;;
*)
	die "want unpack, export, test, bench WHAT, evaluate FIGURE or exec CMD, got '$command'"
	;;
esac
