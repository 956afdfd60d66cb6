// Package orchestrator starts, watches and stops the processes of inference functions,
// active and shadow (paper 3.1, 3.2.4). It holds each to its share of the CPUs, or of a
// GPU.
//
// One goroutine owns all state and runs this loop:
//
//	           control.Desired          notices, ends
//	                  │                       │
//	                  v                       v
//	1 desired state ──┬─ 2 observed processes ──┬─ 3 current time
//	                  └───────────┬─────────────┘
//	                              v
//	                  4 plan: actions, and when to look again   (pure)
//	                              │
//	                              v
//	                  5 act: spawn, order, signal, write a quota
//	                              │
//	                              v
//	                  6 control.Observed
//
// Every action changes the observed state, so the same plan is never carried out twice.
// The loop repeats until the plan is empty. A Desired that is repeated, late, or follows
// lost ones changes nothing that is already right.
//
// Each process has one goroutine that waits for its exit, one that reads its notices, and
// two that log its output. A further one forwards notices and exit to the loop, over one
// channel for all processes. To end a process, the loop sends the order drain, then
// SIGTERM, then SIGKILL, each after a deadline, unless it has to kill at once.
//
// The orchestrator opens the devices that a manager wants (device.go). All state of a device
// belongs to it, and each process runs on one. For each GPU a separate goroutine
// (package gpu) opens it, owns its MPS daemon (package mps) and queries NVML. It reports
// to the loop over one more channel. No process is started before its GPU is open, and
// none is woken while the MPS daemon there is down (gpu.go). The orchestrator never makes a context, and
// is no client of MPS.
//
// If a keeper of `penstock up` holds the processes, they outlive the orchestrator
// (saved.go), and the next orchestrator resumes them. They are children of the keeper
// and do not outlive it, as they carry a parent-death signal. They do not outlive the
// manager either. When the attach link closes they exit, and after control.PeerTimeout
// the orchestrator ends those that are left. A manager that is stopped or hangs does not
// count as gone.
//
// All deadlines are in running time (package runclock): an orchestrator that was stopped
// does not judge the manager and the processes by the time that it missed.
package orchestrator
