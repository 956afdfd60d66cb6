package wire

// HasClasses reports whether payloads have classes with scores.
func (k Kind) HasClasses() bool {
	return k == KindTopK || k == KindBoxes || k == KindPoints || k == KindMasks || k == KindPolygons
}

// Narrow leaves out of a payload the classes, boxes and polygons that keep does not accept. Text that it does not accept
// becomes empty; its class is 0. Narrow overwrites the payload and returns the part that is left. Other kinds, and payloads that
// fail Check, stay as they are. It allocates nothing.
func Narrow(kind Kind, payload []byte, keep func(class uint16, score float32) bool) []byte {
	if Check(kind, payload) != nil {
		return payload
	}
	if kind == KindText && !keep(0, float(payload)) {
		return payload[:4]
	}
	if !kind.HasClasses() {
		return payload
	}
	head := [NumKinds]int{KindPoints: PointsHead, KindMasks: MasksHead}[kind]
	kept := payload[:head]
	for rest := payload[head:]; len(rest) > 0; {
		n := entrySize(kind, payload, rest)
		if keep(uint16(u16(rest)), float(rest[2:])) {
			kept = append(kept, rest[:n]...)
		}
		rest = rest[n:]
	}
	return kept
}

// entrySize returns the size of the class, box or polygon at the start of rest. Each begins with its class and score.
func entrySize(kind Kind, payload, rest []byte) int {
	switch kind {
	case KindTopK:
		return ClassSize
	case KindPoints:
		return PointedSize(u16(payload))
	case KindMasks:
		return MaskedSize(u16(rest[BoxSize+4:]) * u16(rest[BoxSize+6:])) // columns, rows
	case KindPolygons:
		return PolygonSize(u16(rest[6:]))
	}
	return BoxSize
}
