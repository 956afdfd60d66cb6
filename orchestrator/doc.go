// Package orchestrator starts, watches and stops the processes of inference
// functions, active and shadow (paper 3.1, 3.2.4), and holds each to its share of
// the CPUs, or of a GPU.
//
// One goroutine owns all state and runs this circle:
//
//	           control.Desired          notices, ends
//	                  │                       │
//	                  v                       v
//	1 what is wished ─┬─ 2 what is (processes) ─┬─ 3 what time it is
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
// Every action changes what is, so that the same plan is never carried out twice:
// the circle is repeated until the plan is empty. A Desired that comes again, or
// late, or after others were lost, changes nothing that is right already.
//
// Each process has one goroutine that waits for its end and says how it was, two
// that read its output, and one that reads its notices; what they find comes to
// the circle over one channel. A process that is to end is asked (drain), then
// told (TERM), then killed, each after a deadline, unless it is to be killed at
// once.
//
// A GPU is opened when a manager wants one, by a goroutine of its own (device.go),
// which owns the MPS daemon (package mps) and asks NVML; the circle hears of it over
// one more channel. Nothing is started before the GPU is open, nobody is woken while
// MPS is down (gpu.go). The orchestrator never makes a context, and is no client of
// MPS.
//
// Processes outlive the orchestrator if a keeper of `penstock up` holds them (saved.go):
// the next orchestrator goes on with them. None outlives the keeper, whose children they
// are: they carry a parent-death signal. None outlives the manager: they lose the
// attach link and end by themselves, and after control.SilentAfter the
// orchestrator ends what is left. A manager that is stopped, or hangs, is not gone.
//
// All deadlines are of running time (package runclock): an orchestrator that was
// stopped does not judge manager and processes by the time that it missed.
package orchestrator
