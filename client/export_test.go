package client

// Plain makes Dial use a plainSocket, as on systems other than Linux.
func Plain(o *Options) { o.plain = true }

// SocketBytes sets the requested size of the socket's buffers.
func SocketBytes(o *Options, n int) { o.socketBytes = n }
