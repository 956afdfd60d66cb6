package kubetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The network of a cluster with real nodes. This program's network namespace is the machine outside the cluster: it
// has the control plane and a bridge to all nodes, and clients run there.
//
//	10.250.0.1        bridge, API server
//	10.250.0.10+i     node i, from 1
//	10.251.i.0/24     pods of node i
//	10.252.0.0/16     Services, by way of node 1 (ServicesVia)
const (
	bridgeAddress = "10.250.0.1"
	pods          = "10.251.0.0/16"
)

// Debian's folders of CNI plugins and of programs that a user's PATH may lack.
const (
	pluginFolder = "/usr/lib/cni"
	systemPath   = "/usr/sbin:/usr/bin:/sbin:/bin"
)

// needed are the programs of Debian packages.
var needed = map[string]string{
	"/usr/sbin/runc":           "runc",
	"/usr/sbin/nft":            "nftables",
	pluginFolder + "/bridge":   "containernetworking-plugins",
	pluginFolder + "/loopback": "containernetworking-plugins",
}

// NodeOptions say what real nodes have.
type NodeOptions struct {
	Labels map[string]string
	GPUs   []GPU
	// Images are archives, in docker's or OCI's form, that the nodes can run. Pods need imagePullPolicy: Never.
	Images []string
}

// Node is a real node.
type Node struct {
	Name    string
	Address string
	Driver  *Driver

	Containerd, Kubelet, Proxy *Process

	cluster *Cluster
	number  int
	folder  string
}

// Nodes returns the real nodes.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// StartNodes starts n real nodes, named node-1, node-2 and so on, and waits until they are Ready. The program must be
// Isolated, and may have one cluster with nodes. The control plane needs Controllers and Scheduler.
func (c *Cluster) StartNodes(ctx context.Context, n int, o NodeOptions) error {
	if !isolated() {
		return fmt.Errorf("%w: real nodes need root and namespaces of their own; call kubetest.Isolated first", ErrUnsupported)
	}
	var missing []string
	for path, name := range needed {
		if _, err := os.Stat(path); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("start nodes: programs are missing: apt-get install %s", strings.Join(missing, " "))
	}
	pause, err := c.writePauseImage()
	if err != nil {
		return err
	}

	var started []*Node
	for range n {
		number := len(c.nodes) + 1
		node := &Node{
			Name: fmt.Sprintf("node-%d", number), Address: fmt.Sprintf("10.250.0.%d", 10+number),
			cluster: c, number: number, folder: c.folder.file(fmt.Sprintf("n%d", number)),
		}
		node.Driver = &Driver{
			node: node.Name, plugin: node.file("kubelet"), cdi: node.file("cdi"), client: c.client, gpus: o.GPUs,
		}
		c.nodes = append(c.nodes, node)
		started = append(started, node)
	}

	for _, node := range started {
		if err := node.prepare(); err != nil {
			return fmt.Errorf("prepare %s: %w", node.Name, err)
		}
	}
	return each(started, func(node *Node) error {
		err := node.start(ctx, append([]string{pause}, o.Images...), o.Labels)
		if err != nil {
			return fmt.Errorf("start %s: %w", node.Name, err)
		}
		return nil
	})
}

// each calls f for all nodes at once.
func each(nodes []*Node, f func(*Node) error) error {
	results := make(chan error)
	for _, node := range nodes {
		go func() { results <- f(node) }()
	}
	var failures []error
	for range nodes {
		failures = append(failures, <-results)
	}
	return errors.Join(failures...)
}

func (n *Node) file(elements ...string) string {
	return filepath.Join(append([]string{n.folder}, elements...)...)
}

// cgroup is the node's control group, below the one that the supervisor removes.
func (n *Node) cgroup() string {
	return filepath.Base(n.cluster.folder.path) + "/" + n.Name
}

// prepare makes the folders, the control groups and the network of a node.
func (n *Node) prepare() error {
	for _, dir := range []string{"cdi", "cni", "kubelet", "log"} {
		if err := os.MkdirAll(n.file(dir), 0o755); err != nil {
			return err
		}
	}
	if err := makeCgroups(n.cgroup()); err != nil {
		return err
	}
	err := ip(fmt.Sprintf(`
		netns add %[1]s
		link add veth%[2]d type veth peer name eth0 netns %[1]s
		link set veth%[2]d master br0 up
		netns exec %[1]s sysctl -qw net.ipv4.ip_forward=1
		-n %[1]s link set lo up
		-n %[1]s addr add %[3]s/24 dev eth0
		-n %[1]s link set eth0 up
		-n %[1]s route add default via %[4]s
		route add %[5]s via %[3]s`, n.Name, n.number, n.Address, bridgeAddress, n.pods()))
	if err != nil {
		return err
	}
	if n.number == 1 {
		return n.cluster.ServicesVia(n)
	}
	for _, other := range n.cluster.nodes[:n.number-1] {
		err := ip(fmt.Sprintf(`
			-n %s route add %s via %s
			-n %s route add %s via %s`, n.Name, other.pods(), other.Address, other.Name, n.pods(), n.Address))
		if err != nil {
			return err
		}
	}
	return nil
}

// pods is the range of addresses of the node's pods.
func (n *Node) pods() string { return fmt.Sprintf("10.251.%d.0/24", n.number) }

// ServicesVia lets this program reach Services by way of a node. At first, that is the first one.
func (c *Cluster) ServicesVia(n *Node) error {
	return ip(fmt.Sprintf("route replace %s via %s", services, n.Address))
}

// Cut cuts the node off from the network. Its pods run on.
func (n *Node) Cut() error { return ip(fmt.Sprintf("link set veth%d down", n.number)) }

// Mend ends Cut.
func (n *Node) Mend() error { return ip(fmt.Sprintf("link set veth%d up", n.number)) }

// makeBridge makes the network of nodes.
func makeBridge() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	return ip(fmt.Sprintf(`
		link add br0 type bridge
		addr add %s/24 dev br0
		link set br0 up`, bridgeAddress))
}

// ip runs the ip command for each line.
func ip(lines string) error {
	for line := range strings.Lines(strings.TrimSpace(lines)) {
		if output, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("run ip %s: %w: %s", strings.TrimSpace(line), err, output)
		}
	}
	return nil
}

// run starts a program in the node's network namespace. ip netns exec would hide its mounts from the others.
func (n *Node) run(program string, arguments ...string) (*Process, error) {
	path, err := n.cluster.program(program)
	if err != nil {
		return nil, err
	}
	command := append([]string{"nsenter", "--net=/run/netns/" + n.Name, path}, arguments...)
	name := n.Name + "-" + program
	// Containerd finds its shim next to itself, and runc in the system's folders.
	return n.cluster.Run(name, []string{"PATH=" + filepath.Dir(path) + ":" + systemPath}, command...)
}

func (n *Node) start(ctx context.Context, images []string, labels map[string]string) error {
	if err := n.writeFiles(); err != nil {
		return err
	}

	var err error
	if n.Containerd, err = n.run("containerd", "-c", n.file("containerd.toml")); err != nil {
		return err
	}
	if err := n.AwaitContainerd(ctx); err != nil {
		return err
	}
	for _, image := range images {
		if err := n.Import(ctx, image); err != nil {
			return err
		}
	}

	n.Kubelet, err = n.run("kubelet", "--config", n.file("kubelet.yaml"), "--kubeconfig", n.file("kubelet.kubeconfig"),
		"--root-dir", n.file("kubelet"), "--cert-dir", n.file("pki"), "--hostname-override", n.Name,
		"--node-ip", n.Address, "--node-labels", joinLabels(labels))
	if err != nil {
		return err
	}
	if n.Proxy, err = n.run("kube-proxy", "--config", n.file("proxy.yaml")); err != nil {
		return err
	}
	if err := n.Kubelet.await(ctx, n.ready); err != nil {
		return err
	}
	return n.Driver.Start(ctx)
}

// ready returns an error unless the API server has the node as Ready.
func (n *Node) ready(ctx context.Context) error {
	node, err := n.cluster.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		} else if condition.Type == corev1.NodeReady {
			return errors.New(condition.Message)
		}
	}
	return errors.New("the node has no condition yet")
}

// AwaitContainerd waits until containerd answers, for example after its Process was started again. A kubelet ends if
// it starts earlier.
func (n *Node) AwaitContainerd(ctx context.Context) error {
	return n.Containerd.await(ctx, func(context.Context) error {
		c, err := net.Dial("unix", n.socket())
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func (n *Node) socket() string { return n.file("containerd.sock") }

// Import lets the node's pods run the images of an archive.
func (n *Node) Import(ctx context.Context, archive string) error {
	path, err := n.cluster.program("ctr")
	if err != nil {
		return err
	}
	output, err := exec.CommandContext(ctx, path, "-a", n.socket(), "-n", "k8s.io", "images", "import", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import images from %s: %w: %s", archive, err, output)
	}
	return nil
}

func joinLabels(labels map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, key+"="+labels[key])
	}
	return strings.Join(all, ",")
}
