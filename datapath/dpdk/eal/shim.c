//go:build dpdk

#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rte_bus.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_flow.h>
#include <rte_ip.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_udp.h>

_Static_assert(sizeof(struct pst_entry) == 16, "Go reads entries");
_Static_assert(offsetof(struct pst_ring, tail) == PST_LINE, "Go reads tail");
_Static_assert(offsetof(struct pst_ring, entries) == 3 * PST_LINE, "Go reads entries");

_Static_assert(sizeof(struct pst_private) == sizeof(struct rte_pktmbuf_pool_private), "Go makes room for it");
_Static_assert(PST_NO_DMA == RTE_MEMPOOL_F_NO_IOVA_CONTIG, "Go sets it");
_Static_assert(sizeof(struct rte_mbuf) == 128 && RTE_PKTMBUF_HEADROOM == 128, "Go counts them");

#define load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

// Ports.

int pst_probe(const char *spec, const char *name, uint16_t *id)
{
	if (rte_eth_dev_get_port_by_name(name, id) == 0)
		return -EEXIST;
	int err = rte_dev_probe(spec);
	if (err < 0)
		return err;
	return pst_find(name, id);
}

int pst_find(const char *name, uint16_t *id) { return rte_eth_dev_get_port_by_name(name, id); }

int pst_remove(uint16_t id)
{
	struct rte_eth_dev_info info;
	int err = rte_eth_dev_info_get(id, &info);
	if (err != 0)
		return err;
	rte_eth_dev_close(id);
	return rte_dev_remove(info.device);
}

int pst_info(uint16_t id, struct pst_info *out)
{
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	int err = rte_eth_dev_info_get(id, &info);
	if (err != 0)
		return err;
	if ((err = rte_eth_macaddr_get(id, &mac)) != 0)
		return err;
	memset(out, 0, sizeof *out);
	snprintf(out->driver, sizeof out->driver, "%s", info.driver_name ? info.driver_name : "");
	memcpy(out->mac, mac.addr_bytes, 6);
	out->max_rxq = info.max_rx_queues;
	out->max_txq = info.max_tx_queues;
	out->socket = rte_eth_dev_socket_id(id);
	const struct rte_bus *bus = rte_dev_bus(info.device);
	out->pci = bus != NULL && strcmp(rte_bus_name(bus), "pci") == 0;
	return 0;
}

#define RX_CHECKSUMS (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM)
#define TX_CHECKSUMS (RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM)

int pst_configure(uint16_t id, struct pst_config *c, void *pool)
{
	struct rte_eth_dev_info info;
	struct rte_eth_conf conf;
	int err = rte_eth_dev_info_get(id, &info);
	if (err != 0)
		return err;
	memset(&conf, 0, sizeof conf);
	if (c->mtu != 0 && info.max_mtu != 0 && c->mtu > info.max_mtu)
		c->mtu = info.max_mtu;
	conf.rxmode.mtu = c->mtu;
	c->checksum_rx = c->checksum_rx && (info.rx_offload_capa & RX_CHECKSUMS) == RX_CHECKSUMS;
	c->checksum_tx = c->checksum_tx && (info.tx_offload_capa & TX_CHECKSUMS) == TX_CHECKSUMS;
	if (c->checksum_rx)
		conf.rxmode.offloads |= RX_CHECKSUMS;
	if (c->checksum_tx)
		conf.txmode.offloads |= TX_CHECKSUMS;
	uint64_t hash = info.flow_type_rss_offloads &
		(RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP | RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_IPV6);
	c->rss = c->rss && c->rxq > 1 && hash != 0;
	if (c->rss) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = hash;
	}
	if ((err = rte_eth_dev_configure(id, c->rxq, c->txq, &conf)) != 0)
		return err;
	if ((err = rte_eth_dev_adjust_nb_rx_tx_desc(id, &c->rxd, &c->txd)) != 0)
		return err;
	int socket = rte_eth_dev_socket_id(id);
	struct rte_eth_rxconf rx = info.default_rxconf;
	rx.offloads = conf.rxmode.offloads;
	for (uint16_t q = 0; q < c->rxq; q++)
		if ((err = rte_eth_rx_queue_setup(id, q, c->rxd, socket, &rx, pool)) != 0)
			return err;
	struct rte_eth_txconf tx = info.default_txconf;
	tx.offloads = conf.txmode.offloads;
	for (uint16_t q = 0; q < c->txq; q++)
		if ((err = rte_eth_tx_queue_setup(id, q, c->txd, socket, &tx)) != 0)
			return err;
	return 0;
}

static int removed(uint16_t id, enum rte_eth_event_type event, void *arg, void *ret)
{
	(void)id, (void)event, (void)ret;
	store_release(&((struct pst_port *)arg)->removed, 1);
	return 0;
}

int pst_start(uint16_t id, struct pst_port *port)
{
	int err = rte_eth_dev_start(id);
	if (err != 0)
		return err;
	// A driver without the event, or without a filter that blocks multicasts, returns
	// ENOTSUP; it needs neither call.
	rte_eth_dev_callback_register(id, RTE_ETH_EVENT_INTR_RMV, removed, port);
	rte_eth_allmulticast_enable(id);
	return 0;
}

int pst_stop(uint16_t id, struct pst_port *port)
{
	rte_eth_dev_callback_unregister(id, RTE_ETH_EVENT_INTR_RMV, removed, port);
	return rte_eth_dev_stop(id);
}

int pst_lost(uint16_t id, uint64_t *missed, uint64_t *no_mbuf)
{
	struct rte_eth_stats s;
	int err = rte_eth_stats_get(id, &s);
	if (err != 0)
		return err;
	*missed = s.imissed;
	*no_mbuf = s.rx_nombuf;
	return 0;
}

int pst_link(uint16_t id, uint32_t *mbps)
{
	struct rte_eth_link link;
	memset(&link, 0, sizeof link);
	int err = rte_eth_link_get_nowait(id, &link);
	if (err != 0)
		return err;
	*mbps = link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
	return link.link_status;
}

// Every rule of a port has the same pattern and mask. i40e accepts one input set per packet
// type (its guide: "Conflict with the first rule's input set").
void *pst_flow(uint16_t id, int v6, uint16_t udp_port, uint16_t queue, char *why, size_t whylen)
{
	struct rte_flow_attr attr = {.ingress = 1};
	struct rte_flow_item_udp spec = {.hdr.dst_port = rte_cpu_to_be_16(udp_port)};
	struct rte_flow_item_udp mask = {.hdr.dst_port = RTE_BE16(0xffff)};
	struct rte_flow_item pattern[] = {
		{.type = RTE_FLOW_ITEM_TYPE_ETH},
		{.type = v6 ? RTE_FLOW_ITEM_TYPE_IPV6 : RTE_FLOW_ITEM_TYPE_IPV4},
		{.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &spec, .mask = &mask},
		{.type = RTE_FLOW_ITEM_TYPE_END},
	};
	struct rte_flow_action_queue to = {.index = queue};
	struct rte_flow_action actions[] = {
		{.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &to},
		{.type = RTE_FLOW_ACTION_TYPE_END},
	};
	struct rte_flow_error error;
	memset(&error, 0, sizeof error);
	struct rte_flow *flow = NULL;
	if (rte_flow_validate(id, &attr, pattern, actions, &error) == 0)
		flow = rte_flow_create(id, &attr, pattern, actions, &error);
	if (flow == NULL)
		snprintf(why, whylen, "%s", error.message ? error.message : rte_strerror(rte_errno));
	return flow;
}

int pst_flow_destroy(uint16_t id, void *flow)
{
	struct rte_flow_error error;
	return rte_flow_destroy(id, flow, &error);
}

// Memory.

int pst_fill_pool(void *pool, uint16_t room)
{
	struct rte_mempool *mp = pool;
	struct rte_pktmbuf_pool_private private = {.mbuf_data_room_size = room};
	int err = rte_mempool_set_ops_byname(mp, rte_mbuf_best_mempool_ops(), NULL);
	if (err != 0)
		return err;
	rte_pktmbuf_pool_init(mp, &private);
	if ((err = rte_mempool_populate_default(mp)) < 0)
		return err;
	rte_mempool_obj_iter(mp, rte_pktmbuf_init, NULL);
	return 0;
}

struct objects {
	uint8_t *base;
	uint64_t *offsets;
	uint32_t n, room;
};

static void object(struct rte_mempool *pool, void *opaque, void *obj, unsigned index)
{
	struct objects *o = opaque;
	(void)pool, (void)index;
	if (o->n < o->room)
		o->offsets[o->n] = (uint8_t *)obj - o->base;
	o->n++;
}

uint32_t pst_objects(void *pool, uint8_t *base, uint64_t *offsets, uint32_t n)
{
	struct objects o = {base, offsets, 0, n};
	rte_mempool_obj_iter(pool, object, &o);
	return o.n;
}

int pst_memory(void *pool, uint8_t **base, uint64_t *bytes, int *fd)
{
	struct rte_mempool *mp = pool;
	struct rte_mempool_memhdr *chunk;
	struct rte_memseg_list *list = NULL;
	uint64_t end = 0;
	STAILQ_FOREACH(chunk, &mp->mem_list, next) {
		struct rte_memseg_list *of = rte_mem_virt2memseg_list(chunk->addr);
		if (of == NULL)
			return -EFAULT;
		if (list != NULL && of != list)
			return -EXDEV;
		list = of;
		uint64_t last = (uint8_t *)chunk->addr + chunk->len - (uint8_t *)list->base_va;
		end = RTE_MAX(end, last);
	}
	if (list == NULL)
		return -ENOMEM;
	end = RTE_ALIGN_CEIL(end, list->page_sz);
	// There must be one file, with offsets equal to address differences, and no gap before
	// the end.
	int first = -1;
	for (uint64_t at = 0; at < end; at += list->page_sz) {
		const void *va = (uint8_t *)list->base_va + at;
		const struct rte_memseg *seg = rte_mem_virt2memseg(va, list);
		if (seg == NULL || seg->addr != va)
			return -ENXIO;
		if (at != 0 && at + list->page_sz < end && at % (64 * list->page_sz) != 0)
			continue; // checking the file of each 64th page is enough
		size_t offset;
		int of = rte_memseg_get_fd(seg);
		if (of < 0)
			return of;
		if (first < 0)
			first = of;
		if (of != first || rte_memseg_get_fd_offset(seg, &offset) != 0 || offset != at)
			return -EXDEV;
	}
	*base = list->base_va;
	*bytes = end;
	*fd = first;
	return 0;
}

uint32_t pst_available(void *pool) { return rte_mempool_avail_count(pool); }

// The structures that Go and the pollers share are not in packet memory. They come from the C
// library, and no inference function sees them.
static void *zeroed(size_t bytes)
{
	void *memory = aligned_alloc(PST_LINE, RTE_ALIGN_CEIL(bytes, PST_LINE));
	if (memory != NULL)
		memset(memory, 0, RTE_ALIGN_CEIL(bytes, PST_LINE));
	return memory;
}

struct pst_port *pst_port_new(void) { return zeroed(sizeof(struct pst_port)); }
struct pst_poller *pst_poller_new(void) { return zeroed(sizeof(struct pst_poller)); }

struct pst_ring *pst_ring_new(uint32_t entries)
{
	struct pst_ring *ring = zeroed(sizeof *ring + entries * sizeof(struct pst_entry));
	if (ring != NULL)
		ring->mask = entries - 1;
	return ring;
}

struct pst_sink *pst_sink_new(int event)
{
	struct pst_sink *sink = zeroed(sizeof *sink);
	if (sink != NULL)
		sink->event = event;
	return sink;
}

void pst_release(void *memory) { free(memory); }

// Polling.

static inline int is_tag(uint32_t type)
{
	return type == RTE_ETHER_TYPE_VLAN || type == RTE_ETHER_TYPE_QINQ || type == RTE_ETHER_TYPE_QINQ1;
}

// Returns the number of the sink for a frame. It only sorts: the consumer parses and checks
// everything again. Frames that are not plain UDP for a function's port go to sink 0.
static inline uint32_t classify(const struct pst_port *port, const uint8_t *b, uint32_t length)
{
	uint32_t at = 12;
	if (length < 14 + 20 + 8)
		return 0;
	uint32_t type = b[at] << 8 | b[at + 1];
	for (int tags = 0; tags < 2 && is_tag(type); tags++) {
		at += 4;
		type = b[at] << 8 | b[at + 1];
	}
	at += 2;
	if (type == RTE_ETHER_TYPE_IPV4) {
		const uint8_t *ip = b + at;
		if (length < at + 20 || ip[9] != IPPROTO_UDP || (ip[6] & 0x3f) != 0 || ip[7] != 0)
			return 0;
		at += (ip[0] & 0xf) * 4;
	} else if (type == RTE_ETHER_TYPE_IPV6) {
		if (length < at + 40 || b[at + 6] != IPPROTO_UDP)
			return 0;
		at += 40;
	} else {
		return 0;
	}
	if (length < at + 8)
		return 0;
	return port->table[b[at + 2] << 8 | b[at + 3]];
}

// Returns which of several members gets a client's frames: a hash of the client's address and
// UDP port, the same as Member in poller_unsafe.go. classify has found the frame to be plain
// UDP.
static uint32_t member_of(const uint8_t *b, uint32_t members)
{
	uint32_t at = 12;
	uint32_t type = b[at] << 8 | b[at + 1];
	while (is_tag(type)) {
		at += 4;
		type = b[at] << 8 | b[at + 1];
	}
	at += 2;
	uint64_t hash, rest;
	rte_be32_t v4;
	if (type == RTE_ETHER_TYPE_IPV4) {
		memcpy(&v4, b + at + 12, sizeof v4);
		hash = rte_be_to_cpu_32(v4);
		at += (b[at] & 0xf) * 4;
	} else {
		memcpy(&hash, b + at + 8, sizeof hash);
		memcpy(&rest, b + at + 16, sizeof rest);
		hash = rte_be_to_cpu_64(hash) * PST_FLOW_FACTOR ^ rte_be_to_cpu_64(rest);
		at += 40;
	}
	hash ^= (uint64_t)(b[at] << 8 | b[at + 1]) << 32;
	hash *= PST_FLOW_FACTOR;
	return (hash >> 32) * members >> 32;
}

static inline uint16_t flags_of(const struct rte_mbuf *m)
{
	uint16_t flags = 0;
	uint64_t ip = m->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK, l4 = m->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
	if (ip == RTE_MBUF_F_RX_IP_CKSUM_GOOD)
		flags |= PST_IP_GOOD;
	else if (ip == RTE_MBUF_F_RX_IP_CKSUM_BAD)
		flags |= PST_IP_BAD;
	if (l4 == RTE_MBUF_F_RX_L4_CKSUM_GOOD)
		flags |= PST_UDP_GOOD;
	else if (l4 == RTE_MBUF_F_RX_L4_CKSUM_BAD)
		flags |= PST_UDP_BAD;
	if (m->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED)
		flags |= PST_TAGGED;
	return flags;
}

static void ring_bell(struct pst_sink *sink)
{
	static const uint64_t one = 1;
	// The consumer sets sleeping, then reads the tails once more. So write the tails first,
	// then read sleeping.
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&sink->sleeping, __ATOMIC_RELAXED) &&
	    __atomic_exchange_n(&sink->sleeping, 0, __ATOMIC_SEQ_CST) && sink->event >= 0) {
		ssize_t written = write(sink->event, &one, sizeof one);
		(void)written; // the write fails only if the counter is full, which is readable too
	}
}

static uint32_t poll_queue(struct pst_poller *p, uint16_t queue)
{
	struct pst_port *port = p->port;
	struct rte_mbuf *burst[PST_BURST], *unwanted[PST_BURST];
	struct pst_sink *touched[PST_BURST];
	uint32_t none = 0, touches = 0;
	uint32_t n = rte_eth_rx_burst(port->id, queue, burst, PST_BURST);
	if (n == 0)
		return 0;
	uint32_t backlog = __atomic_load_n(&port->backlog, __ATOMIC_RELAXED);
	uint32_t strays = __atomic_load_n(&port->strays, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < n; i++)
		rte_prefetch0(rte_pktmbuf_mtod(burst[i], void *));
	for (uint32_t i = 0; i < n; i++) {
		struct rte_mbuf *m = burst[i];
		if (unlikely(m->nb_segs != 1)) {
			p->scattered++;
			unwanted[none++] = m;
			continue;
		}
		if (unlikely(m->pool != port->pool || !RTE_MBUF_DIRECT(m))) {
			// Memory outside the pool is not in the slab: copy the frame.
			struct rte_mbuf *copy = rte_pktmbuf_copy(m, port->pool, 0, UINT32_MAX);
			unwanted[none++] = m;
			if (copy == NULL) {
				p->nocopy++;
				continue;
			}
			m = copy;
			if (m->nb_segs != 1) {
				p->scattered++;
				rte_pktmbuf_free(m);
				continue;
			}
		}
		const uint8_t *frame = rte_pktmbuf_mtod(m, uint8_t *);
		uint32_t length = rte_pktmbuf_data_len(m);
		struct pst_sink *sink = load_acquire(&port->sinks[classify(port, frame, length)]);
		if (unlikely(sink == NULL))
			sink = port->sinks[0]; // its owner is leaving
		if (sink->members > 1)
			sink = sink->member[member_of(frame, sink->members)];
		struct pst_ring *ring = sink->rings[p->number];
		uint32_t most = sink == port->sinks[0] ? strays : backlog;
		if (unlikely(ring->next - ring->seen >= most)) {
			ring->seen = load_acquire(&ring->head);
			if (ring->next - ring->seen >= most) {
				p->full++;
				ring->full++;
				unwanted[none++] = m;
				continue;
			}
		}
		ring->entries[ring->next++ & ring->mask] = (struct pst_entry){
			.at = frame - port->base, .length = length, .flags = flags_of(m),
			.tag = m->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED ? m->vlan_tci : 0,
		};
		if (!ring->dirty) {
			ring->dirty = 1;
			touched[touches++] = sink;
		}
	}
	for (uint32_t i = 0; i < touches; i++) {
		struct pst_ring *ring = touched[i]->rings[p->number];
		ring->dirty = 0;
		store_release(&ring->tail, ring->next);
	}
	for (uint32_t i = 0; i < touches; i++)
		ring_bell(touched[i]);
	if (none != 0)
		rte_pktmbuf_free_bulk(unwanted, none);
	return n;
}

// Number of empty polls in a row before a poller may nap: some tens of microseconds.
#define POLLS_BEFORE_NAP 1024

void pst_poll(struct pst_poller *p)
{
	uint32_t idle = 0;
	uint64_t spin = rte_get_tsc_hz() / 1000000 * (p->spin_ns / 1000), since = 0;
	while (!load_acquire(&p->stop)) {
		uint32_t got = 0;
		for (uint32_t q = 0; q < p->queues; q++)
			got += poll_queue(p, p->queue[q]);
		store_release(&p->epoch, p->epoch + 1);
		if (got != 0) {
			idle = 0;
			continue;
		}
		if (p->nap_ns == 0) {
			rte_pause();
		} else if (++idle == POLLS_BEFORE_NAP) {
			since = rte_rdtsc();
		} else if (idle > POLLS_BEFORE_NAP) {
			idle = POLLS_BEFORE_NAP; // stop counting
			if (spin != 0 && rte_rdtsc() - since < spin) {
				rte_pause();
				continue;
			}
			struct timespec nap = {.tv_nsec = p->nap_ns};
			nanosleep(&nap, NULL);
		}
	}
}

void pst_turns(struct pst_poller *p, uint32_t n)
{
	while (n-- > 0) {
		for (uint32_t q = 0; q < p->queues; q++)
			poll_queue(p, p->queue[q]);
		store_release(&p->epoch, p->epoch + 1);
	}
}

// Outgoing frames, and returned mbufs.

int pst_alloc(void *pool, const uint8_t *base, uint64_t *mbufs, uint64_t *data, uint32_t n)
{
	struct rte_mbuf *m[PST_BURST];
	if (n > PST_BURST)
		return -EINVAL;
	int err = rte_pktmbuf_alloc_bulk(pool, m, n);
	if (err != 0)
		return err;
	for (uint32_t i = 0; i < n; i++) {
		mbufs[i] = (uint8_t *)m[i] - base;
		data[i] = rte_pktmbuf_mtod(m[i], uint8_t *) - base;
	}
	return 0;
}

void pst_free(uint8_t *base, const uint64_t *mbufs, uint32_t n)
{
	struct rte_mbuf *m[PST_BURST];
	while (n > 0) {
		uint32_t k = RTE_MIN(n, (uint32_t)PST_BURST);
		for (uint32_t i = 0; i < k; i++)
			m[i] = (struct rte_mbuf *)(base + mbufs[i]);
		rte_pktmbuf_free_bulk(m, k);
		mbufs += k;
		n -= k;
	}
}

// How long to wait for a full transmit queue. A wire of 10 Gb/s sends 800 frames in that
// time.
#define SEND_PATIENCE_US 1000

uint32_t pst_send(uint16_t id, uint16_t queue, uint8_t *base, const uint64_t *mbufs,
		  const uint32_t *lengths, const uint32_t *offloads, uint32_t n)
{
	struct rte_mbuf *m[PST_BURST];
	uint32_t sent = 0;
	n = RTE_MIN(n, (uint32_t)PST_BURST);
	for (uint32_t i = 0; i < n; i++) {
		m[i] = (struct rte_mbuf *)(base + mbufs[i]);
		m[i]->data_len = m[i]->pkt_len = lengths[i];
		if (offloads[i] != 0) {
			m[i]->l2_len = offloads[i] & 0xff;
			m[i]->l3_len = offloads[i] >> 8 & 0xff;
			m[i]->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM |
				(offloads[i] >> 24 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM);
		}
	}
	uint64_t until = rte_get_timer_cycles() + rte_get_timer_hz() / 1000000 * SEND_PATIENCE_US;
	while (sent < n) {
		uint32_t k = rte_eth_tx_burst(id, queue, m + sent, n - sent);
		sent += k;
		if (k == 0) {
			if (rte_get_timer_cycles() > until)
				break;
			rte_pause();
		}
	}
	if (sent < n)
		rte_pktmbuf_free_bulk(m + sent, n - sent);
	return sent;
}

