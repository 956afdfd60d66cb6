// Package shm holds the only memory that Penstock's processes share: the slab
// that receives datagrams, the request table, two rings, and on a GPU without
// MPS the turns (turns.go). The table lists
// the fragments of each request in the slab. One ring passes requests to an
// inference function (IF); the other returns its results.
//
// The path of a request through the three files that an IF receives:
//
//	          manager                                        IF process
//	          ───────                                        ──────────
//	1. Table.SetRequest, Fragments  table (IF: read-only)
//	2. Channel.Publish      ──────> ring  (IF: read-only) ──> Consumer.Wait, Take
//	                                                       3. Consumer.Start, infer
//	5. Channel.Receive      <────── replies (both write)  <── Consumer.Complete, Flush
//	   Result, ResultBytes                                 4.
//
// All three files identify a request by its slot (0 … Slots-1). Descriptors are
// offsets and indices, never pointers.
//
// # Publications
//
// A slot is out from the time it is published until its reply is received or it
// is withdrawn. The ring file holds one ticket per slot, which only the manager
// can write. The ticket is odd while the slot is out, and even otherwise.
// Publish makes it odd; Receive or Withdraw, whichever comes first, makes it
// even.
//
// The consumer repeats the ticket in the slot's stage word and in its reply. A
// reply to an earlier publication of the slot therefore has another ticket than
// a reply to this one, and each publication is answered once. The rings only
// say where to look first. A side can lose its place, because it was overtaken
// or the other side wrote nonsense. It then compares all tickets with the
// stages and finds exactly the slots that are out.
//
// # Epoch and owner
//
// Several processes of one instance (active, shadow) map the same channel. The
// epoch word, which only the manager writes, names the generation that should
// consume. The owner word names the generation that does. The two differ while
// the old owner finishes its batch:
//
//	manager: SetEpoch(new) ─┐
//	old:  ... batch ... Flush, not Entitled, Release ─┐
//	new:  Acquire sleeps ─────────────────────────────┴─> owns: Recover, Take ...
//
// If a process dies as the owner, the manager disowns it. The next owner
// recovers what the dead process had taken but not started. The manager must
// answer what it had started (see Channel.Stage).
//
// # Trust
//
// Neither side trusts the other. Both check every index and length that another
// process can write before they use it. Each loop over shared memory is bounded
// by the reader's own geometry, and no sleep depends on the peer alone. If a
// peer writes nonsense, the manager counts it (Channel.Rejected), and an IF
// loses its own work, nothing more.
//
// # Sleeping
//
// A side with nothing to do spins for Spin, sets its sleeping word, and checks
// for work once more. Then it waits on its doorbell in the kernel (a shared
// futex). The other side moves the ring first, then reads the sleeping word,
// and rings only if it is set: there is no system call under load. Callers that
// wait are locked to their threads.
//
// A consumer whose model is not in memory sets its watching word. The manager then
// also rings when a request begins to arrive, and the model is loaded meanwhile.
package shm
