// Package serve is the process of an inference function, or a member of a worker (libml/internal/worker). It loads the
// model, warms it up, and serves it with a batch loop (libml/internal/loop). It moves to other multiprocessors.
//
// # Life of a process
//
// The orchestrator starts the process and follows its state, on the right:
//
//	1 connect to the orchestrator and the manager
//	2 Framework.Init and LoadModel                       loaded
//	3 sleep until the orchestrator wakes the process: a shadow waits here
//	4 open the device, map memory, LinkModel, configure  linking
//	  and warm up each batch size (only the smallest if
//	  nothing else serves: partial.go)                   ready
//	5 wait until the epoch names this generation and the
//	  ring is free                                       active
//	6 run batches until the epoch changes, or drain      draining
//	7 Framework.Deinit, exit                             stopped
//
// No step before 4 touches a GPU. The wake brings the environment variables that set the
// process's share of it, and the first touch fixes that share.
//
// # Goroutines
//
//   - Run keeps its goroutine on one thread. It takes steps 1 to 7. Step 6 is the batch loop
//     (libml/internal/loop).
//   - process.watch receives the orchestrator's orders and notices the end of either peer. It
//     interrupts the loop through shared memory.
//   - The mover exists on a GPU only. It prepares other multiprocessors and the remaining
//     batch sizes while the loop serves (move.go, partial.go).
package serve
