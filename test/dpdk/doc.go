// Package dpdk runs whole nodes whose packets come from DPDK, against ordinary
// senders: kernel sockets, `penstock load`, and a sender of raw frames.
//
// The laboratory is this, and has neither a name nor a place in the machine's own
// network:
//
//	namespace "camera" (this process)            namespace "node"
//	 kernel sockets, raw frames                   penstock up
//	  cam0 ──────────── veth ─────────────────── node0 ── af_packet, af_xdp ── DPDK
//	  10.77.0.1, fd00:77::1                        │                    10.77.0.2, fd00:77::2
//	                                             bridge ── tap ─────────────── DPDK
//	  mgmt0 ─────────── veth ─────────────────── mgmt1
//	  10.79.0.1                                   10.79.0.2: status, metrics
//
// The test binary runs itself again in network, mount and process namespaces of its
// own. When that process ends, however it ends, the kernel ends whatever it started
// and removes every interface: there is nothing to take down by hand.
//
// `make test-dpdk` runs it, as root. Without, every test is skipped and says so; a
// test that needs what the machine lacks (XDP, huge pages) says that.
package dpdk
