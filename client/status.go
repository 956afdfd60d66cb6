package client

import "github.com/penstock/penstock/wire"

// Status is how a request ended. Its zero value is no success: the statuses of wire begin with ok, because
// each datagram of an answer has one.
type Status uint8

const (
	// StatusUnanswered means that there is no answer. Result.Err is the reason.
	StatusUnanswered Status = iota
	// The others are those of an answer, see wire.Status.
	StatusOK
	StatusLate
	StatusIncomplete
	StatusBusy
	StatusRefused
	StatusFailed
)

// answeredStatus returns the Status of an answer.
func answeredStatus(s wire.Status) Status { return Status(s) + StatusOK }

func (s Status) String() string {
	if s == StatusUnanswered {
		return "unanswered"
	}
	return wire.Status(s - StatusOK).String()
}
