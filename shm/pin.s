// This file lets pin_unsafe.go declare functions without a body.
