// Package dpdk runs whole nodes whose packets come from DPDK, with ordinary senders: kernel
// sockets, `penstock load`, and a sender of raw frames.
//
// The tests use this laboratory, which does not appear in the machine's own network:
//
//	namespace "camera" (this process)            namespace "node"
//	 kernel sockets, raw frames                   penstock up
//	  cam0 ──────────── veth ─────────────────── node0 ── af_packet, af_xdp ── DPDK
//	  10.77.0.1, fd00:77::1                        │                    10.77.0.2, fd00:77::2
//	                                             bridge ── tap ─────────────── DPDK
//	  mgmt0 ─────────── veth ─────────────────── mgmt1
//	  10.79.0.1                                   10.79.0.2: status, metrics
//
// The test binary runs itself again in its own network, mount and process namespaces. When
// that process ends, however it ends, the kernel ends all its children and removes every
// interface, so there is nothing to clean up by hand.
//
// `make test-dpdk` runs the tests, as root. Without it every test is skipped with a message.
// A test that needs a feature that the machine lacks (XDP, huge pages) names that feature.
package dpdk
