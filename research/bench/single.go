package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/traffic"
)

// singleAnswers are the payloads of answers to single requests, by function and picture.
type singleAnswers map[string][][]byte

// singlePictures is how many pictures each function gets, and singleAttempts how often each is sent if it is
// answered late.
const (
	singlePictures = 4
	singleAttempts = 20
)

// single sends one request after the other to all functions, so that each is a batch of 1. A larger batch may
// have other last bits.
func (o *ResidencyOptions) single(ctx context.Context, status *control.Status) (singleAnswers, error) {
	requests, err := traffic.New(*status, o.traffic(1))
	if err != nil {
		return nil, err
	}
	defer requests.Close()
	answers := singleAnswers{}
	for _, f := range requests.Spec.Functions {
		if answers[f.Name], err = singlesOf(ctx, f); err != nil {
			return nil, fmt.Errorf("single requests to %s: %w", f.Name, err)
		}
	}
	return answers, nil
}

func singlesOf(ctx context.Context, f loadgen.Function) (payloads [][]byte, err error) {
	c, err := client.Dial(ctx, f.Addr, client.Options{Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, picture := range f.Pictures[:min(singlePictures, len(f.Pictures))] {
		var result client.Result
		for range singleAttempts {
			if result, err = c.Do(ctx, picture, client.RequestOptions{}); !isBusy(err) {
				break
			}
		}
		if err != nil {
			return nil, err
		}
		payloads = append(payloads, bytes.Clone(result.Payload))
	}
	return payloads, nil
}

// isBusy reports whether a request was not answered in time, as happens on a busy machine.
func isBusy(err error) bool {
	for _, status := range []client.Status{client.StatusLate, client.StatusIncomplete, client.StatusBusy} {
		if errors.Is(err, client.StatusError(status)) {
			return true
		}
	}
	return errors.Is(err, client.ErrLate)
}

// different counts the answers that are not those of the reference, byte for byte.
func (s singleAnswers) different(reference singleAnswers) (count float64) {
	for name, payloads := range s {
		for i, payload := range payloads {
			if !bytes.Equal(payload, reference[name][i]) {
				count++
			}
		}
	}
	return count
}
