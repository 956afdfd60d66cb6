package client

import "github.com/penstock/penstock/wire"

// Status is how a request ended. Unlike in package wire, zero is not a success.
type Status uint8

const (
	// StatusUnanswered means that there is no answer. Result.Err is the reason.
	StatusUnanswered Status = iota
	// StatusOK means that the result has the model's answer.
	StatusOK
	// StatusLate means that the request could no longer meet its deadline and did not run.
	StatusLate
	// StatusIncomplete means that the manager never received Result.Missing fragments.
	StatusIncomplete
	// StatusBusy means that the manager had no room for the request.
	StatusBusy
	// StatusRefused means that the request can never run: the function does not take such a picture.
	StatusRefused
	// StatusFailed means that the request was complete and its run failed.
	StatusFailed
)

// statusOf returns the status of an answer.
func statusOf(s wire.Status) Status { return Status(s) + StatusOK }

func (s Status) String() string {
	if s == StatusUnanswered {
		return "unanswered"
	}
	return wire.Status(s - StatusOK).String()
}
