// Package shm is the only memory that Penstock's processes share: the slab
// where datagrams land, the table that says which of them make which request,
// and the two rings by which a request goes to an inference function (IF) and
// its result comes back.
//
// The way of a request through the three files that an IF is given:
//
//	          manager                                        IF process
//	          ───────                                        ──────────
//	1. Table.SetRequest, Pieces     table (IF: read-only)
//	2. Channel.Publish      ──────> ring  (IF: read-only) ──> Consumer.Wait, Take
//	                                                       3. Consumer.Start, infer
//	5. Channel.Receive      <────── replies (both write)  <── Consumer.Complete, Flush
//	   Result, ResultBytes                                 4.
//
// A request is named by its slot (0 … Slots-1) in all of them. Descriptors are
// offsets and indices, never pointers.
//
// # Publications
//
// The ring file holds a ticket a slot, which only the manager can write: odd
// while the slot is out, even while it is not; Publish makes it odd, Receive and
// Withdraw make it even, whoever comes first. The consumer repeats the ticket in
// the slot's stage word and in its reply, so a reply to an earlier publication
// of the same slot is told from one to this, and each publication is answered
// once. The rings only say where to look first: should one side lose its place
// (it was overtaken, or the other side wrote nonsense), it scans tickets against
// stages and finds again exactly what is out.
//
// # Epoch and owner
//
// Several processes of one instance (active, shadow) map the same channel. The
// epoch word, which only the manager writes, names the generation that should
// consume; the owner word names the one that does. They differ for as long as
// the old owner takes to end its batch:
//
//	manager: SetEpoch(new) ─┐
//	old:  ... batch ... Flush, not Entitled, Release ─┐
//	new:  Acquire sleeps ─────────────────────────────┴─> owns: Recover, Take ...
//
// A process that dies as the owner is disowned by the manager. What it had taken
// but not started is recovered by the next owner; what it had started is the
// manager's to answer (Channel.Stage tells).
//
// # Trust
//
// The peer is not trusted in either direction. Every index and length that
// another process can write is checked before use, each loop over shared memory
// is bounded by the reader's own geometry, and no sleep depends on the peer
// alone. A peer that writes nonsense makes the manager count (Channel.Rejected)
// and an IF lose its own work, nothing more.
//
// # Sleeping
//
// A side with nothing to do spins for Spin, then sets its sleeping word, looks
// again, and waits on its doorbell in the kernel (a shared futex). The other
// side moves the ring first and looks at the sleeping word then, and rings only
// if it is set: no system call when busy. Callers that wait are locked to their
// threads.
package shm
