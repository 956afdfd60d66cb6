// Package stream sends the frames of a video source to functions of a node.
//
//		source ──ffmpeg──> frames ──Newest or every──> function ──> Result
//
//	 1. One ffmpeg process per source reads and decodes (ffmpeg.go, address.go). It writes raw
//	    frames to a pipe, and the size and time of each to standard error.
//	 2. Run offers each frame to one lane per function (stream.go). A lane has one request in
//	    flight. Of a live source it sends the newest frame only (newest.go); of a file every frame.
//	 3. Each answer is a Result, with boxes in the source's pixels.
//
// Annotate draws the results into a video (annotate.go). Set keeps the sources of a
// configuration running (set.go).
package stream
