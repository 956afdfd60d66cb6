package cuda

// Internals of the package for the external tests.

// NewDevice returns a device that does not exist.
func NewDevice(ordinal int, uuid, name string) Device {
	return Device{ordinal: ordinal, uuid: uuid, name: name}
}

// FindIn is Find among the given devices.
func FindIn(name string, devices ...Device) (Device, error) { return find(name, devices) }

// ReadyTimeout is the max time that Open waits for an MPS server.
const ReadyTimeout = readyTimeout
