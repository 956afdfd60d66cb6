package repository

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/models/draft"
	"github.com/penstock/penstock/models/onnxfile"
	"github.com/penstock/penstock/private"
)

// source is a model without a card.
type source struct {
	file      string
	options   draft.Options
	instances int
	notes     []string // what config.pbtxt sets, and whether it was taken
}

const (
	configName     = "config.pbtxt"
	maxConfigBytes = 256 << 10
)

// readTriton reads a folder in Triton's layout: VERSION/model.onnx, and perhaps config.pbtxt.
func readTriton(folder string) (*source, error) {
	config, err := readConfig(folder)
	if err != nil {
		return nil, err
	}
	version, err := newest(folder, config.GetVersionPolicy().GetSpecific().GetVersions())
	if err != nil {
		return nil, err
	}
	s := &source{instances: 1, options: draft.Options{Raw: true, Version: version}}
	name := "model.onnx"
	if config.DefaultModelFilename != "" {
		name = config.DefaultModelFilename
	}
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("default_model_filename is %q, want a name in the version's folder", name)
	}
	s.file = filepath.Join(folder, strconv.FormatUint(uint64(version), 10), name)
	if info, err := os.Stat(s.file); err == nil && info.IsDir() {
		s.file = filepath.Join(s.file, name) // of a model with weights in other files
	}
	model, err := onnxfile.Read(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; only models of ONNX Runtime are served", err)
	}
	if err != nil {
		return nil, err
	}
	return s, s.take(config, model, folder)
}

// readConfig reads config.pbtxt, which may be missing, and refuses what would change a model's answers.
func readConfig(folder string) (*inference.ModelConfig, error) {
	config := &inference.ModelConfig{}
	path := filepath.Join(folder, configName)
	text, err := private.ReadFile(path, maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return config, nil
	}
	if err != nil {
		return nil, err
	}
	if err := (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	base := filepath.Base(folder)
	switch c := config; {
	case c.Name != "" && c.Name != base:
		err = fmt.Errorf("name is %q, want %q as its folder", c.Name, base)
	case c.Platform != "" && c.Platform != "onnxruntime_onnx", c.Backend != "" && c.Backend != "onnxruntime":
		err = fmt.Errorf("platform is %q and backend %q; only onnxruntime is served", c.Platform, c.Backend)
	case c.SequenceBatching != nil:
		err = errors.New("sequence_batching is not served; write a card with `state` (docs/models.md)")
	case c.EnsembleScheduling != nil:
		err = errors.New("ensemble_scheduling is not served")
	case c.MaxBatchSize < 0:
		err = fmt.Errorf("max_batch_size is %d, want 0 or more", c.MaxBatchSize)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// newest returns the newest version in a folder; of these, if there are any.
func newest(folder string, of []int64) (version uint32, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		n, err := strconv.ParseUint(e.Name(), 10, 32)
		if err == nil && e.Name()[0] != '0' && (len(of) == 0 || slices.Contains(of, int64(n))) {
			version = max(version, uint32(n))
		}
	}
	if version == 0 {
		return 0, fmt.Errorf("%s has no version; want a folder like 1 with model.onnx, at most %d, or card.yaml", folder, uint32(math.MaxUint32))
	}
	return version, nil
}

// take takes what config.pbtxt says about the model.
func (s *source) take(config *inference.ModelConfig, model *onnxfile.Model, folder string) error {
	shapes := map[string][]int64{}
	for _, in := range config.Input {
		if err := s.compare("input", in, model.Inputs); err != nil {
			return err
		}
		shapes[in.Name] = in.Dims
		if in.Reshape != nil {
			shapes[in.Name] = in.Reshape.Shape
		}
	}
	for _, out := range config.Output {
		if err := s.compare("output", out, model.Outputs); err != nil {
			return err
		}
		if out.LabelFilename != "" {
			s.options.Labels = filepath.Join(folder, out.LabelFilename)
			s.note("labels of %s", out.Name)
		}
	}
	if s.options.Size = draft.SizeOf(model, shapes); len(s.options.Size) > 0 {
		s.note("sizes %v", s.options.Size)
	}
	if n := config.MaxBatchSize; n > 0 {
		s.options.MaxBatch = int(n)
		s.note("max_batch_size %d", n)
	}
	if len(config.InstanceGroup) > 0 {
		s.instances = 0
		for _, group := range config.InstanceGroup {
			s.instances += int(max(1, group.Count))
		}
		s.note("instance_group %d", s.instances)
	}

	known := []protoreflect.Name{"name", "platform", "backend", "input", "output", "max_batch_size", "instance_group", "version_policy", "default_model_filename"}
	var others []string
	config.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if !slices.Contains(known, f.Name()) {
			others = append(others, "not taken: "+string(f.Name()))
		}
		return true
	})
	slices.Sort(others)
	s.notes = append(s.notes, others...)
	return nil
}

func (s *source) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// compare returns an error if a tensor of config.pbtxt is none of the model's.
func (s *source) compare(what string, t interface {
	GetName() string
	GetDataType() inference.DataType
	GetReshape() *inference.ModelTensorReshape
}, values []onnxfile.Value) error {
	if t.GetReshape() != nil {
		s.note("not taken: reshape of %s, which has the model's shape", t.GetName())
	}
	var names []string
	for _, v := range values {
		if v.Name == t.GetName() {
			name := strings.NewReplacer("fp", "f", "uint", "u", "int", "i").Replace(strings.ToLower(strings.TrimPrefix(t.GetDataType().String(), "TYPE_")))
			if name != v.Type {
				return fmt.Errorf("%s: %s %s is %s, and the model's is %s", configName, what, v.Name, t.GetDataType(), v.Type)
			}
			return nil
		}
		names = append(names, v.Name)
	}
	return fmt.Errorf("%s: %s %q is none of the model's: %s", configName, what, t.GetName(), strings.Join(names, ", "))
}
