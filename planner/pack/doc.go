// Package pack is the policy "penstock". It looks for the fewest GPUs that hold segments for all
// services, and with these for the fewest GPCs. It also proves a lower bound. ParvaGPU (sections
// III-D, III-E) decides a service's segments first and packs them afterwards. Here the two are one
// problem. A mix says how many segments of each size a service has; their throughputs cover its
// rate. One mix per service is to be chosen, so that all segments together take few GPUs.
//
// # Rules
//
// A rule (rules.go) is how much of a GPU a segment takes in one respect, such as GPCs, memory slices,
// places for size 4, or memory. The segments of one GPU take at most 1 of each rule. By each rule, all
// segments together therefore need at least the sum of what they take. On GPUs with MIG, the rule
// that needs most GPUs is usually enough; nothing depends on that, because pack counts the GPUs that it
// lays out. GPUs without MIG also share memory and clients of MPS, so more can be necessary.
//
// # The lower bound
//
// Any mean of a GPU's rules is a rule, too: it prices each segment. At any such prices, each service
// needs at least its cheapest mix (a covering knapsack, cover.go, solved exactly). The sum of the
// cheapest mixes is therefore a lower bound of the GPUs of any plan. relax looks for the mean that
// makes it largest. If a model of GPU is limited, its GPUs cost more, and the bound subtracts what
// all of them cost more. The proof does not depend on how the prices are found. Plan.LowerBound is the
// bound rounded up; a millionth is ignored because of floating point.
//
// # The steps of a plan
//
//  1. build (pack.go): the points at which each service may run, without those that are no better
//     than another one.
//  2. relax (relax.go): the lower bound, prices, and mixes near the cheapest of each service.
//  3. choose (choose.go): one mix per service, so that all rules hold on as many GPUs as the bound. A
//     beam search.
//  4. pack (boards.go): a place for each segment. If that takes more GPUs, solve repeats step 3 with
//     mixes that are easier to pack, then with more GPUs.
//
// All steps are a fixed number of passes over the services.
//
// # What optimal means
//
// Plan.Optimal: GPUs is equal to LowerBound. No plan for these profiles and bounds, legal under the
// same tables, has fewer GPUs in total; the models of a mixed fleet count equally. The GPCs come
// second: a segment counts as its share of its GPU, and twice as much on each later model in the
// fleet's order of preference.
package pack
