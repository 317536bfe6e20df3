package main

import (
	"context"

	"github.com/containerd/nri/pkg/adaptation"
	"google.golang.org/protobuf/proto"
)

// call is one of the calls that a runtime makes.
type call struct {
	newRequest func() proto.Message
	run        func(context.Context, proto.Message) (proto.Message, error)
}

// callsOf has every call of the Plugin service after a plugin's registration, by its name.
func callsOf(caller *adaptation.Adaptation) map[string]call {
	return map[string]call{
		"RunPodSandbox":        event[adaptation.RunPodSandboxResponse](caller.RunPodSandbox),
		"UpdatePodSandbox":     request(caller.UpdatePodSandbox),
		"PostUpdatePodSandbox": event[adaptation.PostUpdatePodSandboxResponse](caller.PostUpdatePodSandbox),
		"StopPodSandbox":       event[adaptation.StopPodSandboxResponse](caller.StopPodSandbox),
		"RemovePodSandbox":     event[adaptation.RemovePodSandboxResponse](caller.RemovePodSandbox),
		"CreateContainer":      request(caller.CreateContainer),
		"PostCreateContainer":  event[adaptation.PostCreateContainerResponse](caller.PostCreateContainer),
		"StartContainer":       event[adaptation.StartContainerResponse](caller.StartContainer),
		"PostStartContainer":   event[adaptation.PostStartContainerResponse](caller.PostStartContainer),
		"UpdateContainer":      request(caller.UpdateContainer),
		"PostUpdateContainer":  event[adaptation.PostUpdateContainerResponse](caller.PostUpdateContainer),
		"StopContainer":        request(caller.StopContainer),
		"RemoveContainer":      event[adaptation.RemoveContainerResponse](caller.RemoveContainer),
	}
}

// message is a pointer to M that is a protobuf message.
type message[M any] interface {
	*M
	proto.Message
}

// request is a call that is answered.
func request[Q, A any, QP message[Q], AP message[A]](method func(context.Context, QP) (AP, error)) call {
	return call{
		newRequest: func() proto.Message { return QP(new(Q)) },
		run: func(ctx context.Context, request proto.Message) (proto.Message, error) {
			return method(ctx, request.(QP))
		},
	}
}

// event is a call of which only the error is known.
func event[A, Q any, AP message[A], QP message[Q]](method func(context.Context, QP) error) call {
	return request(func(ctx context.Context, request QP) (AP, error) {
		return new(A), method(ctx, request)
	})
}
