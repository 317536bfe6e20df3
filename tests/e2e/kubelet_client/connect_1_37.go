//go:build kubernetes_1_37

package main

import (
	"context"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	cri "k8s.io/cri-client/pkg"
)

// connect asks for lists as streams, which the kubelet does with its feature gate CRIListStreaming: a runtime
// without them is asked again without.
func connect(ctx context.Context, endpoint string, timeout time.Duration) (*session, error) {
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()))
	runtime, err := cri.NewRemoteRuntimeService(ctx, endpoint, timeout, tracer, true)
	if err != nil {
		return nil, err
	}
	images, err := cri.NewRemoteImageService(ctx, endpoint, timeout, tracer, true)
	if err != nil {
		return nil, err
	}
	return &session{ctx, runtime, images}, nil
}
