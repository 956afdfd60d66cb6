// Package sandbox starts a program with no more rights than an inference function needs.
//
//	Spec         what a process may do: pure data, made by the orchestrator
//	Command      puts the launcher in front of a program (orchestrator's side)
//	MaybeLaunch  runs the launcher: this binary, which then becomes the program
//
// The launcher keeps its process id, process group, inherited descriptors and output
// pipes. It goes through these steps, each of which needs rights that the next one
// takes away:
//
//  1. read the Spec from the environment, join the control groups
//  2. raise the limits on locked memory and niceness; no core dumps
//  3. open passages: folders that the user may not search (passage.go)
//  4. hold the private folder, mount folders in memory, enter the working folder
//  5. no_new_privs and Landlock (landlock.go)
//  6. groups, user, capabilities; then the parent-death signal, which 6 has cleared
//  7. seccomp (filter.go)
//  8. execve
//
// Steps 3 to 8 happen on one operating system thread. Credentials and filters belong to a
// thread in Linux, and execve ends all others.
//
// A process without root keeps its user and does the rest. A kernel without Landlock
// leaves step 5 out; `penstock doctor` reports it (see Probe).
package sandbox
