package client

// Plain makes Dial use a plainSocket, as on systems other than Linux.
func Plain(o *Options) { o.plain = true }
