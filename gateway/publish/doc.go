// Package publish sends the answers of streams and of HTTP inference to receivers elsewhere.
//
//		Answer ──filter──> queue ──> sink: MQTT, webhook, JSON lines or ZeroMQ
//
//	 1. Set.Publish offers an answer to each receiver, and never waits (publish.go).
//	 2. A filter passes what the receiver wants, and limits the rate (filter.go).
//	 3. The receiver's queue keeps the newest answers, and counts those that it drops (queue.go).
//	 4. One goroutine per receiver sends them through its sink. After a failure it opens the sink
//	    again, with growing pauses (receiver.go).
//
// The sinks are in mqtt.go, with Home Assistant's discovery in discovery.go, webhook.go, with its
// token in token.go, lines.go, and zeromq.go. A receiver that is dead, slow or hostile costs its own queue and nothing else.
package publish
