package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// order is one line of stdin.
type order struct {
	Call    string          `json:"call"`
	Request json.RawMessage `json:"request"`
}

// line is one line of stdout.
type line struct {
	Call        string          `json:"call,omitempty"`
	Event       string          `json:"event,omitempty"`
	Request     json.RawMessage `json:"request,omitempty"`
	Response    json.RawMessage `json:"response,omitempty"`
	Error       string          `json:"error,omitempty"`
	Seconds     float64         `json:"seconds,omitempty"`
	Invocations []invocation    `json:"invocations,omitempty"`
	Count       *int            `json:"count,omitempty"`
}

// runtime has the state of a container runtime as far as plugins see it.
type runtime struct {
	calls       map[string]call
	invocations *invocations
	output      *json.Encoder
	outputLock  sync.Mutex
	// The others are set by one goroutine and read by those of plugins.
	lock          sync.Mutex
	inventory     api.SynchronizeRequest
	updatesAnswer api.UpdateContainersResponse
}

func newRuntime(output io.Writer) *runtime {
	created := &runtime{output: json.NewEncoder(output)}
	created.invocations = &invocations{
		onCount: func(count int) { created.print(line{Event: "Plugins", Count: &count}) },
	}
	return created
}

func (r *runtime) print(printed line) {
	r.outputLock.Lock()
	defer r.outputLock.Unlock()
	if err := r.output.Encode(printed); err != nil {
		fail(err)
	}
}

// call executes one order. The seconds are those of the plugins: neither JSON is in them.
func (r *runtime) call(order order) line {
	answer := line{Call: order.Call}
	switch order.Call {
	case "Inventory":
		answer.Error = r.set(&r.inventory, order.Request)
		return answer
	case "AnswerUpdates":
		answer.Error = r.set(&r.updatesAnswer, order.Request)
		return answer
	}
	call, known := r.calls[order.Call]
	if !known {
		answer.Error = "no call of the Plugin service"
		return answer
	}
	request := call.newRequest()
	if err := protojson.Unmarshal(order.Request, request); err != nil {
		answer.Error = err.Error()
		return answer
	}
	began := time.Now()
	response, err := call.run(context.Background(), request)
	answer.Seconds = time.Since(began).Seconds()
	answer.Invocations = r.invocations.take(order.Call, "ValidateContainerAdjustment")
	if err != nil {
		answer.Error = err.Error()
	} else {
		answer.Response = asJSON(response)
	}
	return answer
}

// readInventory sets what plugins are told from a file, before the first one can connect.
func (r *runtime) readInventory(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return protojson.Unmarshal(text, &r.inventory)
}

func (r *runtime) set(message proto.Message, text []byte) string {
	r.lock.Lock()
	defer r.lock.Unlock()
	if err := protojson.Unmarshal(text, message); err != nil {
		return err.Error()
	}
	return ""
}

// synchronize tells a plugin that has registered what runs.
func (r *runtime) synchronize(ctx context.Context, plugin adaptation.SyncCB) error {
	r.lock.Lock()
	told := proto.Clone(&r.inventory).(*api.SynchronizeRequest)
	r.lock.Unlock()
	began := time.Now()
	updates, err := plugin(ctx, told.Pods, told.Containers)
	event := line{Event: "Synchronize", Seconds: time.Since(began).Seconds()}
	event.Invocations = r.invocations.take("Synchronize")
	if len(event.Invocations) == 0 {
		// Of the plugins that are started with the runtime there is none.
		return err
	}
	if err != nil {
		event.Error = err.Error()
	} else {
		event.Response = asJSON(&api.SynchronizeResponse{Update: updates})
	}
	r.print(event)
	return err
}

// updateContainers takes unsolicited updates of a plugin.
func (r *runtime) updateContainers(
	_ context.Context, updates []*adaptation.ContainerUpdate,
) ([]*adaptation.ContainerUpdate, error) {
	r.print(line{Event: "UpdateContainers", Request: asJSON(&api.UpdateContainersRequest{Update: updates})})
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.updatesAnswer.Failed, nil
}

// asJSON renders a message with the field names of the .proto file.
func asJSON(message proto.Message) json.RawMessage {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		fail(err)
	}
	return text
}
