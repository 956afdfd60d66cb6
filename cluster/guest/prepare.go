package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cuda/yield"
)

// Paths in a guest's container.
const (
	wordPath    = "/run/penstock/gpu-busy"
	libraryPath = "/usr/lib/penstock/libpenstock-yield.so"
)

const (
	cdiKind          = DriverName + "/guest"
	deviceAnnotation = DriverName + "/device"
	podAnnotation    = DriverName + "/pod"
	busyFileName     = "gpu-busy" // control.MakeBusyFile
	maxWordBytes     = 1 << 20
)

// cdiFile says what a claim's containers get. It is also how the driver remembers the claim.
type cdiFile struct {
	Version     string            `json:"cdiVersion"`
	Kind        string            `json:"kind"`
	Annotations map[string]string `json:"annotations"`
	Devices     []cdiDevice       `json:"devices"`
}

type cdiDevice struct {
	Name  string `json:"name"`
	Edits struct {
		Env    []string   `json:"env"`
		Mounts []cdiMount `json:"mounts"`
	} `json:"containerEdits"`
}

type cdiMount struct {
	Host      string   `json:"hostPath"`
	Container string   `json:"containerPath"`
	Options   []string `json:"options"`
}

// request checks a claim, and returns its one device of this driver.
func request(claim *resourceapi.ResourceClaim) (r resourceapi.DeviceRequestAllocationResult, err error) {
	count := 0
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == DriverName {
			r = result
			count++
		}
	}
	if count != 1 {
		return r, fmt.Errorf("claim has %d devices of %s: a guest uses one GPU; ask for one", count, DriverName)
	}
	if class := classOf(claim, r.Request); class != DeviceClass {
		return r, fmt.Errorf("claim has device class %q, want %s", class, DeviceClass)
	}
	return r, nil
}

// classOf returns the device class of a request. A request with alternatives has the name REQUEST/ALTERNATIVE.
func classOf(claim *resourceapi.ResourceClaim, name string) string {
	main, sub, _ := strings.Cut(name, "/")
	for _, r := range claim.Spec.Devices.Requests {
		if r.Name != main {
			continue
		}
		if r.Exactly != nil {
			return r.Exactly.DeviceClassName
		}
		for _, s := range r.FirstAvailable {
			if s.Name == sub {
				return s.DeviceClassName
			}
		}
	}
	return ""
}

// prepare writes the CDI file of a claim. The driver's mutex is held.
func (d *Driver) prepareLocked(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	r, err := request(claim)
	if err != nil {
		return nil, err
	}
	g, ok := d.offered[r.Device]
	if !ok {
		d.refused[r.Device] = d.Now() // with the taint, Kubernetes deletes the pod
		return nil, fmt.Errorf("the functions next to device %s have ended or are not known yet; a pod that does not start is deleted, so let a Job or a Deployment make it", r.Device)
	}
	word, err := d.linkWord(g.Pod)
	if err != nil {
		return nil, err
	}

	device := cdiDevice{Name: string(claim.UID)}
	device.Edits.Env = []string{yield.FileVariable + "=" + wordPath, "LD_PRELOAD=" + libraryPath}
	options := []string{"ro", "nosuid", "nodev", "bind"}
	device.Edits.Mounts = []cdiMount{{word, wordPath, options}, {d.file("lib", filepath.Base(libraryPath)), libraryPath, options}}
	content, err := json.Marshal(cdiFile{
		Version: "0.6.0", Kind: cdiKind, Devices: []cdiDevice{device},
		Annotations: map[string]string{deviceAnnotation: r.Device, podAnnotation: string(g.Pod)},
	})
	if err == nil {
		err = replace(d.claimFile(claim.UID), content)
	}
	if err != nil {
		return nil, fmt.Errorf("write CDI file: %w", err)
	}
	return []kubeletplugin.Device{{
		Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device,
		CDIDeviceIDs: []string{d.GPUKind + "=" + g.UUID, cdiKind + "=" + device.Name},
	}}, nil
}

func (d *Driver) unprepareLocked(claim types.UID) error {
	if err := os.Remove(d.claimFile(claim)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove CDI file: %w", err)
	}
	return nil
}

// preparedLocked returns the devices and the functions' pods of all claims with a CDI file.
func (d *Driver) preparedLocked() (used []string, pods map[types.UID]bool, err error) {
	paths, err := filepath.Glob(filepath.Join(d.CDI, DriverName+"-*.json"))
	pods = map[types.UID]bool{}
	for _, path := range paths {
		var f cdiFile
		content, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(content, &f)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read CDI file %s: %w", path, err)
		}
		used = append(used, f.Annotations[deviceAnnotation])
		pods[types.UID(f.Annotations[podAnnotation])] = true
	}
	return used, pods, err
}

func (d *Driver) claimFile(claim types.UID) string {
	return filepath.Join(d.CDI, DriverName+"-"+string(claim)+".json")
}

// file returns the path of one of the driver's own files. The container runtime sees it under the same path.
func (d *Driver) file(parts ...string) string {
	return filepath.Join(append([]string{d.Kubelet, "plugins", DriverName}, parts...)...)
}

// linkWord makes a hard link to the busy word of a pod, and returns its path. The pod's users can write all that is in the volume:
// so nothing below it may be a symbolic link, or lie on another file system.
func (d *Driver) linkWord(pod types.UID) (path string, err error) {
	volume := filepath.Join(d.Kubelet, "pods", string(pod), "volumes", "kubernetes.io~empty-dir", v1alpha1.RuntimeVolume)
	root, err := unix.Open(volume, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open runtime folder of pod %s: %w", pod, err)
	}
	defer unix.Close(root)
	word, err := unix.Openat2(root, filepath.Join(v1alpha1.PrivateFolder, v1alpha1.NodeFolder, busyFileName), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return "", fmt.Errorf("find busy word of pod %s: %w; its node may still be starting", pod, err)
	}
	defer unix.Close(word)
	var st unix.Stat_t
	if err := unix.Fstat(word, &st); err != nil {
		return "", fmt.Errorf("find busy word of pod %s: %w", pod, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 || st.Size == 0 || st.Size > maxWordBytes {
		return "", fmt.Errorf("find busy word of pod %s: it is a file of mode %#o with %d bytes", pod, st.Mode, st.Size)
	}

	path = d.file("words", string(pod))
	next := path + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", word), unix.AT_FDCWD, next, unix.AT_SYMLINK_FOLLOW); err != nil {
		return "", fmt.Errorf("link busy word of pod %s to %s: %w; both must be on one file system", pod, next, err)
	}
	// rename does nothing if both are links to one file.
	return path, errors.Join(os.Rename(next, path), ignoreMissing(os.Remove(next)))
}

// sweepLocked removes the links that no guest uses.
func (d *Driver) sweepLocked(pods map[types.UID]bool) error {
	entries, err := os.ReadDir(d.file("words"))
	for _, e := range entries {
		if !pods[types.UID(e.Name())] {
			err = errors.Join(err, ignoreMissing(os.Remove(d.file("words", e.Name()))))
		}
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// replace writes a file, all of it or nothing. Readers see the old content or the new one.
func replace(path string, content []byte) error {
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}
