//go:build cgo

package onnx

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// ortError is an error message of ONNX Runtime or of the loader.
type ortError struct{ text string }

// Error returns one line, without source positions and template names of ONNX Runtime.
func (e *ortError) Error() string { return shorten(e.text) }

// outOfMemory reports whether the message means that memory is missing. It looks for the
// codes of CUDA, cuBLAS and cuDNN as ONNX Runtime prints them.
func (e *ortError) outOfMemory() bool {
	for _, sign := range []string{"CUDA failure 2:", "out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation", "resource allocation failed"} {
		if strings.Contains(e.text, sign) {
			return true
		}
	}
	return false
}

// tooFewSMs reports whether the message means that a kernel does not fit the stream's
// multiprocessors (cuda.ErrTooFewSMs).
func (e *ortError) tooFewSMs() bool {
	return strings.Contains(e.text, "CUDA failure 720:") || strings.Contains(e.text, "CUDA failure 912:")
}

// shorten shortens a message of ONNX Runtime to one line: "CUDA failure 2: out of memory" from
// half a page with template arguments, host name, file and expression.
func shorten(text string) string {
	s := withoutPositions(strings.Join(strings.Fields(text), " "))
	for _, start := range []string{"CUDA failure ", "CUDNN failure ", "CUDNN_FE failure ", "CUBLAS failure ", "CUFFT failure "} {
		at := strings.Index(s, start)
		if at < 0 {
			continue
		}
		rest, _, _ := strings.Cut(s[at:], " ;")
		return addNode(s, rest)
	}
	if _, message, found := strings.Cut(s, "Status Message: "); found {
		s = addNode(s, message)
	}
	const longest = 600
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "..."
	}
	return s
}

// position matches the begin of a source position of ONNX Runtime: "/build/onnxruntime/core/graph/model.cc:192 ".
// The function's signature follows.
var position = regexp.MustCompile(`/[\w./+-]*onnxruntime/[\w./+-]+\.(?:cc|cpp|h|cu|cuh):\d+ `)

// withoutPositions returns a message without source positions: files, functions, and the conditions that
// failed there.
func withoutPositions(s string) string {
	for {
		found := position.FindStringIndex(s)
		if found == nil {
			return s
		}
		rest := s[found[1]:]
		rest = strings.TrimPrefix(rest[endOfSignature(rest):], " const")
		rest = strings.TrimPrefix(strings.TrimLeft(rest, " "), "status.IsOK() was false. ")
		s = s[:found[0]] + strings.TrimLeft(rest, " ")
	}
}

// endOfSignature returns the length of the signature that s begins with, or 0 if there is none. It ends with
// its last pair of parentheses: operator() has two.
func endOfSignature(s string) int {
	depth := 0
	for i, c := range s {
		switch {
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth == 0 && !strings.HasPrefix(s[i+1:], "(") {
				return i + 1
			}
		}
	}
	return 0
}

// wrongShape matches a message about an output whose buffer has another shape than the answer.
var wrongShape = regexp.MustCompile(`(?:has shape|Current shape:) ?\{([\d,]*)\}.*(?:this run is|Requested shape:) ?\{([\d,]*)\}`)

// unknownOperator matches a message about an operator of another library.
var unknownOperator = regexp.MustCompile(`(\S+)\(-?\d+\) is not a registered function/op`)

// summarize returns an error of ONNX Runtime as one line.
func summarize(card *models.Card, err error) error {
	s := withoutPositions(strings.Join(strings.Fields(err.Error()), " "))
	if reason := explainMessage(card, s); reason != "" {
		s = reason
	}
	return errors.New(s)
}

// explainMessage returns what a message of ONNX Runtime means for a card, or nothing.
func explainMessage(card *models.Card, s string) string {
	if m := unknownOperator.FindStringSubmatch(s); m != nil {
		return fmt.Sprintf("the model has the operator %s, which is not part of ONNX Runtime; export the model without it, as plugins of TensorRT work in TensorRT only", m[1])
	}
	if strings.HasPrefix(s, "Unsupported model IR version") {
		return s + "; export the model with an older version of the onnx package, or lower ir_version in the file"
	}
	m := wrongShape.FindStringSubmatch(s)
	if m == nil {
		return ""
	}
	says, gives := dimsOf(m[1]), dimsOf(m[2])
	for i := range card.Outputs {
		o := &card.Outputs[i]
		if len(says) == 0 || !slices.Equal(says[1:], o.Shape) {
			continue
		}
		hint := ""
		switch {
		case len(gives) == 0:
		case gives[0] == says[0]:
			says, gives = says[1:], gives[1:]
		case slices.Equal(gives[1:], o.Shape):
			hint = "; if its rows depend on what is in the image, want rows: {max: N}"
		}
		return fmt.Sprintf("output %q: the card says %s, the model gives %s%s", o.Name, listed(says), listed(gives), hint)
	}
	return ""
}

// dimsOf reads dimensions like 1,14,14.
func dimsOf(text string) (dims []int64) {
	for d := range strings.SplitSeq(text, ",") {
		if n, err := strconv.ParseInt(d, 10, 64); err == nil {
			dims = append(dims, n)
		}
	}
	return dims
}

func listed(dims []int64) string {
	text, _ := json.Marshal(dims) // cannot fail: numbers
	return strings.ReplaceAll(string(text), ",", ", ")
}

// addNode puts the name of the node that was running before a message, if s has it.
func addNode(s, message string) string {
	_, rest, _ := strings.Cut(s, "while running ")
	node, _, found := strings.Cut(rest, " Status Message")
	if node = strings.TrimSuffix(node, "."); !found || node == "" {
		return message
	}
	return node + ": " + message
}

// fail says in an error which callback failed. The error wraps device.ErrLost if the device
// is lost, and cuda.ErrOutOfMemory if memory is missing. ONNX Runtime's message does not
// tell a lost device from other errors, so fail asks CUDA.
func (g *gpu) fail(doing string, err error) error {
	var reported *ortError
	if errors.As(err, &reported) {
		if reason := explainMessage(g.env.Card, reported.text); reason != "" {
			err = fmt.Errorf("%s: %w", reason, err)
		}
		if reported.outOfMemory() && !errors.Is(err, cuda.ErrOutOfMemory) {
			err = fmt.Errorf("%w: %w", cuda.ErrOutOfMemory, err)
		}
		if reported.tooFewSMs() {
			err = fmt.Errorf("%w: %w", cuda.ErrTooFewSMs, err)
		}
		if g.stream != (cuda.Stream{}) {
			if _, asked := g.stream.Query(); errors.Is(asked, cuda.ErrLost) {
				err = fmt.Errorf("%w (%w)", err, asked)
			}
		}
	}
	if errors.Is(err, cuda.ErrLost) && !errors.Is(err, device.ErrLost) {
		err = fmt.Errorf("%w: %w", device.ErrLost, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// poolRefusal returns the pool's refusal if it had no memory, else err. ONNX Runtime's error after
// a refusal is about the consequences.
func poolRefusal(p *pool, err error) error {
	if refused := p.readState().refused; refused != nil {
		return refused
	}
	return err
}

// markOutOfMemory adds cuda.ErrOutOfMemory to an error of ONNX Runtime if the device has almost no
// free memory: cuDNN reports missing memory as an internal error.
func (g *gpu) markOutOfMemory(err error) error {
	var reported *ortError
	if !errors.As(err, &reported) || errors.Is(err, cuda.ErrOutOfMemory) {
		return err
	}
	// A session also takes memory that is not from our pools: handles of cuBLAS and cuDNN,
	// their workspaces and code.
	const little = 256 << 20
	if free, _, asked := g.context.Memory(); asked == nil && free < little {
		return fmt.Errorf("%w, %d MiB are free: %w", cuda.ErrOutOfMemory, free>>20, err)
	}
	return err
}

// explain adds the known cause of wrong answers to device.ErrWrongAnswers, if it applies: an MPS
// percentage.
func (g *gpu) explain(err error) error {
	if !errors.Is(err, device.ErrWrongAnswers) {
		return err
	}
	percentage := os.Getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
	sms, countErr := g.context.SMs()
	if percentage == "" || percentage == "100" || countErr != nil {
		return err
	}
	return fmt.Errorf("%w; MPS shows it %d multiprocessors (%s %%), and cuBLAS has wrong kernels for some numbers; use partitions, or another percentage",
		err, sms, percentage)
}
