// Requests that come into being in a port's receive call: see doc.go.
#ifndef PENSTOCK_GENERATE_H
#define PENSTOCK_GENERATE_H

#include <stdint.h>

#define GEN_HEADERS 64 // Ethernet, IPv4, UDP and Penstock's own, as in every frame

// One queue's traffic. All but limit is written before the port is polled, and is the
// callback's from then on.
struct gen_stream {
	uint8_t headers[GEN_HEADERS]; // of a request's first piece, but for what counts up
	uint32_t pieces, piece_bytes; // of a request; all pieces are full
	uint32_t request, piece;      // next
	uint64_t limit;               // frames in all, ~0 for no end
	uint64_t made;                // frames
};

// Returns NULL where the port or queue is not there.
const void *gen_attach(uint16_t port, uint16_t queue, struct gen_stream *s);
int gen_detach(uint16_t port, uint16_t queue, const void *callback);
int gen_port(const char *name, uint16_t *port);

struct gen_stream *gen_new(void);
void gen_release(struct gen_stream *s);

#endif
