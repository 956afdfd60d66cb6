package openinference

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/models"
)

// DecodeMessage is DecodeRequest for a message of gRPC. Payloads may share the message's memory.
func DecodeMessage(m *inference.ModelInferRequest, card *models.Card, regions Regions) (*Request, error) {
	q := requestJSON{ID: m.Id}
	if max(len(m.Inputs), len(m.Outputs)) > maxTensors {
		return nil, fmt.Errorf("message has %d inputs and %d outputs, want at most %d of each", len(m.Inputs), len(m.Outputs), maxTensors)
	}
	if err := q.Parameters.set(m.Parameters); err != nil {
		return nil, err
	}
	for i, o := range m.Outputs {
		out := &outputJSON{Name: o.Name}
		if err := out.Parameters.set(o.Parameters); err != nil {
			return nil, fmt.Errorf("output %q: %w", o.Name, err)
		}
		q.Outputs[i] = out
	}
	raw, inMessage := m.RawInputContents, 0
	for i, t := range m.Inputs {
		in := &inputJSON{Name: t.Name, Shape: t.Shape, Datatype: t.Datatype}
		err := in.Parameters.set(t.Parameters)
		switch elsewhere := in.Parameters.Region != ""; {
		case err != nil:
		case (len(raw) > 0 || elsewhere) && t.Contents != nil:
			err = errors.New("has both contents and raw_input_contents or a region, want one")
		case elsewhere:
		case len(raw) > 0:
			in.raw = raw[min(inMessage, len(raw)-1)]
			inMessage++
		default:
			in.raw, err = elements(t.Contents, t.Datatype)
		}
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", t.Name, err)
		}
		if in.raw == nil && in.Parameters.Region == "" {
			in.raw = []byte{} // empty, but no JSON
		}
		q.Inputs[i] = in
	}
	if len(raw) > 0 && len(raw) != inMessage {
		return nil, fmt.Errorf("message has %d raw_input_contents, want one for each of its %d inputs", len(raw), inMessage)
	}
	return newRequest(&q, nil, card, regions)
}

// set reads the parameters of a message. Unknown ones are ignored.
func (p *parameters) set(from map[string]*inference.InferParameter) error {
	if len(from) == 0 {
		return nil
	}
	values := map[string]any{}
	for name, v := range from {
		switch v := v.GetParameterChoice().(type) {
		case *inference.InferParameter_BoolParam:
			values[name] = v.BoolParam
		case *inference.InferParameter_Int64Param:
			values[name] = v.Int64Param
		case *inference.InferParameter_Uint64Param:
			values[name] = v.Uint64Param
		case *inference.InferParameter_StringParam:
			values[name] = v.StringParam
		}
	}
	text, err := json.Marshal(values)
	if err != nil {
		return fmt.Errorf("read parameters: %w", err)
	}
	if err := json.Unmarshal(text, p); err != nil {
		return fmt.Errorf("read parameters: %w", err)
	}
	return nil
}

// elements returns the contents of a tensor as raw bytes.
func elements(c *inference.InferTensorContents, datatype string) (raw []byte, err error) {
	var values any
	switch datatype {
	case "BOOL":
		values = c.GetBoolContents()
	case "INT8":
		values, err = narrow[int8](c.GetIntContents())
	case "INT16":
		values, err = narrow[int16](c.GetIntContents())
	case "INT32":
		values = c.GetIntContents()
	case "INT64":
		values = c.GetInt64Contents()
	case "UINT8":
		values, err = narrow[uint8](c.GetUintContents())
	case "UINT16":
		values, err = narrow[uint16](c.GetUintContents())
	case "UINT32":
		values = c.GetUintContents()
	case "UINT64":
		values = c.GetUint64Contents()
	case "FP32":
		values = c.GetFp32Contents()
	case "FP64":
		values = c.GetFp64Contents()
	case "BYTES":
		for _, text := range c.GetBytesContents() {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(len(text)))
			raw = append(raw, text...)
		}
		return raw, nil
	default:
		return nil, nil // only raw
	}
	if err != nil {
		return nil, err
	}
	raw, _ = binary.Append(nil, binary.LittleEndian, values) // it knows slices of all numbers
	return raw, nil
}

// narrow returns values in a type that protocol buffers lack.
func narrow[To int8 | int16 | uint8 | uint16, From int32 | uint32](values []From) ([]To, error) {
	list := make([]To, len(values))
	for i, v := range values {
		if list[i] = To(v); From(list[i]) != v {
			return nil, fmt.Errorf("element %d of contents is %d, want a value within the range of %T", i, v, list[i])
		}
	}
	return list, nil
}

// EncodeMessage is EncodeResponse for gRPC.
func EncodeMessage(r *Request, name, version string, parameters map[string]int64, outputs []Tensor) (*inference.ModelInferResponse, error) {
	m := &inference.ModelInferResponse{ModelName: name, ModelVersion: version, Id: r.ID, Parameters: map[string]*inference.InferParameter{}}
	for key, v := range parameters {
		m.Parameters[key] = &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: v}}
	}
	for _, w := range r.wanted(outputs) {
		t, err := r.output(outputs, &w)
		if err != nil {
			return nil, err
		}
		out := &inference.ModelInferResponse_InferOutputTensor{Name: t.Name, Shape: t.Shape, Datatype: t.datatype()}
		raw := t.appendBinary(nil)
		if w.Region != "" {
			if err := r.store(&w, raw); err != nil {
				return nil, err
			}
			raw = nil
		}
		m.Outputs, m.RawOutputContents = append(m.Outputs, out), append(m.RawOutputContents, raw)
	}
	return m, nil
}
