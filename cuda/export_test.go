package cuda

// What the tests outside the package use of its inside.

// NewDevice is a device that is nowhere.
func NewDevice(ordinal int, uuid, name string) Device {
	return Device{ordinal: ordinal, uuid: uuid, name: name}
}

// FindIn is Find among other devices.
func FindIn(name string, devices ...Device) (Device, error) { return find(name, devices) }

// ReadyTimeout is how long Open waits for an MPS server.
const ReadyTimeout = readyTimeout
