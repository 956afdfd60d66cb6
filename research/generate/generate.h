// Requests that a port's receive call makes: see doc.go.
#ifndef PENSTOCK_GENERATE_H
#define PENSTOCK_GENERATE_H

#include <stdint.h>

#define GEN_HEADERS 64 // Ethernet, IPv4, UDP and Penstock's own, as in every frame
#define GEN_PAYLOAD 8192 // max, of a fragment

// The traffic of one queue. The caller writes everything but limit before it polls
// the port. From then on, only the callback does.
struct gen_stream {
	uint8_t headers[GEN_HEADERS]; // of a request's first fragment, without the fields that change per frame
	uint32_t pieces, piece_bytes; // of a request; all fragments (pieces) are full
	uint32_t request, piece;      // next
	uint64_t limit;               // total number of frames, ~0 for no limit
	uint64_t made;                // frames so far
	// Buffers in a queue, as on a NIC's ring of descriptors. The oldest one is next,
	// and a new one takes its place.
	uint32_t descriptors, next, waiting;
	uint8_t whole;                // write the payload, too
	void **posted;
	uint8_t payload[GEN_PAYLOAD];
};

// Returns NULL if the port or queue does not exist.
const void *gen_attach(uint16_t port, uint16_t queue, struct gen_stream *s);
int gen_detach(uint16_t port, uint16_t queue, const void *callback);
int gen_port(const char *name, uint16_t *port);

struct gen_stream *gen_new(uint32_t descriptors);
void gen_release(struct gen_stream *s); // also frees the buffers in the queue

// Receive bursts of a queue and free all frames; the second reads each frame's first cache line too.
uint64_t gen_drain(uint16_t port, uint16_t queue, uint64_t polls); // returns the frames
void gen_drain_read(uint16_t port, uint16_t queue, uint64_t polls, uint64_t *sum);

#endif
