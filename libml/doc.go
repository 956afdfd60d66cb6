// Package libml runs the process of an inference function (IF). A program implements
// Framework for its machine learning library and calls Run. libml does the rest: it connects
// to the orchestrator and the manager, maps shared memory, runs batches and returns results.
//
// Package framework describes the callbacks, and internal/serve what a process does with them.
//
// `penstock if` calls Run with the built-in frameworks (libml/frameworks). Package libml/capi
// offers Run to C and Python. Package reference answers single requests without a
// node, for checks.
package libml
