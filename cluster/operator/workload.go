package operator

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

const (
	// DeviceClass is the device class of the operator's claims. It belongs to the chart, and matches no device, so that the
	// scheduler can never allocate such a claim by itself.
	DeviceClass = "segment.penstock.io"

	// AgentName is the name of the agents' service accounts and of their ClusterRole.
	AgentName = "penstock-agent"
	// AgentPort is the TCP port of an agent's page.
	AgentPort = 9651
	// endPage is the agent's page that answers when a pod that ends has no clients any more.
	endPage = "/end"

	nodePort = 9650 // the node's metrics and state
	user     = 65532

	configAnnotation = "penstock.io/node.yaml"
	runtimeFolder    = "/run/penstock"
	configFolder     = "/etc/penstock"
	modelsFolder     = "/models"
	tokenFolder      = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// nodeConfig is the configuration of each node. The agent adds the functions. There is no gateway, because clients use the
// functions' Services.
const nodeConfig = `listen: 0.0.0.0
http: 0.0.0.0:9650
gateway: off
devices: all
log: {format: json}
functions: []
`

// A workload is a pod, its claim, and the segments that it serves. A segment on a GPU with MIG has a device of its own, and so
// has a workload of its own. On another GPU, the segments of a namespace share a workload. Namespaces never share one.
type workload struct {
	Claim    *resourceapi.ResourceClaim
	Pod      *corev1.Pod
	Segments []v1alpha1.Segment
}

// desired returns the workloads of a GPU, in the order of their first segments. Claims have the allocation that the plan wants.
func desired(fleet *v1alpha1.Fleet, plan *v1alpha1.GPUPlan, agentImage string) []workload {
	var all []workload
	at := map[string]int{}
	for _, s := range plan.Spec.Segments {
		name := workloadName(plan, s)
		key := s.Namespace + "/" + name
		i, ok := at[key]
		if !ok {
			i = len(all)
			at[key] = i
			meta := metav1.ObjectMeta{
				Namespace: s.Namespace,
				Name:      name,
				Labels: map[string]string{
					managedBy:             operatorName,
					v1alpha1.FleetLabel:   fleet.Name,
					v1alpha1.GPUPlanLabel: plan.Name,
				},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(plan, v1alpha1.GroupVersion.WithKind("GPUPlan"))},
			}
			if s.SharePercent == nil {
				meta.Labels[v1alpha1.SegmentLabel] = s.Name
			}
			all = append(all, workload{
				Claim: claim(*meta.DeepCopy(), fleet, plan, s.Device),
				Pod:   pod(meta, fleet, plan, agentImage),
			})
		}
		all[i].Segments = append(all[i].Segments, s)
	}
	return all
}

// workloadName returns the name of a segment's pod and claim. Segments with an MPS share of a GPU are in one pod per
// namespace, because processes share a GPU only within one pod.
func workloadName(plan *v1alpha1.GPUPlan, s v1alpha1.Segment) string {
	if s.SharePercent == nil {
		return s.Name
	}
	sum := sha256.Sum256([]byte(plan.Name + "/" + s.Namespace))
	return plan.Name + "-" + s.Namespace + "-" + hex.EncodeToString(sum[:4])
}

func claim(meta metav1.ObjectMeta, fleet *v1alpha1.Fleet, plan *v1alpha1.GPUPlan, device string) *resourceapi.ResourceClaim {
	// Kubernetes removes the finalizer, and the allocation, when no pod uses the claim any more. Thus a device is never
	// allocated to another claim while a pod has it.
	meta.Finalizers = []string{resourceapi.Finalizer}
	tolerations := []resourceapi.DeviceToleration{{
		Key:      v1alpha1.PoolTaint,
		Operator: resourceapi.DeviceTolerationOpEqual,
		Value:    fleet.Name,
	}}
	return &resourceapi.ResourceClaim{
		ObjectMeta: meta,
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu",
			Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: DeviceClass,
				AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
				Count:           1,
				Tolerations:     tolerations,
			},
		}}}},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
				Request:     "gpu",
				Driver:      cmp.Or(fleet.Spec.Driver, defaultDriver),
				Pool:        plan.Spec.Pool,
				Device:      device,
				Tolerations: tolerations,
			}}},
			NodeSelector: onNode(plan.Spec.Node),
		}},
	}
}

// onNode selects a node by its name.
func onNode(name string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name},
		}},
	}}}
}

func pod(meta metav1.ObjectMeta, fleet *v1alpha1.Fleet, plan *v1alpha1.GPUPlan, agentImage string) *corev1.Pod {
	config := nodeConfig
	if fleet.Spec.Node.Models != nil {
		config += "models: [" + modelsFolder + "]\n"
	}
	meta.Annotations = map[string]string{configAnnotation: config}
	p := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		ServiceAccountName:            AgentName,
		AutomountServiceAccountToken:  new(false), // only the agent gets one
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: new(int64(75)), // a minute for clients that do not leave, and the node's drain_timeout
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   new(true),
			RunAsUser:      new(int64(user)),
			RunAsGroup:     new(int64(user)),
			FSGroup:        new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		// With one node to look at, the scheduler does not take the claim's allocation back when the node has no room.
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: onNode(plan.Spec.Node),
		}},
		Tolerations:    []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &meta.Name}},
		InitContainers: []corev1.Container{folderContainer(agentImage)},
		Containers:     []corev1.Container{nodeContainer(fleet), agentContainer(plan, agentImage)},
		Volumes: []corev1.Volume{
			{Name: v1alpha1.RuntimeVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "config", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
				Items: []corev1.DownwardAPIVolumeFile{{
					Path:     "node.yaml",
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + configAnnotation + "']"},
				}},
			}}},
			{Name: "token", VolumeSource: tokenVolume()},
		},
	}}
	if m := fleet.Spec.Node.Models; m != nil {
		v := corev1.Volume{Name: "models"}
		if m.ClaimName != "" {
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: m.ClaimName, ReadOnly: true}
		} else {
			v.HostPath = &corev1.HostPathVolumeSource{Path: m.HostPath, Type: new(corev1.HostPathDirectory)}
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
	return p
}

// folderContainer makes the private folder, which then belongs to the pod's user.
func folderContainer(image string) corev1.Container {
	return corev1.Container{
		Name:            "folder",
		Image:           image,
		Args:            []string{"--make-folder", runtimeFolder + "/" + v1alpha1.PrivateFolder},
		Resources:       agentResources(),
		VolumeMounts:    []corev1.VolumeMount{{Name: v1alpha1.RuntimeVolume, MountPath: runtimeFolder}},
		SecurityContext: confined(),
	}
}

func nodeContainer(fleet *v1alpha1.Fleet) corev1.Container {
	c := corev1.Container{
		Name:      "penstock",
		Image:     fleet.Spec.Node.Image,
		Args:      []string{"up", "--config", configFolder + "/node.yaml", "--runtime-dir", runtimeFolder + "/" + v1alpha1.NodeFolder},
		Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: nodePort, Protocol: corev1.ProtocolTCP}},
		Resources: *fleet.Spec.Node.Resources.DeepCopy(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: configFolder, ReadOnly: true},
			{Name: v1alpha1.RuntimeVolume, MountPath: runtimeFolder, SubPath: v1alpha1.PrivateFolder},
			{Name: "tmp", MountPath: "/tmp"},
		},
		// From SIGTERM on, a node refuses new requests. So its clients leave first.
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: endPage, Port: intstr.FromInt32(AgentPort)},
		}},
		SecurityContext: confined(),
	}
	c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	if fleet.Spec.Node.Models != nil {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "models", MountPath: modelsFolder, ReadOnly: true})
	}
	return c
}

func agentContainer(plan *v1alpha1.GPUPlan, image string) corev1.Container {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	return corev1.Container{
		Name:  "agent",
		Image: image,
		Args:  []string{"--gpuplan", plan.Name, "--runtime-dir", runtimeFolder + "/" + v1alpha1.NodeFolder},
		Env: []corev1.EnvVar{
			field("POD_NAME", "metadata.name"),
			field("POD_NAMESPACE", "metadata.namespace"),
			field("POD_IP", "status.podIP"),
		},
		Ports: []corev1.ContainerPort{{Name: "agent", ContainerPort: AgentPort, Protocol: corev1.ProtocolTCP}},
		// One late answer does not end the flows of all clients.
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: "/readyz", Port: intstr.FromString("agent"),
			}},
			PeriodSeconds:    1,
			FailureThreshold: 3,
		},
		Resources: agentResources(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: v1alpha1.RuntimeVolume, MountPath: runtimeFolder, SubPath: v1alpha1.PrivateFolder},
			{Name: "token", MountPath: tokenFolder, ReadOnly: true},
		},
		SecurityContext: confined(),
	}
}

func agentResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("10m"),
			corev1.ResourceMemory: resource.MustParse("64Mi"),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
	}
}

func confined() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// tokenVolume has what client-go expects in tokenFolder.
func tokenVolume() corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3600))}},
		{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
			Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
		}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
			Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"},
		}}}},
	}}}
}

func (w workload) key() client.ObjectKey { return client.ObjectKeyFromObject(w.Pod) }

// device returns the name of the planned device.
func (w workload) device() string { return w.Claim.Status.Allocation.Devices.Results[0].Device }

// open reports whether any segment takes new requests.
func (w workload) open() bool {
	return slices.ContainsFunc(w.Segments, func(s v1alpha1.Segment) bool { return !s.Draining })
}

// functions returns the functions with a segment that does not drain, and those of them with a segment that serves.
func (w workload) functions(status v1alpha1.GPUPlanStatus) (open, serves map[string]bool) {
	open, serves = map[string]bool{}, map[string]bool{}
	for _, s := range w.Segments {
		if s.Draining {
			continue
		}
		open[s.Function] = true
		if segmentStatus(&status, s.Name).Ready {
			serves[s.Function] = true
		}
	}
	return open, serves
}

// functionKey returns the namespace and name of a segment's function.
func functionKey(s v1alpha1.Segment) string { return s.Namespace + "/" + s.Function }
