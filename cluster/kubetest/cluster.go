// Package kubetest runs real Kubernetes for tests: a control plane, kwok's simulated nodes, and real nodes with
// simulated GPUs.
//
//  1. `make cluster-tools` builds the programs once (package tools).
//  2. [Start] or [StartControlPlane] starts etcd and the API server, and what Options ask for.
//  3. [Cluster.AddFakeNodes] adds nodes that exist only as objects. kwok says that their pods run.
//  4. [Cluster.StartNodes] starts nodes with a kubelet, containerd and kube-proxy. This needs [Isolated], which
//     gives the whole test program namespaces of its own.
//
// Everything ends with the test program, even if it is killed: the kernel kills programs whose parent is gone, and
// all processes of a PID namespace whose first process is gone. Files and control groups that are left then are
// removed by Isolated's supervisor, or else by the next start.
package kubetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/penstock/penstock/cluster/kubetest/tools"
	"github.com/penstock/penstock/internal/freeport"
)

// ErrUnsupported says that this machine cannot run what a test needs. Its text excuses a skipped test in CI.
var ErrUnsupported = errors.New("not on this machine")

// services is the range of addresses of Services. The first is the API server's.
const (
	services      = "10.252.0.0/16"
	serverService = "10.252.0.1"
)

// Options say what a control plane has besides etcd and the API server.
type Options struct {
	// Scheduler binds pods to nodes.
	Scheduler bool
	// Controllers run kube-controller-manager: garbage collection, service accounts and their tokens, endpoints.
	// Without it, pods need no service account.
	Controllers bool
	// Kwok lets the pods of fake nodes run. In a program that is Isolated, their addresses are the program's own, so that
	// it can answer for them.
	Kwok bool
	// Lease is how long the lease of a fake node lasts. Kwok renews it four times as often. Half of it after the last time, the
	// node is no longer Ready. The default is 40 s, as for a kubelet.
	Lease time.Duration
	// Reviews is called with each request of a service account before it is authorized. It includes the rights that the API
	// server demands in addition, such as that to bind a role. Several goroutines may call it.
	Reviews func(authorizationv1.SubjectAccessReviewSpec)
	// Manifests are files or folders that are applied at last, such as the CRDs. Start waits until CRDs are served.
	Manifests []string
}

// Cluster is a running control plane and its nodes.
type Cluster struct {
	folder    *folder
	programs  map[string]string // folders, by program
	authority *authority
	server    string // URL
	admin     *rest.Config
	client    *kubernetes.Clientset
	processes map[string]*Process
	nodes     []*Node
	fakes     int // fake nodes
	reviews   *http.Server
}

// Start is StartControlPlane for a test, which ends the cluster. It skips the test if the tools are not built or
// this machine cannot run them.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()

	c, err := StartControlPlane(ctx, o)
	if errors.Is(err, ErrUnsupported) || errors.Is(err, tools.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// StartControlPlane starts a control plane. It is at 127.0.0.1 or, in a program that is Isolated, at an address that
// nodes reach. The context bounds the start only; Stop ends the cluster.
func StartControlPlane(ctx context.Context, o Options) (*Cluster, error) {
	programs, err := tools.Find()
	if err != nil {
		return nil, err
	}
	folder, err := newFolder()
	if err != nil {
		return nil, err
	}

	c := &Cluster{folder: folder, programs: programs, processes: map[string]*Process{}}
	if err := c.start(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("start a control plane: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, o Options) error {
	address := net.IPv4(127, 0, 0, 1)
	if isolated() {
		address = net.ParseIP(bridgeAddress)
		if err := makeBridge(); err != nil {
			return err
		}
	}
	if err := c.startServer(ctx, address, o); err != nil {
		return err
	}

	// Those below find the API server again by themselves. Like its other clients, they write as fast as it lets them.
	lease := cmp.Or(o.Lease, 40*time.Second)
	kubeconfig, fast := c.Kubeconfig(), []string{"--kube-api-qps=5000", "--kube-api-burst=5000"}
	if o.Controllers {
		err := c.run("kube-controller-manager", nil, append(fast,
			"--kubeconfig", kubeconfig, "--leader-elect=false", "--secure-port=0", "--allocate-node-cidrs=false",
			"--node-monitor-grace-period", (lease/2).String(), "--node-monitor-period=1s",
			"--service-account-private-key-file", c.folder.file("accounts.key"), "--root-ca-file", c.folder.file("ca.crt"))...)
		if err != nil {
			return err
		}
	}
	if o.Scheduler {
		if err := c.run("kube-scheduler", nil, append(fast, "--kubeconfig", kubeconfig, "--leader-elect=false", "--secure-port=0")...); err != nil {
			return err
		}
	}
	if o.Kwok {
		config := c.folder.file("kwok.yaml")
		if err := os.WriteFile(config, kwokStages, 0o644); err != nil {
			return err
		}
		if isolated() {
			if err := ip("route replace local " + fakePods + " dev lo"); err != nil {
				return err
			}
		}
		err := c.run("kwok", nil, "--config", config, "--cidr", fakePods, "--kubeconfig", kubeconfig, "--manage-all-nodes=false",
			"--node-lease-duration-seconds", strconv.Itoa(int(lease.Seconds())),
			"--manage-nodes-with-annotation-selector="+fakeAnnotation+"="+fakeValue)
		if err != nil {
			return err
		}
	}
	if err := c.awaitDefaults(ctx, o); err != nil {
		return err
	}
	if err := c.apply(ctx, o.Manifests); err != nil {
		return err
	}

	// A program that objects to its arguments has ended by now.
	for _, p := range c.processes {
		if err := p.await(ctx, func(context.Context) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// startServer starts etcd and the API server and waits until it is ready.
func (c *Cluster) startServer(ctx context.Context, address net.IP, o Options) error {
	etcd, err := freeport.Find()
	if err != nil {
		return err
	}
	port, err := freeport.Find()
	if err != nil {
		return err
	}
	clients, peers := fmt.Sprintf("http://127.0.0.1:%d", etcd.Port()), fmt.Sprintf("http://127.0.0.1:%d", etcd.Port()+1)
	c.server = "https://" + net.JoinHostPort(address.String(), strconv.Itoa(int(port.Port())))
	if err := c.writeIdentities(address); err != nil {
		return err
	}

	// What etcd has written is gone with the cluster, so it need not reach the disk.
	err = c.run("etcd", nil, "--data-dir", c.folder.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers,
		"--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	if err != nil {
		return err
	}

	arguments := []string{
		"--etcd-servers", clients,
		"--bind-address", address.String(), "--secure-port", strconv.Itoa(int(port.Port())),
		"--tls-cert-file", c.folder.file("server.crt"), "--tls-private-key-file", c.folder.file("server.key"),
		"--client-ca-file", c.folder.file("ca.crt"), "--cert-dir", c.folder.file("certificates"),
		"--allow-privileged",
		"--service-cluster-ip-range", services,
		"--service-account-issuer=https://penstock.test",
		"--service-account-key-file", c.folder.file("accounts.crt"),
		"--service-account-signing-key-file", c.folder.file("accounts.key"),
	}
	if address.IsLoopback() {
		// Endpoints refuse a loopback address.
		arguments = append(arguments, "--endpoint-reconciler-type=none")
	} else {
		arguments = append(arguments, "--advertise-address", address.String(),
			"--kubelet-client-certificate", c.folder.file("admin.crt"), "--kubelet-client-key", c.folder.file("admin.key"))
	}
	if !o.Controllers {
		// No controller makes the default service account of a namespace.
		arguments = append(arguments, "--disable-admission-plugins=ServiceAccount")
	}
	if o.Reviews == nil {
		arguments = append(arguments, "--authorization-mode=Node,RBAC")
	} else {
		file, err := c.serveReviews(o.Reviews)
		if err != nil {
			return err
		}
		arguments = append(arguments, "--authorization-config", file)
	}
	if err := c.run("kube-apiserver", nil, arguments...); err != nil {
		return err
	}
	return c.AwaitServer(ctx)
}

// writeIdentities writes the files with certificates and keys, and the administrator's kubeconfig.
func (c *Cluster) writeIdentities(address net.IP) (err error) {
	if c.authority, err = newAuthority(); err != nil {
		return err
	}
	names := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"}
	server, err := c.authority.server(names, address, net.ParseIP(serverService))
	if err != nil {
		return err
	}
	accounts, err := c.authority.user("service accounts", nil)
	if err != nil {
		return err
	}
	if c.admin, err = c.User("admin", "system:masters"); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.admin); err != nil {
		return err
	}

	files := map[string][]byte{
		"ca.crt":     c.authority.pem,
		"server.crt": server.certificate, "server.key": server.key,
		"accounts.crt": accounts.certificate, "accounts.key": accounts.key,
		"admin.crt": c.admin.CertData, "admin.key": c.admin.KeyData,
	}
	for name, content := range files {
		if err := os.WriteFile(c.folder.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return WriteKubeconfig(c.admin, c.Kubeconfig())
}

// run starts a program of the cluster under its own name.
func (c *Cluster) run(program string, env []string, arguments ...string) error {
	path, err := c.program(program)
	if err != nil {
		return err
	}
	_, err = c.Run(program, env, append([]string{path}, arguments...)...)
	return err
}

// Run starts a command as a part of the cluster, which then ends with the cluster. The environment is added to this program's.
func (c *Cluster) Run(name string, env []string, command ...string) (*Process, error) {
	p := &Process{name: name, command: command, env: env, log: c.folder.file(name + ".log")}
	if err := p.Start(); err != nil {
		return nil, err
	}
	c.processes[name] = p
	return p, nil
}

func (c *Cluster) program(name string) (string, error) {
	dir, ok := c.programs[name]
	if !ok {
		return "", fmt.Errorf("find %s: %w", name, tools.ErrMissing)
	}
	return filepath.Join(dir, name), nil
}

// AwaitServer waits until the API server is ready, for example after its Process was started again.
func (c *Cluster) AwaitServer(ctx context.Context) error {
	return c.processes["kube-apiserver"].await(ctx, func(ctx context.Context) error {
		return c.client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// awaitDefaults waits for what the servers make a moment after they are ready.
func (c *Cluster) awaitDefaults(ctx context.Context, o Options) error {
	return c.processes["kube-apiserver"].await(ctx, func(ctx context.Context) error {
		_, err := c.client.CoreV1().Namespaces().Get(ctx, corev1.NamespaceDefault, metav1.GetOptions{})
		if err == nil && o.Controllers {
			_, err = c.client.CoreV1().ServiceAccounts(corev1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		}
		return err
	})
}

func (c *Cluster) apply(ctx context.Context, manifests []string) error {
	if len(manifests) == 0 {
		return nil
	}

	arguments := []string{"apply", "--server-side"}
	for _, path := range manifests {
		arguments = append(arguments, "-f", path)
	}
	if _, err := c.Kubectl(ctx, nil, arguments...); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
	return err
}

// Kubectl runs kubectl as the administrator and returns what it printed.
func (c *Cluster) Kubectl(ctx context.Context, stdin []byte, arguments ...string) ([]byte, error) {
	path, err := c.program("kubectl")
	if err != nil {
		return nil, err
	}

	command := exec.CommandContext(ctx, path, append([]string{"--kubeconfig", c.Kubeconfig()}, arguments...)...)
	command.Stdin = bytes.NewReader(stdin)
	output, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		return output, fmt.Errorf("run kubectl %q: %w: %s", arguments, err, exit.Stderr)
	}
	return output, nil
}

// Kubeconfig returns the path of the administrator's kubeconfig file.
func (c *Cluster) Kubeconfig() string { return c.folder.file("kubeconfig") }

// Process returns a program of the control plane by its name, such as "kube-apiserver", or nil.
func (c *Cluster) Process(name string) *Process { return c.processes[name] }

// Stop ends the cluster and removes its files. If it has real nodes, all other processes of the program's namespaces
// end, too.
func (c *Cluster) Stop() error {
	for _, n := range c.nodes {
		n.Driver.Stop()
	}
	for _, p := range c.processes {
		p.Kill()
	}
	if c.reviews != nil {
		c.reviews.Close()
	}
	if isolated() {
		if err := clearNamespaces(c.folder.path); err != nil {
			return fmt.Errorf("stop the cluster: %w", err)
		}
	}
	return c.folder.remove()
}
