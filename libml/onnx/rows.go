//go:build cgo

package onnx

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// Outputs whose rows depend on what is in the images (models.Rows): ONNX Runtime allocates them, because their size
// is not known before the run. Then each image's rows are copied to its place, with zeros behind them.
//
// Active: for cards with such outputs. On a GPU, ONNX Runtime brings them to the host (rowsbinding.go).

// rowsOutput is such an output of a batch.
type rowsOutput struct {
	*models.Tensor
	index  int    // among Card.OutputTensors
	images []byte // libml's buffer
	count  []byte // of the output that Rows.Count names, or empty
	counts models.DType
}

// rowsOutputs returns the outputs with such rows of a batch with these buffers.
func rowsOutputs(tensors []models.Tensor, buffers [][]byte) (rows []rowsOutput) {
	for i, buffer := range buffers {
		if tensors[i].Rows == nil {
			continue
		}
		r := rowsOutput{Tensor: &tensors[i], index: i, images: buffer}
		if at := slices.IndexFunc(tensors, func(o models.Tensor) bool { return o.Name == r.Rows.Count }); at >= 0 {
			r.count, r.counts = buffers[at], tensors[at].Type
		}
		rows = append(rows, r)
	}
	return rows
}

// splitRows splits such outputs of n images. read returns the shape and the elements of an output. The error is a
// framework.ImagesError if that is all that is wrong.
func splitRows(rows []rowsOutput, n int, read func(output int) (shape []int64, data []byte)) (err error) {
	var many error
	for i := range rows {
		shape, data := read(rows[i].index)
		if e := rows[i].split(shape, data, n); isAboutImages(e) {
			many = e
		} else {
			err = errors.Join(err, e)
		}
	}
	if err == nil {
		err = many
	}
	return err
}

// isAboutImages reports whether an error is a framework.ImagesError: the other images have answers.
func isAboutImages(err error) bool {
	_, some := errors.AsType[*framework.ImagesError](err)
	return some
}

// split copies the rows of n images to their places. It returns a framework.ImagesError if images have too many.
func (r *rowsOutput) split(shape []int64, data []byte, n int) error {
	owners, err := r.owners(shape, data, n)
	if err != nil {
		return fmt.Errorf("output %q of shape %v: %w", r.Name, shape, err)
	}
	each := r.Bytes() / r.Rows.Max
	column := 0
	if r.Rows.BatchColumn {
		column = r.Type.Bytes()
	}
	clear(r.images)
	found := make([]int, n)
	for row, image := range owners {
		if image < 0 {
			continue
		}
		if found[image]++; found[image] > r.Rows.Max {
			continue
		}
		copy(r.images[image*r.Bytes()+(found[image]-1)*each:][:each], data[row*(column+each)+column:])
	}

	over := &framework.ImagesError{}
	for image, rows := range found {
		if rows > r.Rows.Max {
			over.Images = append(over.Images, image)
			over.Err = fmt.Errorf("output %q has %d rows, want at most %d: rows.max in the card", r.Name, rows, r.Rows.Max)
		}
	}
	if over.Err != nil {
		return over
	}
	return nil
}

// owners returns the image of each row, or -1 for a row that does not count. The shape is [rows, a row's shape...] of
// all images, or [n, rows, a row's shape...].
func (r *rowsOutput) owners(shape []int64, data []byte, n int) (owners []int, err error) {
	counts := answer.Floats(r.counts, r.count)
	switch row := r.Shape[1:]; {
	case r.Rows.BatchColumn && len(shape) == 2 && shape[1] == row[0]+1:
		values := answer.Floats(r.Type, data)
		for at := 0; at < len(values); at += int(shape[1]) {
			image := int(values[at])
			if image < 0 || image >= n {
				return nil, fmt.Errorf("batch column has %v in a batch of %d", values[at], n)
			}
			owners = append(owners, image)
		}
		return owners, nil
	case !r.Rows.BatchColumn && len(shape) == len(r.Shape)+1 && shape[0] == int64(n) && slices.Equal(shape[2:], row):
		for image := range n {
			for i := range int(shape[1]) {
				owner := image
				if r.count != nil && i >= int(counts[image]) {
					owner = -1
				}
				owners = append(owners, owner)
			}
		}
		return owners, nil
	case !r.Rows.BatchColumn && len(shape) == len(r.Shape) && slices.Equal(shape[1:], row):
		if r.count == nil {
			return make([]int, shape[0]), nil // of the only image
		}
		for image, count := range counts {
			for range min(int(count), int(shape[0])) {
				owners = append(owners, image)
			}
		}
		if len(owners) != int(shape[0]) {
			return nil, fmt.Errorf("%s says that the images have %v rows", r.Rows.Count, counts)
		}
		return owners, nil
	}
	return nil, fmt.Errorf("want rows of shape %v, as in the card", r.Shape[1:])
}
