package models

import (
	"maps"
	"reflect"
)

// Keys returns the card with the keys of its file, with defaults and absolute paths. Encoded as JSON, which is YAML too,
// it is a card that ReadCard reads.
func (c *Card) Keys() map[string]any {
	state := map[string]string{}
	for _, s := range c.State {
		state[s.Input] = s.Output.Name
	}
	var knees []map[string]any
	for _, k := range c.Knees {
		knees = append(knees, map[string]any{"batch": k.Batch, "percent": k.Percent})
	}
	decoder := map[string]any{"name": c.Decoder.Name}
	maps.Copy(decoder, c.Decoder.Params)
	var input map[string]any
	if len(c.Inputs) == 0 {
		input = c.Input.keys()
	}
	return written(map[string]any{
		"name": c.Name, "version": c.Version, "framework": c.Framework, "command": c.Command, "model": c.Model,
		"input": input, "inputs": tensorKeys(c.Inputs), "lengths": c.Lengths, "pad_lengths": c.PadLengths, "constants": c.Constants, "state": state, "outputs": tensorKeys(c.OutputTensors()),
		"batches": c.Batches, "slo": c.SLO.String(), "knee_percent": c.KneePercent, "knees": knees, "threads": c.Threads,
		"decoder": decoder, "labels": c.Labels,
	})
}

func (in *Input) keys() map[string]any {
	keys := map[string]any{
		"name": in.Name, "size": []int{in.Height, in.Width, in.Channels}, "heights": in.Heights, "widths": in.Widths, "fit": in.Fit, "pad": in.Pad, "antialias": in.Antialias,
		"wire":       map[string]any{"type": in.WireType, "layout": in.WireLayout},
		"tensor":     map[string]any{"type": in.TensorType, "layout": in.TensorLayout},
		"background": []int{int(in.Background[0]), int(in.Background[1]), int(in.Background[2])}, "mean": in.Mean, "std": in.Std,
	}
	if in.Range[1] > 0 {
		keys["range"] = in.Range
	}
	switch {
	case !in.IsPicture():
		keys["reverse_channels"] = in.ReverseChannels
	case in.Channels == 1:
		keys["colour"] = "grey"
	case in.ReverseChannels:
		keys["colour"] = "bgr"
	default:
		keys["colour"] = "rgb"
	}
	return written(keys)
}

func tensorKeys(tensors []Tensor) (list []map[string]any) {
	for _, t := range tensors {
		keys := map[string]any{"name": t.Name, "type": t.Type, "shape": append([]int64{}, t.Shape...)}
		if t.Rows != nil {
			keys["rows"], keys["shape"] = t.Rows, t.Shape[1:]
		}
		if t.BatchAxis > 0 {
			keys["batch_axis"] = t.BatchAxis
		}
		list = append(list, keys)
	}
	return list
}

// written returns keys without those of an empty value, which a file leaves out.
func written(keys map[string]any) map[string]any {
	maps.DeleteFunc(keys, func(_ string, value any) bool {
		switch v := reflect.ValueOf(value); v.Kind() {
		case reflect.Map, reflect.Slice, reflect.String:
			return v.Len() == 0
		}
		return false
	})
	return keys
}
