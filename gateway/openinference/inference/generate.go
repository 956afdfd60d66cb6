// Package inference is the generated code of inference.proto.
package inference

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.75.0 generate --template buf.gen.yaml
