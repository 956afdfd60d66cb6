package datapath

import "github.com/penstock/penstock/wire"

// Observer receives the times of answered requests.
type Observer interface {
	// Answered is called by the reply threads, once per request. It must neither block nor
	// allocate, and must not keep t.
	Answered(t *Times)
}

// Times are when an answered request passed the stages of its way, in nanoseconds of shm.Now.
type Times struct {
	// FirstFragment is when the first fragment reached the machine, Received when it was received
	// there, Complete when the last one was.
	FirstFragment, Received, Complete int64
	// Dispatched, Gathered and Inferred are the process's; Inferred is 0 if it did not run the
	// request.
	Dispatched, Gathered, Inferred int64
	// Sent is when the answer was handed to the source, Released when the request's memory was.
	Sent, Released int64
	// Batch is the size of the batch that the request was in.
	Batch uint16
	// RequestID is the client's. Status is that of the answer.
	RequestID uint32
	Status    wire.Status
}
