// Requests that come into being in a port's receive call: see doc.go.
#ifndef PENSTOCK_GENERATE_H
#define PENSTOCK_GENERATE_H

#include <stdint.h>

#define GEN_HEADERS 64 // Ethernet, IPv4, UDP and Penstock's own, as in every frame
#define GEN_PAYLOAD 8192 // of a piece, at most

// One queue's traffic. All but limit is written before the port is polled, and is the
// callback's from then on.
struct gen_stream {
	uint8_t headers[GEN_HEADERS]; // of a request's first piece, but for what counts up
	uint32_t pieces, piece_bytes; // of a request; all pieces are full
	uint32_t request, piece;      // next
	uint64_t limit;               // frames in all, ~0 for no end
	uint64_t made;                // frames
	// Buffers that wait to be written, as on a NIC's ring of descriptors: the one
	// that waited longest is next, and a new one takes its place.
	uint32_t descriptors, next, waiting;
	uint8_t whole;                // write the payload, too
	void **posted;
	uint8_t payload[GEN_PAYLOAD];
};

// Returns NULL where the port or queue is not there.
const void *gen_attach(uint16_t port, uint16_t queue, struct gen_stream *s);
int gen_detach(uint16_t port, uint16_t queue, const void *callback);
int gen_port(const char *name, uint16_t *port);

struct gen_stream *gen_new(uint32_t descriptors);
void gen_release(struct gen_stream *s); // buffers that wait are freed, too

#endif
