package profiler

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/plan"
)

// Header returns the part of a profile's header that is known before its first point.
// It describes the card, the machine that the Profiler's node found, and everything
// else that affects the figures.
func (p *Profiler) Header() (profile.Header, error) {
	card, scale, m := p.options.Card, p.options.Scale, p.options.Machine
	digest, err := digestOf(card)
	if err != nil {
		return profile.Header{}, err
	}
	h := profile.Header{
		Version: profile.Version, Model: card.Name, ModelVersion: card.Version, ModelDigest: digest,
		Device: configs.DeviceCPU, Unit: scale.Unit, Total: scale.Total, HeldBy: p.HeldBy(), Sweep: &p.options.Grid,
		Versions: map[string]string{"penstock": m.Penstock, "kernel": m.Kernel},
	}
	switch d, in := p.Device(), p.options.Instances; {
	case in != nil:
		h.Device, h.GPU, h.HeldBy = "cuda", in.table.Name, profile.MIG
	case d != nil:
		h.Device, h.GPU = "cuda", gpuName(d)
	default:
		_, cpus := orchestrator.IFCPUs(0, orchestrator.Near{})
		h.GPU = fmt.Sprintf("%s, %d of %d CPUs", m.CPU, len(cpus), m.CPUs)
	}
	for name, version := range map[string]string{"driver": m.Driver, "cuda": m.CUDA} {
		if version != "" && h.Device != configs.DeviceCPU {
			h.Versions[name] = version
		}
	}
	if card.Framework == "onnx" {
		h.Versions["onnxruntime"] = cmp.Or(m.ONNXRuntime, "unknown")
	}
	return h, nil
}

// gpuName returns the name of a GPU's placement table, or the driver's name if there
// is no table.
func gpuName(d *control.GPU) string {
	if g, err := plan.ForDevice(d.Name); err == nil {
		return g.Name
	}
	return d.Name
}

// digestOf returns the first half of the SHA-256 of a card and its model's file. It
// leaves out everything that affects no figure: names of folders, the objective, the
// knees.
func digestOf(card *models.Card) (string, error) {
	bare := *card
	bare.File, bare.Dir, bare.Model, bare.Data, bare.SLO, bare.KneePercent, bare.Knees, bare.Batches, bare.AutoBatches = "", "", "", nil, 0, 0, nil, nil, false
	sum := sha256.New()
	if err := json.NewEncoder(sum).Encode(bare); err != nil {
		return "", fmt.Errorf("compute digest of card %s: %w", card.Name, err)
	}
	for _, name := range card.Files() {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("compute digest of model %s: %w", card.Name, err)
		}
		defer f.Close()
		if _, err := io.Copy(sum, f); err != nil {
			return "", fmt.Errorf("compute digest of model %s: %w", card.Name, err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:sha256.Size/2]), nil
}
