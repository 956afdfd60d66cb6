// The part of DPDK that go-dpdk does not cover: Ethernet ports, and the loop
// that polls them. Go includes this file for the structures; DPDK's own headers
// stay in shim.c.
#ifndef PENSTOCK_SHIM_H
#define PENSTOCK_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define PST_LINE 64
#define PST_BURST 64      // max mbufs per poll of a queue
#define PST_QUEUES 64     // queues of one poller
#define PST_POLLERS 64    // pollers of one port
#define PST_SINKS 256     // sink 0 takes frames that no other sink takes

// Results of a NIC or the kernel about a frame.
#define PST_IP_GOOD 1
#define PST_UDP_GOOD 2
#define PST_IP_BAD 4
#define PST_UDP_BAD 8
#define PST_TAGGED 16     // the tag was removed from the frame

#define PST_FLOW_FACTOR UINT64_C(0x9e3779b97f4a7c15) // 2^64 / the golden ratio, odd

// struct rte_pktmbuf_pool_private and RTE_MEMPOOL_F_NO_IOVA_CONTIG, which shim.c compares.
struct pst_private {
	uint16_t room, priv;
	uint32_t flags;
};
#define PST_NO_DMA 0x20

// A frame in packet memory: at is the offset of its first byte in that memory.
struct pst_entry {
	uint64_t at;
	uint32_t length;
	uint16_t flags;
	uint16_t tag;
};

// A ring of one producer and one consumer (Lamport). The producer writes an
// entry, then tail; the consumer reads it, then writes head. Both count up and
// wrap.
struct pst_ring {
	uint32_t head __attribute__((aligned(PST_LINE))); // written by the consumer
	uint32_t tail __attribute__((aligned(PST_LINE))); // written by the producer, like all of this line
	uint32_t next, seen, dirty;
	uint64_t full; // frames that found no room
	uint32_t mask __attribute__((aligned(PST_LINE)));
	struct pst_entry entries[] __attribute__((aligned(PST_LINE)));
};

// A consumer of frames: one ring per poller, one bell for all.
struct pst_sink {
	uint32_t sleeping; // the consumer is asleep, or about to sleep, and wants event written
	int32_t event;     // an eventfd
	uint32_t members;  // if more than 1, each flow's frames go to one of member
	struct pst_ring *rings[PST_POLLERS];
	struct pst_sink *member[PST_QUEUES];
};

// Packet memory, and which sink gets which frames.
struct pst_port {
	uint8_t *base;
	uint64_t bytes;
	void *pool; // struct rte_mempool
	uint16_t id;
	uint32_t removed; // the device reported its removal
	uint32_t backlog; // frames that may wait in one ring, at most its entries
	uint32_t strays;  // the same for a ring of sink 0
	struct pst_sink *sinks[PST_SINKS];
	uint8_t table[65536]; // UDP destination port, as a number -> index of a sink
};

// The work of one lcore. Only that lcore writes the counters.
struct pst_poller {
	struct pst_port *port;
	uint32_t number, queues;
	uint16_t queue[PST_QUEUES];
	uint64_t nap_ns; // how long to sleep when idle; 0: never
	uint64_t spin_ns; // min idle time before that sleep
	uint32_t stop;
	uint64_t epoch __attribute__((aligned(PST_LINE))); // completed turns; other threads wait for it to change
	uint64_t full, scattered, nocopy;
};

struct pst_info {
	char driver[64];
	uint8_t mac[6];
	uint16_t max_rxq, max_txq;
	int32_t socket;
	int32_t pci; // a device on a bus, not one made of software
};

struct pst_config {
	uint16_t rxq, txq, rxd, txd, mtu;
	int32_t checksum_rx, checksum_tx, rss;
};

// Functions return 0, or a negative errno.

int pst_probe(const char *spec, const char *name, uint16_t *id);
int pst_find(const char *name, uint16_t *id);
int pst_remove(uint16_t id);
int pst_info(uint16_t id, struct pst_info *out);
int pst_configure(uint16_t id, struct pst_config *c, void *pool); // c->rxd, c->txd, mtu: what was taken
int pst_start(uint16_t id, struct pst_port *port);
int pst_stop(uint16_t id, struct pst_port *port);
int pst_lost(uint16_t id, uint64_t *missed, uint64_t *no_mbuf);
int pst_link(uint16_t id, uint32_t *mbps); // 1 up, 0 down
void *pst_flow(uint16_t id, int v6, uint16_t udp_port, uint16_t queue, char *why, size_t whylen);
int pst_flow_destroy(uint16_t id, void *flow);

// Makes mbufs of an empty pool.
int pst_fill_pool(void *pool, uint16_t room);

// Packet memory: the mapping that holds a pool, its file and its size so far.
int pst_memory(void *pool, uint8_t **base, uint64_t *bytes, int *fd);
uint32_t pst_objects(void *pool, uint8_t *base, uint64_t *offsets, uint32_t n);
uint32_t pst_available(void *pool);

struct pst_port *pst_port_new(void);
struct pst_poller *pst_poller_new(void);
struct pst_ring *pst_ring_new(uint32_t entries);
struct pst_sink *pst_sink_new(int event);
void pst_release(void *memory); // frees any of the four above

void pst_poll(struct pst_poller *p);
void pst_turns(struct pst_poller *p, uint32_t n); // n turns of the poller, on the caller's thread

// Outgoing frames: mbufs and the beginning of their data, both as offsets from
// base.
int pst_alloc(void *pool, const uint8_t *base, uint64_t *mbufs, uint64_t *data, uint32_t n);
void pst_free(uint8_t *base, const uint64_t *mbufs, uint32_t n);
// Each offload is l2 bytes | l3 bytes << 8 | 1 << 24 for IPv6, 0 for none.
uint32_t pst_send(uint16_t id, uint16_t queue, uint8_t *base, const uint64_t *mbufs,
		  const uint32_t *lengths, const uint32_t *offloads, uint32_t n);

#endif
