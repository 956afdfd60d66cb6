// Package fleet plans the GPUs of a cluster. It is pure: it has no clock, reads what its caller has read, and writes nothing.
//
// A plan is made in these steps:
//
//  1. GPUs (gpus.go) finds the GPUs of a fleet in the cluster's objects, and what each is good for.
//  2. Rates (rates.go) follows the requests that nodes count, and says which rate to plan for.
//  3. A State has both, with the functions, profiles and the plan that runs.
//  4. Next (next.go) makes a plan.Problem of it. The plan that runs becomes an old plan of those GPUs that still serve, and
//     planner/change changes it. If nothing runs, planner/pack makes the first plan. planner/verify checks each plan.
//  5. The difference becomes steps (steps.go), which name GPUs and devices of the cluster.
//
// The same State gives the same steps. After the steps, it gives none.
//
// # What stays
//
// A function keeps its segments if its model, objective and rate stay the same. It moves only if the fleet is otherwise too
// small for functions of the same or a higher priority.
//
// GPUs have a Health. On a Good GPU everything may change. Segments on a GPU of unknown state stay, and count, but none is
// added. Segments on a Leaving GPU, whose node is cordoned for example, serve until others have replaced them. Those on a Lost
// GPU are replaced first and destroyed last, because they do not answer anyway.
//
// # What does not fit
//
// If the fleet is too small, functions of the highest priority come first. The others get the parts of their rates that fit around
// those, and nothing moves for a part. A limit of a namespace works in the same way for the namespace's functions. A function
// whose part is missing has a condition with the planner's sentence.
package fleet
