// Package pack is the policy "penstock". It finds the fewest GPUs that hold segments for all
// services, and with these the fewest GPCs. It proves a lower bound. ParvaGPU (sections III-D,
// III-E) decides a service's segments first and packs them afterwards. Here the two are one
// problem:
//
//	choose for each service how many segments of each size it has (a mix), so that
//	  - their throughputs cover its rate: a segment of a size runs at the point of the highest throughput
//	    within the latency bound (section III-D1, the triplets), and
//	  - the segments of all services, packed under the placement table, take the fewest GPUs.
//
// # What makes it small
//
// Packing does not depend on which service a segment belongs to. It depends only on how many
// segments there are of each size. The placement table allows few maximal fillings of a GPU, its
// patterns; an A100 has twelve:
//
//	7 · 4,3 · 4,2,1 · 4,1,1,1 · 3,3 · 3,2,2 · 3,2,1,1 · 3,1,1,1,1 · 2,2,2,1 · 2,2,1,1,1 · 2,1,1,1,1,1 · 1,1,1,1,1,1,1
//
// Give each size a price so that no pattern is worth more than 1. All segments together are then
// worth no more than the number of GPUs that hold them. By duality, the best such prices give the
// linear optimum of packing. Only the corners of that region of prices matter (cut.go enumerates
// them). An A100 has four. With n1, n2, n3, n4, n7 segments of the sizes, the number of GPUs is at
// least each of
//
//	(1·n1 + 2·n2 + 3·n3 + 4·n4 + 7·n7) / 7    a GPU has seven GPCs
//	(1·n1 + 2·n2 + 4·n3 + 4·n4 + 8·n7) / 8    and eight memory slices, of which size 3 takes four
//	(       1·n2 + 1·n3 + 2·n4 + 3·n7) / 3    three places for size 2
//	(                     1·n4 + 1·n7)        one for size 4
//
// and the largest of them, rounded up, is enough. The tests confirm this for every count of
// segments that they try. A packing that needs more GPUs would be detected, because pack counts
// GPUs and not rules.
//
// # The lower bound
//
// At any such prices, each service needs at least its cheapest mix (a covering knapsack, cover.go,
// solved exactly). The sum of the cheapest mixes is therefore a lower bound of the GPUs of any
// plan. relax (bound.go) looks for the prices that make it largest, by cutting planes. The proof
// does not depend on how the prices are found: relax checks them against all patterns and takes the
// sum again. Plan.LowerBound is the sum rounded up; a millionth is ignored because of floating
// point.
//
// Example, for S3 with ten times the rates: the best prices of sizes 1, 2, 3, 4, 7 are 4, 8, 13, 16
// and 29 parts of 29. They are valid: 4,3 is worth 16+13 = 29 parts, 3,2,2 is 13+8+8 = 29,
// 3,1,1,1,1 is 13+4·4 = 29, and 7 is 29. 4,2,1 and 1,1,1,1,1,1,1 and those without 3 and 7 are 28,
// and 3,3 is 26. At these prices the cheapest mixes of the eleven services cost 1043 parts. 1043/29
// = 35.97, so the min is 36 GPUs. The plan has 36; ParvaGPU's has 38. (GPCs alone give 246/7 =
// 35.1, but a plan that ignores placement cannot be laid out.)
//
// If the sum does not decide, exhaust visits all mixes that are not too expensive at those prices.
// In a fleet, it also visits all ways to divide the GPUs between the models. It raises the bound by
// one if no choice of mixes keeps the rules.
//
// Fleets: each model of GPU has its own sizes and patterns, and a segment of one model is not a
// segment of another. A limit on a model is one more price: the model's GPUs earn it, and the bound
// subtracts it times the limit.
//
// GPUs without MIG: patterns are the sets of sizes whose steps fit the GPU. These are too many to
// list, so a knapsack finds prices that a pattern violates. The only rule is that a GPU holds no more
// steps than it has. Other rules may matter, too.
//
// The segments of such a GPU share its memory and the clients that MPS admits, and plans respect
// both. All points then count, not only the one of the highest throughput. Each service takes its
// cheapest mix, with memory or clients counted as a part of each segment's share. This proves a
// bound. Best fit decreasing packs the mixes (shared.go).
//
// If nothing was found for a fleet and nothing is proved, the error says exactly that.
//
// # The steps of a plan
//
//  1. build (pack.go): services to demands, sizes to items, each item at its best point.
//  2. relax (bound.go): the lower bound of GPUs; solve (solve.go) first tries that many, and more if necessary.
//  3. relax again: the fewest GPCs on that many GPUs. Its solution gives each service a few mixes and the weight of each;
//     enlarge adds mixes that cost little more (cover.go).
//  4. beam (choose.go): one mix per service, so that the four rules hold and the GPCs are few. It ignores a mix
//     if another one is at least as good in every rule.
//  5. pack (cut.go, steps.go): the counts into GPUs, exactly; slots: each GPU's segments into places.
//  6. fewer and exhaust: exhaustive on GPUs with MIG, if steps 2 to 4 leave a gap and the problem is small.
//
// Step 4 keeps a fixed number of states, and everything else is a fixed number of passes over the
// services. The time is therefore nearly linear in their number.
//
// # What optimal means
//
// Plan.Optimal: GPUs is equal to LowerBound. No plan for these profiles and bounds, legal under the
// same tables, has fewer GPUs in total; the models of a mixed fleet count equally. The GPCs come
// second. For one model of GPU, a note says whether they, too, are proved to be the fewest for that
// number of GPUs. In a fleet, GPCs of different models are not compared. A segment counts as its
// share of its GPU, and twice as much on each later model in the fleet's order of preference.
package pack
