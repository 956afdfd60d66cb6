// Package pack is the policy "penstock": the fewest GPUs that hold segments for all services, and with them the
// fewest GPCs, with a lower bound that is proved. ParvaGPU (sections III-D, III-E) decides a service's segments
// first and packs them afterwards; here the two are one problem:
//
//	choose for each service how many segments of each size it has (a mix), so that
//	  - their throughputs cover its rate: a segment of a size runs at the point of the highest throughput
//	    within the latency bound (section III-D1, the triplets), and
//	  - the segments of all services, packed under the placement table, take the fewest GPUs.
//
// # What makes it small
//
// Packing does not care whose a segment is: it depends on how many there are of each size. And the placement table
// allows few maximal fillings of a GPU, its patterns; an A100 has twelve:
//
//	7 · 4,3 · 4,2,1 · 4,1,1,1 · 3,3 · 3,2,2 · 3,2,1,1 · 3,1,1,1,1 · 2,2,2,1 · 2,2,1,1,1 · 2,1,1,1,1,1 · 1,1,1,1,1,1,1
//
// Give each size a price so that no pattern is worth more than 1: then all segments together are worth no more than
// the GPUs that hold them. By duality the best such prices give the linear optimum of packing, and only the corners
// of that region of prices matter (cut.go enumerates them). An A100 has four. With n1, n2, n3, n4, n7 segments of
// the sizes, the GPUs are at least each of
//
//	(1·n1 + 2·n2 + 3·n3 + 4·n4 + 7·n7) / 7    a GPU has seven GPCs
//	(1·n1 + 2·n2 + 4·n3 + 4·n4 + 8·n7) / 8    and eight memory slices, of which size 3 takes four
//	(       1·n2 + 1·n3 + 2·n4 + 3·n7) / 3    three places for size 2
//	(                     1·n4 + 1·n7)        one for size 4
//
// and the largest of them, rounded up, is enough: the tests hold it for every count of segments that they try, and
// a packing that took more would be found out, because pack counts GPUs and not rules.
//
// # The lower bound
//
// At any such prices each service needs at least its cheapest mix (a covering knapsack, cover.go, solved exactly),
// so the sum of the cheapest mixes is a lower bound of the GPUs of any plan; relax (bound.go) looks for the prices
// that make it largest, by cutting planes. Which prices are found does not matter to the proof: they are checked
// against all patterns and the sum is taken again. Rounded up (a millionth is forgiven for floating point) it is
// Plan.LowerBound.
//
// Worked, for S3 with ten times the rates: the best prices of sizes 1, 2, 3, 4, 7 are 4, 8, 13, 16 and 29 parts of
// 29. They hold: 4,3 is worth 16+13 = 29 parts, 3,2,2 is 13+8+8 = 29, 3,1,1,1,1 is 13+4·4 = 29, 7 is 29; 4,2,1 and
// 1,1,1,1,1,1,1 and those without 3 and 7 are 28, 3,3 is 26. At these prices the cheapest mixes of the eleven
// services cost 1043 parts: 1043/29 = 35.97, so 36 GPUs at least. The plan has 36; ParvaGPU's has 38. (GPCs alone
// say 246/7 = 35.1, a plan without placement that cannot be laid out.)
//
// Where the sum does not decide, exhaust goes through all mixes that are not too dear at those prices (and, in a
// fleet, through all ways to share the GPUs out between the models), and raises the bound by one if no choice of
// them keeps the rules.
//
// Fleets: each model of GPU has its own sizes and patterns, a segment of the one is not a segment of the other, and
// a limit on a model is one more price, which its GPUs earn and which is taken off again times the limit. GPUs
// without MIG: patterns are the sets of sizes whose steps add up to at most all, too many to list; prices that a
// pattern breaks are found by a knapsack, and the rules are the dual feasible functions of bin packing (Martello and
// Toth's L2, Fekete and Schepers' u), which need not be all that matter. The memory that segments of such a GPU
// share, and the clients that MPS takes, are kept: all points count then, each service takes its cheapest mix with a
// part of each segment's share counted by memory or clients, which proves a bound, and best fit decreasing packs them
// (shared.go). Small problems that are still open are searched whole (exact.go): that finds the fewest GPUs or proves
// that a fleet is too small. A fleet on which nothing was found, and no more is known, is said to be just that.
//
// # The way of a plan
//
//  1. build (pack.go): services to demands, sizes to items, each item at its best point.
//  2. relax (bound.go): the lower bound of GPUs; solve (solve.go) tries as many first, and more if need be.
//  3. relax again: the least GPCs where so many GPUs are all there are. Its solution gives each service a few mixes
//     and how much of each; enlarge adds those that cost little more (cover.go).
//  4. beam (choose.go): one mix for each service, so that the four rules are kept and the GPCs are few. Only mixes
//     that no other is below in every rule are looked at.
//  5. pack (cut.go, steps.go): the counts into GPUs, exactly; slots: each GPU's segments into places.
//  6. fewer and exhaust: exhaustive, where steps 2 to 4 leave a gap and the problem is small.
//  7. Where the fewest GPUs are not proved, ParvaGPU's plan is made as well, and taken if it has fewer.
//
// So a plan has never more GPUs than ParvaGPU's. Step 4 keeps a fixed number of states, and everything else is a
// fixed number of passes over the services, so the whole is near linear in their number.
//
// # What optimal means
//
// Plan.Optimal: GPUs is equal to LowerBound, so no plan for these profiles and bounds, legal under the same tables,
// has fewer GPUs in all; the models of a mixed fleet count alike. The GPCs come second. For one model of GPU a note
// says whether they, too, are proved to be the fewest that so many GPUs can do with. In a fleet GPCs of different
// models are not compared: a segment counts for its share of its GPU, and twice as much on each model further down
// the fleet's order of preference.
package pack
