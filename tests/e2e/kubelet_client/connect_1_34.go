//go:build !kubernetes_1_37

package main

import (
	"context"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	cri "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
)

func connect(ctx context.Context, endpoint string, timeout time.Duration) (*session, error) {
	logger := klog.FromContext(ctx)
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()))
	runtime, err := cri.NewRemoteRuntimeService(endpoint, timeout, tracer, &logger)
	if err != nil {
		return nil, err
	}
	images, err := cri.NewRemoteImageService(endpoint, timeout, tracer, &logger)
	if err != nil {
		return nil, err
	}
	return &session{ctx, runtime, images}, nil
}
