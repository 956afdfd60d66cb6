package kubetest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"k8s.io/client-go/rest"
)

// pauseName is the image of the first container of each pod.
const pauseName = "registry.penstock.test/pause:1"

// files are the configuration files of a node's programs, by name.
var files = map[string]*template.Template{
	"containerd.toml": parse(`
version = 3
root = "{{.Folder}}/root"
state = "{{.Folder}}/state"
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{{.Socket}}"
[ttrpc]
  address = "{{.Socket}}.ttrpc"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{{.Pause}}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  # The kernel refuses a lower value than that of this process.
  restrict_oom_score_adj = true
  cdi_spec_dirs = ["{{.Folder}}/cdi"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{{.Plugins}}"]
    conf_dir = "{{.Folder}}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "/usr/sbin/runc"
      SystemdCgroup = false
      Root = "{{.Folder}}/runc"
`),
	"cni/10-bridge.conflist": parse(`
{"cniVersion": "1.0.0", "name": "{{.Name}}", "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {
    "type": "host-local", "dataDir": "{{.Folder}}/addresses",
    "ranges": [[{"subnet": "{{.Pods}}"}]], "routes": [{"dst": "0.0.0.0/0"}]
  }
}]}
`),
	"kubelet.yaml": parse(`
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
# Machines with control groups of version 1 are refused by default.
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /{{.Cgroup}}
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
containerRuntimeEndpoint: unix://{{.Socket}}
resolvConf: {{.Folder}}/resolv.conf
evictionHard: {nodefs.available: "1%", imagefs.available: "1%", memory.available: 50Mi}
enforceNodeAllocatable: [pods]
makeIPTablesUtilChains: false
podLogsDir: {{.Folder}}/log
volumePluginDir: {{.Folder}}/volumes
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 10
`),
	"proxy.yaml": parse(`
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: {{.Name}}
clientConnection: {kubeconfig: {{.Folder}}/proxy.kubeconfig}
clusterCIDR: {{.AllPods}}
# These limits are the machine's, not the namespace's.
conntrack: {maxPerCore: 0, min: 0}
`),
	"resolv.conf": parse("nameserver 127.0.0.1\n"),
}

func parse(text string) *template.Template {
	return template.Must(template.New("").Option("missingkey=error").Parse(strings.TrimPrefix(text, "\n")))
}

func (n *Node) writeFiles() error {
	values := map[string]string{
		"Name": n.Name, "Folder": n.folder, "Socket": n.socket(), "Cgroup": n.cgroup(), "Pods": n.pods(),
		"AllPods": pods, "Pause": pauseName, "Plugins": pluginFolder,
	}
	for name, form := range files {
		var text strings.Builder
		if err := form.Execute(&text, values); err != nil {
			return err
		}
		if err := os.WriteFile(n.file(filepath.FromSlash(name)), []byte(text.String()), 0o644); err != nil {
			return err
		}
	}

	kubelet, err := n.cluster.User("system:node:"+n.Name, "system:nodes")
	if err != nil {
		return err
	}
	proxy, err := n.cluster.User("system:kube-proxy")
	if err != nil {
		return err
	}
	for name, config := range map[string]*rest.Config{"kubelet.kubeconfig": kubelet, "proxy.kubeconfig": proxy} {
		if err := WriteKubeconfig(config, n.file(name)); err != nil {
			return err
		}
	}
	return nil
}

// writePauseImage writes an archive with the first program of pods, and returns its path.
func (c *Cluster) writePauseImage() (string, error) {
	program, err := c.program("pause")
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}

	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := w.WriteHeader(&tar.Header{Name: "pause", Mode: 0o755, Size: int64(len(content))}); err != nil {
		return "", err
	}
	if _, err := w.Write(content); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	})
	if err != nil {
		return "", err
	}

	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return "", err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return "", err
	}
	config.OS, config.Architecture, config.Config.Entrypoint = "linux", runtime.GOARCH, []string{"/pause"}
	image, err = mutate.ConfigFile(image, config)
	if err != nil {
		return "", err
	}
	tag, err := name.NewTag(pauseName)
	if err != nil {
		return "", err
	}
	path := c.folder.file("pause.tar")
	if err := tarball.WriteToFile(path, tag, image); err != nil {
		return "", fmt.Errorf("write the image %s: %w", pauseName, err)
	}
	return path, nil
}
