// Package loop is the batch loop of a process: it takes requests from the ring, runs them in batches and answers
// them. batching chooses a batch, libml/gate decides whether it may begin, and libml/device gathers it. The process
// runs the model, and libml/decode turns the outputs into results.
package loop
