//go:build dpdk && cgo

#include "generate.h"

#include <stdlib.h>
#include <string.h>

#include <rte_byteorder.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

// Offsets of the fields that change per frame. Penstock's header begins at 42
// (docs/wire.md).
#define AT_FLAGS 45
#define AT_REQUEST 46
#define AT_OFFSET 50
#define AT_INDEX 58
#define FLAG_LAST 1

static uint16_t fill(uint16_t port, uint16_t queue, struct rte_mbuf *m[], uint16_t n, uint16_t max, void *user)
{
	struct gen_stream *s = user;
	(void)port, (void)queue, (void)max;
	uint64_t limit = __atomic_load_n(&s->limit, __ATOMIC_RELAXED);
	uint64_t allowed = limit > s->made ? limit - s->made : 0; // limit may have been lowered
	uint16_t kept = RTE_MIN(n, allowed);
	if (kept < n)
		rte_pktmbuf_free_bulk(m + kept, n - kept);
	uint16_t out = 0;
	for (uint16_t i = 0; i < kept; i++) {
		struct rte_mbuf *posted = s->posted[s->next];
		s->posted[s->next] = m[i];
		if (++s->next == s->descriptors)
			s->next = 0;
		if (s->waiting < s->descriptors) { // the ring is not full yet
			s->waiting++;
			continue;
		}
		m[out++] = posted;
		uint8_t *b = rte_pktmbuf_mtod(posted, uint8_t *);
		uint32_t offset = s->piece * s->piece_bytes;
		uint16_t index = s->piece;
		uint32_t request = s->request;
		memcpy(b, s->headers, GEN_HEADERS);
		memcpy(b + AT_REQUEST, &request, sizeof request);
		memcpy(b + AT_OFFSET, &offset, sizeof offset);
		memcpy(b + AT_INDEX, &index, sizeof index);
		if (s->whole)
			memcpy(b + GEN_HEADERS, s->payload, s->piece_bytes);
		if (++s->piece == s->pieces) {
			b[AT_FLAGS] |= FLAG_LAST;
			s->piece = 0;
			s->request++;
		}
	}
	s->made += out;
	return out;
}

const void *gen_attach(uint16_t port, uint16_t queue, struct gen_stream *s)
{
	struct rte_ether_addr mac;
	if (rte_eth_macaddr_get(port, &mac) != 0)
		return NULL;
	memcpy(s->headers, mac.addr_bytes, sizeof mac.addr_bytes); // the destination
	return rte_eth_add_first_rx_callback(port, queue, fill, s);
}

int gen_detach(uint16_t port, uint16_t queue, const void *callback)
{
	return rte_eth_remove_rx_callback(port, queue, callback);
}

int gen_port(const char *name, uint16_t *port) { return rte_eth_dev_get_port_by_name(name, port); }

struct gen_stream *gen_new(uint32_t descriptors)
{
	struct gen_stream *s = calloc(1, sizeof *s);
	if (s == NULL)
		return NULL;
	s->descriptors = descriptors;
	s->posted = calloc(descriptors, sizeof s->posted[0]);
	if (s->posted == NULL) {
		free(s);
		return NULL;
	}
	return s;
}

void gen_release(struct gen_stream *s)
{
	for (uint32_t i = 0; i < s->descriptors; i++)
		rte_pktmbuf_free(s->posted[i]);
	free(s->posted);
	free(s);
}

enum { burst_size = 64, line_bytes = 64 };

uint64_t gen_drain(uint16_t port, uint16_t queue, uint64_t polls)
{
	struct rte_mbuf *burst[burst_size];
	uint64_t frames = 0;
	for (uint64_t i = 0; i < polls; i++) {
		uint16_t n = rte_eth_rx_burst(port, queue, burst, burst_size);
		rte_pktmbuf_free_bulk(burst, n);
		frames += n;
	}
	return frames;
}

void gen_drain_read(uint16_t port, uint16_t queue, uint64_t polls, uint64_t *sum)
{
	struct rte_mbuf *burst[burst_size];
	for (uint64_t i = 0; i < polls; i++) {
		uint16_t n = rte_eth_rx_burst(port, queue, burst, burst_size);
		for (uint16_t k = 0; k < n; k++)
			rte_prefetch0(rte_pktmbuf_mtod(burst[k], void *));
		for (uint16_t k = 0; k < n; k++) {
			const uint64_t *line = rte_pktmbuf_mtod(burst[k], uint64_t *);
			for (int w = 0; w < line_bytes / 8; w++)
				*sum += line[w];
		}
		rte_pktmbuf_free_bulk(burst, n);
	}
}
